/* Tests of core/rest.h with a simulated clock: how long a thread without work spins. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "platform.h"

static uint64_t simulated_now(void);
static void simulated_wait(const shoal_word *word, uint32_t expected, uint64_t timeout_ns);
#define shoal_now_ns simulated_now
#define shoal_futex_wait simulated_wait
#include "rest.h"

#include "check.h"

static uint64_t now_ns, tick_ns, jump_at, polls;

/* Every look at the clock takes some time; once, another program has the core for 5 ms. */
static uint64_t simulated_now(void) {
    now_ns += tick_ns;
    if (jump_at != 0 && now_ns >= jump_at) {
        jump_at = 0;
        now_ns += 5000000;
    }
    return now_ns;
}

/* Every sleep ends at once. */
static void simulated_wait(const shoal_word *word, uint32_t expected, uint64_t timeout_ns) {
    (void)word, (void)expected, (void)timeout_ns;
}

static int never(const void *context) {
    (void)context;
    polls++;
    return 0;
}

static int after_1000_polls(const void *context) {
    (void)context;
    return ++polls > 1000;
}

static uint64_t spin_time(shoal_rest *rest, shoal_rester *self) {
    const uint64_t begin = now_ns;
    CHECK_EQUAL(shoal_rest_spin(rest, self, never, NULL), 0);
    return now_ns - begin;
}

static void an_idle_thread_spins_for_a_limited_time(void) {
    shoal_rest rest = {0};
    shoal_rester self = {0};
    tick_ns = 1000;
    shoal_rest_begin(&rest, 1);
    CHECK(spin_time(&rest, &self) <= SHOAL_REST_SHORT_SPIN_NS + 3 * tick_ns);
    for (int i = 0; i < 20; i++)
        shoal_rest_learn(&rest, 20000);
    const uint64_t longest = spin_time(&rest, &self);
    CHECK(longest >= SHOAL_REST_SPIN_NS && longest <= SHOAL_REST_SPIN_NS + 3 * tick_ns);
    CHECK(longest < 2000000); /* the documented bound: no CPU after 2 ms */
}

static void work_ends_the_spinning(void) {
    shoal_rest rest = {0};
    shoal_rester self = {0};
    tick_ns = 10;
    polls = 0;
    shoal_rest_begin(&rest, 1);
    CHECK_EQUAL(shoal_rest_spin(&rest, &self, after_1000_polls, NULL), 1);
    CHECK_EQUAL(polls, 1001);
}

static void a_jump_of_the_clock_ends_the_spinning_of_this_and_the_next_waits(void) {
    shoal_rest rest = {0};
    shoal_rester self = {0};
    tick_ns = 1000;
    shoal_rest_begin(&rest, 1);
    jump_at = now_ns + 10000;
    polls = 0;
    (void)spin_time(&rest, &self);
    CHECK(polls < 20 * SHOAL_REST_POLLS);
    for (int i = 0; i < SHOAL_REST_WAITS_WITHOUT_SPIN; i++)
        CHECK_EQUAL(spin_time(&rest, &self), 0);
    CHECK(spin_time(&rest, &self) >= SHOAL_REST_SHORT_SPIN_NS);
}

static void with_more_threads_than_cores_no_thread_spins(void) {
    shoal_rest rest = {0};
    shoal_rester self = {0};
    shoal_rest_begin(&rest, 0);
    polls = 0;
    CHECK_EQUAL(spin_time(&rest, &self), 0);
    CHECK_EQUAL(polls, 1);
}

/* Sleeps that end without work, as on a system without futexes, are not followed by more spinning. */
static int after_five_sleeps(const void *context) {
    polls++;
    return atomic_load(&((const shoal_rester *)context)->sleeps) >= 5;
}

static void a_thread_spins_once_however_often_it_wakes_up_without_work(void) {
    shoal_rest rest = {0};
    shoal_rester self = {0};
    tick_ns = 1000;
    polls = 0;
    shoal_rest_begin(&rest, 1);
    atomic_store(&rest.sleepers, 1); /* as if another thread slept: it would be woken */
    const uint64_t begin = now_ns;
    shoal_rest_wait(&rest, &self, after_five_sleeps, &self);
    CHECK_EQUAL(atomic_load(&self.sleeps), 5);
    CHECK(now_ns - begin <= SHOAL_REST_SHORT_SPIN_NS + 3 * tick_ns);
    CHECK_EQUAL(atomic_load(&rest.sleepers), 1);
}

int main(void) {
    RUN(an_idle_thread_spins_for_a_limited_time);
    RUN(work_ends_the_spinning);
    RUN(a_jump_of_the_clock_ends_the_spinning_of_this_and_the_next_waits);
    RUN(a_thread_spins_once_however_often_it_wakes_up_without_work);
    RUN(with_more_threads_than_cores_no_thread_spins);
    return 0;
}
