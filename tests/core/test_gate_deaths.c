/* Tests of core/gates.c: a wait ends with the death of a worker that it waits for, whether the parent sleeps
 * on the liveness words or polls descriptors. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "gate_world.h"

#include <pthread.h>

#define FOREVER_NS UINT64_MAX
#define QUICK_NS (SHOAL_GATE_SLICE_NS / 2)

/* A process that does nothing, watched by its pidfd; with a liveness word if `holds`. */
static pid_t start_idler(parent *p, uint32_t i, int holds, int *fd) {
    shoal_gate *gate = &p->w->gates[i];
    atomic_store(&gate->core, 0);
    const pid_t pid = fork_tied();
    if (pid == 0) {
        if (holds)
            (void)shoal_liveness_hold(&gate->liveness);
        atomic_store(&gate->core, 1);
        for (;;)
            pause();
    }
    while (atomic_load(&gate->core) == 0)
        usleep(100);
    CHECK((*fd = pidfd_of(pid)) >= 0);
    shoal_gates_watch(&p->all, i, *fd, 0);
    return pid;
}

static void *kill_later(void *argument) {
    usleep(5000);
    kill(*(const pid_t *)argument, SIGKILL);
    return NULL;
}

/* Worker 1 dies during a wait; worker 0 is busy and lives. The wait's status, and how long it took. */
static int wait_for_a_death(int holds, int is_busy, int any_death, uint64_t timeout_ns, uint64_t *took_ns) {
    parent p;
    open_parent(&p, open_world(0), 2, 0);
    int fds[2];
    pid_t pids[2];
    for (uint32_t i = 0; i < 2; i++)
        pids[i] = start_idler(&p, i, holds, &fds[i]);
    shoal_gates_post(&p.all, 0, WORK, 0, 0, 0);
    if (is_busy)
        shoal_gates_post(&p.all, 1, WORK, 0, 0, 0);
    pthread_t killer;
    CHECK_EQUAL(pthread_create(&killer, NULL, kill_later, &pids[1]), 0);
    const uint64_t begin = shoal_now_ns();
    const int status = wait_for(&p, timeout_ns, -1, any_death);
    *took_ns = shoal_now_ns() - begin;
    CHECK_EQUAL(p.all.num_polled == 0, holds && shoal_liveness_can_be_watched(NULL, 0));
    CHECK_EQUAL(pthread_join(killer, NULL), 0);
    reap(pids[1]);
    CHECK(shoal_gates_is_dead(&p.all, 1) && !shoal_gates_is_dead(&p.all, 0));
    /* Known from memory only where it holds its sign, which needs a system with robust futexes. */
    CHECK_EQUAL(shoal_gates_all_live(&p.all), atomic_load(&p.w->gates[1].liveness.at) == 0);
    kill(pids[0], SIGKILL);
    reap(pids[0]);
    close(fds[0]), close(fds[1]);
    close_parent(&p);
    return status;
}

static void the_death_of_a_busy_worker_ends_the_wait_at_once(void) {
    for (int holds = 0; holds < 2; holds++) {
        uint64_t took_ns, fastest = UINT64_MAX;
        for (int turn = 0; turn < 3; turn++) {
            CHECK_EQUAL(wait_for_a_death(holds, 1, 0, FOREVER_NS, &took_ns), SHOAL_WAIT_DIED);
            fastest = took_ns < fastest ? took_ns : fastest;
        }
        CHECK(fastest < QUICK_NS); /* not after a slice */
    }
}

static void death_of_a_finished_worker_ends_the_wait_only_with_any_death(void) {
    for (int holds = 0; holds < 2; holds++) {
        uint64_t took_ns;
        CHECK_EQUAL(wait_for_a_death(holds, 0, 1, FOREVER_NS, &took_ns), SHOAL_WAIT_DIED);
        CHECK_EQUAL(wait_for_a_death(holds, 0, 0, 2 * SHOAL_GATE_SLICE_NS, &took_ns), SHOAL_WAIT_TIMEOUT);
        CHECK(took_ns >= 2 * SHOAL_GATE_SLICE_NS);
    }
}

/* A finished worker may have taken the wake-up word and die before it wakes the parent. */
static void sleep_on_words_ends_with_the_death_of_any_worker_that_can_claim_the_wakeup(void) {
    parent p;
    open_parent(&p, open_world(0), 2, 0);
    int fds[2];
    pid_t pids[2];
    for (uint32_t i = 0; i < 2; i++)
        pids[i] = start_idler(&p, i, 1, &fds[i]);
    if (shoal_liveness_can_be_watched(NULL, 0)) {
        shoal_gates_post(&p.all, 0, WORK, 0, 0, 0);
        shoal_gates_arm(&p.all, -1, 0);
        CHECK_EQUAL(p.all.num_liveness_words, 2);
        kill(pids[1], SIGKILL);
        CHECK(shoal_gates_sleep(&p.all, FOREVER_NS));
        reap(pids[1]);
        shoal_gates_arm(&p.all, -1, 0);
        CHECK_EQUAL(p.all.num_liveness_words, 1); /* it cannot any more */
        shoal_wakeup_disarm(&p.w->wakeup);
        pids[1] = start_idler(&p, 1, 0, &fds[1]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        kill(pids[i], SIGKILL);
        reap(pids[i]);
        close(fds[i]);
    }
    close_parent(&p);
}

/* The guard's liveness word, and the look after a slice without news: a worker that has become another
 * program has neither sign marked. */
static void sleep_watches_the_guard_and_checks_for_deaths_after_a_slice(void) {
    parent p;
    open_parent(&p, open_world(0), 1, 0);
    (void)shoal_liveness_hold(&p.w->gates[0].liveness);
    shoal_gates_post(&p.all, 0, WORK, 0, 0, 0);
    shoal_gates_arm(&p.all, -1, 0);
    const uint32_t without_guard = p.all.num_liveness_words;
    if (shoal_liveness_hold(&p.w->gates[0].guard_liveness) == 0) {
        shoal_gates_arm(&p.all, -1, 0);
        CHECK_EQUAL(p.all.num_liveness_words, without_guard + 1);
    }
    CHECK_EQUAL(write(p.quiet[1], "", 1), 1); /* its descriptor says that it is dead, its word does not */
    const uint64_t begin = shoal_now_ns();
    CHECK_EQUAL(wait_for(&p, FOREVER_NS, -1, 0), SHOAL_WAIT_DIED);
    CHECK(shoal_now_ns() - begin < 10ull * SHOAL_GATE_SLICE_NS);
    shoal_liveness_release(&p.w->gates[0].guard_liveness);
    shoal_liveness_release(&p.w->gates[0].liveness);
    close_parent(&p);
}

static void *hold_and_end(void *liveness) {
    CHECK_EQUAL(shoal_liveness_hold(liveness), 0);
    return NULL;
}

static void a_worker_is_dead_as_soon_as_its_thread_has_ended_whatever_its_descriptor_says(void) {
    parent p;
    open_parent(&p, open_world(0), 1, 0);
    if (shoal_liveness_can_be_watched(NULL, 0)) {
        shoal_gates_post(&p.all, 0, WORK, 0, 0, 0);
        pthread_t thread;
        CHECK_EQUAL(pthread_create(&thread, NULL, hold_and_end, &p.w->gates[0].liveness), 0);
        CHECK_EQUAL(pthread_join(thread, NULL), 0);
        CHECK_EQUAL(wait_for(&p, 10ull * SHOAL_GATE_SLICE_NS, -1, 0), SHOAL_WAIT_DIED);
        CHECK(shoal_gates_is_dead(&p.all, 0) && !shoal_gates_all_live(&p.all));
    }
    close_parent(&p);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0); /* children are forked */
    alarm(100);
    const int pidfd = pidfd_of(getpid());
    if (pidfd < 0) {
        printf("ok skipped: this system has no pidfd\n");
        return 0;
    }
    close(pidfd);
    RUN(the_death_of_a_busy_worker_ends_the_wait_at_once);
    RUN(death_of_a_finished_worker_ends_the_wait_only_with_any_death);
    RUN(sleep_on_words_ends_with_the_death_of_any_worker_that_can_claim_the_wakeup);
    RUN(sleep_watches_the_guard_and_checks_for_deaths_after_a_slice);
    RUN(a_worker_is_dead_as_soon_as_its_thread_has_ended_whatever_its_descriptor_says);
    return 0;
}
