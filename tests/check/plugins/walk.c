/* A walk on a line that keeps the contract. Tests put code in place of the comments in capitals, to break it.
 */
// SPDX-License-Identifier: MIT
#include <shoal/ext/observe.h>
#include <shoal/ext/state.h>
#include <string.h>

typedef struct Walk {
    int64_t place;
} Walk;

/* GLOBAL */

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    shoal_field place = {.name = "place", .dtype = SHOAL_FLOAT64, .kind = SHOAL_BOX, .ndim = 1};
    place.shape[0] = 2;
    place.low = -1000, place.high = 1000;
    shoal_field phase = {.name = "phase", .dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 2};
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 2};
    spec->instance_bytes = sizeof(Walk);
    spec->max_episode_steps = 40;
    spec->add_observation(spec->host, &place);
    spec->add_observation(spec->host, &phase);
    spec->add_action(spec->host, &move);
    /* DESCRIBE */
    return 0;
}

static void show(Walk *self, shoal_envs *envs, uint64_t env) {
    double *row = SHOAL_OBSERVATION(double, envs, 0, env);
    int64_t *phase = SHOAL_OBSERVATION(int64_t, envs, 1, env);
    row[0] = (double)self->place;
    row[1] = (double)(self->place % 7);
    *phase = (self->place % 3 + 3) % 3;
    /* SHOW */
}

static void reset_one(Walk *self, shoal_envs *envs, uint64_t env) {
    self->place = shoal_integers(&envs->rng[env], -100, 100);
    /* RESET */
    show(self, envs, env);
}

static void step_one(Walk *self, shoal_envs *envs, uint64_t env) {
    self->place += *SHOAL_ACTION(int64_t, envs, 0, env) - 1;
    envs->rewards[env] = 1;
    envs->terminated[env] = self->place % 13 == 0;
    /* STEP */
    show(self, envs, env);
}

SHOAL_BATCH(Walk, reset_one, step_one)

typedef void adder(void *host, const shoal_state_field *field);
static void fields(shoal_envs *envs, uint64_t env, void *host, adder *add) {
    Walk *self = SHOAL_INSTANCE(Walk, envs, env);
    shoal_state_field place = {.name = "place", .dtype = SHOAL_INT64, .data = &self->place};
    place.flags = SHOAL_STATE_STABLE;
    /* EXPORT */
    add(host, &place);
}

static void observe_one(Walk *self, shoal_envs *envs, uint64_t env) {
    /* OBSERVE */
    show(self, envs, env);
}

SHOAL_OBSERVE(Walk, observe_one)

static const void *get_extension(const char *id) {
    static const shoal_observe_v1 observer = {Walk_observe};
    static const shoal_state_v1 state = {fields};
    if (strcmp(id, SHOAL_EXT_OBSERVE) == 0)
        return &observer;
    return strcmp(id, SHOAL_EXT_STATE) == 0 ? &state : 0;
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Walk-v0",
    .describe = describe,
    .reset = Walk_reset,
    .step = Walk_step,
    .get_extension = get_extension,
};
