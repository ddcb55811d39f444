/* For the tests of the engine: an environment that counts, and a world of them in guarded memory.
 *
 *   action 0 goes on, 1 terminates its row, 2 truncates it
 *   observations  "where" int32[3]: row, episode, step of the episode      "luck" double: drawn at each reset
 *   reward        row + step / 4, exact in a double
 *
 * A block of lanes is three arrays: uint32 episode[lanes], uint32 step[lanes], double luck[lanes]. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_TEST_COUNTING_H
#define SHOAL_TEST_COUNTING_H

#include "engine.h"
#include "platform.h"
#include "seed.h"

#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { GO_ON = 0, TERMINATE = 1, TRUNCATE = 2, INSTANCE_BYTES = 16, GUARD = 64, MOST_BLOCKS = 24 };

typedef struct setting {
    uint64_t num_envs, limit;
    uint32_t lanes, agents, threads;
    enum shoal_autoreset autoreset;
    long slow_ns;     /* a pause for each environment in a call of step */
    uint64_t busy_ns; /* or work */
    int64_t fails;    /* the environment whose init refuses; -1: none */
    int no_init, no_close;
} setting;

static setting now; /* of the world that is open */
static uint64_t inits, closes;
static _Atomic uint64_t calls, calls_elsewhere; /* of step; on threads other than the main one */
static pthread_t main_thread;
static _Atomic uint64_t stalled_env = UINT64_MAX; /* its next step lasts until `stall_ends` is set */
static _Atomic int stall_begun, stall_ends;

static const char *counting_describe(const shoal_value *values, shoal_spec *spec) {
    (void)values;
    spec->instance_bytes = INSTANCE_BYTES;
    spec->lanes = now.lanes;
    spec->agents = now.agents;
    shoal_field where = {
        .name = "where", .dtype = SHOAL_INT32, .ndim = 1, .shape = {3}, .low = 0, .high = 1 << 30};
    shoal_field luck = {.name = "luck", .dtype = SHOAL_FLOAT64, .low = 0, .high = 1};
    shoal_field action = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .high = 2};
    spec->add_observation(spec->host, &where);
    spec->add_observation(spec->host, &luck);
    spec->add_action(spec->host, &action);
    return NULL;
}

static const shoal_value VALUES[1] = {{.i = 77}};

static const char *counting_init(shoal_envs *envs, uint64_t env) {
    CHECK(envs->options == VALUES && envs->num_envs == now.num_envs);
    CHECK_EQUAL(env, inits);
    inits++;
    return (int64_t)env == now.fails ? "no luck" : NULL;
}

static void counting_close(shoal_envs *envs, uint64_t env) {
    CHECK(envs->options == VALUES);
    CHECK_EQUAL(env, closes);
    closes++;
}

typedef struct lane {
    uint32_t *episode, *step;
    double *luck;
} lane;

static lane lane_of(shoal_envs *envs, uint64_t env) {
    char *block = (char *)envs->instances + env / now.lanes * now.lanes * INSTANCE_BYTES;
    uint64_t i = env % now.lanes;
    return (lane){(uint32_t *)block + i, (uint32_t *)block + now.lanes + i, (double *)block + now.lanes + i};
}

static void observe(shoal_envs *envs, uint64_t env) {
    lane own = lane_of(envs, env);
    for (uint64_t row = env * now.agents; row < (env + 1) * now.agents; row++) {
        int32_t *where = SHOAL_OBSERVATION(int32_t, envs, 0, row);
        where[0] = (int32_t)row;
        where[1] = (int32_t)*own.episode;
        where[2] = (int32_t)*own.step;
        *SHOAL_OBSERVATION(double, envs, 1, row) = *own.luck;
    }
}

static void counting_reset(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (uint64_t env = begin; env < end; env++) {
        lane own = lane_of(envs, env);
        ++*own.episode;
        *own.step = 0;
        *own.luck = shoal_random(&envs->rng[env]);
        observe(envs, env);
    }
}

/* Steps whole blocks, as plug-ins with lanes do. Rows of environments to reset get rubbish. */
static void counting_step(shoal_envs *envs, uint64_t begin, uint64_t end) {
    CHECK_EQUAL(begin % now.lanes, 0);
    atomic_fetch_add(&calls, 1);
    atomic_fetch_add(&calls_elsewhere, !pthread_equal(pthread_self(), main_thread));
    if (now.slow_ns != 0)
        nanosleep(&(struct timespec){0, now.slow_ns * (long)(end - begin)}, NULL);
    for (uint64_t start = shoal_now_ns(); shoal_now_ns() - start < now.busy_ns * (end - begin);)
        continue;
    const uint64_t stalled = atomic_load(&stalled_env);
    if (stalled >= begin && stalled < end) {
        atomic_store(&stalled_env, UINT64_MAX);
        for (atomic_store(&stall_begun, 1); !atomic_load(&stall_ends);)
            nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    uint64_t padded = (end + now.lanes - 1) / now.lanes * now.lanes;
    for (uint64_t env = begin; env < padded; env++) {
        lane own = lane_of(envs, env);
        int resets = env < end && envs->reset[env];
        if (resets)
            counting_reset(envs, env, env + 1);
        ++*own.step;
        for (uint64_t row = env * now.agents; row < (env + 1) * now.agents; row++) {
            int64_t action = *SHOAL_ACTION(int64_t, envs, 0, row);
            if (env < end)
                CHECK_EQUAL(envs->truncated[row], 0);
            envs->rewards[row] = resets ? 1e9 : (double)row + *own.step / 4.0;
            envs->terminated[row] = resets || action == TERMINATE;
            envs->truncated[row] = resets || action == TRUNCATE;
        }
        *own.step -= (uint32_t)resets;
        observe(envs, env);
    }
}

/* ---- A world: the environments, their arrays between guards, and the results of the last step */

typedef struct world {
    shoal_entry_v1 entry;
    shoal_plugin plugin;
    shoal_description description;
    shoal_engine *engine;
    shoal_engine_arrays arrays;
    shoal_targets targets;
    uint64_t rows, padded; /* rows with and without those that fill up the last block */
    int64_t *actions;
    void *observations[2], *finals[2];
    struct {
        unsigned char *memory;
        uint64_t bytes;
    } blocks[MOST_BLOCKS];
    int num_blocks;
    shoal_message why;
} world;

static void *guarded(world *world, uint64_t bytes) {
    void *memory = NULL;
    CHECK(world->num_blocks < MOST_BLOCKS && posix_memalign(&memory, 64, bytes + 2 * GUARD) == 0);
    memset(memory, 0xa5, bytes + 2 * GUARD);
    memset((char *)memory + GUARD, 0, bytes);
    world->blocks[world->num_blocks].memory = memory;
    world->blocks[world->num_blocks++].bytes = bytes;
    return (char *)memory + GUARD;
}

static void check_guards(const world *world) {
    for (int i = 0; i < world->num_blocks; i++)
        for (uint64_t k = 0; k < GUARD; k++) {
            CHECK_EQUAL(world->blocks[i].memory[k], 0xa5);
            CHECK_EQUAL(world->blocks[i].memory[GUARD + world->blocks[i].bytes + k], 0xa5);
        }
}

/* 0, or -1 with world->why; close_world in both cases. */
static int open_world(world *world, setting wanted) {
    memset(world, 0, sizeof *world);
    now = wanted;
    inits = closes = 0;
    main_thread = pthread_self();
    world->entry = (shoal_entry_v1){.abi_major = 1,
                                    .name = "Counting-v0",
                                    .describe = counting_describe,
                                    .init = now.no_init ? NULL : counting_init,
                                    .reset = counting_reset,
                                    .step = counting_step,
                                    .close = now.no_close ? NULL : counting_close};
    world->plugin.entry = &world->entry;
    if (shoal_plugin_describe(&world->plugin, VALUES, &world->description, &world->why) != 0)
        return -1;
    uint64_t envs = (now.num_envs + now.lanes - 1) / now.lanes * now.lanes;
    world->rows = now.num_envs * now.agents;
    world->padded = envs * now.agents;
    world->arrays = (shoal_engine_arrays){.instances = guarded(world, envs * INSTANCE_BYTES),
                                          .rng = guarded(world, envs * sizeof(shoal_rng)),
                                          .reset = guarded(world, envs),
                                          .elapsed = guarded(world, envs * 4),
                                          .total = guarded(world, world->padded * 8),
                                          .length = guarded(world, world->padded * 4),
                                          .last_return = guarded(world, world->padded * 8),
                                          .last_length = guarded(world, world->padded * 4),
                                          .episode = guarded(world, envs * 4)};
    for (uint64_t i = 0; i < now.num_envs; i++)
        shoal_rng_seed(&world->arrays.rng[i], i);
    world->actions = guarded(world, world->padded * 8);
    for (int f = 0; f < 2; f++) {
        uint64_t bytes = shoal_field_bytes(&world->description.observations.items[f]);
        world->observations[f] = guarded(world, world->padded * bytes);
        world->finals[f] = guarded(world, world->padded * bytes);
    }
    world->targets =
        (shoal_targets){world->observations, guarded(world, world->padded * 8), guarded(world, world->padded),
                        guarded(world, world->padded), world->finals};
    return shoal_engine_create(&world->plugin, &world->description, VALUES, now.num_envs, now.threads,
                               now.autoreset, now.limit, &world->arrays, &world->engine, &world->why);
}

static void close_world(world *world) {
    shoal_engine_destroy(world->engine);
    check_guards(world);
    shoal_description_free(&world->description);
    for (int i = 0; i < world->num_blocks; i++)
        free(world->blocks[i].memory);
}

static inline uint64_t step_world(world *world) {
    const void *actions[1] = {world->actions};
    return shoal_engine_step(world->engine, actions, &world->targets);
}

/* Adds bytes to a hash. */
static inline uint64_t mix(uint64_t hash, const void *data, uint64_t bytes) {
    const unsigned char *at = data;
    for (uint64_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

/* Adds all that a user can see of the last step. */
static inline uint64_t mix_results(uint64_t hash, const world *w) {
    hash = mix(hash, w->observations[0], w->rows * 12);
    hash = mix(hash, w->observations[1], w->rows * 8);
    hash = mix(hash, w->finals[0], w->rows * 12);
    hash = mix(hash, w->targets.rewards, w->rows * 8);
    hash = mix(hash, w->targets.terminated, w->rows);
    hash = mix(hash, w->targets.truncated, w->rows);
    hash = mix(hash, w->arrays.last_return, w->rows * 8);
    return mix(hash, w->arrays.last_length, w->rows * 4);
}

#endif
