/* Tickets: see tickets.h for the protocol. */
// SPDX-License-Identifier: MIT
#include "tickets.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

enum { YIELDS_NS = 100000 }; /* how long the parent yields before it sleeps */

int shoal_tickets_send(const shoal_tickets *tickets, shoal_gates *gates, const int64_t *env_ids,
                       uint64_t count, const int64_t *worker_of) {
    for (uint64_t i = 0; i < count; i++)
        if (env_ids[i] < 0 || (uint64_t)env_ids[i] >= tickets->count || worker_of[env_ids[i]] < 0 ||
            worker_of[env_ids[i]] >= gates->count)
            return -EINVAL;
    for (uint64_t i = 0; i < count; i++) {
        tickets->sent[env_ids[i]] = 1;
        atomic_fetch_add(&tickets->ticket[env_ids[i]], 1); /* partner: shoal_serving_next */
    }
    memset(gates->is_marked, 0, gates->count);
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t w = (uint32_t)worker_of[env_ids[i]];
        const shoal_gate *gate = &gates->gates[w];
        if (!gates->is_marked[w] && atomic_load(&gate->done) == atomic_load(&gate->go))
            shoal_gates_post(gates, w, SHOAL_SENT, 0, 0, 0);
        gates->is_marked[w] = 1;
    }
    return 0;
}

static int has_finished(const shoal_tickets *tickets, uint64_t e) {
    return tickets->sent[e] && atomic_load(&tickets->finished[e]) ==
                                   atomic_load_explicit(&tickets->ticket[e], memory_order_relaxed);
}

static int are_ready(const shoal_tickets *tickets, uint64_t most) {
    uint64_t number = 0;
    for (uint64_t e = 0; e < tickets->count; e++)
        number += (uint64_t)has_finished(tickets, e);
    return number >= most;
}

int shoal_tickets_wait(const shoal_tickets *tickets, shoal_gates *gates, shoal_wait *wait, uint64_t most) {
    uint64_t waited;
    for (;; sched_yield()) {
        if (are_ready(tickets, most))
            return SHOAL_WAIT_IDLE;
        waited = shoal_now_ns() - wait->begin_ns;
        if (waited >= wait->timeout_ns)
            return SHOAL_WAIT_TIMEOUT;
        if (waited >= YIELDS_NS)
            break;
    }
    shoal_gates_arm(gates, -1, 1);
    if (are_ready(tickets, most)) { /* partner: shoal_serving_finish */
        shoal_wakeup_disarm(gates->wakeup);
        return SHOAL_WAIT_IDLE;
    }
    if (shoal_gates_sleep(gates, wait->timeout_ns - waited))
        for (uint32_t w = 0; w < gates->count; w++)
            if (shoal_gates_is_dead(gates, w))
                return SHOAL_WAIT_DIED;
    return SHOAL_WAIT_AGAIN;
}

uint64_t shoal_tickets_take(const shoal_tickets *tickets, uint64_t start, uint64_t most, uint64_t *env_ids) {
    uint64_t taken = 0;
    for (uint64_t k = 0; k < tickets->count && taken < most; k++) {
        const uint64_t e = (start + k) % tickets->count;
        if (has_finished(tickets, e)) {
            tickets->sent[e] = 0;
            env_ids[taken++] = e;
        }
    }
    return taken;
}

int shoal_serving_next(shoal_serving *serving) {
    for (;;) {
        for (; serving->quiet < serving->count; serving->quiet++) {
            const uint64_t e = serving->first + serving->at;
            serving->at = serving->at + 1 == serving->count ? 0 : serving->at + 1;
            serving->taken = atomic_load(&serving->ticket[e]); /* partner: shoal_tickets_send */
            if (serving->taken != atomic_load_explicit(&serving->finished[e], memory_order_relaxed)) {
                serving->quiet = 0;
                serving->env_id = e;
                return 1;
            }
        }
        if (serving->is_idle)
            return 0;
        shoal_worker_finish(serving->worker, 0, 0);
        serving->is_idle = 1;
        serving->quiet = 0;
    }
}

void shoal_serving_finish(shoal_serving *serving) {
    atomic_store(&serving->finished[serving->env_id], serving->taken); /* partner: shoal_tickets_wait */
    shoal_wakeup_send(serving->worker->wakeup, serving->worker->wakeup_fd);
}
