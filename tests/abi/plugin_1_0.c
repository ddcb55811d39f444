/* A plug-in of ABI 1.0, frozen: the layout of shoal/env.h as it was, written out by hand, so that no later
 * header can change what this file says. plugin_1_0.x86_64 is this file compiled; both must load and run for
 * ever.
 *
 *   cc -std=c11 -O2 -fPIC -shared -s -o tests/abi/plugin_1_0.x86_64 tests/abi/plugin_1_0.c */
// SPDX-License-Identifier: MIT
#include <stdint.h>

typedef struct {
    const char *name;
    uint8_t code, bits;
    uint16_t lanes;
    uint32_t kind, ndim, reserved;
    int64_t shape[6];
    double low, high;
    const double *lows, *highs;
} field;

typedef struct {
    const char *name, *help;
    uint32_t type, reserved;
    int64_t value;
} option;

typedef struct {
    uint64_t instance_bytes;
    uint32_t lanes, agents;
    int64_t max_episode_steps;
    void *host;
    void (*add_observation)(void *, const field *);
    void (*add_action)(void *, const field *);
} spec;

typedef struct {
    uint64_t num_envs;
    const int64_t *options;
    char *instances;
    uint64_t instance_bytes;
    uint64_t (*rng)[5];
    void *const *observations;
    const uint64_t *observation_bytes;
    const void *const *actions;
    const uint64_t *action_bytes;
    double *rewards;
    uint8_t *terminated, *truncated;
    const uint8_t *reset;
} batch;

static const option OPTIONS[] = {{"goal", "the count that ends an episode", 0, 0, 5}};

static const char *describe(const int64_t *options, spec *out) {
    (void)options;
    field seen = {"count", 0, 64, 1, 0, 1, 0, {2}, -1e6, 1e6, 0, 0};
    field move = {"add", 0, 64, 1, 1, 0, 0, {0}, 0, 3, 0, 0};
    out->instance_bytes = 8;
    out->max_episode_steps = 100;
    out->add_observation(out->host, &seen);
    out->add_action(out->host, &move);
    return 0;
}

static void show(batch *envs, uint64_t env) {
    int64_t *row = (int64_t *)((char *)envs->observations[0] + env * envs->observation_bytes[0]);
    row[0] = *(int64_t *)(envs->instances + env * envs->instance_bytes);
    row[1] = (int64_t)(envs->rng[env][0] >> 44); /* the state's first word: where the generator lies */
}

static void reset(batch *envs, uint64_t begin, uint64_t end) {
    for (uint64_t env = begin; env < end; env++) {
        *(int64_t *)(envs->instances + env * envs->instance_bytes) = 0;
        show(envs, env);
    }
}

static void step(batch *envs, uint64_t begin, uint64_t end) {
    for (uint64_t env = begin; env < end; env++) {
        if (envs->reset[env]) {
            reset(envs, env, env + 1);
            continue;
        }
        int64_t *count = (int64_t *)(envs->instances + env * envs->instance_bytes);
        *count += *(const int64_t *)((const char *)envs->actions[0] + env * envs->action_bytes[0]);
        envs->rewards[env] = (double)*count;
        envs->terminated[env] = *count >= envs->options[0];
        show(envs, env);
    }
}

__attribute__((visibility("default"))) const struct {
    uint32_t abi_major, abi_minor;
    const char *name;
    const option *options;
    uint64_t num_options;
    const char *(*describe)(const int64_t *, spec *);
    const char *(*init)(batch *, uint64_t);
    void (*reset)(batch *, uint64_t, uint64_t);
    void (*step)(batch *, uint64_t, uint64_t);
    void (*close)(batch *, uint64_t);
    const void *(*get_extension)(const char *);
} shoal_entry = {1, 0, "Frozen-v0", OPTIONS, 1, describe, 0, reset, step, 0, 0};
