/* The order of loads and stores in core/gate.c and core/tickets.c, where one side says "I sleep" and looks
 * once more while the other says "done" and looks whether anybody sleeps: two threads meet at that moment
 * hundreds of thousands of times, and never do both miss the other. A worker's sleep and wake-up are notes
 * here: this program has a `syscall` of its own, which core/platform.c uses for futexes. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "check.h"
#include "tickets.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

enum {
    WAKE_ROUNDS = UNDER_SANITIZERS ? 40000 : 200000,
    WORKERS_ROUNDS = UNDER_SANITIZERS ? 10000 : 50000,
    POST_ROUNDS = UNDER_SANITIZERS ? 20000 : 200000
};

typedef struct meeting {
    shoal_gate gates[2];
    shoal_wakeup wakeup;
    int ring_fd, wakeup_fd;
    uint32_t rounds;
    uint64_t until_ns;     /* on a busy machine the threads meet seldom: then it is enough by this time */
    _Atomic uint32_t last; /* this round is the last; set by thread 0 before they meet */
    int64_t shift;         /* by how much the moments move from one round to the next */
    SHOAL_ALIGN(64) _Atomic uint32_t turn[2]; /* how far each of the two threads is */
    SHOAL_ALIGN(64) int64_t delay[2];         /* loads more that a thread waits, its own affair */
    SHOAL_ALIGN(64) uint64_t state[2];
} meeting;

static meeting *now_meeting;
static shoal_word tickets[1];
static SHOAL_ALIGN(64) shoal_word finished[1]; /* of asynchronous steps */
static _Atomic uint32_t woken, slept;

/* Waits for the other thread. */
static void meet(meeting *m, int me, uint32_t turn) {
    atomic_store(&m->turn[me], turn);
    for (int i = 0; atomic_load(&m->turn[!me]) < turn; i++)
        if (i > 1000)
            sched_yield();
}

static int goes_on(const meeting *m, uint32_t turn) {
    const uint32_t last = atomic_load(&m->last);
    return last == 0 || turn <= last;
}

/* Thread 0, before the first meeting of a round. */
static void begin_round(meeting *m, uint32_t turn) {
    if (turn == m->rounds || (turn % 64 == 0 && shoal_now_ns() > m->until_ns))
        atomic_store(&m->last, turn);
}

/* Likewise, then for some loads more: the moments shift against each other. */
static void meet_about(meeting *m, int me, uint32_t turn) {
    meet(m, me, turn);
    uint64_t *state = &m->state[me];
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    for (volatile int64_t i = m->delay[me] + (int64_t)(*state % 16) * m->shift; i > 0; i--)
        continue;
    /* What the other one is about to write is at hand here, so that a load need not wait for a store. */
    for (int i = 0; i < 2; i++)
        (void)(atomic_load(&m->gates[i].go) + atomic_load(&m->gates[i].done) +
               atomic_load(&m->gates[i].asleep));
    (void)(atomic_load(&m->wakeup.asleep) + atomic_load(finished));
}

/* Keeps the two moments together: the thread that came first comes a little later the next time. */
static void adjust(meeting *m, int me, int came_first) {
    m->delay[me] += came_first ? m->shift : -m->shift;
    if (m->delay[me] < 0)
        m->delay[me] = 0;
}

#ifdef __linux__
enum { HAS_FUTEX = 1 };

static void note_wait(void) {
    const uint32_t mine = atomic_load(&now_meeting->turn[0]);
    atomic_fetch_add(&slept, 1);
    while (atomic_load(&now_meeting->turn[1]) <= mine) /* asleep until the other one has done its part */
        sched_yield();
}

long syscall(long number, ...) {
    va_list arguments;
    va_start(arguments, number);
    (void)va_arg(arguments, void *);
    const int operation = va_arg(arguments, int);
    va_end(arguments);
    CHECK_EQUAL(number, SYS_futex);
    if (operation == FUTEX_WAIT)
        note_wait();
    else
        atomic_fetch_add(&woken, 1);
    return 0;
}
#else
enum { HAS_FUTEX = 0 };
#endif

static void open_meeting(meeting *m, uint32_t rounds, int64_t shift) {
    *m = (meeting){.rounds = rounds, .shift = shift, .state = {11, 22}};
    m->until_ns = shoal_now_ns() + 3000000000u;
    now_meeting = m;
    CHECK_EQUAL(shoal_wakeup_create(&m->wakeup_fd, &m->ring_fd), 0);
}

static void close_meeting(meeting *m) {
    close(m->wakeup_fd);
    if (m->ring_fd != m->wakeup_fd)
        close(m->ring_fd);
}

static void run_both(meeting *m, void *(*other)(void *), void (*mine)(meeting *)) {
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, other, m), 0);
    mine(m);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    close_meeting(m);
}

/* -- a worker finishes while the parent goes to sleep ------------------------------------------------------
 */

static void *finish_again_and_again(void *argument) {
    meeting *m = argument;
    for (uint32_t turn = 1; goes_on(m, turn); turn++) {
        meet_about(m, 1, 2 * turn - 1);
        shoal_gate_finish(m->gates, 1, 0, turn, &m->wakeup, m->ring_fd);
        meet(m, 1, 2 * turn);
    }
    return NULL;
}

static void go_to_sleep_again_and_again(meeting *m) {
    uint32_t rings = 0, seen = 0;
    for (uint32_t turn = 1; goes_on(m, turn); turn++) {
        begin_round(m, turn);
        atomic_store(&m->gates[0].go, turn);
        meet_about(m, 0, 2 * turn - 1);
        if (turn % 2)
            shoal_wakeup_arm(&m->wakeup, SHOAL_WAKE_FOR_ALL);
        else
            shoal_wakeup_arm(&m->wakeup, SHOAL_WAKE_FOR_ONE + 0);
        const int idle = shoal_gate_idle(&m->gates[0]);
        meet(m, 0, 2 * turn);
        uint64_t count = 0;
        const int rung = read(m->wakeup_fd, &count, sizeof count) > 0;
        CHECK(idle || rung);
        shoal_wakeup_disarm(&m->wakeup);
        rings += (uint32_t)rung, seen += (uint32_t)idle;
        adjust(m, 0, !idle);
    }
    printf("   %u rings, %u times seen without\n", rings, seen);
}

static void parent_that_goes_to_sleep_sees_the_worker_finished_or_is_woken(void) {
    static meeting m;
    open_meeting(&m, WAKE_ROUNDS, 1);
    run_both(&m, finish_again_and_again, go_to_sleep_again_and_again);
}

/* -- an asynchronous step finishes while the parent goes to sleep ------------------------------------------
 */

static void *finish_tickets_again_and_again(void *argument) {
    meeting *m = argument;
    shoal_worker worker = {.wakeup = &m->wakeup, .wakeup_fd = m->ring_fd};
    for (uint32_t turn = 1; goes_on(m, turn); turn++) {
        shoal_serving serving = {.ticket = tickets, .finished = finished, .worker = &worker, .taken = turn};
        meet_about(m, 1, 2 * turn - 1);
        shoal_serving_finish(&serving);
        meet(m, 1, 2 * turn);
    }
    return NULL;
}

static void wait_for_tickets_again_and_again(meeting *m) {
    uint32_t seen = 0;
    for (uint32_t turn = 1; goes_on(m, turn); turn++) {
        begin_round(m, turn);
        meet_about(m, 0, 2 * turn - 1);
        shoal_wakeup_arm(&m->wakeup, SHOAL_WAKE_FOR_ALL);
        const int is_seen = atomic_load(finished) == turn; /* as shoal_tickets_wait looks */
        meet(m, 0, 2 * turn);
        uint64_t count = 0;
        CHECK(read(m->wakeup_fd, &count, sizeof count) > 0 || is_seen);
        shoal_wakeup_disarm(&m->wakeup);
        seen += (uint32_t)is_seen;
        adjust(m, 0, !is_seen);
    }
    printf("   %u times seen\n", seen);
}

static void parent_that_goes_to_sleep_sees_the_step_finished_or_is_woken(void) {
    static meeting m;
    open_meeting(&m, WAKE_ROUNDS, 1);
    run_both(&m, finish_tickets_again_and_again, wait_for_tickets_again_and_again);
}

/* -- two workers finish together ---------------------------------------------------------------------------
 */

static void finish_one(meeting *m, int me) {
    for (uint32_t turn = 1; goes_on(m, turn); turn++) {
        if (me == 0) {
            begin_round(m, turn);
            atomic_store(&m->gates[0].go, turn);
            atomic_store(&m->gates[1].go, turn);
            shoal_wakeup_arm(&m->wakeup, SHOAL_WAKE_FOR_ALL | (turn % 2 ? SHOAL_WAKE_BY_FUTEX : 0));
        }
        meet_about(m, me, 2 * turn - 1);
        shoal_gate_finish(m->gates, 2, (uint32_t)me, turn, &m->wakeup, m->ring_fd);
        meet(m, me, 2 * turn);
        if (me == 0) {
            uint64_t count = 0;
            const int rung = read(m->wakeup_fd, &count, sizeof count) > 0;
            CHECK_EQUAL(rung, turn % 2 == 0); /* by both, if both see all idle */
            CHECK_EQUAL(atomic_load(&m->wakeup.asleep) == 0,
                        turn % 2 != 0); /* a word is taken by who wakes */
            shoal_wakeup_disarm(&m->wakeup);
        }
    }
}

static void *finish_second(void *argument) {
    finish_one(argument, 1);
    return NULL;
}

static void finish_first(meeting *m) { finish_one(m, 0); }

static void one_of_two_workers_that_finish_together_wakes_the_parent(void) {
    static meeting m;
    open_meeting(&m, WORKERS_ROUNDS, 1);
    run_both(&m, finish_second, finish_first);
}

/* -- the parent posts while a worker goes to sleep ---------------------------------------------------------
 */

static void *post_again_and_again(void *argument) {
    meeting *m = argument;
    for (uint32_t turn = 1; goes_on(m, turn); turn++) {
        meet_about(m, 1, 3 * turn - 2);
        shoal_gate_post(&m->gates[0], 1);
        meet(m, 1, 3 * turn - 1);
        adjust(m, 1, atomic_load(&slept) == 0);
        meet(m, 1, 3 * turn);
    }
    return NULL;
}

static void wait_again_and_again(meeting *m) {
    uint32_t sleeps = 0;
    for (uint32_t turn = 1; goes_on(m, turn); turn++) {
        shoal_wait_policy policy = {.spin = {1, 1}, .yield = {1, 1}}; /* asleep at once */
        begin_round(m, turn);
        atomic_store(&woken, 0);
        atomic_store(&slept, 0);
        meet(m, 0, 3 * turn - 2);
        (void)shoal_gate_wait(&m->gates[0], turn - 1, &policy);
        meet(m, 0, 3 * turn - 1);
        CHECK(atomic_load(&slept) == 0 || atomic_load(&woken) == 1);
        sleeps += atomic_load(&slept);
        meet(m, 0, 3 * turn);
    }
    printf("   %u sleeps, each woken; %u times seen without\n", sleeps, atomic_load(&m->last) - sleeps);
}

static void a_worker_that_goes_to_sleep_sees_the_command_or_is_woken(void) {
    static meeting m;
    open_meeting(&m, POST_ROUNDS, 8);
    run_both(&m, post_again_and_again, wait_again_and_again);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    alarm(300);
    RUN(parent_that_goes_to_sleep_sees_the_worker_finished_or_is_woken);
    RUN(parent_that_goes_to_sleep_sees_the_step_finished_or_is_woken);
    RUN(one_of_two_workers_that_finish_together_wakes_the_parent);
    if (HAS_FUTEX)
        RUN(a_worker_that_goes_to_sleep_sees_the_command_or_is_woken);
    return 0;
}
