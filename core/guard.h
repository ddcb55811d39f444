/* The guard of one vector environment: one call at a time, and a close() that waits for the call inside.
 *
 *   call:   enter -> work, perhaps without the lock; check is_closing in every slice of a wait -> leave
 *   close:  start_closing -> wait until no call is inside -> free everything -> finish_closing
 *
 * 1. enter, leave and the functions of close run under one lock, which is Python's GIL, so a check and the
 *    store after it cannot be interleaved with another thread's. None of them is an atomic read-modify-write.
 * 2. A thread inside may release the lock. Other threads then find `inside` set, and their calls raise.
 * 3. `closing` is set before the closer checks `inside`, so no call enters after that check. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GUARD_H
#define SHOAL_GUARD_H

#include "platform.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum shoal_guard_answer {
    SHOAL_GUARD_ENTERED = 0,
    SHOAL_GUARD_BUSY,      /* another thread is inside */
    SHOAL_GUARD_REENTERED, /* this thread is inside: the call comes from a callback or a signal handler */
    SHOAL_GUARD_CLOSED,
    SHOAL_GUARD_FORKED /* this process is a child of the one that made the environments */
};

typedef struct shoal_guard {
    shoal_word inside;  /* 1 while a call is inside. Writer: that call. The closer sleeps on it */
    shoal_word closing; /* writer: the closer, once. Readers: threads that wait inside, without the lock */
    uint64_t thread;    /* the thread inside. Under the lock, like all below */
    uint64_t closer;    /* the thread in close(); 0: none */
    uint64_t forks;     /* shoal_fork_count() when it was made */
    uint8_t closed;
} shoal_guard;

void shoal_guard_init(shoal_guard *guard);

/* Returns why a call may not enter. `thread` is never 0. */
int shoal_guard_refusal(const shoal_guard *guard, uint64_t thread);

static inline int shoal_guard_enter(shoal_guard *guard, uint64_t thread) {
    if (atomic_load_explicit(&guard->inside, memory_order_relaxed) |
        atomic_load_explicit(&guard->closing, memory_order_relaxed) | (guard->forks ^ shoal_fork_count()))
        return shoal_guard_refusal(guard, thread);
    guard->thread = thread;
    atomic_store_explicit(&guard->inside, 1, memory_order_relaxed);
    return SHOAL_GUARD_ENTERED;
}

static inline int shoal_guard_is_closing(const shoal_guard *guard) {
    return atomic_load_explicit(&guard->closing, memory_order_relaxed) != 0;
}

/* Releases what the call wrote; partner: shoal_guard_wait. */
void shoal_guard_wake_closer(shoal_guard *guard);
static inline void shoal_guard_leave(shoal_guard *guard) {
    atomic_store_explicit(&guard->inside, 0, memory_order_release);
    if (shoal_guard_is_closing(guard))
        shoal_guard_wake_closer(guard);
}

/* Results of start_closing. START: the caller is the closer, and must call finish or abandon. */
enum shoal_closing { SHOAL_CLOSING_START = 0, SHOAL_CLOSING_DONE, SHOAL_CLOSING_OTHER, SHOAL_CLOSING_INSIDE };
int shoal_guard_start_closing(shoal_guard *guard, uint64_t thread);
void shoal_guard_finish_closing(shoal_guard *guard);
void shoal_guard_abandon_closing(shoal_guard *guard); /* an exception ended it; close() may be called again */

/* Without the lock: sleeps until no call is inside, at most `timeout_ns`. Returns whether none is. */
int shoal_guard_wait(shoal_guard *guard, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
