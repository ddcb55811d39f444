/* Gates: see gate.h for the drawing and the rules. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "gate.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

/* Looking: some hundred loads, then a yield between loads, since the one we wait for may need this core. */
enum {
    LOOKS = 256,
    PATIENCE_NS = 200000,
    CROWDED_NS = 15000,
    WEIGHT = 8,
    LATE_NS = 200000,
    LONGEST_REST = 1023,
    TRIAL = 64
};

_Static_assert(sizeof(shoal_gate) == 320 && sizeof(shoal_bell) == 64, "whole cache lines");

static void learn(shoal_patience *patience, uint64_t waited_ns) {
    waited_ns += patience->yielded_ns;
    patience->yielded_ns = 0;
    /* One long pause of a learner should not be remembered for hundreds of steps. */
    const uint64_t most = 4 * patience->limit_ns, seen = waited_ns < most ? waited_ns : most;
    patience->average_ns = (patience->average_ns * (WEIGHT - 1) + seen) / WEIGHT;
}

shoal_patience shoal_patience_new(int crowded, int waits_for_many) {
    const shoal_habit look = {crowded ? LONGEST_REST : 0, crowded ? LONGEST_REST : 0};
    return (shoal_patience){.limit_ns = crowded && waits_for_many ? CROWDED_NS : PATIENCE_NS, .look = look};
}

static int worth(shoal_habit *habit) {
    if (habit->rests == 0)
        return 1;
    habit->rests--;
    return 0;
}

static void judge(shoal_habit *habit, int pleased) {
    if (pleased) {
        habit->backoff /= 2;
        return;
    }
    const uint32_t longer = 2 * habit->backoff + 1;
    habit->rests = habit->backoff = longer < LONGEST_REST ? longer : LONGEST_REST;
}

/* What a wait is for: is it over, and since when? */
typedef struct wish {
    shoal_gate *const *gates;
    uint32_t count, first; /* parent: all idle, up to `first` seen so */
    uint32_t seen;         /* worker: gates[0] with another number */
} wish;

/* 1 once the wish is fulfilled, 0 if one should sleep now. Inlined for each of the two wishes. */
static inline int wait_awake(wish *w, int (*over)(wish *), uint64_t (*since)(const wish *),
                             shoal_patience *patience) {
    if (over(w))
        return 1;
    const int looks = worth(&patience->look);
    for (int i = 0; looks && i < LOOKS; i++) {
        if (over(w)) {
            learn(patience, 0);
            judge(&patience->look, 1);
            return 1;
        }
        shoal_relax();
    }
    if (looks)
        judge(&patience->look, 0);
    const int long_waits = patience->average_ns > patience->limit_ns;
    if ((!long_waits || ++patience->slept % TRIAL == 0) && worth(&patience->yield)) {
        const uint64_t begin = shoal_now_ns();
        uint64_t now = begin;
        do {
            sched_yield();
            now = shoal_now_ns();
            if (over(w)) {
                const uint64_t end = since(w);
                learn(patience, now - begin);
                if (long_waits) /* sleeps seemed longer than the waits were: it takes time to be woken */
                    patience->average_ns = now - begin;
                judge(&patience->yield, now < end + LATE_NS);
                return 1;
            }
        } while (now - begin < patience->limit_ns);
        patience->yielded_ns = now - begin;
    }
    return 0;
}

int shoal_gate_idle(const shoal_gate *gate) {
    /* Partner: shoal_gate_finish. Sequentially consistent, since it is also the look after shoal_bell_arm. */
    return atomic_load(&gate->done) == atomic_load_explicit(&gate->go, memory_order_relaxed);
}

static inline int all_idle(wish *w) {
    for (; w->first < w->count; w->first++) /* what was idle stays so until the parent posts again */
        if (!shoal_gate_idle(w->gates[w->first]))
            return 0;
    return 1;
}

static inline uint64_t last_finished(const wish *w) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < w->count; i++)
        if (w->gates[i]->finished_ns > last)
            last = w->gates[i]->finished_ns;
    return last;
}

static inline int is_posted(wish *w) { /* partner shoal_gate_post */
    return atomic_load_explicit(&w->gates[0]->go, memory_order_acquire) != w->seen;
}

static inline uint64_t posted(const wish *w) { return w->gates[0]->posted_ns; }

void shoal_gate_post(shoal_gate *gate, uint32_t command) {
    gate->command = command;
    gate->posted_ns = shoal_now_ns();
    const uint32_t now = atomic_load_explicit(&gate->go, memory_order_relaxed) + 1;
    atomic_store(&gate->go, now); /* releases what was written before; partner shoal_gate_wait */
    if (atomic_load(&gate->asleep))
        shoal_futex_wake(&gate->go);
}

int shoal_gates_look(shoal_gate *const *gates, uint32_t count, shoal_patience *patience) {
    wish idle = {gates, count, 0, 0};
    return wait_awake(&idle, all_idle, last_finished, patience);
}

void shoal_bell_arm(shoal_bell *bell, uint32_t whom) { atomic_store(&bell->asleep, whom); }

void shoal_bell_disarm(shoal_bell *bell) { atomic_store_explicit(&bell->asleep, 0, memory_order_relaxed); }

static uint64_t slice_of(uint64_t timeout_ns) {
    return timeout_ns < SHOAL_GATE_SLICE_NS ? timeout_ns : SHOAL_GATE_SLICE_NS;
}

int shoal_bell_sleep(shoal_bell *bell, struct pollfd *polled, uint32_t count, uint64_t timeout_ns,
                     shoal_patience *patience) {
    const uint64_t begin = shoal_now_ns();
    int ready = poll(polled, count, (int)((slice_of(timeout_ns) + 999999) / 1000000));
    learn(patience, shoal_now_ns() - begin);
    shoal_bell_disarm(bell);
    if (ready > 0 && polled[0].revents != 0) {
        uint64_t rings[64];                             /* of several workers, where it is a pipe */
        (void)!read(polled[0].fd, rings, sizeof rings); /* non-blocking */
        ready--;
    }
    return ready > 0;
}

int shoal_bell_sleep_beside(shoal_bell *bell, shoal_life *const *lives, uint32_t count, uint64_t timeout_ns,
                            shoal_patience *patience) {
    const uint64_t begin = shoal_now_ns();
    const uint32_t armed = atomic_load(&bell->asleep);
    int over = 0;
    if (armed != 0) /* else it has rung already */
        shoal_futex_wait_beside(&bell->asleep, armed, lives, count, slice_of(timeout_ns));
    learn(patience, shoal_now_ns() - begin);
    shoal_bell_disarm(bell);
    for (uint32_t i = 0; i < count; i++)
        over |= shoal_life_is_over(lives[i]);
    return over;
}

uint32_t shoal_gate_wait(shoal_gate *gate, uint32_t seen, shoal_patience *patience) {
    wish command = {&gate, 1, 0, seen};
    if (!wait_awake(&command, is_posted, posted, patience)) {
        const uint64_t begin = shoal_now_ns();
        atomic_store(&gate->asleep, 1);
        if (atomic_load(&gate->go) == seen)
            shoal_futex_wait(&gate->go, seen, SHOAL_GATE_SLICE_NS);
        atomic_store_explicit(&gate->asleep, 0, memory_order_relaxed);
        learn(patience, shoal_now_ns() - begin);
    }
    return atomic_load_explicit(&gate->go, memory_order_acquire);
}

void shoal_bell_here(shoal_bell *bell, int sleeps) {
    const uint32_t core = sleeps ? (uint32_t)(shoal_cpu() + 1) : 0;
    if (atomic_load_explicit(&bell->core, memory_order_relaxed) != core) /* workers read this line */
        atomic_store_explicit(&bell->core, core, memory_order_relaxed);
}

void shoal_gate_spread(shoal_gate *gates, uint32_t count, uint32_t worker, const shoal_bell *bell) {
    const uint32_t mine = (uint32_t)(shoal_cpu() + 1);
    const uint32_t parents = atomic_load_explicit(&bell->core, memory_order_relaxed);
    int shared = 0;
    if (parents == 0)
        return;
    atomic_store_explicit(&gates[worker].core, mine, memory_order_relaxed);
    for (uint32_t w = 0; w < count; w++) {
        const uint32_t core = atomic_load_explicit(&gates[w].core, memory_order_relaxed);
        if (core == parents)
            return;
        shared |= w < worker && core == mine;
    }
    if (shared)
        shoal_move_to_cpu((int)parents - 1);
}

void shoal_gate_finish(shoal_gate *gates, uint32_t count, uint32_t worker, uint32_t seen, shoal_bell *bell,
                       int bell_fd) {
    gates[worker].finished_ns = shoal_now_ns();
    atomic_store(&gates[worker].done, seen); /* releases the rows; partner shoal_gate_idle */
    const uint32_t asleep = atomic_load(&bell->asleep) & ~SHOAL_BELL_BY_WORD;
    if (asleep != SHOAL_BELL_ALL && asleep != SHOAL_BELL_ONE + worker)
        return;
    /* Of workers that finish together, the one whose store of done comes last sees all the others'. */
    for (uint32_t w = 0; asleep == SHOAL_BELL_ALL && w < count; w++)
        if (atomic_load(&gates[w].done) != atomic_load(&gates[w].go))
            return;
    shoal_bell_ring(bell, bell_fd);
}

void shoal_bell_ring(shoal_bell *bell, int bell_fd) {
    uint32_t armed = atomic_load(&bell->asleep);
    if (armed == 0)
        return; /* awake, or another worker rings */
    if (armed & SHOAL_BELL_BY_WORD) {
        /* No other word: a parent that armed anew has looked since, and may sleep on the descriptor. */
        if (atomic_compare_exchange_strong(&bell->asleep, &armed, 0))
            shoal_futex_wake(&bell->asleep); /* one that dies before this is watched for it */
        return;
    }
    /* Deaths of idle workers are not watched here, so nobody takes the bell from others who might ring it. */
    const uint64_t one = 1;
    ssize_t written;
    do
        written = write(bell_fd, &one, sizeof one);
    while (written < 0 && errno == EINTR); /* EAGAIN: it rings already */
}
