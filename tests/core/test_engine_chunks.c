/* Tests of core/engine.c: chunks become larger for cheap environments and smaller again, and a change of
 * their size changes no result. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
/* The engine itself, under names of its own, so that a test can set what a step has cost. */
#define shoal_engine_create tested_engine_create
#define shoal_engine_destroy tested_engine_destroy
#define shoal_engine_envs tested_engine_envs
#define shoal_engine_reset tested_engine_reset
#define shoal_engine_can_observe tested_engine_can_observe
#define shoal_engine_observe tested_engine_observe
#define shoal_engine_step tested_engine_step
#define shoal_engine_step_range tested_engine_step_range
#define shoal_engine_check_actions tested_engine_check_actions
#define shoal_engine_actions_fit_bytes tested_engine_actions_fit_bytes
#define shoal_engine_statistics tested_engine_statistics
#define shoal_engine_set_epoch tested_engine_set_epoch
#define shoal_statistics_add tested_statistics_add
#include "../../core/engine.c"

#include "counting.h"

/* Sets the cost of an environment, and returns how many are then in a chunk. */
static uint64_t adapt_to(shoal_engine *engine, double env_ns) {
    engine->choice.cost_ns[0] = env_ns * (double)engine->envs.num_envs;
    adapt_chunks(engine);
    CHECK_EQUAL(engine->num_chunks, (engine->envs.num_envs + engine->chunk_envs - 1) / engine->chunk_envs);
    CHECK(engine->num_chunks <= engine->most_chunks);
    return engine->chunk_envs;
}

static void chunks_grow_until_each_takes_a_microsecond(void) {
    world w;
    setting wanted = {.num_envs = 2048, .lanes = 1, .agents = 1, .threads = 2, .fails = -1};
    CHECK_EQUAL(open_world(&w, wanted), 0);
    CHECK_EQUAL(w.engine->chunk_envs, 32);
    CHECK_EQUAL(adapt_to(w.engine, 0), 32);      /* not measured yet */
    CHECK_EQUAL(adapt_to(w.engine, 100), 32);    /* 3.2 us */
    CHECK_EQUAL(adapt_to(w.engine, 10), 128);    /* 1.28 us */
    CHECK_EQUAL(adapt_to(w.engine, 30), 128);    /* 3.84 us: not changed yet */
    CHECK_EQUAL(adapt_to(w.engine, 40), 64);     /* 5.12 us would be too long */
    CHECK_EQUAL(adapt_to(w.engine, 100000), 32); /* never smaller than at first */
    CHECK_EQUAL(adapt_to(w.engine, 0.01), 1024); /* one for each thread */
    close_world(&w);
}

static void every_thread_keeps_a_chunk(void) {
    world w;
    setting wanted = {.num_envs = 1023, .lanes = 1, .agents = 1, .threads = 16, .fails = -1};
    CHECK_EQUAL(open_world(&w, wanted), 0);
    CHECK_EQUAL(w.engine->chunk_envs, 4);
    CHECK_EQUAL(adapt_to(w.engine, 0.01), 32); /* with 64, the last one would have fewer */
    CHECK_EQUAL(w.engine->num_chunks, 32);
    close_world(&w);
    wanted.lanes = 512, wanted.num_envs = 100000, wanted.threads = 2;
    CHECK_EQUAL(open_world(&w, wanted), 0);
    CHECK_EQUAL(w.engine->chunk_envs, 1024);
    CHECK_EQUAL(adapt_to(w.engine, 0.01), 1024); /* as many as are settled together */
    close_world(&w);
}

/* A hash of the results of 60 steps. On several threads, all steps run on the pool, and the size of chunks
 * changes before every second one. */
static uint64_t hash_steps(setting wanted, uint64_t *sizes) {
    static const double COSTS[] = {0.01, 100000, 20, 300, 5, 60};
    world w;
    CHECK_EQUAL(open_world(&w, wanted), 0);
    shoal_engine_reset(w.engine, NULL, &w.targets);
    w.engine->choice.preferred = 1;
    shoal_rng actions;
    shoal_rng_seed(&actions, 5);
    uint64_t hash = 0xcbf29ce484222325u, before = 0;
    for (int i = 0; i < 60; i++) {
        w.engine->choice.cost_ns[0] = COSTS[i / 2 % 6] * (double)wanted.num_envs;
        w.engine->choice.pause_ns = UINT64_MAX; /* no trial of one thread */
        for (uint64_t row = 0; row < w.rows; row++) {
            const int64_t drawn = shoal_integers(&actions, 0, 30);
            w.actions[row] = drawn <= TRUNCATE ? drawn : GO_ON;
        }
        hash = (hash ^ step_world(&w)) * 0x100000001b3u;
        hash = mix_results(hash, &w);
        *sizes += w.engine->chunk_envs != before;
        before = w.engine->chunk_envs;
    }
    shoal_statistics sum;
    shoal_engine_statistics(w.engine, &sum);
    hash = mix(hash, &sum, sizeof sum);
    close_world(&w);
    return hash;
}

static void a_change_of_their_size_changes_no_result(void) {
    for (int mode = SHOAL_NEXT_STEP; mode <= SHOAL_DISABLED; mode++)
        for (uint32_t agents = 1; agents <= 2; agents++) {
            setting wanted = {.num_envs = 1500,
                              .limit = 9,
                              .lanes = 1,
                              .agents = agents,
                              .threads = 1,
                              .autoreset = (enum shoal_autoreset)mode,
                              .fails = -1};
            uint64_t sizes = 0;
            const uint64_t expected = hash_steps(wanted, &sizes);
            for (sizes = 0, wanted.threads = 2; wanted.threads <= 5; wanted.threads += 3)
                CHECK_EQUAL(hash_steps(wanted, &sizes), expected);
            CHECK(sizes > 40);
        }
}

int main(void) {
    RUN(chunks_grow_until_each_takes_a_microsecond);
    RUN(every_thread_keeps_a_chunk);
    RUN(a_change_of_their_size_changes_no_result);
    return 0;
}
