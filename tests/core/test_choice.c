/* Tests of core/choice.c with a simulated clock: jobs take as long as a test says, so nothing here depends on
 * the machine. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "platform.h"
#include "pool.h"

static uint64_t simulated_now(void);
static uint64_t simulated_pool_run(shoal_pool *pool, const shoal_pool_job *job);
#define shoal_now_ns simulated_now
#define shoal_pool_run simulated_pool_run
#define shoal_choice_run tested_choice_run
#include "../../core/choice.c"

#include "check.h"

#include <string.h>

static uint64_t now_ns, gap_ns, on_pool, alone; /* gap_ns passes between two jobs */
static uint64_t random_state;
static double (*alone_cost)(void), (*pool_cost)(void); /* ns of the next job */

static uint64_t simulated_now(void) { return now_ns; }

static double draw(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 11) / 9007199254740992.0;
}

static uint64_t simulated_pool_run(shoal_pool *pool, const shoal_pool_job *job) {
    (void)pool;
    on_pool++;
    now_ns += (uint64_t)pool_cost();
    return job->chunks;
}

static uint64_t run_all(void *context) {
    (void)context;
    alone++;
    now_ns += (uint64_t)alone_cost();
    return 4;
}

static shoal_choice choice;

static void begin(double (*one)(void), double (*many)(void)) {
    memset(&choice, 0, sizeof choice);
    now_ns = 1000000000;
    gap_ns = 0;
    on_pool = alone = 0;
    random_state = 1;
    alone_cost = one;
    pool_cost = many;
}

/* Runs jobs for some seconds; returns how many. */
static uint64_t run_for(double seconds) {
    const uint64_t end = now_ns + (uint64_t)(seconds * 1e9);
    const shoal_pool_job job = {NULL, run_all, NULL, 4, 0, 0};
    uint64_t jobs = 0;
    for (; now_ns < end; jobs++, now_ns += gap_ns)
        CHECK_EQUAL(shoal_choice_run(&choice, NULL, &job, 1), 4);
    return jobs;
}

static double cost_50us(void) { return 50e3; }
static double cost_10us(void) { return 10e3; }
static double cost_150us(void) { return 150e3; }
static double cost_60us(void) { return 60e3; }
static double cost_5ms(void) { return 5e6; }
static double cost_2ms(void) { return 2e6; }
static double cost_10ms(void) { return 10e6; }
static double cost_1ms(void) { return 1e6; }
static double cost_1us(void) { return 1e3; }
static double cost_50us_with_noise(void) { return 50e3 * (0.7 + 0.6 * draw()); }

static void the_faster_way_is_used_and_trials_cost_at_most_two_percent(void) {
    begin(cost_50us, cost_10us);
    CHECK(run_for(2) * 10e3 > 0.99 * 2e9);
    CHECK_EQUAL(choice.preferred, 1);
    CHECK_EQUAL(choice.switches, 1);
    begin(cost_50us, cost_150us);
    CHECK(run_for(2) * 50e3 > 0.98 * 2e9);
    CHECK_EQUAL(choice.preferred, 0);
    CHECK_EQUAL(choice.switches, 0);
}

static void a_pool_that_is_far_too_slow_is_tried_seldom(void) {
    begin(cost_50us, cost_5ms);
    CHECK(run_for(5) * 50e3 > 0.98 * 5e9);
    begin(cost_50us, cost_60us); /* a trial costs little, but it takes cores from other programs */
    (void)run_for(2);
    CHECK(choice.trials <= 40);
}

/* One slow job says enough: a trial of one thread, 200 times as slow as the pool, ends at once. */
static void a_hopeless_trial_ends_after_one_job(void) {
    begin(cost_2ms, cost_10us);
    (void)run_for(0.1);
    CHECK_EQUAL(choice.preferred, 1);
    const uint64_t before = alone, trials = choice.trials;
    (void)run_for(2);
    CHECK(choice.trials > trials);
    CHECK_EQUAL(alone - before, choice.trials - trials);
}

/* A trial of one thread costs 10 ms here, so the next one comes after 2 s of jobs. */
static void time_between_jobs_brings_no_trial(void) {
    begin(cost_10ms, cost_1ms);
    (void)run_for(1);
    CHECK_EQUAL(choice.preferred, 1);
    const uint64_t before = choice.trials;
    gap_ns = 50000000;
    (void)run_for(20);
    CHECK(choice.trials - before <= 1);
}

static void trials_of_a_slow_pool_cost_little_if_jobs_are_rare(void) {
    begin(cost_50us, cost_150us);
    gap_ns = 50000000;
    (void)run_for(10); /* the first trials come early */
    const uint64_t before = on_pool;
    const uint64_t jobs = run_for(100);
    CHECK(2 * (on_pool - before) < 0.05 * jobs); /* each costs as much as two more jobs */
    CHECK(on_pool > before);
}

static int is_loaded;
static double cost_by_doubling_load(void) { return is_loaded ? 10e6 : 5e6; }

/* Jobs as long as the pause between trials, or with such gaps: the averages must still follow. */
static void the_pool_is_used_again_after_load_that_made_both_ways_equal(void) {
    for (int turn = 0; turn < 2; turn++) {
        begin(cost_10ms, cost_by_doubling_load);
        gap_ns = turn * 80000000u;
        is_loaded = 0;
        (void)run_for(20);
        is_loaded = 1;
        (void)run_for(20);
        is_loaded = 0;
        (void)run_for(10);
        const uint64_t before = on_pool;
        const uint64_t jobs = run_for(40);
        CHECK(on_pool - before > 0.9 * jobs);
    }
}

static uint64_t stopped_ns; /* the next job on one thread is stopped for this time */
static double cost_of_a_stopped_job(void) {
    const double cost = 10e6 + (double)stopped_ns;
    stopped_ns = 0;
    return cost;
}

static void a_stop_in_a_trial_of_one_thread_does_not_delay_the_next_one(void) {
    begin(cost_of_a_stopped_job, cost_by_doubling_load);
    is_loaded = 0;
    (void)run_for(5);
    CHECK_EQUAL(choice.preferred, 1);
    const uint64_t trials = choice.trials;
    stopped_ns = 10000000000u;
    while (choice.trials == trials)
        (void)run_for(0.01);
    CHECK_EQUAL(stopped_ns, 0);
    CHECK(choice.cost_ns[0] <= 20e6);
    (void)run_for(20);
    CHECK(choice.trials > trials + 1);
}

/* Rows that one thread has used are in the cache of its core: after it, jobs on the pool take longer. */
static uint64_t last_alone, slow_jobs;
static double cost_1ms_with_cold_caches(void) {
    if (last_alone != alone) {
        last_alone = alone;
        slow_jobs = 2;
    }
    return slow_jobs == 0 ? 1e6 : (slow_jobs--, 4e6);
}

static void slow_jobs_after_a_trial_count_as_its_cost(void) {
    begin(cost_2ms, cost_1ms_with_cold_caches);
    last_alone = slow_jobs = 0;
    (void)run_for(1);
    CHECK_EQUAL(choice.preferred, 1);
    const uint64_t before = alone;
    CHECK(run_for(20) * 1e6 > 0.992 * 20e9);
    CHECK(alone - before >= 5); /* there were trials */
    CHECK_EQUAL(choice.switches, 1);
}

/* The first jobs of a pool can be slow for another reason, such as memory that is used for the first time. */
static double cost_5ms_after_slow_jobs(void) { return on_pool <= 8 ? 20e6 : 5e6; }

static void one_bad_trial_of_long_jobs_is_repeated_soon(void) {
    begin(cost_10ms, cost_5ms_after_slow_jobs);
    (void)run_for(1);
    CHECK_EQUAL(choice.preferred, 1);
}

/* A count that goes on would be zero again after 2^32 jobs, and the average not a number. */
static void counting_jobs_ends(void) {
    begin(cost_50us, cost_150us);
    CHECK(run_for(1) > 10000);
    CHECK(choice.jobs <= 1024);
}

static void tiny_jobs_are_never_given_to_the_pool(void) {
    begin(cost_1us, cost_10us);
    (void)run_for(0.5);
    CHECK_EQUAL(on_pool, 0);
}

/* Two ways of the same mean cost: choosing either is right, changing all the time is not. */
static void ways_that_are_about_equal_do_not_alternate(void) {
    begin(cost_50us_with_noise, cost_50us_with_noise);
    (void)run_for(5);
    CHECK(choice.switches <= 12);
    CHECK(on_pool + alone > 0.98 * 5e9 / 50e3);
}

/* Another program has one of the cores for 4 of 7 ms. Meanwhile a job on the pool waits for it. */
static double cost_with_a_busy_core(void) {
    const uint64_t at = now_ns % 7000000;
    return at < 3000000 ? 25e3 : (double)(7000000 - at) + 25e3;
}

static void one_thread_is_used_if_another_program_holds_up_the_pool(void) {
    begin(cost_50us, cost_with_a_busy_core);
    CHECK(run_for(5) * 50e3 > 0.95 * 5e9); /* never slower than one thread by more than 5 % */
    begin(cost_10us, cost_with_a_busy_core);
    CHECK(run_for(5) * 10e3 > 0.95 * 5e9);
}

/* A core is taken away for 3 ms once in a thousand jobs: still much faster than one thread. */
static double cost_with_rare_stalls(void) { return on_pool % 1000 == 0 ? 3e6 : 10e3; }

static void rare_stalls_do_not_end_the_use_of_the_pool(void) {
    begin(cost_50us, cost_with_rare_stalls);
    (void)run_for(0.5);
    CHECK_EQUAL(choice.preferred, 1);
    const uint64_t before = choice.switches;
    CHECK(run_for(4) * 13e3 > 0.95 * 4e9);
    CHECK_EQUAL(choice.switches, before);
}

static int cores_are_busy;
static double cost_by_load(void) { return cores_are_busy ? 300e3 : 10e3; }

static void the_choice_follows_when_the_cores_become_busy_and_free_again(void) {
    begin(cost_50us, cost_by_load);
    for (int round = 0; round < 3; round++) {
        cores_are_busy = 0;
        (void)run_for(2);
        CHECK_EQUAL(choice.preferred, 1);
        cores_are_busy = 1;
        CHECK(run_for(2) * 50e3 > 0.95 * 2e9);
        CHECK_EQUAL(choice.preferred, 0);
    }
    CHECK_EQUAL(choice.switches, 6);
}

static void the_next_job_runs_where_the_choice_says(void) {
    begin(cost_50us, cost_10us);
    const shoal_pool_job job = {NULL, run_all, NULL, 4, 0, 0};
    for (int i = 0; i < 5000; i++) {
        const uint64_t before = on_pool;
        const int prefers = shoal_choice_prefers_pool(&choice);
        const int starts_trial = choice.trial == 0 && choice.recovering == 0 &&
                                 choice.worked_ns >= choice.least_work_ns &&
                                 now_ns - choice.tried_ns >= choice.pause_ns;
        (void)shoal_choice_run(&choice, NULL, &job, 1);
        if (!starts_trial)
            CHECK_EQUAL(on_pool - before, prefers);
    }
}

/* The threads of a pool that was not used for a millisecond sleep, and take 150 us to wake up. */
static double cost_with_sleeping_threads(void) {
    static uint64_t used_ns, awake_ns;
    if (now_ns - used_ns > 1000000)
        awake_ns = now_ns + 150000;
    used_ns = now_ns;
    return now_ns < awake_ns ? 20e3 : 4e3;
}

static void short_jobs_use_a_pool_whose_threads_had_to_wake_up(void) {
    begin(cost_10us, cost_with_sleeping_threads);
    CHECK(run_for(2) * 4e3 > 0.97 * 2e9);
    CHECK_EQUAL(choice.preferred, 1);
    CHECK_EQUAL(choice.switches, 1);
}

static double cost_of_a_slow_wake_up(void) { return cost_with_sleeping_threads() + 8e3; }

static void trials_of_a_pool_that_has_to_wake_up_cost_at_most_two_percent(void) {
    begin(cost_10us, cost_of_a_slow_wake_up);
    CHECK(run_for(5) * 10e3 > 0.98 * 5e9);
    CHECK_EQUAL(choice.preferred, 0);
}

int main(void) {
    RUN(the_faster_way_is_used_and_trials_cost_at_most_two_percent);
    RUN(a_pool_that_is_far_too_slow_is_tried_seldom);
    RUN(a_hopeless_trial_ends_after_one_job);
    RUN(time_between_jobs_brings_no_trial);
    RUN(trials_of_a_slow_pool_cost_little_if_jobs_are_rare);
    RUN(the_pool_is_used_again_after_load_that_made_both_ways_equal);
    RUN(a_stop_in_a_trial_of_one_thread_does_not_delay_the_next_one);
    RUN(slow_jobs_after_a_trial_count_as_its_cost);
    RUN(one_bad_trial_of_long_jobs_is_repeated_soon);
    RUN(counting_jobs_ends);
    RUN(tiny_jobs_are_never_given_to_the_pool);
    RUN(ways_that_are_about_equal_do_not_alternate);
    RUN(one_thread_is_used_if_another_program_holds_up_the_pool);
    RUN(rare_stalls_do_not_end_the_use_of_the_pool);
    RUN(the_choice_follows_when_the_cores_become_busy_and_free_again);
    RUN(the_next_job_runs_where_the_choice_says);
    RUN(short_jobs_use_a_pool_whose_threads_had_to_wake_up);
    RUN(trials_of_a_pool_that_has_to_wake_up_cost_at_most_two_percent);
    return 0;
}
