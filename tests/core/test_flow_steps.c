/* Tests of core/flow.c: how many units a thread takes, which threads wake up, and a unit that takes long. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#define shoal_flow_create tested_flow_create
#define shoal_flow_destroy tested_flow_destroy
#define shoal_flow_actions tested_flow_actions
#define shoal_flow_batches_needed tested_flow_batches_needed
#define shoal_flow_add_batch tested_flow_add_batch
#define shoal_flow_send tested_flow_send
#define shoal_flow_recv tested_flow_recv
#define shoal_flow_is_done tested_flow_is_done
#define shoal_flow_await tested_flow_await
#define shoal_flow_under_way tested_flow_under_way
#define shoal_flow_statistics tested_flow_statistics
#include "platform.h"
static uint32_t count_two(void) { return 2; }
#define shoal_cpu_count count_two
#include "../../core/flow.c"

#include "counting.h"

#include <unistd.h>

static void grains_divide_each_other_and_a_batch(void) {
    for (uint64_t batch = 1; batch < 5000; batch++) {
        shoal_grains grains;
        shoal_grains_choose(&grains, batch, 1024);
        CHECK(grains.count >= 1 && grains.count <= SHOAL_MOST_GRAINS && grains.sizes[0] == 1);
        for (uint32_t i = 0; i < grains.count; i++) {
            CHECK(grains.sizes[i] <= 1024 && batch % grains.sizes[i] == 0);
            CHECK(i == 0 || grains.sizes[i] % grains.sizes[i - 1] == 0);
        }
        for (uint64_t most = 0; most <= 1024; most += 33) {
            const uint32_t count = shoal_grains_take(&grains, batch * 7 + most, most);
            CHECK(count >= 1 && (count == 1 || count <= most));
        }
    }
}

static void a_thread_takes_little_work_and_no_more_than_its_share(void) {
    shoal_flow flow = {.most = 1024, .num_places = 4};
    shoal_grains_choose(&flow.grains, 2500, flow.most); /* 1, 2, 4, 20, 100, 500 */
    worker self = {.unit_ns = 0};
    CHECK_EQUAL(count_to_take(&flow, &self, 0, 100000), 1); /* it knows nothing yet */
    self.unit_ns = 2 * TAKE_NS;
    CHECK_EQUAL(count_to_take(&flow, &self, 0, 100000), 1);
    self.unit_ns = 10;
    CHECK_EQUAL(count_to_take(&flow, &self, 0, 100000), 500);
    CHECK_EQUAL(count_to_take(&flow, &self, 730, 100000), 270); /* up to a multiple of the grain */
    CHECK_EQUAL(count_to_take(&flow, &self, 0, 16 * 120), 100); /* a sixteenth of what waits, in grains */
    CHECK_EQUAL(count_to_take(&flow, &self, 0, 15), 1);
    self.is_alone = 1;
    CHECK_EQUAL(count_to_take(&flow, &self, 0, 15), 15);
    self.unit_ns = 1000;
    CHECK_EQUAL(count_to_take(&flow, &self, 0, 15), 1); /* worth a second thread */
}

static void a_batch_without_divisors_is_cut_anywhere(void) {
    shoal_flow flow = {.most = 1024, .num_places = 1};
    shoal_grains_choose(&flow.grains, 4999, flow.most);
    const worker self = {.unit_ns = 20};
    CHECK_EQUAL(flow.grains.count, 1);
    CHECK_EQUAL(count_to_take(&flow, &self, 123, 100000), TAKE_NS / 20);
}

static void rare_long_steps_count_in_the_mean(void) {
    static shoal_flow flow;
    worker self = {.flow = &flow};
    for (int i = 0; i < 1000; i++)
        learn_unit_ns(&self, i % 100 == 0 ? 10000000 : 100, 1); /* one step in a hundred takes 10 ms */
    CHECK(self.unit_ns > TAKE_NS);
    CHECK(!is_little(&flow, 1));
    for (int i = 0; i < 4 * MEAN_UNITS; i++)
        learn_unit_ns(&self, 100, 1);
    CHECK(self.unit_ns < 2000 && is_little(&flow, 10)); /* but not for ever */
}

static void units_that_took_long_are_taken_alone_until_they_are_fast_again(void) {
    static shoal_flow flow;
    static _Atomic(uint8_t) is_slow[8];
    const uint64_t units[] = {3, 4, 5, 6};
    flow.is_slow = is_slow;
    mark_slow(&flow, units, 4, SLOW_NS);
    CHECK_EQUAL(count_before_slow(&flow, units, 4), 4);
    mark_slow(&flow, units + 2, 1, SLOW_NS + 1);
    mark_slow(&flow, units + 2, 1, SLOW_NS + 1); /* counted once */
    CHECK_EQUAL(flow.num_slow, 1);
    CHECK_EQUAL(count_before_slow(&flow, units, 4), 2);
    CHECK_EQUAL(count_before_slow(&flow, units + 2, 2), 1);
    CHECK_EQUAL(count_before_slow(&flow, units + 3, 1), 1);
    mark_slow(&flow, units, 4, SLOW_NS + 1); /* all of them, since nobody knows which one it was */
    CHECK_EQUAL(flow.num_slow, 4);
    for (int i = 0; i < 4; i++)
        mark_slow(&flow, units + i, 1, i == 1 ? SLOW_NS + 1 : 100);
    CHECK_EQUAL(flow.num_slow, 1);
    CHECK_EQUAL(count_before_slow(&flow, units, 4), 1);
    mark_slow(&flow, units, 4, 100);
    CHECK_EQUAL(flow.num_slow, 0);
    CHECK_EQUAL(count_before_slow(&flow, units, 4), 4);
}

static void a_send_of_short_runs_is_sorted_if_that_makes_them_longer(void) {
    static shoal_flow flow;
    uint64_t units[1000];
    for (uint64_t i = 0; i < 1000; i++)
        units[i] = 50 + i * 7 % 1000; /* all from 50 to 1049 */
    join_runs(&flow, units, 63);      /* few */
    CHECK_EQUAL(units[1], 57);
    join_runs(&flow, units, 1000);
    for (uint64_t i = 0; i < 1000; i++)
        CHECK_EQUAL(units[i], 50 + i);
    for (uint64_t i = 0; i < 1000; i++)
        units[i] = 50 + (i + 500) % 1000; /* two long runs stay in their order */
    join_runs(&flow, units, 1000);
    CHECK_EQUAL(units[0], 550);
    CHECK_EQUAL(flow.sends_without_joining, 0);
    for (int turn = 0; turn < 2; turn++) {
        for (uint64_t i = 0; i < 1000; i++)
            units[i] = (999 - i) * 2; /* none are adjacent */
        join_runs(&flow, units, 1000);
        CHECK_EQUAL(units[0], turn == 0 ? 0 : 1998);
    }
    CHECK_EQUAL(flow.sends_without_joining, 999);
}

enum { UNITS = 12, BATCH = 3, MOST_BATCHES = 8 };

typedef struct results {
    int32_t where[BATCH][3];
    double luck[BATCH], rewards[BATCH];
    uint8_t terminated[BATCH], truncated[BATCH];
    int64_t ids[BATCH];
    void *observations[2];
} results;

static results pool[MOST_BATCHES];
static uint64_t lent, received;

static void send_units(shoal_flow *flow, uint64_t *units, uint64_t count) {
    while (tested_flow_batches_needed(flow, count) > 0) {
        results *r = &pool[lent++ % MOST_BATCHES];
        r->observations[0] = r->where;
        r->observations[1] = r->luck;
        const shoal_targets targets = {r->observations, r->rewards, r->terminated, r->truncated, NULL};
        tested_flow_add_batch(flow, &targets, r->ids);
    }
    tested_flow_send(flow, units, count);
}

/* Receives a batch and sends it again. Returns 0 if none came in time. */
static int turn_over(shoal_flow *flow, uint64_t timeout_ns) {
    uint64_t units[BATCH];
    if (!tested_flow_recv(flow, timeout_ns))
        return 0;
    for (int i = 0; i < BATCH; i++)
        units[i] = (uint64_t)pool[received % MOST_BATCHES].ids[i];
    received++;
    send_units(flow, units, BATCH);
    return 1;
}

/* Two threads on two cores: for such little work only one is awake. Its step then
 * does not end, and the other one must do the rest. */
static void other_units_go_on_while_one_takes_long(void) {
    world w;
    const setting wanted = {.num_envs = UNITS, .lanes = 1, .agents = 1, .threads = 1, .fails = -1};
    CHECK_EQUAL(open_world(&w, wanted), 0);
    memset(w.arrays.reset, 1, UNITS);
    memset(w.actions, 0, w.padded * sizeof *w.actions);
    shoal_flow *flow;
    CHECK_EQUAL(tested_flow_create(w.engine, &w.description, 2, UNITS, 1, BATCH, &flow), 0);
    const void *actions[1] = {w.actions};
    tested_flow_actions(flow, actions);
    uint64_t units[UNITS];
    for (uint64_t i = 0; i < UNITS; i++)
        units[i] = i;
    send_units(flow, units, UNITS);
    for (int i = 0; i < 500; i++)
        CHECK(turn_over(flow, UINT64_C(10000000000)));
    atomic_store(&stalled_env, 5);
    while (!atomic_load(&stall_begun))
        (void)turn_over(flow, 10000000); /* 10 ms: all units may be taken together with this one */
    /* The units that were taken together with the slow one wait for it. */
    uint64_t going = 0;
    while (turn_over(flow, UINT64_C(1000000000)) && going < 1000)
        going++;
    CHECK(going == 1000 || atomic_load(&flow->tail) == atomic_load(&flow->head));
    printf("   %llu batches meanwhile\n", (unsigned long long)going);
    atomic_store(&stall_ends, 1);
    for (int i = 0; i < 100; i++)
        CHECK(turn_over(flow, UINT64_C(10000000000)));
    tested_flow_destroy(flow);
    close_world(&w);
}

/* Without the help of recv. Steps take so long that a second one of a thread cannot be mistaken for the first
 * one of another thread. */
static void a_send_wakes_all_threads_if_there_is_work_for_them(void) {
    world w;
    const setting wanted = {
        .num_envs = UNITS, .lanes = 1, .agents = 1, .threads = 1, .fails = -1, .slow_ns = 700000000};
    CHECK_EQUAL(open_world(&w, wanted), 0);
    memset(w.arrays.reset, 1, UNITS);
    shoal_flow *flow;
    CHECK_EQUAL(tested_flow_create(w.engine, &w.description, 5, UNITS, 1, BATCH, &flow), 0);
    const void *actions[1] = {w.actions};
    tested_flow_actions(flow, actions);
    while (atomic_load(&flow->rest.sleepers) != 5)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    uint64_t units[UNITS], done = 0;
    for (uint64_t i = 0; i < UNITS; i++)
        units[i] = i;
    lent = 0;
    atomic_store(&calls, 0);
    send_units(flow, units, UNITS);
    while (atomic_load(&calls) < 5 && done == 0) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        done = 0;
        for (uint64_t i = 0; i < UNITS; i++)
            done += (uint64_t)tested_flow_is_done(flow, i);
    }
    CHECK_EQUAL(atomic_load(&calls), 5);
    tested_flow_destroy(flow);
    close_world(&w);
}

int main(void) {
    alarm(120);
    main_thread = pthread_self();
    RUN(grains_divide_each_other_and_a_batch);
    RUN(a_thread_takes_little_work_and_no_more_than_its_share);
    RUN(a_batch_without_divisors_is_cut_anywhere);
    RUN(rare_long_steps_count_in_the_mean);
    RUN(units_that_took_long_are_taken_alone_until_they_are_fast_again);
    RUN(a_send_of_short_runs_is_sorted_if_that_makes_them_longer);
    RUN(other_units_go_on_while_one_takes_long);
    RUN(a_send_wakes_all_threads_if_there_is_work_for_them);
    return 0;
}
