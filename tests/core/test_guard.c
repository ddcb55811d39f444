/* Tests of core/guard.c: one call at a time, and a close that frees nothing that a call uses. A mutex plays
 * the part of Python's GIL: guard functions run under it, steps and waits do not. Run under the thread
 * sanitizer, which sees any use of the engine that the guard does not order; GUARD_SECONDS=60 runs longer. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "guard.h"

#include "counting.h"
#include "flow.h"

#include <pthread.h>

enum { CALLERS = 4, CLOSERS = 2, UNITS = 8, BATCH = 4, SLICE = 2000000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t self(void) { return (uint64_t)pthread_self(); }

/* ---- One thread, every answer ---- */

static void answers_name_the_reason(void) {
    shoal_guard guard;
    shoal_guard_init(&guard);
    CHECK_EQUAL(shoal_guard_enter(&guard, 7), SHOAL_GUARD_ENTERED);
    CHECK_EQUAL(shoal_guard_enter(&guard, 7), SHOAL_GUARD_REENTERED);
    CHECK_EQUAL(shoal_guard_enter(&guard, 8), SHOAL_GUARD_BUSY);
    CHECK_EQUAL(shoal_guard_start_closing(&guard, 7), SHOAL_CLOSING_INSIDE);
    CHECK(!shoal_guard_is_closing(&guard)); /* a refused close changes nothing */
    CHECK_EQUAL(shoal_guard_start_closing(&guard, 8), SHOAL_CLOSING_START);
    CHECK_EQUAL(shoal_guard_start_closing(&guard, 8), SHOAL_CLOSING_INSIDE);
    CHECK_EQUAL(shoal_guard_start_closing(&guard, 9), SHOAL_CLOSING_OTHER);
    CHECK_EQUAL(shoal_guard_enter(&guard, 9), SHOAL_GUARD_CLOSED);
    CHECK_EQUAL(shoal_guard_enter(&guard, 7), SHOAL_GUARD_REENTERED);
    CHECK_EQUAL(shoal_guard_wait(&guard, 1000), 0);
    shoal_guard_abandon_closing(&guard);
    shoal_guard_leave(&guard);
    CHECK_EQUAL(shoal_guard_enter(&guard, 9), SHOAL_GUARD_CLOSED); /* an interrupted close stays begun */
    CHECK_EQUAL(shoal_guard_start_closing(&guard, 9), SHOAL_CLOSING_START);
    CHECK_EQUAL(shoal_guard_wait(&guard, 1000), 1);
    shoal_guard_finish_closing(&guard);
    CHECK_EQUAL(shoal_guard_start_closing(&guard, 7), SHOAL_CLOSING_DONE);
    CHECK_EQUAL(shoal_guard_enter(&guard, 7), SHOAL_GUARD_CLOSED);
}

/* ---- Many threads over an engine and its flow ---- */

typedef struct results {
    int32_t where[BATCH][3];
    double luck[BATCH], rewards[BATCH];
    uint8_t terminated[BATCH], truncated[BATCH];
    int64_t ids[BATCH];
    void *observations[2];
} results;

typedef struct shared {
    shoal_guard guard;
    world w;
    shoal_flow *flow;
    results pool[UNITS + 4];
    uint64_t lent, received, calls, refused; /* of calls that are inside alone, so nothing else orders them */
    int64_t ready[UNITS];
    uint64_t num_ready;
} shared;

static void lend_and_send(shared *s) {
    while (shoal_flow_batches_needed(s->flow, s->num_ready) > 0) {
        results *r = &s->pool[s->lent++ % (UNITS + 4)];
        r->observations[0] = r->where;
        r->observations[1] = r->luck;
        shoal_targets targets = {r->observations, r->rewards, r->terminated, r->truncated, NULL};
        shoal_flow_add_batch(s->flow, &targets, r->ids);
    }
    static const int64_t zeros[UNITS];
    const void *const actions[1] = {zeros};
    const shoal_sending sending = {s->ready, s->num_ready, actions, 1, 1};
    shoal_refusal refusal;
    CHECK(shoal_flow_send(s->flow, &sending, &refusal));
    s->num_ready = 0;
}

/* Waits without the lock; 0: another thread closes. */
static int receive(shared *s) {
    int ready = 0;
    while (!ready && !shoal_guard_is_closing(&s->guard))
        ready = shoal_flow_recv(s->flow, SLICE);
    if (!ready)
        return 0;
    const results *r = &s->pool[s->received++ % (UNITS + 4)];
    for (int i = 0; i < BATCH; i++)
        s->ready[s->num_ready++] = r->ids[i];
    return 1;
}

static void *call_at_random(void *argument) {
    shared *s = argument;
    uint64_t luck = self() | 1, refused = 0;
    for (int is_open = 1; is_open;) {
        luck = luck * 6364136223846793005u + 1442695040888963407u;
        pthread_mutex_lock(&lock);
        int answer = shoal_guard_enter(&s->guard, self());
        if (answer == SHOAL_GUARD_ENTERED) {
            pthread_mutex_unlock(&lock);
            s->calls++;
            if (s->num_ready > 0 && (luck >> 60) % 2)
                lend_and_send(s);
            else if (shoal_flow_under_way(s->flow) >= BATCH)
                receive(s);
            pthread_mutex_lock(&lock);
            shoal_guard_leave(&s->guard);
        } else {
            CHECK(answer == SHOAL_GUARD_BUSY || answer == SHOAL_GUARD_CLOSED);
            is_open = answer == SHOAL_GUARD_BUSY;
            refused++;
        }
        pthread_mutex_unlock(&lock);
        if (answer != SHOAL_GUARD_ENTERED)
            sched_yield();
    }
    pthread_mutex_lock(&lock);
    s->refused += refused;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void *close_it(void *argument) {
    shared *s = argument;
    for (;;) {
        pthread_mutex_lock(&lock);
        int found = shoal_guard_start_closing(&s->guard, self());
        pthread_mutex_unlock(&lock);
        if (found == SHOAL_CLOSING_DONE)
            return NULL;
        if (found == SHOAL_CLOSING_OTHER) {
            sched_yield();
            continue;
        }
        CHECK_EQUAL(found, SHOAL_CLOSING_START);
        while (!shoal_guard_wait(&s->guard, SLICE))
            continue;
        shoal_flow_destroy(s->flow); /* with units under way */
        s->flow = NULL;
        main_thread = pthread_self();
        close_world(&s->w);
        pthread_mutex_lock(&lock);
        shoal_guard_finish_closing(&s->guard);
        pthread_mutex_unlock(&lock);
    }
}

static void run_round(uint64_t number) {
    static shared s;
    memset(&s, 0, sizeof s);
    setting wanted = {.num_envs = UNITS, .lanes = 1, .agents = 1, .threads = 1, .fails = -1};
    wanted.slow_ns = number % 3 == 0 ? 200000 : 0;
    main_thread = pthread_self();
    CHECK_EQUAL(open_world(&s.w, wanted), 0);
    memset(s.w.arrays.reset, 1, wanted.num_envs);
    memset(s.w.actions, 0, s.w.padded * sizeof *s.w.actions);
    CHECK_EQUAL(shoal_flow_create(s.w.engine, &s.w.description, 2, UNITS, 1, BATCH, &s.flow), 0);
    void *actions[1] = {s.w.actions};
    shoal_flow_actions(s.flow, actions);
    for (int64_t i = 0; i < UNITS; i++)
        s.ready[s.num_ready++] = i;
    shoal_guard_init(&s.guard);
    pthread_t callers[CALLERS], closers[CLOSERS];
    for (int i = 0; i < CALLERS; i++)
        CHECK_EQUAL(pthread_create(&callers[i], NULL, call_at_random, &s), 0);
    nanosleep(&(struct timespec){.tv_nsec = (long)(number * 7919 % 4000) * 1000}, NULL);
    for (int i = 0; i < CLOSERS; i++)
        CHECK_EQUAL(pthread_create(&closers[i], NULL, close_it, &s), 0);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(callers[i], NULL);
    for (int i = 0; i < CLOSERS; i++)
        pthread_join(closers[i], NULL);
    CHECK(s.flow == NULL && s.guard.closed && s.refused >= CALLERS);
}

static void calls_at_random_and_close_at_any_moment(void) {
    const char *seconds = getenv("GUARD_SECONDS");
    const uint64_t end = shoal_now_ns() + (uint64_t)(seconds == NULL ? 1 : atoi(seconds)) * 1000000000u;
    uint64_t rounds = 0;
    while (rounds < 20 || shoal_now_ns() < end)
        run_round(rounds++);
    printf("%llu rounds\n", (unsigned long long)rounds);
}

int main(void) {
    RUN(answers_name_the_reason);
    RUN(calls_at_random_and_close_at_any_moment);
    return 0;
}
