/* The two sides of gates: see gates.h. */
// SPDX-License-Identifier: MIT
#include "gates.h"

#include <string.h>

enum { SPREAD_NS = 1000000 }; /* a worker checks the cores of the others at most once in this time */

size_t shoal_gates_bytes(uint32_t count) {
    return count * (3 * sizeof(void *) + 2 * sizeof(struct pollfd) + 1) + sizeof(struct pollfd);
}

void shoal_gates_init(shoal_gates *all, void *memory, shoal_gate *gates, shoal_wakeup *wakeup, uint32_t count,
                      int wakeup_fd, int crowded) {
    *all = (shoal_gates){.gates = gates, .wakeup = wakeup, .count = count, .wakeup_fd = wakeup_fd};
    all->crowded = crowded;
    all->policy = shoal_wait_policy_new(crowded, count > 1);
    memset(memory, 0, shoal_gates_bytes(count));
    all->liveness_words = memory;
    all->busy = (shoal_gate **)(all->liveness_words + 2 * (size_t)count);
    all->deaths = (struct pollfd *)(all->busy + count);
    all->polled = all->deaths + count;
    all->is_marked = (uint8_t *)(all->polled + count + 1);
    for (uint32_t w = 0; w < count; w++)
        all->deaths[w].fd = -1;
}

static int is_absent(const shoal_gates *all, uint32_t w) { return all->deaths[w].fd < 0; }

static int is_idle(const shoal_gates *all, uint32_t w) {
    return is_absent(all, w) || shoal_gate_idle(&all->gates[w]);
}

void shoal_gates_watch(shoal_gates *all, uint32_t worker, int fd, int is_socket) {
    shoal_gate *gate = &all->gates[worker];
    all->deaths[worker] = (struct pollfd){fd, is_socket ? 0 : POLLIN, 0};
    if (fd < 0) {
        atomic_store(&gate->liveness.at, 0);
        atomic_store(&gate->guard_liveness.at, 0);
    }
    atomic_store_explicit(&gate->done, atomic_load(&gate->go), memory_order_relaxed);
}

void shoal_gates_post(shoal_gates *all, uint32_t worker, uint32_t command, uint32_t slot, uint64_t row,
                      uint64_t mail_bytes) {
    if (is_absent(all, worker))
        return;
    shoal_gate *gate = &all->gates[worker];
    gate->slot = slot;
    gate->row = row;
    gate->mail_bytes = mail_bytes;
    shoal_gate_post(gate, command);
}

/* With a worker per core, the parent shares its core with one worker. If that one were woken before others,
 * the kernel would put it on a core whose worker still sleeps, and at the end two workers would share a core.
 * All other cores have a worker when it is woken last: it waits for the parent's core, where the parent
 * sleeps soon. */
void shoal_gates_post_all(shoal_gates *all, uint32_t command, uint32_t slot, uint64_t row) {
    const uint32_t mine = all->crowded ? (uint32_t)(shoal_cpu() + 1) : 0;
    for (uint32_t w = 0; w < all->count; w++) {
        const uint32_t core = atomic_load_explicit(&all->gates[w].core, memory_order_relaxed);
        all->is_marked[w] = mine != 0 && core == mine;
        if (!all->is_marked[w])
            shoal_gates_post(all, w, command, slot, row, 0);
    }
    for (uint32_t w = 0; mine != 0 && w < all->count; w++)
        if (all->is_marked[w])
            shoal_gates_post(all, w, command, slot, row, 0);
}

int shoal_gates_are_idle(const shoal_gates *all, int64_t only) {
    if (only >= 0)
        return is_idle(all, (uint32_t)only);
    for (uint32_t w = 0; w < all->count; w++)
        if (!is_idle(all, w))
            return 0;
    return 1;
}

static int is_over(const shoal_gates *all, uint32_t w) {
    return shoal_liveness_has_ended(&all->gates[w].liveness) ||
           shoal_liveness_has_ended(&all->gates[w].guard_liveness);
}

int shoal_gates_all_live(const shoal_gates *all) {
    for (uint32_t w = 0; w < all->count; w++)
        if (is_absent(all, w) || is_over(all, w))
            return 0;
    return 1;
}

int shoal_gates_is_dead(const shoal_gates *all, uint32_t worker) {
    struct pollfd one = all->deaths[worker];
    return one.fd >= 0 && (is_over(all, worker) || poll(&one, 1, 0) > 0);
}

static int counts(uint32_t w, int64_t only) { return only < 0 || w == only; }

/* Whether the death of worker `w` ends this sleep. */
static int is_watched(const shoal_gates *all, uint32_t w, int64_t only, int idle_too) {
    return !is_absent(all, w) && counts(w, only) && (idle_too || !is_idle(all, w));
}

/* Chooses words if every worker that is watched holds its liveness word, and they are not too many. */
static void watch_words(shoal_gates *all, int64_t only, int idle_too) {
    uint32_t number = 0;
    for (uint32_t w = 0; w < all->count; w++) {
        shoal_liveness *liveness = &all->gates[w].liveness;
        /* Workers that have finished are watched, too, until the thread that wakes the parent has ended: it
         * can die after it has taken the wake-up word and before the wake-up. */
        const int can_take_wakeup = atomic_load(&liveness->at) != 0 && !shoal_liveness_has_ended(liveness);
        if (!is_absent(all, w) && (can_take_wakeup || is_watched(all, w, only, idle_too)))
            all->liveness_words[number++] = liveness;
    }
    const uint32_t without_guards = number;
    for (uint32_t w = 0; w < all->count; w++)
        if (is_watched(all, w, only, idle_too) && atomic_load(&all->gates[w].guard_liveness.at) != 0)
            all->liveness_words[number++] = &all->gates[w].guard_liveness;
    all->num_polled = 0;
    all->num_liveness_words = number;
    if (shoal_liveness_can_be_watched(all->liveness_words, number))
        return;
    all->num_liveness_words = without_guards; /* there is a limit to how many words one can sleep on */
    if (!shoal_liveness_can_be_watched(all->liveness_words, without_guards))
        all->num_liveness_words = 0, all->num_polled = 1;
}

void shoal_gates_arm(shoal_gates *all, int64_t only, int idle_too) {
    watch_words(all, only, idle_too);
    all->polled[0] = (struct pollfd){all->wakeup_fd, POLLIN, 0};
    for (uint32_t w = 0; all->num_polled != 0 && w < all->count; w++)
        if (is_watched(all, w, only, idle_too))
            all->polled[all->num_polled++] = all->deaths[w];
    const uint32_t whom = only < 0 ? SHOAL_WAKE_FOR_ALL : SHOAL_WAKE_FOR_ONE + (uint32_t)only;
    shoal_wakeup_arm(all->wakeup, whom | (all->num_polled == 0 ? SHOAL_WAKE_BY_FUTEX : 0));
}

int shoal_gates_sleep(shoal_gates *all, uint64_t timeout_ns) {
    if (all->num_polled != 0)
        return shoal_wakeup_sleep(all->wakeup, all->polled, all->num_polled, timeout_ns, &all->policy);
    const uint64_t begin = shoal_now_ns();
    return shoal_wakeup_sleep_on_words(all->wakeup, all->liveness_words, all->num_liveness_words, timeout_ns,
                                       &all->policy) ||
           shoal_now_ns() - begin >= SHOAL_GATE_SLICE_NS;
}

int shoal_gates_wait(shoal_gates *all, shoal_wait *wait) {
    uint32_t busy = 0;
    for (uint32_t w = 0; w < all->count; w++)
        if (counts(w, wait->only) && !is_idle(all, w))
            all->busy[busy++] = &all->gates[w];
    if (busy == 0 || shoal_gates_wait_awake(all->busy, busy, &all->policy)) {
        if (all->crowded && !wait->has_slept)
            shoal_wakeup_publish_core(all->wakeup, 0);
        return SHOAL_WAIT_IDLE;
    }
    const uint64_t waited = shoal_now_ns() - wait->begin_ns;
    if (waited >= wait->timeout_ns)
        return SHOAL_WAIT_TIMEOUT;
    wait->has_slept = 1;
    if (all->crowded)
        shoal_wakeup_publish_core(all->wakeup, 1);
    shoal_gates_arm(all, wait->only, wait->any_death); /* partner: shoal_gate_finish */
    if (shoal_gates_are_idle(all, wait->only)) {
        shoal_wakeup_disarm(all->wakeup);
        return SHOAL_WAIT_IDLE;
    }
    if (shoal_gates_sleep(all, wait->timeout_ns - waited))
        for (uint32_t w = 0; w < all->count; w++)
            if (counts(w, wait->only) && shoal_gates_is_dead(all, w) && (wait->any_death || !is_idle(all, w)))
                return SHOAL_WAIT_DIED;
    return SHOAL_WAIT_AGAIN;
}

void shoal_worker_init(shoal_worker *worker, shoal_gate *gates, uint32_t count, uint32_t number,
                       shoal_wakeup *wakeup, int wakeup_fd, int crowded) {
    *worker = (shoal_worker){.gates = gates, .gate = gates + number, .wakeup = wakeup, .count = count};
    worker->number = number;
    worker->seen = atomic_load(&worker->gate->done); /* a command posted before this is still new */
    worker->wakeup_fd = wakeup_fd;
    worker->crowded = crowded;
    worker->policy = shoal_wait_policy_new(crowded, 0);
}

int shoal_worker_wait(shoal_worker *worker) {
    if (worker->crowded) {
        shoal_gate_publish_core(worker->gate);
        if (worker->gate->finished_ns - worker->spread_ns >= SPREAD_NS) {
            worker->spread_ns = worker->gate->finished_ns;
            shoal_gate_spread(worker->gates, worker->count, worker->number, worker->wakeup);
        }
    }
    const uint32_t now = shoal_gate_wait(worker->gate, worker->seen, &worker->policy);
    if (now == worker->seen)
        return 0;
    worker->seen = now;
    worker->began_ns = shoal_now_ns();
    return 1;
}

void shoal_worker_finish(shoal_worker *worker, uint32_t replied, uint64_t reply_bytes) {
    shoal_gate *gate = worker->gate;
    gate->replied = replied;
    gate->reply_bytes = reply_bytes;
    if (gate->command == SHOAL_STEP)
        gate->busy_ns += shoal_now_ns() - worker->began_ns;
    shoal_gate_finish(worker->gates, worker->count, worker->number, worker->seen, worker->wakeup,
                      worker->wakeup_fd);
}
