/* Tests of core/engine.c: the same bytes from any number of threads, lanes with tails, and no write beside
 * the arrays; init and close. Run under the thread sanitizer. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "counting.h"

#include <dirent.h>

/* A hash of all that a user can see of `steps` steps with random actions, statistics included. */
static uint64_t trace(setting wanted, int steps) {
    world w;
    CHECK_EQUAL(open_world(&w, wanted), 0);
    shoal_engine_reset(w.engine, NULL, &w.targets);
    shoal_rng actions;
    shoal_rng_seed(&actions, 5);
    uint64_t hash = 0xcbf29ce484222325u, finished = 0, expected_steps = 0;
    for (int i = 0; i < steps; i++) {
        for (uint64_t row = 0; row < w.rows; row++) {
            int64_t drawn = shoal_integers(&actions, 0, 12);
            w.actions[row] = drawn <= TRUNCATE ? drawn : GO_ON;
        }
        for (uint64_t env = 0; env < now.num_envs; env++)
            expected_steps += w.arrays.reset[env] ? 0 : now.agents;
        finished += step_world(&w);
        hash = mix_results(hash, &w);
    }
    shoal_statistics sum;
    shoal_engine_statistics(w.engine, &sum);
    CHECK_EQUAL(sum.episodes, finished);
    CHECK_EQUAL(sum.steps, expected_steps);
    CHECK(finished > 0 && sum.length_sum >= finished);
    hash = mix(hash, &sum, sizeof sum);
    /* What the engine keeps is the engine's alone: not even padding is touched. */
    uint64_t extra = w.padded - w.rows;
    for (uint64_t row = w.rows; row < w.rows + extra; row++) {
        CHECK(w.arrays.total[row] == 0 && w.arrays.last_return[row] == 0);
        CHECK(w.arrays.length[row] == 0 && w.arrays.last_length[row] == 0);
    }
    for (uint64_t env = now.num_envs; env < w.padded / now.agents; env++)
        CHECK(w.arrays.reset[env] == 0 && w.arrays.elapsed[env] == 0);
    close_world(&w);
    CHECK_EQUAL(closes, wanted.num_envs);
    return hash;
}

static void any_number_of_threads_gives_the_same_bytes_and_statistics(void) {
    calls_elsewhere = 0;
    static const uint64_t SIZES[] = {1, 63, 64, 65, 200, 515};
    for (uint32_t agents = 1; agents <= 3; agents += 2)
        for (int mode = SHOAL_NEXT_STEP; mode <= SHOAL_DISABLED; mode++)
            for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) {
                setting wanted = {.num_envs = SIZES[i],
                                  .limit = 7,
                                  .lanes = 1,
                                  .agents = agents,
                                  .threads = 1,
                                  .autoreset = (enum shoal_autoreset)mode,
                                  .busy_ns = 500, /* in all, worth a hand-off */
                                  .fails = -1};
                uint64_t expected = trace(wanted, 30);
                for (wanted.threads = 2; wanted.threads <= 8; wanted.threads++)
                    CHECK_EQUAL(trace(wanted, 30), expected);
            }
    CHECK(calls_elsewhere > 0); /* else all of this ran on one thread */
}

static void lanes_with_and_without_a_tail_equal_single_environments(void) {
    calls_elsewhere = 0;
    static const uint64_t SIZES[] = {1, 16, 21, 130, 300};
    for (uint32_t agents = 1; agents <= 3; agents += 2)
        for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) {
            setting wanted = {.num_envs = SIZES[i],
                              .limit = 9,
                              .lanes = 1,
                              .agents = agents,
                              .threads = 1,
                              .autoreset = (enum shoal_autoreset)(i % 3),
                              .busy_ns = 500,
                              .fails = -1};
            uint64_t expected = trace(wanted, 30);
            for (wanted.lanes = 4; wanted.lanes <= 256; wanted.lanes *= 4)
                for (wanted.threads = 1; wanted.threads <= 8; wanted.threads += 3)
                    CHECK_EQUAL(trace(wanted, 30), expected);
        }
    CHECK(calls_elsewhere > 0); /* else all of this ran on one thread */
}

static void slow_steps_are_spread_over_the_threads_and_give_the_same_bytes(void) {
    setting wanted = {.num_envs = 320, .limit = 7, .lanes = 4, .agents = 1, .threads = 1, .fails = -1};
    uint64_t expected = trace(wanted, 60);
    wanted.threads = 5;
    wanted.slow_ns = 15000;
    calls = calls_elsewhere = 0;
    CHECK_EQUAL(trace(wanted, 60), expected);
    CHECK(calls_elsewhere > calls / 2);
}

static int count_tasks(void) {
    DIR *dir = opendir("/proc/self/task");
    int count = 0;
    while (dir != NULL && readdir(dir) != NULL)
        count++;
    if (dir != NULL)
        closedir(dir);
    return count;
}

static void more_threads_than_chunks_of_environments_are_not_started(void) {
    setting wanted = {.num_envs = 130, .limit = 7, .lanes = 64, .agents = 1, .threads = 4096, .fails = -1};
    const int before = count_tasks();
    world w;
    CHECK_EQUAL(open_world(&w, wanted), 0);
    CHECK(count_tasks() - before <= 1); /* 130 environments are two chunks of 128 */
    close_world(&w);
}

/* Chunks are stepped by any thread in any order; nothing of an environment may depend on it. The engine with
 * one thread is the reference. 3 and 16 do not divide the number of environments. */
static void a_pool_of_1_2_3_or_16_threads_gives_the_same_bytes(void) {
    calls_elsewhere = 0;
    for (uint32_t lanes = 1; lanes <= 32; lanes *= 32)
        for (uint32_t agents = 1; agents <= 2; agents++) {
            setting wanted = {.num_envs = 5003,
                              .limit = 7,
                              .lanes = lanes,
                              .agents = agents,
                              .threads = 1,
                              .busy_ns = 50,
                              .fails = -1};
            const uint64_t expected = trace(wanted, 20);
            static const uint32_t COUNTS[] = {2, 3, 16};
            for (size_t i = 0; i < 3; i++) {
                wanted.threads = COUNTS[i];
                CHECK_EQUAL(trace(wanted, 20), expected);
            }
        }
    CHECK(calls_elsewhere > 0); /* else all of this ran on one thread */
}

/* All threads check actions together; the first bad row is found, whoever finds one first. */
static void the_first_bad_action_is_found_by_one_thread_and_by_many(void) {
    for (uint32_t agents = 1; agents <= 2; agents++) {
        world w;
        setting wanted = {
            .num_envs = 40000, .lanes = 32, .agents = agents, .threads = 4, .busy_ns = 50, .fails = -1};
        CHECK_EQUAL(open_world(&w, wanted), 0);
        shoal_engine_reset(w.engine, NULL, &w.targets);
        const shoal_field *field = &w.description.actions.items[0];
        for (int step = 0; step < 20; step++) {
            CHECK_EQUAL(shoal_engine_check_actions(w.engine, field, w.actions), -1);
            w.actions[w.rows - 1] = -1;
            CHECK_EQUAL(shoal_engine_check_actions(w.engine, field, w.actions), w.rows - 1);
            w.actions[w.rows / 2] = w.actions[w.rows / 3] = 3;
            CHECK_EQUAL(shoal_engine_check_actions(w.engine, field, w.actions), w.rows / 3);
            w.actions[w.rows - 1] = w.actions[w.rows / 2] = w.actions[w.rows / 3] = 0;
            (void)step_world(&w);
        }
        close_world(&w);
    }
}

static void an_init_that_fails_closes_exactly_those_before_it(void) {
    for (int64_t fails = 0; fails < 70; fails += 23) {
        world w;
        char message[64];
        setting wanted = {.num_envs = 70, .lanes = 1, .agents = 2, .threads = 2, .fails = fails};
        CHECK_EQUAL(open_world(&w, wanted), -1);
        CHECK(w.engine == NULL);
        snprintf(message, sizeof message, "environment %d: no luck", (int)fails);
        CHECK(strcmp(w.why.text, message) == 0);
        CHECK_EQUAL(inits, fails + 1);
        CHECK_EQUAL(closes, fails);
        close_world(&w);
        CHECK_EQUAL(closes, fails);
    }
}

static void every_environment_is_closed_once_with_or_without_init(void) {
    for (int no_init = 0; no_init < 2; no_init++) {
        world w;
        setting wanted = {
            .num_envs = 5, .lanes = 4, .agents = 1, .threads = 1, .fails = -1, .no_init = no_init};
        CHECK_EQUAL(open_world(&w, wanted), 0);
        CHECK_EQUAL(inits, no_init ? 0 : 5);
        CHECK_EQUAL(closes, 0);
        close_world(&w);
        CHECK_EQUAL(closes, 5);
    }
    world w;
    CHECK_EQUAL(
        open_world(
            &w, (setting){.num_envs = 5, .lanes = 1, .agents = 1, .threads = 1, .fails = -1, .no_close = 1}),
        0);
    CHECK(shoal_engine_envs(w.engine)->num_envs == 5);
    close_world(&w);
    shoal_engine_destroy(NULL);
}

static void no_threads_and_no_environments_are_refused_before_init(void) {
    world w;
    CHECK_EQUAL(open_world(&w, (setting){.num_envs = 5, .lanes = 1, .agents = 1, .threads = 0, .fails = -1}),
                -1);
    CHECK(strstr(w.why.text, "cannot start 0 threads: ") != NULL);
    close_world(&w);
    CHECK_EQUAL(open_world(&w, (setting){.num_envs = 0, .lanes = 1, .agents = 1, .threads = 1, .fails = -1}),
                -1);
    CHECK(w.why.text[0] != '\0' && inits == 0 && closes == 0);
    close_world(&w);
}

int main(void) {
    RUN(any_number_of_threads_gives_the_same_bytes_and_statistics);
    RUN(lanes_with_and_without_a_tail_equal_single_environments);
    RUN(slow_steps_are_spread_over_the_threads_and_give_the_same_bytes);
    RUN(more_threads_than_chunks_of_environments_are_not_started);
    RUN(a_pool_of_1_2_3_or_16_threads_gives_the_same_bytes);
    RUN(the_first_bad_action_is_found_by_one_thread_and_by_many);
    RUN(an_init_that_fails_closes_exactly_those_before_it);
    RUN(every_environment_is_closed_once_with_or_without_init);
    RUN(no_threads_and_no_environments_are_refused_before_init);
    return 0;
}
