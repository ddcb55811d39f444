/* Shows what its options became: observation {size, scale * 1000, length of mode, first letter of mode}. */
// SPDX-License-Identifier: MIT
#include <shoal/env.h>
#include <string.h>

static const shoal_option OPTIONS[] = {
    {.name = "size", .help = "a whole number", .type = SHOAL_OPTION_INT, .value = {.i = 3}},
    {.name = "scale", .type = SHOAL_OPTION_FLOAT, .value = {.f = 0.5}},
    {.name = "mode", .type = SHOAL_OPTION_STRING, .value = {.s = "easy"}},
};

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    if (!strcmp(options[2].s, "impossible"))
        return "mode must not be impossible";
    shoal_field seen = {.dtype = SHOAL_INT64, .ndim = 1, .shape = {4}, .low = -0x1p63, .high = 0x1p62};
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .high = 1};
    spec->instance_bytes = 1;
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &move);
    return 0;
}

static const char *init(shoal_envs *envs, uint64_t env) {
    return !strcmp(envs->options[2].s, "broken") && env == 2 ? "the machine is on fire" : 0;
}

static void reset(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (uint64_t env = begin; env < end; env++) {
        int64_t *seen = SHOAL_OBSERVATION(int64_t, envs, 0, env);
        seen[0] = envs->options[0].i;
        seen[1] = (int64_t)(envs->options[1].f * 1000);
        seen[2] = (int64_t)strlen(envs->options[2].s);
        seen[3] = (unsigned char)envs->options[2].s[0];
    }
}

static void step(shoal_envs *envs, uint64_t begin, uint64_t end) {
    reset(envs, begin, end);
    for (uint64_t env = begin; env < end; env++) {
        envs->rewards[env] = 0;
        envs->terminated[env] = 0;
    }
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .name = "Options-v0",
    .options = OPTIONS,
    .num_options = 3,
    .describe = describe,
    .init = init,
    .reset = reset,
    .step = step,
};
