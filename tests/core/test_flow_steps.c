/* Tests of core/flow.c: how many units a thread takes, of which part, which threads wake up, and a unit that
 * takes long. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#define shoal_flow_create tested_flow_create
#define shoal_flow_destroy tested_flow_destroy
#define shoal_flow_actions tested_flow_actions
#define shoal_flow_batches_needed tested_flow_batches_needed
#define shoal_flow_add_batch tested_flow_add_batch
#define shoal_flow_send tested_flow_send
#define shoal_flow_send_all tested_flow_send_all
#define shoal_flow_recv tested_flow_recv
#define shoal_flow_is_done tested_flow_is_done
#define shoal_flow_await tested_flow_await
#define shoal_flow_under_way tested_flow_under_way
#define shoal_flow_statistics tested_flow_statistics
#define shoal_flow_wake_others tested_flow_wake_others
#define shoal_flow_wake_reserve tested_flow_wake_reserve
#define shoal_flow_run_thread tested_flow_run_thread
#include "platform.h"
static uint32_t num_cpus = 2;
static uint32_t count_cpus(void) { return num_cpus; }
#define shoal_cpu_count count_cpus
#include "../../core/flow.c"
#include "../../core/flow_thread.c"

#include "counting.h"

#include <unistd.h>

static void a_thread_takes_little_work_and_no_more_than_its_share(void) {
    shoal_flow flow = {
        .most = 1024, .num_threads = 4, .take_ns = TAKE_NS, .num_units = 100000, .units_per_batch = 100};
    shoal_flow_worker self = {.unit_ns = 0};
    CHECK_EQUAL(count_to_take(&flow, &self, 100000), 1); /* it knows nothing yet */
    self.unit_ns = 2 * TAKE_NS;
    CHECK_EQUAL(count_to_take(&flow, &self, 100000), 1);
    self.unit_ns = 20;
    CHECK_EQUAL(count_to_take(&flow, &self, 100000), TAKE_NS / 20);
    self.unit_ns = 5;
    CHECK_EQUAL(count_to_take(&flow, &self, 100000), 1024);
    CHECK_EQUAL(count_to_take(&flow, &self, 16 * 600), 600);              /* a quarter of a share */
    CHECK_EQUAL(count_to_take(&flow, &self, 4 * 500), LEAST_TAKE_NS / 5); /* less is not worth it, */
    CHECK_EQUAL(count_to_take(&flow, &self, 4 * 300), 300);               /* up to the share */
    CHECK_EQUAL(count_to_take(&flow, &self, 3), 1);
    self.unit_ns = 3000;
    CHECK_EQUAL(count_to_take(&flow, &self, 16 * 3), 3);
    CHECK_EQUAL(count_to_take(&flow, &self, 16), 1);
    self.unit_ns = 5;
    self.is_alone = 1;
    CHECK_EQUAL(count_to_take(&flow, &self, 15), 15);
    self.unit_ns = 1000;
    CHECK_EQUAL(count_to_take(&flow, &self, 15), 2); /* worth a second thread */
    self.unit_ns = 5;
    flow.units_per_batch = 99990; /* recv needs all but ten */
    CHECK_EQUAL(count_to_take(&flow, &self, 15), 10);
    CHECK_EQUAL(count_to_take(&flow, &self, 100000), 10);
    flow.units_per_batch = 100000; /* or all */
    CHECK_EQUAL(count_to_take(&flow, &self, 15), 15);
}

static void rare_long_steps_count_in_the_mean(void) {
    static shoal_flow flow;
    shoal_flow_worker self = {.flow = &flow};
    for (int i = 0; i < 1000; i++)
        learn_unit_ns(&self, i % 100 == 0 ? 10000000 : 100, 1); /* one step in a hundred takes 10 ms */
    CHECK(self.unit_ns > TAKE_NS);
    CHECK(!is_little(&flow, 1));
    for (int i = 0; i < 4 * MEAN_UNITS; i++)
        learn_unit_ns(&self, 100, 1);
    CHECK(self.unit_ns < 2000 && is_little(&flow, 10)); /* but not for ever */
}

enum { UNITS = 64, BATCH = 4, MOST_BATCHES = 32 };

typedef struct results {
    int32_t where[BATCH][3];
    double luck[BATCH], rewards[BATCH];
    uint8_t terminated[BATCH], truncated[BATCH];
    int64_t ids[BATCH];
    void *observations[2];
} results;

static results pool[MOST_BATCHES];
static uint64_t lent, received, steps[UNITS];

static void add_batches(shoal_flow *flow, uint64_t count) {
    while (tested_flow_batches_needed(flow, count) > 0) {
        results *r = &pool[lent++ % MOST_BATCHES];
        r->observations[0] = r->where;
        r->observations[1] = r->luck;
        const shoal_targets targets = {r->observations, r->rewards, r->terminated, r->truncated, NULL};
        tested_flow_add_batch(flow, &targets, r->ids);
    }
}

static void send_all(shoal_flow *flow) {
    add_batches(flow, UNITS);
    tested_flow_send_all(flow);
}

static void open_flow(world *w, shoal_flow **flow, setting wanted, uint32_t threads) {
    static void *actions[1];
    wanted.num_envs = UNITS;
    wanted.lanes = wanted.agents = wanted.threads = 1;
    wanted.fails = -1;
    CHECK_EQUAL(open_world(w, wanted), 0);
    memset(w->arrays.reset, 1, UNITS);
    memset(w->actions, 0, w->padded * sizeof *w->actions);
    CHECK_EQUAL(tested_flow_create(w->engine, &w->description, threads, UNITS, 1, BATCH, flow), 0);
    actions[0] = w->actions;
    tested_flow_actions(*flow, actions);
    lent = received = 0;
    memset(steps, 0, sizeof steps);
}

/* Receives a batch and sends it again. Returns 0 if none came in time. */
static int turn_over(shoal_flow *flow, uint64_t timeout_ns) {
    static const int64_t zeros[BATCH];
    const void *const actions[1] = {zeros};
    if (!tested_flow_recv(flow, timeout_ns))
        return 0;
    const results *r = &pool[received++ % MOST_BATCHES];
    for (int i = 0; i < BATCH; i++)
        CHECK_EQUAL(r->where[i][2], steps[r->ids[i]]++);
    const shoal_sending sending = {r->ids, BATCH, actions, 1, 1};
    shoal_refusal refusal;
    add_batches(flow, BATCH);
    CHECK(tested_flow_send(flow, &sending, &refusal));
    return 1;
}

/* Two threads on two cores: for such little work only one is awake. Its step then
 * does not end, and the other one must do the rest. */
static void other_units_go_on_while_one_takes_long(void) {
    world w;
    shoal_flow *flow;
    open_flow(&w, &flow, (setting){.busy_ns = 0}, 2);
    send_all(flow);
    for (int i = 0; i < 500; i++)
        CHECK(turn_over(flow, UINT64_C(10000000000)));
    atomic_store(&stalled_env, 5);
    while (!atomic_load(&stall_begun))
        (void)turn_over(flow, 10000000); /* 10 ms: all units may be taken together with this one */
    /* The units that were taken together with the slow one wait for it. */
    uint64_t going = 0;
    while (turn_over(flow, UINT64_C(1000000000)) && going < 1000)
        going++;
    CHECK(going == 1000 || atomic_load(&flow->waiting) == 0);
    printf("   %llu batches meanwhile\n", (unsigned long long)going);
    atomic_store(&stall_ends, 1);
    for (int i = 0; i < 100; i++)
        CHECK(turn_over(flow, UINT64_C(10000000000)));
    tested_flow_destroy(flow);
    close_world(&w);
}

/* The other thread always has units of its own, and still steps those of the thread that does not come back,
 * except the few that were taken together with the long one. */
static void units_of_a_thread_in_a_long_step_do_not_wait_for_it(void) {
    world w;
    shoal_flow *flow;
    open_flow(&w, &flow, (setting){.busy_ns = 3000}, 2);
    atomic_store(&stall_begun, 0);
    atomic_store(&stall_ends, 0);
    send_all(flow);
    for (int i = 0; i < 500; i++)
        CHECK(turn_over(flow, UINT64_C(10000000000)));
    atomic_store(&stalled_env, 5);
    while (!atomic_load(&stall_begun))
        CHECK(turn_over(flow, UINT64_C(10000000000)));
    uint64_t before[UNITS];
    memcpy(before, steps, sizeof before);
    for (int i = 0; i < 2000; i++)
        CHECK(turn_over(flow, UINT64_C(10000000000)));
    int waiting = 0;
    for (int i = 0; i < UNITS; i++)
        waiting += steps[i] - before[i] < 20;
    CHECK(waiting >= 1 && waiting <= 1 + TAKE_NS / 3000);
    atomic_store(&stall_ends, 1);
    tested_flow_destroy(flow);
    close_world(&w);
}

/* A send that is refused needs no batch: the ring has none to spare while all units are under way. */
static void a_refused_send_leaves_batches_in_use_alone(void) {
    world w;
    shoal_flow *flow;
    int64_t ids[UNITS];
    static const int64_t zeros[UNITS];
    const void *const actions[1] = {zeros};
    open_flow(&w, &flow, (setting){.busy_ns = 0}, 2);
    send_all(flow);
    for (int64_t i = 0; i < UNITS; i++)
        ids[i] = i;
    for (int turn = 0; turn < 200; turn++) {
        const shoal_sending sending = {ids, UNITS, actions, 1, 1};
        shoal_refusal refusal;
        CHECK_EQUAL(tested_flow_batches_needed(flow, UNITS), 0);
        CHECK(!tested_flow_send(flow, &sending, &refusal));
        CHECK_EQUAL(refusal.reason, SHOAL_SENT_TWICE);
        CHECK(turn_over(flow, UINT64_C(10000000000)));
    }
    tested_flow_destroy(flow);
    close_world(&w);
}

/* The last thread has a part, and then has none, while units are under way. */
static void a_change_of_the_division_loses_no_unit(void) {
    world w;
    shoal_flow *flow;
    num_cpus = 4;
    open_flow(&w, &flow, (setting){.busy_ns = 0}, 4);
    num_cpus = 2;
    CHECK_EQUAL(flow->pending[1].num_parts, 3);
    while (atomic_load(&flow->rest.sleepers) != 4)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    for (uint32_t i = 0; i < 4 + 3; i++) /* the parts of threads that sleep are late in both divisions */
        CHECK(is_late(flow, find_part(flow, i), 0));
    send_all(flow);
    for (int i = 0; i < 3000; i++) {
        atomic_store(&flow->division, (uint32_t)i / 3 % 2);
        tested_flow_wake_reserve(flow);
        CHECK(turn_over(flow, UINT64_C(10000000000)));
    }
    tested_flow_destroy(flow);
    close_world(&w);
}

static void one_core_is_left_to_the_caller_if_steps_are_cheap(void) {
    world w;
    shoal_flow *flow;
    num_cpus = 4;
    open_flow(&w, &flow, (setting){.busy_ns = 0}, 4);
    num_cpus = 2;
    const uint64_t limit_ns = 4 * SENDER_NS;
    const struct {
        uint64_t unit_ns;
        uint32_t division;
    } cases[] = {{0, 0}, {limit_ns, 0}, {limit_ns - 1, 1}, {0, 1}, {2 * limit_ns, 1}, {2 * limit_ns + 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        atomic_store(&flow->unit_ns, cases[i].unit_ns);
        choose_division(flow);
        CHECK_EQUAL(shoal_flow_division(flow), cases[i].division);
    }
    CHECK(find_own(flow, &flow->workers[3]) == &flow->pending[0].parts[3]);
    atomic_store(&flow->division, 1);
    CHECK(find_own(flow, &flow->workers[3]) == NULL);
    CHECK(find_own(flow, &flow->workers[2]) == &flow->pending[1].parts[2]);
    set_asleep(flow, &flow->workers[3], 0);
    CHECK_EQUAL(atomic_load(&flow->pending[0].parts[3].is_asleep), 0);
    tested_flow_destroy(flow);
    close_world(&w);
    open_flow(&w, &flow, (setting){.busy_ns = 0}, 4); /* on two cores there is none to leave */
    atomic_store(&flow->unit_ns, 1);
    choose_division(flow);
    CHECK_EQUAL(shoal_flow_division(flow), 0);
    tested_flow_destroy(flow);
    close_world(&w);
}

/* Without the help of recv. Steps take so long that a second one of a thread cannot be mistaken for the first
 * one of another thread. */
static void a_send_wakes_all_threads_if_there_is_work_for_them(void) {
    world w;
    shoal_flow *flow;
    open_flow(&w, &flow, (setting){.slow_ns = 700000000}, 5);
    while (atomic_load(&flow->rest.sleepers) != 5)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    uint64_t done = 0;
    atomic_store(&calls, 0);
    send_all(flow);
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
    RUN(a_thread_takes_little_work_and_no_more_than_its_share);
    RUN(rare_long_steps_count_in_the_mean);
    RUN(other_units_go_on_while_one_takes_long);
    RUN(units_of_a_thread_in_a_long_step_do_not_wait_for_it);
    RUN(a_refused_send_leaves_batches_in_use_alone);
    RUN(a_change_of_the_division_loses_no_unit);
    RUN(one_core_is_left_to_the_caller_if_steps_are_cheap);
    RUN(a_send_wakes_all_threads_if_there_is_work_for_them);
    return 0;
}
