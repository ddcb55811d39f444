/* The two sides of gates: see gates.h. */
// SPDX-License-Identifier: MIT
#include "gates.h"

#include <string.h>

enum { SPREAD_EVERY = 64 }; /* waits of a worker between two looks at the cores of the others */

size_t shoal_gates_bytes(uint32_t count) {
    return count * (3 * sizeof(void *) + 2 * sizeof(struct pollfd) + 1) + sizeof(struct pollfd);
}

void shoal_gates_init(shoal_gates *all, void *memory, shoal_gate *gates, shoal_bell *bell, uint32_t count,
                      int bell_fd, int crowded) {
    *all = (shoal_gates){.gates = gates, .bell = bell, .count = count, .bell_fd = bell_fd};
    all->crowded = crowded;
    all->patience = shoal_patience_new(crowded, count > 1);
    memset(memory, 0, shoal_gates_bytes(count));
    all->lives = memory;
    all->busy = (shoal_gate **)(all->lives + 2 * (size_t)count);
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
        atomic_store(&gate->life.at, 0);
        atomic_store(&gate->guard_life.at, 0);
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

int shoal_gates_are_idle(const shoal_gates *all, int64_t only) {
    if (only >= 0)
        return is_idle(all, (uint32_t)only);
    for (uint32_t w = 0; w < all->count; w++)
        if (!is_idle(all, w))
            return 0;
    return 1;
}

static int is_over(const shoal_gates *all, uint32_t w) {
    return shoal_life_is_over(&all->gates[w].life) || shoal_life_is_over(&all->gates[w].guard_life);
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

/* Chooses words if every worker that is watched has a sign of life, and they are not too many. */
static void watch_words(shoal_gates *all, int64_t only, int idle_too) {
    uint32_t number = 0;
    for (uint32_t w = 0; w < all->count; w++) {
        shoal_life *life = &all->gates[w].life;
        /* Workers that have finished are watched, too, until the thread that wakes the parent has ended: it
         * can die after it has taken the bell's word and before the wake-up. */
        const int can_take_bell = atomic_load(&life->at) != 0 && !shoal_life_is_over(life);
        if (!is_absent(all, w) && (can_take_bell || is_watched(all, w, only, idle_too)))
            all->lives[number++] = life;
    }
    const uint32_t without_guards = number;
    for (uint32_t w = 0; w < all->count; w++)
        if (is_watched(all, w, only, idle_too) && atomic_load(&all->gates[w].guard_life.at) != 0)
            all->lives[number++] = &all->gates[w].guard_life;
    all->num_polled = 0;
    all->num_lives = number;
    if (shoal_lives_can_be_watched(all->lives, number))
        return;
    all->num_lives = without_guards; /* there is a limit to how many words one can sleep on */
    if (!shoal_lives_can_be_watched(all->lives, without_guards))
        all->num_lives = 0, all->num_polled = 1;
}

void shoal_gates_arm(shoal_gates *all, int64_t only, int idle_too) {
    watch_words(all, only, idle_too);
    all->polled[0] = (struct pollfd){all->bell_fd, POLLIN, 0};
    for (uint32_t w = 0; all->num_polled != 0 && w < all->count; w++)
        if (is_watched(all, w, only, idle_too))
            all->polled[all->num_polled++] = all->deaths[w];
    const uint32_t whom = only < 0 ? SHOAL_BELL_ALL : SHOAL_BELL_ONE + (uint32_t)only;
    shoal_bell_arm(all->bell, whom | (all->num_polled == 0 ? SHOAL_BELL_BY_WORD : 0));
}

int shoal_gates_sleep(shoal_gates *all, uint64_t timeout_ns) {
    if (all->num_polled != 0)
        return shoal_bell_sleep(all->bell, all->polled, all->num_polled, timeout_ns, &all->patience);
    const uint64_t begin = shoal_now_ns();
    return shoal_bell_sleep_beside(all->bell, all->lives, all->num_lives, timeout_ns, &all->patience) ||
           shoal_now_ns() - begin >= SHOAL_GATE_SLICE_NS;
}

int shoal_gates_wait(shoal_gates *all, shoal_wait *wait) {
    uint32_t busy = 0;
    for (uint32_t w = 0; w < all->count; w++)
        if (counts(w, wait->only) && !is_idle(all, w))
            all->busy[busy++] = &all->gates[w];
    if (busy == 0 || shoal_gates_look(all->busy, busy, &all->patience)) {
        if (all->crowded && !wait->has_slept)
            shoal_bell_here(all->bell, 0);
        return SHOAL_WAIT_IDLE;
    }
    const uint64_t waited = shoal_now_ns() - wait->begin_ns;
    if (waited >= wait->timeout_ns)
        return SHOAL_WAIT_TIMEOUT;
    wait->has_slept = 1;
    if (all->crowded)
        shoal_bell_here(all->bell, 1);
    shoal_gates_arm(all, wait->only, wait->any_death); /* partner: shoal_gate_finish */
    if (shoal_gates_are_idle(all, wait->only)) {
        shoal_bell_disarm(all->bell);
        return SHOAL_WAIT_IDLE;
    }
    if (shoal_gates_sleep(all, wait->timeout_ns - waited))
        for (uint32_t w = 0; w < all->count; w++)
            if (counts(w, wait->only) && shoal_gates_is_dead(all, w) && (wait->any_death || !is_idle(all, w)))
                return SHOAL_WAIT_DIED;
    return SHOAL_WAIT_AGAIN;
}

void shoal_worker_init(shoal_worker *worker, shoal_gate *gates, uint32_t count, uint32_t number,
                       shoal_bell *bell, int bell_fd, int crowded) {
    *worker = (shoal_worker){.gates = gates, .gate = gates + number, .bell = bell, .count = count};
    worker->number = number;
    worker->seen = atomic_load(&worker->gate->done); /* what was posted before it came is new to it */
    worker->bell_fd = bell_fd;
    worker->crowded = crowded;
    worker->patience = shoal_patience_new(crowded, 0);
}

int shoal_worker_wait(shoal_worker *worker) {
    if (worker->crowded && ++worker->waits % SPREAD_EVERY == 0)
        shoal_gate_spread(worker->gates, worker->count, worker->number, worker->bell);
    const uint32_t now = shoal_gate_wait(worker->gate, worker->seen, &worker->patience);
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
    shoal_gate_finish(worker->gates, worker->count, worker->number, worker->seen, worker->bell,
                      worker->bell_fd);
}
