/* How threads wait for work: they spin, then sleep; sleepers are woken in a tree. Private to pool.c and
 * flow.c.
 *
 *   poster:   makes work visible, then shoal_rest_wake: wakes some sleepers, if there are any
 *   thread:   shoal_rest_wait: spins while there is no work, then sleeps; once awake, it wakes two more
 *
 * 1. A thread spins for SHOAL_REST_SPIN_NS if work has come in short intervals, else for a shorter time. This
 *    is the longest time for which an idle thread uses a core.
 * 2. A thread that lost its core while it was spinning (the clock jumped) sleeps at once in the next waits:
 *    other programs need the core. With more threads than cores no thread spins.
 * 3. No wake-up is lost: the sleeper adds itself to `sleepers` and then looks for work; the poster makes work
 *    visible and then reads `sleepers`. Both use read-modify-write operations on that word, so the later one
 *    sees what the other did before. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_REST_H
#define SHOAL_REST_H

#include "platform.h"

enum {
    SHOAL_REST_SPIN_NS = 1000000,
    SHOAL_REST_SHORT_SPIN_NS = 50000,
    SHOAL_REST_CLOSE_NS = 100000, /* intervals with a mean below this are short */
    SHOAL_REST_LOST_CORE_NS =
        200000, /* a spinning thread that sees such a jump of the clock had lost its core */
    SHOAL_REST_WAITS_WITHOUT_SPIN = 32, /* after that */
    SHOAL_REST_POLLS = 32,              /* looks for work between two looks at the clock */
    SHOAL_REST_FAN_OUT = 2
};
#define SHOAL_REST_SLEEP_NS UINT64_C(3600000000000) /* no limit in practice: new work wakes the sleepers */

/* One for all threads of a pool. */
typedef struct shoal_rest {
    _Alignas(128) shoal_word sleepers; /* threads that sleep or are about to. Writers: threads */
    shoal_word wake;                   /* they sleep on this word. Writers: those who wake them */
    _Alignas(128) shoal_word spin_ns;  /* writer: the poster */
    int may_spin;
    _Alignas(128) uint64_t mean_gap_ns; /* the poster's */
} shoal_rest;

/* One for each thread. */
typedef struct shoal_rester {
    _Atomic(uint64_t) sleeps;    /* how often it began to sleep. Writer: the thread */
    uint32_t waits_without_spin; /* waits left in which it sleeps at once */
} shoal_rester;

typedef int (*shoal_rest_has_work)(const void *context);

static inline void shoal_rest_begin(shoal_rest *rest, int may_spin) {
    rest->may_spin = may_spin;
    rest->mean_gap_ns = 4 * SHOAL_REST_CLOSE_NS;
    atomic_store_explicit(&rest->spin_ns, SHOAL_REST_SHORT_SPIN_NS, memory_order_relaxed);
}

/* Poster: the time between the end of the last work and the new work. After a gap in which the threads fell
 * asleep, several short gaps must come before they spin for long again: a trial of a pool is shorter. */
static inline void shoal_rest_learn(shoal_rest *rest, uint64_t gap_ns) {
    rest->mean_gap_ns =
        gap_ns > SHOAL_REST_SPIN_NS ? 4 * SHOAL_REST_CLOSE_NS : (7 * rest->mean_gap_ns + gap_ns) / 8;
    const uint32_t spin_ns =
        rest->mean_gap_ns < SHOAL_REST_CLOSE_NS ? SHOAL_REST_SPIN_NS : SHOAL_REST_SHORT_SPIN_NS;
    if (atomic_load_explicit(&rest->spin_ns, memory_order_relaxed) != spin_ns)
        atomic_store_explicit(&rest->spin_ns, spin_ns, memory_order_relaxed);
}

/* Poster, after it has made work visible: wakes at most `count` sleepers. */
static inline void shoal_rest_wake(shoal_rest *rest, uint32_t count) {
    if (atomic_fetch_add(&rest->sleepers, 0) != 0) {
        atomic_fetch_add(&rest->wake, 1);
        shoal_futex_wake_some(&rest->wake, count);
    }
}

/* Spins until there is work. Returns 0 if the thread should sleep. */
static inline int shoal_rest_spin(shoal_rest *rest, shoal_rester *self, shoal_rest_has_work has_work,
                                  const void *context) {
    if (!rest->may_spin)
        return has_work(context);
    if (self->waits_without_spin != 0) {
        self->waits_without_spin--;
        return has_work(context);
    }
    const uint64_t begin = shoal_now_ns();
    const uint64_t most = atomic_load_explicit(&rest->spin_ns, memory_order_relaxed);
    for (uint64_t last = begin, now;; last = now) {
        for (int i = 0; i < SHOAL_REST_POLLS; i++) {
            if (has_work(context))
                return 1;
            shoal_relax();
        }
        now = shoal_now_ns();
        if (now - last > SHOAL_REST_LOST_CORE_NS) {
            self->waits_without_spin = SHOAL_REST_WAITS_WITHOUT_SPIN;
            return 0;
        }
        if (now - begin > most)
            return 0;
    }
}

/* Sleeps until it is woken, if there is no work. Returns whether others sleep. */
static inline int shoal_rest_sleep(shoal_rest *rest, shoal_rester *self, shoal_rest_has_work has_work,
                                   const void *context) {
    atomic_fetch_add_explicit(&self->sleeps, 1, memory_order_relaxed);
    atomic_fetch_add(&rest->sleepers, 1);
    const uint32_t wake = atomic_load(&rest->wake);
    if (!has_work(context))
        shoal_futex_wait(&rest->wake, wake, SHOAL_REST_SLEEP_NS);
    return atomic_fetch_sub(&rest->sleepers, 1) != 1;
}

/* Returns when there is work. It spins once: a thread that wakes up without work sleeps again at once. */
static inline void shoal_rest_wait(shoal_rest *rest, shoal_rester *self, shoal_rest_has_work has_work,
                                   const void *context) {
    if (shoal_rest_spin(rest, self, has_work, context))
        return;
    while (!has_work(context))
        if (shoal_rest_sleep(rest, self, has_work, context) && has_work(context))
            shoal_futex_wake_some(&rest->wake, SHOAL_REST_FAN_OUT);
}

#endif
