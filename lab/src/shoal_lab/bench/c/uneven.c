/* Uneven-v0: an environment whose steps take 1 to 50 us, drawn at random. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <shoal/env.h>
#include <time.h>

typedef struct Uneven {
    uint64_t steps;
    uint8_t apart[56]; /* fills a cache line, so two threads never share one */
} Uneven;

static const shoal_option OPTIONS[] = {
    {.name = "least_ns",
     .help = "shortest step in nanoseconds",
     .type = SHOAL_OPTION_INT,
     .value = {.i = 1000}},
    {.name = "most_ns",
     .help = "longest step in nanoseconds",
     .type = SHOAL_OPTION_INT,
     .value = {.i = 50000}},
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    if (options[0].i < 0 || options[1].i < options[0].i)
        return "least_ns must be at least 0 and at most most_ns";
    shoal_field seen = {.dtype = SHOAL_INT64, .kind = SHOAL_BOX, .ndim = 1, .low = 0, .high = 9e18};
    seen.shape[0] = 1;
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 1};
    spec->instance_bytes = sizeof(Uneven);
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &move);
    return 0;
}

static void reset_one(Uneven *self, shoal_envs *envs, uint64_t env) {
    self->steps = 0;
    *SHOAL_OBSERVATION(int64_t, envs, 0, env) = 0;
}

static void step_one(Uneven *self, shoal_envs *envs, uint64_t env) {
    const int64_t least = envs->options[0].i, most = envs->options[1].i;
    const uint64_t begin = now_ns();
    const uint64_t wanted = (uint64_t)shoal_integers(&envs->rng[env], least, most + 1);
    while (now_ns() - begin < wanted)
        continue;
    *SHOAL_OBSERVATION(int64_t, envs, 0, env) = (int64_t)++self->steps;
    envs->rewards[env] = 0;
    envs->terminated[env] = 0;
}

SHOAL_BATCH(Uneven, reset_one, step_one)

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Uneven-v0",
    .options = OPTIONS,
    .num_options = 2,
    .describe = describe,
    .reset = Uneven_reset,
    .step = Uneven_step,
};
