/* Busy-v0: an environment whose step takes about a microsecond, and a bare pthread loop over the same work.
 */
// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <shoal/env.h>

typedef struct Busy {
    uint64_t state;
    uint8_t apart[56]; /* fills a cache line, so two threads never share one */
} Busy;

static const shoal_option OPTIONS[] = {
    {.name = "turns",
     .help = "dependent multiplications per step",
     .type = SHOAL_OPTION_INT,
     .value = {.i = 300}},
};

static uint64_t work(uint64_t state, int64_t turns) {
    for (int64_t i = 0; i < turns; i++)
        state = (state ^ state >> 29) * 0xbf58476d1ce4e5b9u + 1;
    return state;
}

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    shoal_field seen = {.dtype = SHOAL_INT64, .kind = SHOAL_BOX, .ndim = 1, .low = -9e18, .high = 9e18};
    seen.shape[0] = 1;
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 1};
    spec->instance_bytes = sizeof(Busy);
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &move);
    return 0;
}

static void reset_one(Busy *self, shoal_envs *envs, uint64_t env) {
    self->state = env + 1;
    *SHOAL_OBSERVATION(int64_t, envs, 0, env) = (int64_t)env;
}

static void step_one(Busy *self, shoal_envs *envs, uint64_t env) {
    self->state = work(self->state, envs->options[0].i);
    *SHOAL_OBSERVATION(int64_t, envs, 0, env) = (int64_t)(self->state >> 2);
    envs->rewards[env] = 0;
    envs->terminated[env] = 0;
}

SHOAL_BATCH(Busy, reset_one, step_one)

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Busy-v0",
    .options = OPTIONS,
    .num_options = 1,
    .describe = describe,
    .reset = Busy_reset,
    .step = Busy_step,
};

/* The limit: threads that share nothing and never wait for each other. */
typedef struct share {
    pthread_t thread;
    Busy *envs;
    uint64_t begin, end, steps;
    int64_t turns;
} share;

static void *loop(void *argument) {
    share *own = argument;
    for (uint64_t step = 0; step < own->steps; step++)
        for (uint64_t env = own->begin; env < own->end; env++)
            own->envs[env].state = work(own->envs[env].state, own->turns);
    return 0;
}

__attribute__((visibility("default"))) int bare_loop(void *envs, uint64_t count, uint64_t threads,
                                                     uint64_t steps, int64_t turns) {
    share shares[256];
    if (threads == 0 || threads > 256)
        return -1;
    for (uint64_t i = 0; i < threads; i++) {
        shares[i] = (share){.envs = envs,
                            .begin = count * i / threads,
                            .end = count * (i + 1) / threads,
                            .steps = steps,
                            .turns = turns};
        if (pthread_create(&shares[i].thread, 0, loop, &shares[i]) != 0)
            return -1;
    }
    for (uint64_t i = 0; i < threads; i++)
        pthread_join(shares[i].thread, 0);
    return 0;
}
