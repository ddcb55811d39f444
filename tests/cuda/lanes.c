/* Four environments share a block, and step takes whole blocks: a plug-in that does not use envs/lanes.h. The
 * step writes the rows of the whole last block. */
// SPDX-License-Identifier: MIT
#include <shoal/env.h>

enum { WIDE = 4 };
typedef struct Block {
    int32_t count[WIDE], limit[WIDE];
} Block;

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    spec->instance_bytes = sizeof(Block) / WIDE;
    spec->lanes = WIDE;
    shoal_field seen = {.dtype = SHOAL_INT32, .ndim = 1, .shape = {3}, .low = 0, .high = 1000};
    shoal_field act = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 9};
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &act);
    return 0;
}

static Block *block_of(shoal_envs *envs, uint64_t env) { return (Block *)envs->instances + env / WIDE; }

static void reset(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (uint64_t env = begin; env < end; env++) {
        Block *block = block_of(envs, env);
        int32_t *row = SHOAL_OBSERVATION(int32_t, envs, 0, env);
        row[0] = block->count[env % WIDE] = 0;
        row[1] = block->limit[env % WIDE] = (int32_t)shoal_integers(&envs->rng[env], 3, 9);
        row[2] = 0;
    }
}

static void step(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (uint64_t first = begin; first < end; first += WIDE) {
        Block *block = block_of(envs, first);
        for (uint64_t lane = 0; lane < WIDE; lane++) {
            int32_t *row = SHOAL_OBSERVATION(int32_t, envs, 0, first + lane);
            row[0] = ++block->count[lane];
            row[1] = block->limit[lane];
            row[2] = (int32_t)*SHOAL_ACTION(int64_t, envs, 0, first + lane);
            envs->rewards[first + lane] = row[2] * 0.5;
            envs->terminated[first + lane] = block->count[lane] >= block->limit[lane];
        }
    }
    for (uint64_t env = begin; env < end; env++)
        if (envs->reset[env])
            reset(envs, env, env + 1);
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Lanes",
    .describe = describe,
    .reset = reset,
    .step = step,
};
