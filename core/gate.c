/* Gates: see gate.h for the drawing and the rules. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "gate.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

/* A waiter spins for some hundred loads, then yields between loads: the process it waits for may need this
 * core. A wake-up costs tens of microseconds, and with a worker on every core it can put two workers on one
 * core, which doubles the time of a step. So a waiter yields for longer than the parent needs between two
 * steps of hundreds of thousands of environments. */
enum {
    SPINS = 256,
    YIELD_NS = 400000,
    CROWDED_YIELD_NS = 100000,
    WEIGHT = 8,
    LATE_NS = 200000,
    MOST_SKIPS = 1023,
    TRIAL = 64
};

_Static_assert(sizeof(shoal_gate) == 320 && sizeof(shoal_wakeup) == 64, "whole cache lines");

static void learn(shoal_wait_policy *policy, uint64_t waited_ns) {
    waited_ns += policy->yielded_ns;
    policy->yielded_ns = 0;
    /* One long pause of a learner must not count for hundreds of steps. */
    const uint64_t most = 4 * policy->limit_ns, seen = waited_ns < most ? waited_ns : most;
    policy->average_ns = (policy->average_ns * (WEIGHT - 1) + seen) / WEIGHT;
}

shoal_wait_policy shoal_wait_policy_new(int crowded, int waits_for_many) {
    const shoal_backoff spin = {crowded ? MOST_SKIPS : 0, crowded ? MOST_SKIPS : 0};
    return (shoal_wait_policy){.limit_ns = crowded && waits_for_many ? CROWDED_YIELD_NS : YIELD_NS,
                               .spin = spin};
}

static int is_due(shoal_backoff *backoff) {
    if (backoff->skips == 0)
        return 1;
    backoff->skips--;
    return 0;
}

static void record(shoal_backoff *backoff, int has_paid) {
    if (has_paid) {
        backoff->length /= 2;
        return;
    }
    const uint32_t longer = 2 * backoff->length + 1;
    backoff->skips = backoff->length = longer < MOST_SKIPS ? longer : MOST_SKIPS;
}

/* The condition that ends a wait, and since when it holds. */
typedef struct wait_condition {
    shoal_gate *const *gates;
    uint32_t count, first; /* parent: all gates are idle; those before `first` are known to be */
    uint32_t seen;         /* worker: gates[0] has another number than this */
} wait_condition;

/* Returns 1 once the condition holds, 0 if the waiter should sleep now. Inlined for each of the two
 * conditions. */
static inline int wait_awake(wait_condition *w, int (*holds)(wait_condition *),
                             uint64_t (*since)(const wait_condition *), shoal_wait_policy *policy) {
    if (holds(w))
        return 1;
    const int spins = is_due(&policy->spin);
    for (int i = 0; spins && i < SPINS; i++) {
        if (holds(w)) {
            learn(policy, 0);
            record(&policy->spin, 1);
            return 1;
        }
        shoal_relax();
    }
    if (spins)
        record(&policy->spin, 0);
    const int long_waits = policy->average_ns > policy->limit_ns;
    if ((!long_waits || ++policy->slept % TRIAL == 0) && is_due(&policy->yield)) {
        const uint64_t begin = shoal_now_ns();
        uint64_t now = begin;
        do {
            sched_yield();
            now = shoal_now_ns();
            if (holds(w)) {
                const uint64_t end = since(w);
                learn(policy, now - begin);
                if (long_waits) /* a wake-up takes time, so sleeps seem longer than the waits were */
                    policy->average_ns = now - begin;
                record(&policy->yield, now < end + LATE_NS);
                return 1;
            }
        } while (now - begin < policy->limit_ns);
        policy->yielded_ns = now - begin;
    }
    return 0;
}

int shoal_gate_idle(const shoal_gate *gate) {
    /* Partner: shoal_gate_finish. Sequentially consistent, since it is also the check after shoal_wakeup_arm.
     */
    return atomic_load(&gate->done) == atomic_load_explicit(&gate->go, memory_order_relaxed);
}

static inline int all_idle(wait_condition *w) {
    for (; w->first < w->count; w->first++) /* an idle worker stays idle until the parent posts again */
        if (!shoal_gate_idle(w->gates[w->first]))
            return 0;
    return 1;
}

static inline uint64_t last_finished(const wait_condition *w) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < w->count; i++)
        if (w->gates[i]->finished_ns > last)
            last = w->gates[i]->finished_ns;
    return last;
}

static inline int is_posted(wait_condition *w) { /* partner shoal_gate_post */
    return atomic_load_explicit(&w->gates[0]->go, memory_order_acquire) != w->seen;
}

static inline uint64_t posted(const wait_condition *w) { return w->gates[0]->posted_ns; }

void shoal_gate_post(shoal_gate *gate, uint32_t command) {
    gate->command = command;
    gate->posted_ns = shoal_now_ns();
    const uint32_t now = atomic_load_explicit(&gate->go, memory_order_relaxed) + 1;
    atomic_store(&gate->go, now); /* releases earlier writes; partner shoal_gate_wait */
    if (atomic_load(&gate->asleep))
        shoal_futex_wake(&gate->go);
}

int shoal_gates_wait_awake(shoal_gate *const *gates, uint32_t count, shoal_wait_policy *policy) {
    wait_condition idle = {gates, count, 0, 0};
    return wait_awake(&idle, all_idle, last_finished, policy);
}

void shoal_wakeup_arm(shoal_wakeup *wakeup, uint32_t whom) { atomic_store(&wakeup->asleep, whom); }

void shoal_wakeup_disarm(shoal_wakeup *wakeup) {
    atomic_store_explicit(&wakeup->asleep, 0, memory_order_relaxed);
}

static uint64_t slice_of(uint64_t timeout_ns) {
    return timeout_ns < SHOAL_GATE_SLICE_NS ? timeout_ns : SHOAL_GATE_SLICE_NS;
}

int shoal_wakeup_sleep(shoal_wakeup *wakeup, struct pollfd *polled, uint32_t count, uint64_t timeout_ns,
                       shoal_wait_policy *policy) {
    const uint64_t begin = shoal_now_ns();
    int ready = poll(polled, count, (int)((slice_of(timeout_ns) + 999999) / 1000000));
    learn(policy, shoal_now_ns() - begin);
    shoal_wakeup_disarm(wakeup);
    if (ready > 0 && polled[0].revents != 0) {
        uint64_t sent[64];                            /* by several workers, where it is a pipe */
        (void)!read(polled[0].fd, sent, sizeof sent); /* non-blocking */
        ready--;
    }
    return ready > 0;
}

int shoal_wakeup_sleep_on_words(shoal_wakeup *wakeup, shoal_liveness *const *liveness_words, uint32_t count,
                                uint64_t timeout_ns, shoal_wait_policy *policy) {
    const uint64_t begin = shoal_now_ns();
    const uint32_t armed = atomic_load(&wakeup->asleep);
    int over = 0;
    if (armed != 0) /* else a worker has woken the parent already */
        shoal_futex_wait_with_liveness(&wakeup->asleep, armed, liveness_words, count, slice_of(timeout_ns));
    learn(policy, shoal_now_ns() - begin);
    shoal_wakeup_disarm(wakeup);
    for (uint32_t i = 0; i < count; i++)
        over |= shoal_liveness_has_ended(liveness_words[i]);
    return over;
}

uint32_t shoal_gate_wait(shoal_gate *gate, uint32_t seen, shoal_wait_policy *policy) {
    wait_condition command = {&gate, 1, 0, seen};
    if (!wait_awake(&command, is_posted, posted, policy)) {
        const uint64_t begin = shoal_now_ns();
        atomic_store(&gate->asleep, 1);
        if (atomic_load(&gate->go) == seen)
            shoal_futex_wait(&gate->go, seen, SHOAL_GATE_SLICE_NS);
        atomic_store_explicit(&gate->asleep, 0, memory_order_relaxed);
        learn(policy, shoal_now_ns() - begin);
    }
    return atomic_load_explicit(&gate->go, memory_order_acquire);
}

void shoal_wakeup_publish_core(shoal_wakeup *wakeup, int sleeps) {
    const uint32_t core = sleeps ? (uint32_t)(shoal_cpu() + 1) : 0;
    if (atomic_load_explicit(&wakeup->core, memory_order_relaxed) != core) /* workers read this line */
        atomic_store_explicit(&wakeup->core, core, memory_order_relaxed);
}

void shoal_gate_publish_core(shoal_gate *gate) {
    const uint32_t core = (uint32_t)(shoal_cpu() + 1);
    if (atomic_load_explicit(&gate->core, memory_order_relaxed) != core)
        atomic_store_explicit(&gate->core, core, memory_order_relaxed);
}

void shoal_gate_spread(shoal_gate *gates, uint32_t count, uint32_t worker, const shoal_wakeup *wakeup) {
    const uint32_t mine = atomic_load_explicit(&gates[worker].core, memory_order_relaxed);
    const uint32_t parents = atomic_load_explicit(&wakeup->core, memory_order_relaxed);
    if (parents == 0)
        return;
    shoal_cpu_set used = {{0}};
    int is_shared = 0;
    for (uint32_t w = 0; w < count; w++) {
        const uint32_t core = atomic_load_explicit(&gates[w].core, memory_order_relaxed);
        shoal_cpu_set_add(&used, (int)core - 1);
        is_shared |= w < worker && core == mine;
    }
    if (!is_shared)
        return;
    shoal_move_to_unused_cpu(&used, (int)parents - 1);
    shoal_gate_publish_core(&gates[worker]); /* at once, or the next worker would move to the same core */
}

void shoal_gate_finish(shoal_gate *gates, uint32_t count, uint32_t worker, uint32_t seen,
                       shoal_wakeup *wakeup, int wakeup_fd) {
    gates[worker].finished_ns = shoal_now_ns();
    atomic_store(&gates[worker].done, seen); /* releases the rows; partner shoal_gate_idle */
    const uint32_t asleep = atomic_load(&wakeup->asleep) & ~SHOAL_WAKE_BY_FUTEX;
    if (asleep != SHOAL_WAKE_FOR_ALL && asleep != SHOAL_WAKE_FOR_ONE + worker)
        return;
    /* If workers finish together, the one whose store of done comes last sees all other stores. */
    for (uint32_t w = 0; asleep == SHOAL_WAKE_FOR_ALL && w < count; w++)
        if (atomic_load(&gates[w].done) != atomic_load(&gates[w].go))
            return;
    shoal_wakeup_send(wakeup, wakeup_fd);
}

void shoal_wakeup_send(shoal_wakeup *wakeup, int wakeup_fd) {
    uint32_t armed = atomic_load(&wakeup->asleep);
    if (armed == 0)
        return; /* the parent is awake, or another worker wakes it */
    if (armed & SHOAL_WAKE_BY_FUTEX) {
        /* Compare-and-swap against the value that was read: a parent that armed again in between has checked
         * the gates since, and may sleep on the descriptor. */
        if (atomic_compare_exchange_strong(&wakeup->asleep, &armed, 0))
            shoal_futex_wake(&wakeup->asleep); /* the parent watches for this worker's death in between */
        return;
    }
    /* With the descriptor the parent does not watch for deaths of idle workers, so the word stays for all. */
    const uint64_t one = 1;
    ssize_t written;
    do
        written = write(wakeup_fd, &one, sizeof one);
    while (written < 0 && errno == EINTR); /* EAGAIN: it is readable already */
}
