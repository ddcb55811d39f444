/* The two sides of the gates (gate.h has the protocol). shoal_gates is the parent's side, for all workers of
 * one vector environment. shoal_worker is the side of one worker. Each struct holds what its side keeps
 * between commands.
 *
 *   shoal_gates_wait:  spin, yield -> choose deaths to watch -> arm the wake-up -> check once more -> sleep
 *
 * A wait returns after every sleep, which is never longer than SHOAL_GATE_SLICE_NS, so its caller can handle
 * signals and close() and call it again. Nothing here allocates. One thread at a time uses a side. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GATES_H
#define SHOAL_GATES_H

#include "gate.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum shoal_wait_status {
    SHOAL_WAIT_IDLE = 0,    /* the workers that are waited for have finished */
    SHOAL_WAIT_TIMEOUT = 1, /* the time is over */
    SHOAL_WAIT_DIED = 2,    /* a worker that is waited for is dead */
    SHOAL_WAIT_AGAIN = 3    /* after a sleep: call again */
};

/* One wait of the parent, from its first call to a status other than SHOAL_WAIT_AGAIN. */
typedef struct shoal_wait {
    uint64_t begin_ns, timeout_ns;
    int64_t only;  /* wait for this worker; -1: for all */
    int any_death; /* the death of a worker that has finished ends the wait, too */
    int has_slept;
} shoal_wait;

typedef struct shoal_gates {
    shoal_gate *gates;
    shoal_wakeup *wakeup;
    uint32_t count;
    int wakeup_fd, crowded;
    shoal_wait_policy policy;
    /* For one sleep: the deaths that end it, by words, or by descriptors if num_polled is not 0. */
    uint32_t num_liveness_words, num_polled;
    shoal_liveness **liveness_words; /* up to two per worker */
    struct pollfd *polled;           /* the wake-up descriptor, then one per worker */
    shoal_gate **busy;               /* scratch memory of one wait */
    struct pollfd *deaths;           /* per worker: what to poll for its death; fd -1: there is no worker */
    uint8_t *is_marked;              /* per worker; scratch memory of one call */
} shoal_gates;

/* Parent: `memory` has shoal_gates_bytes(count) bytes, aligned for a pointer, and stays the caller's. */
size_t shoal_gates_bytes(uint32_t count);
void shoal_gates_init(shoal_gates *all, void *memory, shoal_gate *gates, shoal_wakeup *wakeup, uint32_t count,
                      int wakeup_fd, int crowded);
/* Parent: the descriptor by which a worker's death is seen: a pidfd (readable) or a socket (hangs up). -1:
 * there is no worker, and it counts as idle. Whatever was posted to this gate before counts as finished. */
void shoal_gates_watch(shoal_gates *all, uint32_t worker, int fd, int is_socket);
/* Parent: posts to an idle worker; does nothing where there is none. */
void shoal_gates_post(shoal_gates *all, uint32_t worker, uint32_t command, uint32_t slot, uint64_t row,
                      uint64_t mail_bytes);
/* Parent: posts the same command to all workers, which are idle. */
void shoal_gates_post_all(shoal_gates *all, uint32_t command, uint32_t slot, uint64_t row);
/* Parent: whether worker `only`, or with -1 every worker, is idle or absent. */
int shoal_gates_are_idle(const shoal_gates *all, int64_t only);
/* Parent: whether all workers are there and none is known to be dead. Reads memory only. */
int shoal_gates_all_live(const shoal_gates *all);
/* Parent: whether a worker is dead or dying (the kernel may still be freeing its memory). */
int shoal_gates_is_dead(const shoal_gates *all, uint32_t worker);
int shoal_gates_wait(shoal_gates *all, shoal_wait *wait);

/* Parent, for other waits: announces that it will sleep until worker `only`, or all, are idle, and chooses
 * the deaths that end the sleep (`idle_too`: also those of idle workers). It must check once more after this,
 * then sleep or disarm the wake-up. shoal_gates_sleep returns whether to look for dead workers: a death was
 * seen, or nothing happened for a whole slice. */
void shoal_gates_arm(shoal_gates *all, int64_t only, int idle_too);
int shoal_gates_sleep(shoal_gates *all, uint64_t timeout_ns);

typedef struct shoal_worker {
    shoal_gate *gates, *gate; /* all of them; its own */
    shoal_wakeup *wakeup;
    uint32_t count, number, seen;
    int wakeup_fd, crowded;
    uint64_t began_ns, spread_ns;
    shoal_wait_policy policy;
} shoal_worker;

void shoal_worker_init(shoal_worker *worker, shoal_gate *gates, uint32_t count, uint32_t number,
                       shoal_wakeup *wakeup, int wakeup_fd, int crowded);
/* Worker: 1 when there is a new command in its gate, 0 after a sleep: call again. */
int shoal_worker_wait(shoal_worker *worker);
/* Worker: finishes the command. `replied` is the kind of reply (0: none). */
void shoal_worker_finish(shoal_worker *worker, uint32_t replied, uint64_t reply_bytes);

#ifdef __cplusplus
}
#endif
#endif
