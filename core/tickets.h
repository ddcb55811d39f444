/* Tickets: asynchronous steps, in which the parent sends environments one by one and takes those that are
 * done first.
 *
 *    parent                                       worker
 *    send: ticket[e]++, posts to an idle worker -> next: an environment whose ticket is new; steps it
 *    wait: until finished[e] == ticket[e]       <- finish: finished[e] = its ticket; wakes a sleeping parent
 *    take: forgets that e was sent
 *
 * 1. The store of finished releases the environment's row; the load in wait and take acquires it.
 * 2. A worker serves until no ticket is new, announces that it is idle, and checks the tickets once more. The
 *    sender stores the ticket before it checks whether the worker is idle. All four operations are
 *    sequentially consistent, so the sender posts, or the worker finds the ticket, or both.
 * 3. The same argument holds for a worker in finish and a parent that goes to sleep. The two words are then
 *    finished[e] and the wake-up word. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_TICKETS_H
#define SHOAL_TICKETS_H

#include "gates.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_tickets {
    shoal_word *ticket, *finished; /* per environment, shared with the workers */
    uint8_t *sent;                 /* per environment, private to the parent: sent and not taken */
    uint64_t count;
} shoal_tickets;

/* Parent: sends `count` environments; `worker_of` has the worker of every environment. Returns -EINVAL and
 * sends nothing if a number is out of range. */
int shoal_tickets_send(const shoal_tickets *tickets, shoal_gates *gates, const int64_t *env_ids,
                       uint64_t count, const int64_t *worker_of);
/* Parent: waits until `most` of those sent have finished (SHOAL_WAIT_IDLE). Statuses are those of
 * shoal_gates_wait with any_death. */
int shoal_tickets_wait(const shoal_tickets *tickets, shoal_gates *gates, shoal_wait *wait, uint64_t most);
/* Parent: takes up to `most` environments that have finished, beginning at `start` and wrapping around.
 * Returns how many. */
uint64_t shoal_tickets_take(const shoal_tickets *tickets, uint64_t start, uint64_t most, uint64_t *env_ids);

/* One SHOAL_SENT command of a worker, which has the environments [first, first + count). */
typedef struct shoal_serving {
    shoal_word *ticket, *finished;
    shoal_worker *worker;
    uint64_t first, count;
    uint64_t at, quiet; /* the next one to check; how many in a row had no new ticket */
    uint64_t env_id;    /* the environment that is being stepped, and its ticket */
    uint32_t taken;
    int is_idle; /* it has finished the command, and checks once more */
} shoal_serving;

/* Worker: returns 1 if serving->env_id is an environment to step, 0 if none has a new ticket and the command
 * is finished. */
int shoal_serving_next(shoal_serving *serving);
/* Worker: announces that the row of serving->env_id is written. */
void shoal_serving_finish(shoal_serving *serving);

#ifdef __cplusplus
}
#endif
#endif
