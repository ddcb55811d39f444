/* Several named fields of every kind, the same for observations and actions: a step shows its actions.
 * Option `nan` makes it write NaN into "push" and the reward. */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <shoal/env.h>
#include <string.h>

enum { FIELDS = 6, PUSH = 3 };

static const shoal_option OPTIONS[] = {{.name = "nan", .type = SHOAL_OPTION_INT}};

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    static const double LOWS[] = {0, -1}, HIGHS[] = {2, 3};
    const shoal_field fields[FIELDS] = {
        {.name = "move", .dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = -1, .high = 3},
        {.name = "gears",
         .dtype = SHOAL_INT32,
         .kind = SHOAL_MULTI_DISCRETE,
         .ndim = 1,
         .shape = {2},
         .lows = LOWS,
         .highs = HIGHS},
        {.name = "keys", .dtype = SHOAL_INT8, .kind = SHOAL_MULTI_BINARY, .ndim = 1, .shape = {3}, .high = 1},
        {.name = "push", .dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {2}, .low = -1, .high = 1},
        {.name = "pixels", .dtype = SHOAL_UINT8, .ndim = 3, .shape = {4, 5, 3}, .high = 255},
        {.name = "brake", .dtype = SHOAL_BOOL, .high = 1},
    };
    spec->instance_bytes = 1;
    spec->max_episode_steps = 3;
    for (int f = 0; f < FIELDS; f++) {
        spec->add_observation(spec->host, &fields[f]);
        spec->add_action(spec->host, &fields[f]);
    }
    return 0;
}

static void reset(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (int f = 0; f < FIELDS; f++)
        memset(SHOAL_OBSERVATION(char, envs, f, begin), 0, (end - begin) * envs->observation_bytes[f]);
}

static void step(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (uint64_t env = begin; env < end; env++) {
        for (int f = 0; f < FIELDS; f++)
            memcpy(SHOAL_OBSERVATION(char, envs, f, env), SHOAL_ACTION(char, envs, f, env),
                   envs->action_bytes[f]);
        if (envs->options[0].i)
            SHOAL_OBSERVATION(float, envs, PUSH, env)[1] = NAN;
        envs->rewards[env] = envs->options[0].i ? NAN : 1;
        envs->terminated[env] = 0;
        if (envs->reset[env])
            reset(envs, env, env + 1);
    }
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .name = "Echo-v0",
    .options = OPTIONS,
    .num_options = 1,
    .describe = describe,
    .reset = reset,
    .step = step,
};
