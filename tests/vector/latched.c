/* Latched: an environment whose step blocks while a file exists. Its observation is the number of steps of
 * this episode, the last action and a number drawn at reset. It ends after `length` steps; action 99
 * makes the reward NaN, and action 98 an observation. */
// SPDX-License-Identifier: MIT
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <shoal/env.h>
#include <shoal/ext/checkpoint.h>
#include <shoal/ext/observe.h>
#include <shoal/ext/state.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct Latched {
    double count, action, drawn;
} Latched;

static const shoal_option OPTIONS[] = {
    {.name = "file", .help = "step waits while it exists", .type = SHOAL_OPTION_STRING, .value = {.s = ""}},
    {.name = "length", .help = "steps of an episode", .type = SHOAL_OPTION_INT, .value = {.i = 1000000}},
    {.name = "sleep_us", .help = "how long a step takes", .type = SHOAL_OPTION_INT, .value = {.i = 0}},
};

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    spec->instance_bytes = sizeof(Latched);
    shoal_field seen = {.dtype = SHOAL_FLOAT64, .kind = SHOAL_BOX, .ndim = 1, .shape = {3}};
    seen.low = -1e9;
    seen.high = 1e9;
    shoal_field act = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 99};
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &act);
    return 0;
}

static void observe(const Latched *self, shoal_envs *envs, uint64_t env) {
    double *seen = SHOAL_OBSERVATION(double, envs, 0, env);
    seen[0] = self->count;
    seen[1] = self->action == 98 ? NAN : self->action;
    seen[2] = self->drawn;
}

static void reset_one(Latched *self, shoal_envs *envs, uint64_t env) {
    self->count = 0;
    self->action = -1;
    self->drawn = (double)shoal_integers(&envs->rng[env], 0, 1000000);
    observe(self, envs, env);
}

static void step_one(Latched *self, shoal_envs *envs, uint64_t env) {
    const char *file = envs->options[0].s;
    const long us = (long)envs->options[2].i;
    if (us > 0)
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, 0);
    while (file[0] != 0 && access(file, F_OK) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, 0);
    self->count++;
    self->action = (double)*SHOAL_ACTION(int64_t, envs, 0, env);
    envs->rewards[env] = self->action == 99 ? NAN : self->count;
    envs->terminated[env] = self->count >= (double)envs->options[1].i;
    observe(self, envs, env);
}

SHOAL_BATCH(Latched, reset_one, step_one)
SHOAL_OBSERVE(Latched, observe)

static void state_fields(shoal_envs *envs, uint64_t env, void *host,
                         void (*add)(void *host, const shoal_state_field *field)) {
    shoal_state_field count = {.name = "count", .dtype = SHOAL_FLOAT64, .ndim = 0};
    count.data = &SHOAL_INSTANCE(Latched, envs, env)->count;
    add(host, &count);
}

static const void *get_extension(const char *id) {
    static const shoal_checkpoint_v1 plain = {0, 0, 0};
    static const shoal_state_v1 state = {state_fields};
    if (strcmp(id, SHOAL_EXT_STATE) == 0)
        return &state;
#ifndef NO_OBSERVE
    static const shoal_observe_v1 again = {Latched_observe};
    if (strcmp(id, SHOAL_EXT_OBSERVE) == 0)
        return &again;
#else
    (void)Latched_observe;
#endif
    return strcmp(id, SHOAL_EXT_CHECKPOINT) == 0 ? &plain : 0;
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Latched-v0",
    .options = OPTIONS,
    .num_options = sizeof OPTIONS / sizeof OPTIONS[0],
    .describe = describe,
    .reset = Latched_reset,
    .step = Latched_step,
    .get_extension = get_extension,
};
