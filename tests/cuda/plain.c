/* Counts steps and shows the last action; ends after `length` steps. Action 98 makes an observation NaN, and
 * 99 the reward. It has no shoal.observe/1. */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <shoal/env.h>

typedef struct Plain {
    int32_t count, start;
} Plain;

static const shoal_option OPTIONS[] = {
    {.name = "length", .help = "steps of an episode", .type = SHOAL_OPTION_INT, .value = {.i = 1000000}}};

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    spec->instance_bytes = sizeof(Plain);
    shoal_field seen = {.dtype = SHOAL_FLOAT64, .ndim = 1, .shape = {3}, .low = -1e9, .high = 1e9};
    shoal_field act = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 99};
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &act);
    return 0;
}

static void show(const Plain *self, shoal_envs *envs, uint64_t env, double action) {
    double *row = SHOAL_OBSERVATION(double, envs, 0, env);
    row[0] = self->count;
    row[1] = action;
    row[2] = self->start;
}

static void reset_one(Plain *self, shoal_envs *envs, uint64_t env) {
    self->count = 0;
    self->start = (int32_t)shoal_integers(&envs->rng[env], 0, 1000000);
    show(self, envs, env, -1);
}

static void step_one(Plain *self, shoal_envs *envs, uint64_t env) {
    int64_t action = *SHOAL_ACTION(int64_t, envs, 0, env);
    self->count++;
    envs->rewards[env] = action == 99 ? NAN : self->count;
    envs->terminated[env] = self->count >= envs->options[0].i;
    show(self, envs, env, action == 98 ? NAN : (double)action);
}

SHOAL_BATCH(Plain, reset_one, step_one)

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Plain",
    .options = OPTIONS,
    .num_options = 1,
    .describe = describe,
    .reset = Plain_reset,
    .step = Plain_step,
};
