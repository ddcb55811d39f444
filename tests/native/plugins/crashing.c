/* Crashes (action 1) or never comes back (action 2); else it counts its steps. */
// SPDX-License-Identifier: MIT
#include <shoal/env.h>

typedef struct Crashing {
    int64_t count;
} Crashing;

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    spec->instance_bytes = sizeof(Crashing);
    const shoal_field count = {.dtype = SHOAL_INT64, .ndim = 1, .shape = {1}, .high = 0x1p62};
    const shoal_field how = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .high = 2};
    spec->add_observation(spec->host, &count);
    spec->add_action(spec->host, &how);
    return 0;
}

static void reset_one(Crashing *self, shoal_envs *envs, uint64_t env) {
    self->count = *SHOAL_OBSERVATION(int64_t, envs, 0, env) = 0;
}

static void step_one(Crashing *self, shoal_envs *envs, uint64_t env) {
    const int64_t how = *SHOAL_ACTION(int64_t, envs, 0, env);
    if (how == 1)
        *(volatile int *)(uintptr_t)self->count = 1; /* not a pointer */
    while (how == 2)
        *(volatile int64_t *)&self->count += 1;
    *SHOAL_OBSERVATION(int64_t, envs, 0, env) = ++self->count;
    envs->rewards[env] = (double)self->count;
    envs->terminated[env] = 0;
}

SHOAL_BATCH(Crashing, reset_one, step_one)

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .name = "Crashing-v0",
    .describe = describe,
    .reset = Crashing_reset,
    .step = Crashing_step,
};
