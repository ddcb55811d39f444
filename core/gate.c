/* Gates: see gate.h for the drawing and the rules. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "gate.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

/* Looking: some hundred loads, then a yield between loads (with more processes than cores the one we wait for
 * may need this core), for at most PATIENCE_NS; not at all when recent waits were far longer than that. */
enum { LOOKS = 256, PATIENCE_NS = 100000, PROBE_NS = 4000, WEIGHT = 8 };

_Static_assert(sizeof(shoal_gate) == 192 && sizeof(shoal_bell) == 64, "whole cache lines");

static uint64_t patience_ns(const shoal_patience *patience) {
    return patience->average_ns > PATIENCE_NS ? PROBE_NS : PATIENCE_NS;
}

static void learn(shoal_patience *patience, uint64_t waited_ns) {
    /* One long pause of a learner should not be remembered for hundreds of steps. */
    const uint64_t seen = waited_ns < 4 * PATIENCE_NS ? waited_ns : 4 * PATIENCE_NS;
    patience->average_ns = (patience->average_ns * (WEIGHT - 1) + seen) / WEIGHT;
}

int shoal_gate_idle(const shoal_gate *gate) {
    /* Partner: shoal_gate_finish. Sequentially consistent, since it is also the look after shoal_bell_arm. */
    return atomic_load(&gate->done) == atomic_load_explicit(&gate->go, memory_order_relaxed);
}

static int all_idle(shoal_gate *const *gates, uint32_t count, uint32_t *first) {
    for (; *first < count; ++*first) /* what was idle stays so until the parent posts again */
        if (!shoal_gate_idle(gates[*first]))
            return 0;
    return 1;
}

void shoal_gate_post(shoal_gate *gate, uint32_t command) {
    gate->command = command;
    const uint32_t now = atomic_load_explicit(&gate->go, memory_order_relaxed) + 1;
    atomic_store(&gate->go, now); /* releases what was written before; partner shoal_gate_wait */
    if (atomic_load(&gate->asleep))
        shoal_futex_wake(&gate->go);
}

int shoal_gates_look(shoal_gate *const *gates, uint32_t count, shoal_patience *patience) {
    uint32_t first = 0;
    if (all_idle(gates, count, &first))
        return 1;
    const uint64_t begin = shoal_now_ns(), limit = patience_ns(patience);
    for (int i = 0; i < LOOKS && !patience->yields; i++) {
        if (all_idle(gates, count, &first)) {
            learn(patience, shoal_now_ns() - begin);
            return 1;
        }
        shoal_relax();
    }
    uint64_t waited;
    do {
        sched_yield();
        waited = shoal_now_ns() - begin;
        if (all_idle(gates, count, &first)) {
            learn(patience, waited);
            return 1;
        }
    } while (waited < limit);
    learn(patience, 2 * PATIENCE_NS); /* it would have been longer still */
    return 0;
}

void shoal_bell_arm(shoal_bell *bell) { atomic_store(&bell->asleep, 1); }
void shoal_bell_arm_for(shoal_bell *bell, uint32_t worker) { atomic_store(&bell->asleep, 2 + worker); }

void shoal_bell_disarm(shoal_bell *bell) { atomic_store_explicit(&bell->asleep, 0, memory_order_relaxed); }

int shoal_bell_sleep(shoal_bell *bell, struct pollfd *polled, uint32_t count, uint64_t timeout_ns) {
    const uint64_t limit = timeout_ns < SHOAL_GATE_SLICE_NS ? timeout_ns : SHOAL_GATE_SLICE_NS;
    int ready = poll(polled, count, (int)((limit + 999999) / 1000000));
    shoal_bell_disarm(bell);
    if (ready > 0 && polled[0].revents != 0) {
        uint64_t rings;
        (void)!read(polled[0].fd, &rings, sizeof rings); /* non-blocking */
        ready--;
    }
    return ready > 0;
}

uint32_t shoal_gate_wait(shoal_gate *gate, uint32_t seen, shoal_patience *patience) {
    const uint64_t begin = shoal_now_ns(), limit = patience_ns(patience);
    uint32_t now;
    for (int i = 0; i < LOOKS && !patience->yields; i++) {
        now = atomic_load_explicit(&gate->go, memory_order_acquire); /* partner shoal_gate_post */
        if (now != seen) {
            learn(patience, shoal_now_ns() - begin);
            return now;
        }
        shoal_relax();
    }
    uint64_t waited;
    do {
        sched_yield();
        waited = shoal_now_ns() - begin;
        now = atomic_load_explicit(&gate->go, memory_order_acquire);
        if (now != seen) {
            learn(patience, waited);
            return now;
        }
    } while (waited < limit);
    atomic_store(&gate->asleep, 1);
    now = atomic_load(&gate->go);
    if (now == seen)
        shoal_futex_wait(&gate->go, seen, SHOAL_GATE_SLICE_NS);
    atomic_store_explicit(&gate->asleep, 0, memory_order_relaxed);
    learn(patience, shoal_now_ns() - begin);
    return atomic_load_explicit(&gate->go, memory_order_acquire);
}

void shoal_gate_finish(shoal_gate *gates, uint32_t count, uint32_t worker, uint32_t seen, shoal_bell *bell,
                       int bell_fd) {
    atomic_store(&gates[worker].done, seen); /* releases the rows; partner shoal_gate_idle */
    const uint32_t asleep = atomic_load(&bell->asleep);
    if (asleep != 1 && asleep != 2 + worker)
        return;
    /* Of workers that finish together, the one whose store of done comes last sees all the others'. */
    for (uint32_t w = 0; asleep == 1 && w < count; w++)
        if (atomic_load(&gates[w].done) != atomic_load(&gates[w].go))
            return;
    shoal_bell_ring(bell, bell_fd);
}

void shoal_bell_ring(shoal_bell *bell, int bell_fd) {
    if (!atomic_load(&bell->asleep) || !atomic_exchange(&bell->asleep, 0))
        return; /* awake, or another worker rings */
    const uint64_t one = 1;
    ssize_t written;
    do
        written = write(bell_fd, &one, sizeof one);
    while (written < 0 && errno == EINTR); /* EAGAIN: it rings already */
}
