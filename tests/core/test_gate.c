/* Tests of core/gate.c step by step: wake-ups, and how a waiter adapts to its recent waits. test_gates.c has
 * the tests under contention. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "gate_world.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

enum { TURNS = 700000 };

/* -- the wake-up, step by step --------------------------------------------------------------------------- */

static void finish(world *w, uint32_t i) {
    shoal_gate_finish(w->gates, 2, i, atomic_load(&w->gates[i].go), &w->wakeup, w->ring_fd);
}

static void last_worker_wakes_the_parent_only_if_it_sleeps(void) {
    world *w = open_world(5);
    for (int turn = 0; turn < 2; turn++) {
        shoal_gate_post(&w->gates[0], WORK);
        shoal_gate_post(&w->gates[1], WORK);
        if (turn == 1)
            shoal_wakeup_arm(&w->wakeup, SHOAL_WAKE_FOR_ALL);
        finish(w, (uint32_t)turn);
        CHECK(!rung(w)); /* the other one is at work */
        CHECK(!idle(w, 2));
        finish(w, (uint32_t)!turn);
        CHECK(idle(w, 2));
        CHECK_EQUAL(rung(w), turn);
    }
    CHECK_EQUAL(atomic_load(&w->wakeup.asleep),
                SHOAL_WAKE_FOR_ALL); /* another may ring: this one may be dying */
    uint64_t rings = 0;
    CHECK_EQUAL(read(w->wakeup_fd, &rings, sizeof rings), (int)sizeof rings);
    CHECK_EQUAL(rings, 1);
    shoal_wakeup_send(&w->wakeup, w->ring_fd);
    shoal_wakeup_send(&w->wakeup, w->ring_fd);
    struct pollfd one = {w->wakeup_fd, POLLIN, 0};
    shoal_wait_policy policy = shoal_wait_policy_new(0, 0);
    CHECK_EQUAL(shoal_wakeup_sleep(&w->wakeup, &one, 1, UINT64_MAX, &policy), 0);
    CHECK(!rung(w) && atomic_load(&w->wakeup.asleep) == 0); /* all of them are heard at once */
    shoal_wakeup_send(&w->wakeup, w->ring_fd);
    CHECK(!rung(w));
    close_world(w);
}

static void *ring_all_the_time(void *argument) {
    world *w = argument;
    while (atomic_load(&w->gates[0].go) == 0)
        shoal_wakeup_send(&w->wakeup, w->ring_fd);
    return NULL;
}

static void wakeup_read_as_futex_is_not_claimed_after_it_was_armed_for_the_descriptor(void) {
    world *w = open_world(0);
    pthread_t ringer;
    CHECK_EQUAL(pthread_create(&ringer, NULL, ring_all_the_time, w), 0);
    uint64_t taken = 0, heard = 0;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        shoal_wakeup_arm(&w->wakeup, SHOAL_WAKE_FOR_ALL | SHOAL_WAKE_BY_FUTEX);
        for (volatile uint32_t i = 0; i < turn % 40; i++)
            ;
        heard += atomic_load(&w->wakeup.asleep) == 0;
        shoal_wakeup_arm(&w->wakeup, SHOAL_WAKE_FOR_ALL);
        for (volatile uint32_t i = 0; i < 300; i++)
            ;
        taken += atomic_load(&w->wakeup.asleep) == 0;
        shoal_wakeup_disarm(&w->wakeup);
    }
    atomic_store(&w->gates[0].go, 1);
    CHECK_EQUAL(pthread_join(ringer, NULL), 0);
    CHECK(heard > 0); /* else nothing of this was tested */
    CHECK_EQUAL(taken, 0);
    close_world(w);
}

static void parent_that_sleeps_for_one_worker_is_woken_only_by_it(void) {
    world *w = open_world(0);
    for (uint32_t i = 0; i < 2; i++) {
        shoal_gate_post(&w->gates[0], WORK);
        shoal_gate_post(&w->gates[1], WORK);
        shoal_wakeup_arm(&w->wakeup, SHOAL_WAKE_FOR_ONE + i);
        finish(w, !i);
        CHECK(!rung(w));
        shoal_gate_post(&w->gates[!i], WORK); /* busy again, which does not matter */
        finish(w, i);
        CHECK(rung(w));
        uint64_t rings;
        CHECK_EQUAL(read(w->wakeup_fd, &rings, sizeof rings), (int)sizeof rings);
        finish(w, !i);
        CHECK(!rung(w));
    }
    close_world(w);
}

static void leftover_wakeup_ends_only_the_next_sleep(void) {
    world *w = open_world(0);
    struct pollfd one = {w->wakeup_fd, POLLIN, 0};
    shoal_wait_policy policy = shoal_wait_policy_new(0, 0);
    shoal_wakeup_arm(&w->wakeup, SHOAL_WAKE_FOR_ALL);
    shoal_wakeup_send(&w->wakeup, w->ring_fd);
    uint64_t begin = shoal_now_ns();
    shoal_wakeup_arm(&w->wakeup, SHOAL_WAKE_FOR_ALL);
    CHECK_EQUAL(shoal_wakeup_sleep(&w->wakeup, &one, 1, UINT64_MAX, &policy), 0);
    CHECK(shoal_now_ns() - begin < SHOAL_GATE_SLICE_NS);
    CHECK_EQUAL(atomic_load(&w->wakeup.asleep), 0);
    begin = shoal_now_ns();
    CHECK_EQUAL(shoal_wakeup_sleep(&w->wakeup, &one, 1, 3000000, &policy), 0);
    CHECK(shoal_now_ns() - begin >= 3000000);
    close_world(w);
}

static void a_parent_that_sleeps_on_the_word_is_woken_there_and_not_by_the_descriptor(void) {
    world *w = open_world(0);
    shoal_wait_policy policy = shoal_wait_policy_new(0, 0);
    shoal_gate_post(&w->gates[0], WORK);
    shoal_wakeup_arm(&w->wakeup, SHOAL_WAKE_FOR_ALL | SHOAL_WAKE_BY_FUTEX);
    finish(w, 0);
    CHECK(!rung(w) && atomic_load(&w->wakeup.asleep) == 0);
    uint64_t begin = shoal_now_ns();
    CHECK_EQUAL(shoal_wakeup_sleep_on_words(&w->wakeup, NULL, 0, UINT64_MAX, &policy), 0); /* it has rung */
    CHECK(shoal_now_ns() - begin < SHOAL_GATE_SLICE_NS / 2);
    shoal_gate_post(&w->gates[1], WORK);
    shoal_wakeup_arm(&w->wakeup, (SHOAL_WAKE_FOR_ONE + 1) | SHOAL_WAKE_BY_FUTEX);
    finish(w, 0);
    CHECK_EQUAL(atomic_load(&w->wakeup.asleep),
                (SHOAL_WAKE_FOR_ONE + 1) | SHOAL_WAKE_BY_FUTEX); /* not for it */
    begin = shoal_now_ns();
    CHECK_EQUAL(shoal_wakeup_sleep_on_words(&w->wakeup, NULL, 0, 3000000, &policy), 0);
    CHECK(shoal_now_ns() - begin >= (shoal_liveness_can_be_watched(NULL, 0) ? 3000000 : 0));
    CHECK_EQUAL(atomic_load(&w->wakeup.asleep), 0);
    finish(w, 1);
    CHECK(!rung(w));
    close_world(w);
}

static void wait_without_wakeup_returns_after_a_slice(void) {
    world *w = open_world(8);
    shoal_wait_policy policy = shoal_wait_policy_new(0, 0);
    const uint64_t begin = shoal_now_ns();
    CHECK_EQUAL(shoal_gate_wait(&w->gates[0], 8, &policy), 8);
    CHECK(shoal_now_ns() - begin >= SHOAL_GATE_SLICE_NS * 9 / 10);
    CHECK_EQUAL(atomic_load(&w->gates[0].asleep), 0);
    close_world(w);
}

/* -- wait policy ----------------------------------------------------------------------------------------- */

static void useless_spins_and_late_yields_are_skipped_ever_longer(void) {
    world *w = open_world(0);
    shoal_gate *gate = &w->gates[0];
    shoal_wait_policy policy = shoal_wait_policy_new(0, 0);
    shoal_gate_post(gate, WORK);
    for (uint32_t wait = 0, rest = 1; wait < 3; wait++, rest = 2 * rest + 1) { /* nobody ever finishes */
        policy.spin.skips = 0;
        CHECK(!shoal_gates_wait_awake(&gate, 1, &policy));
        CHECK_EQUAL(policy.spin.skips, rest);
    }
    CHECK_EQUAL(policy.yield.skips, 0); /* it ended no wait at all, which is no fault of it */
    CHECK(policy.yielded_ns >= policy.limit_ns);

    for (int late = 1; late >= 0; late--) { /* it is seen a second after it finished, or in time */
        policy = shoal_wait_policy_new(1, 0);
        policy.limit_ns = 10000000000ull;
        const pid_t pid = fork();
        if (pid == 0) {
            usleep(3000);
            gate->finished_ns = shoal_now_ns() + (late ? -1000000000ull : 1000000000ull);
            atomic_store(&gate->done, atomic_load(&gate->go));
            _exit(0);
        }
        CHECK(shoal_gates_wait_awake(&gate, 1, &policy));
        CHECK_EQUAL(policy.yield.skips, (uint32_t)late);
        CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
        shoal_gate_post(gate, WORK);
    }
    close_world(w);
}

static void long_waits_sleep_without_yielding_for_a_while(void) {
    world *w = open_world(0);
    shoal_gate *gate = &w->gates[0];
    struct pollfd one = {w->wakeup_fd, POLLIN, 0};
    shoal_wait_policy policy = shoal_wait_policy_new(1, 1);
    CHECK(policy.limit_ns < shoal_wait_policy_new(0, 1).limit_ns && policy.spin.skips > 0);
    shoal_gate_post(gate, WORK);
    for (int i = 0; i < 20; i++)
        CHECK_EQUAL(shoal_wakeup_sleep(&w->wakeup, &one, 1, 1000000, &policy), 0);
    CHECK(policy.average_ns > policy.limit_ns);
    CHECK(!shoal_gates_wait_awake(&gate, 1, &policy));
    CHECK_EQUAL(policy.yielded_ns, 0);
    for (int i = 0; i < 20; i++) { /* the wake-up was sent already: sleeps of no length */
        shoal_wakeup_arm(&w->wakeup, SHOAL_WAKE_FOR_ALL);
        shoal_wakeup_send(&w->wakeup, w->ring_fd);
        (void)shoal_wakeup_sleep(&w->wakeup, &one, 1, UINT64_MAX, &policy);
    }
    CHECK(policy.average_ns <= policy.limit_ns);
    close_world(w);
}

static void worker_that_shares_a_core_moves_to_the_parents_free_core(void) {
    world *w = open_world(0);
    const uint32_t mine = (uint32_t)shoal_cpu() + 1;
    uint32_t moved = 0, other = mine == 1 ? 2 : 1;
    if (shoal_cpu() < 0 || shoal_cpu_count() < 2) {
        printf("   skipped: one core, or nobody says which\n");
        close_world(w);
        return;
    }
    for (int turn = 0; turn < 50; turn++) { /* the kernel may move it back before we look */
        const uint32_t here = (uint32_t)shoal_cpu() + 1;
        other = here == 1 ? 2 : 1;
        atomic_store(&w->wakeup.core, other);
        atomic_store(&w->gates[0].core, here);
        shoal_gate_publish_core(&w->gates[1]);
        shoal_gate_spread(w->gates, 2, 1, &w->wakeup);
        moved += (uint32_t)shoal_cpu() + 1 == other && atomic_load(&w->gates[1].core) == other;
    }
    CHECK(moved > 25);
    CHECK(shoal_cpu_count() >= 2); /* it may still run anywhere */
    uint32_t stayed = 0;
    for (int turn = 0; turn < 50; turn++) {
        const uint32_t here = (uint32_t)shoal_cpu() + 1;
        other = here == 1 ? 2 : 1;
        atomic_store(&w->wakeup.core, turn % 2 ? other : 0);      /* 0: the parent does not sleep */
        atomic_store(&w->gates[0].core, turn % 2 ? other : here); /* it is there already */
        shoal_gate_publish_core(&w->gates[1]);
        shoal_gate_spread(w->gates, 2, 1, &w->wakeup);
        stayed += (uint32_t)shoal_cpu() + 1 == here;
    }
    CHECK(stayed > 25);
    close_world(w);
}

#ifdef __linux__
static cpu_set_t affinity_of(pid_t thread) {
    cpu_set_t set;
    CHECK_EQUAL(sched_getaffinity(thread, sizeof set, &set), 0);
    return set;
}

static void thread_moves_to_a_core_that_is_not_used(void) {
    const cpu_set_t before = affinity_of(0);
    shoal_cpu_set used = {{0}};
    const int has_others = CPU_COUNT(&before) > 1;
    int moved = 0;
    for (int turn = 0; turn < 50 && has_others; turn++) { /* the kernel may move it before we look */
        used = (shoal_cpu_set){{0}};
        const int here = shoal_cpu();
        shoal_cpu_set_add(&used, here);
        shoal_move_to_unused_cpu(&used, here); /* a preferred core that is used does not count */
        moved += shoal_cpu() != here;
    }
    CHECK(!has_others || moved > 25);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        shoal_cpu_set_add(&used, cpu);
    shoal_move_to_unused_cpu(&used, 0); /* there is none */
    const cpu_set_t after = affinity_of(0);
    CHECK(CPU_EQUAL(&before, &after));
}
#endif

/* -- deaths ---------------------------------------------------------------------------------------------- */

static void worker_killed_just_before_the_wakeup_costs_the_parent_one_slice(void) {
    world *w = open_world(0);
    for (int turn = 0; turn < 5; turn++) {
        shoal_gate_post(&w->gates[0], WORK);
        shoal_wakeup_arm(&w->wakeup, SHOAL_WAKE_FOR_ALL);
        const pid_t pid = fork();
        if (pid == 0) {
            atomic_store(&w->gates[0].done, atomic_load(&w->gates[0].go));
            kill(getpid(), SIGKILL);
        }
        reap(pid);
        struct pollfd one = {w->wakeup_fd, POLLIN, 0};
        shoal_wait_policy policy = shoal_wait_policy_new(0, 0);
        const uint64_t begin = shoal_now_ns();
        CHECK_EQUAL(shoal_wakeup_sleep(&w->wakeup, &one, 1, UINT64_MAX, &policy), 0);
        const uint64_t slept = shoal_now_ns() - begin;
        CHECK(slept >= SHOAL_GATE_SLICE_NS && slept < 10ull * SHOAL_GATE_SLICE_NS);
        CHECK(idle(w, 1));
    }
    close_world(w);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0); /* children are forked */
    alarm(300);                       /* a lost hand-off hangs */
    RUN(last_worker_wakes_the_parent_only_if_it_sleeps);
    RUN(wakeup_read_as_futex_is_not_claimed_after_it_was_armed_for_the_descriptor);
    RUN(parent_that_sleeps_for_one_worker_is_woken_only_by_it);
    RUN(leftover_wakeup_ends_only_the_next_sleep);
    RUN(a_parent_that_sleeps_on_the_word_is_woken_there_and_not_by_the_descriptor);
    RUN(wait_without_wakeup_returns_after_a_slice);
    RUN(useless_spins_and_late_yields_are_skipped_ever_longer);
    RUN(long_waits_sleep_without_yielding_for_a_while);
    RUN(worker_that_shares_a_core_moves_to_the_parents_free_core);
#ifdef __linux__
    RUN(thread_moves_to_a_core_that_is_not_used);
#endif
    RUN(worker_killed_just_before_the_wakeup_costs_the_parent_one_slice);
    return 0;
}
