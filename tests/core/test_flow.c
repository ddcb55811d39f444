/* Tests of core/flow.c: every environment steps once per send and independently of others, on any thread and
 * in any order. Run under the thread sanitizer. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "counting.h"
#include "flow.h"

enum { UNITS = 12, TURNS = 400, MOST_ENVS = 8192, MOST_BATCHES = 16 };

typedef struct results {
    int32_t where[MOST_ENVS][3];
    double luck[MOST_ENVS], rewards[MOST_ENVS];
    uint8_t terminated[MOST_ENVS], truncated[MOST_ENVS];
    int64_t ids[MOST_ENVS];
    void *observations[2];
} results;

static const int64_t no_actions[MOST_ENVS];

/* Sends and receives `TURNS` batches; checks each row against what that environment must have counted. */
static void run_units(uint64_t num_units, uint32_t lanes, uint64_t unit, uint64_t batch_units,
                      uint32_t threads, long slow_ns) {
    world w;
    setting wanted = {.num_envs = num_units * lanes, .lanes = lanes, .agents = 1, .threads = 1, .fails = -1};
    wanted.slow_ns = slow_ns;
    CHECK_EQUAL(open_world(&w, wanted), 0);
    memset(w.arrays.reset, 1, wanted.num_envs);
    memset(w.actions, 0, w.padded * sizeof *w.actions);
    shoal_flow *flow;
    uint64_t batch = batch_units * unit;
    CHECK_EQUAL(shoal_flow_create(w.engine, &w.description, threads, num_units, unit, batch, &flow), 0);
    void *actions[1] = {w.actions};
    const void *const sent_actions[1] = {no_actions};
    shoal_flow_actions(flow, actions);
    static results pool[MOST_BATCHES];
    CHECK(num_units * lanes <= MOST_ENVS && num_units / batch_units + 2 <= MOST_BATCHES);
    uint64_t lent = 0, steps[MOST_ENVS] = {0};
    int sent[MOST_ENVS] = {0};
    const int64_t *ids = NULL; /* all environments, for the first send */
    for (int turn = 0; turn < TURNS; turn++) {
        const uint64_t sending = ids == NULL ? num_units : batch_units;
        while (shoal_flow_batches_needed(flow, sending) > 0) {
            results *r = &pool[lent++ % MOST_BATCHES];
            r->observations[0] = r->where;
            r->observations[1] = r->luck;
            shoal_targets targets = {r->observations, r->rewards, r->terminated, r->truncated, NULL};
            shoal_flow_add_batch(flow, &targets, r->ids);
        }
        for (uint64_t i = 0; i < sending * unit; i++)
            sent[ids == NULL ? i : (uint64_t)ids[i]]++;
        const shoal_sending what = {ids, sending * unit, sent_actions, 1, 1};
        shoal_refusal refusal;
        if (ids == NULL)
            shoal_flow_send_all(flow);
        else
            CHECK_EQUAL(shoal_flow_send(flow, &what, &refusal) ? 100 : refusal.reason, 100);
        while (!shoal_flow_recv(flow, 50000000))
            continue;
        results *r = &pool[(uint64_t)turn % MOST_BATCHES];
        for (uint64_t i = 0; i < batch; i++) {
            uint64_t env = (uint64_t)r->ids[i], engine = env / unit * lanes + env % unit;
            CHECK(env < num_units * unit && sent[env] == 1);
            sent[env] = 0;
            CHECK_EQUAL(r->where[i][0], engine);
            CHECK_EQUAL(r->where[i][2], steps[env]);
            CHECK(r->rewards[i] == (steps[env] == 0 ? 0 : (double)engine + (double)steps[env] / 4));
            CHECK(r->terminated[i] == 0 && r->truncated[i] == 0);
            steps[env]++;
        }
        ids = r->ids;
        CHECK_EQUAL(shoal_flow_under_way(flow), num_units - batch_units);
    }
    shoal_flow_destroy(flow); /* with units under way */
    close_world(&w);
}

static void run_flow(uint32_t lanes, uint64_t unit, uint64_t batch_units, uint32_t threads, long slow_ns) {
    run_units(UNITS, lanes, unit, batch_units, threads, slow_ns);
}

static void every_environment_steps_once_per_send(void) {
    for (uint32_t threads = 1; threads <= 4; threads++) {
        run_flow(1, 1, 3, threads, 0);
        run_flow(4, 4, 2, threads, 0);
        run_flow(16, 4, 4, threads, 0); /* part of each block */
        run_flow(4, 2, UNITS, threads, 0);
    }
}

static void slow_environments_and_sleeping_threads_lose_nothing(void) { run_flow(1, 1, 3, 3, 200000); }

/* Threads take many units at once, and deliver them to one batch or to several. */
static void many_cheap_units_are_taken_together(void) {
    for (uint32_t threads = 1; threads <= 4; threads++) {
        run_units(1536, 1, 1, 384, threads, 0);
        run_units(1400, 1, 1, 199, threads, 0);
        run_units(1500, 1, 1, 250, threads, 0);
        run_units(90, 16, 16, 30, threads, 0);
        run_units(90, 16, 8, 15, threads, 0);
    }
}

/* Batches are so large that each thread has places of its own, and sends so large that they have pieces. */
static void large_batches_are_divided(void) {
    for (uint32_t threads = 2; threads <= 4; threads++) {
        run_units(MOST_ENVS, 1, 1, MOST_ENVS / 2, threads, 0);
        run_units(MOST_ENVS / 16 - 1, 16, 16, (MOST_ENVS / 16 - 1) / 3, threads, 0);
        run_units(4, 1024, 1024, 2, threads, 0); /* fewer units than threads */
    }
}

static void a_flow_that_is_never_used_ends(void) {
    for (int i = 0; i < 50; i++) {
        world w;
        setting wanted = {.num_envs = 8, .lanes = 1, .agents = 1, .threads = 1, .fails = -1};
        CHECK_EQUAL(open_world(&w, wanted), 0);
        shoal_flow *flow;
        CHECK_EQUAL(shoal_flow_create(w.engine, &w.description, 3, 8, 1, 2, &flow), 0);
        CHECK_EQUAL(shoal_flow_recv(flow, 1000),
                    0); /* nothing was sent: it waits no longer than it is told */
        shoal_flow_destroy(flow);
        close_world(&w);
    }
}

int main(void) {
    main_thread = pthread_self();
    RUN(every_environment_steps_once_per_send);
    RUN(many_cheap_units_are_taken_together);
    RUN(large_batches_are_divided);
    RUN(slow_environments_and_sleeping_threads_lose_nothing);
    RUN(a_flow_that_is_never_used_ends);
    return 0;
}
