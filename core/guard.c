/* The guard: see guard.h. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "guard.h"

#include <string.h>

void shoal_guard_init(shoal_guard *guard) {
    memset(guard, 0, sizeof *guard);
    guard->forks = shoal_fork_count();
}

int shoal_guard_refusal(const shoal_guard *guard, uint64_t thread) {
    if (guard->closed)
        return SHOAL_GUARD_CLOSED;
    if (guard->forks != shoal_fork_count())
        return SHOAL_GUARD_FORKED;
    if (atomic_load_explicit(&guard->inside, memory_order_relaxed) && guard->thread == thread)
        return SHOAL_GUARD_REENTERED;
    return shoal_guard_is_closing(guard) ? SHOAL_GUARD_CLOSED : SHOAL_GUARD_BUSY;
}

void shoal_guard_wake_closer(shoal_guard *guard) { shoal_futex_wake(&guard->inside); }

int shoal_guard_start_closing(shoal_guard *guard, uint64_t thread) {
    if (guard->closed)
        return SHOAL_CLOSING_DONE;
    if (guard->forks != shoal_fork_count()) { /* the thread inside, if any, exists only in the parent */
        atomic_store_explicit(&guard->inside, 0, memory_order_relaxed);
        guard->closer = 0;
    }
    if (guard->closer == thread)
        return SHOAL_CLOSING_INSIDE;
    if (guard->closer != 0)
        return SHOAL_CLOSING_OTHER;
    if (atomic_load_explicit(&guard->inside, memory_order_relaxed) && guard->thread == thread)
        return SHOAL_CLOSING_INSIDE;
    guard->closer = thread;
    atomic_store_explicit(&guard->closing, 1, memory_order_relaxed);
    return SHOAL_CLOSING_START;
}

void shoal_guard_finish_closing(shoal_guard *guard) {
    guard->closed = 1;
    guard->closer = 0;
}

void shoal_guard_abandon_closing(shoal_guard *guard) { guard->closer = 0; }

int shoal_guard_wait(shoal_guard *guard, uint64_t timeout_ns) {
    const uint64_t begin = shoal_now_ns();
    for (;;) {
        if (atomic_load_explicit(&guard->inside, memory_order_acquire) == 0) /* partner: shoal_guard_leave */
            return 1;
        const uint64_t waited = shoal_now_ns() - begin;
        if (waited >= timeout_ns)
            return 0;
        shoal_futex_wait(&guard->inside, 1, timeout_ns - waited);
    }
}
