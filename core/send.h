/* What a flow does before it can step environments that were sent: it checks their ids and actions, and
 * copies the actions to the environments' rows. Private to flow.c and flow_thread.c.
 *
 *   ids      | 8 9 10 11 2 3 4 | 5 6 7 20 21 22 23 |       two pieces
 *   runs     | (8, 4) (2, 3)   | (5, 3) (20, 4)    |       of adjacent units
 *
 * 1. A large send is divided into pieces. Threads of the flow take pieces, too, if they are between two
 *    steps; the sender does not wait for a thread to begin. Thread i prefers piece i: this is where the last
 *    batch had its results (flow_thread.c), so it finds the ids in its own cache.
 * 2. `open` holds the number of the send and one bit for each piece that nobody has taken. A thread takes a
 *    piece by compare-and-swap, so it cannot take one of an earlier send; while it has one, the send goes on.
 * 3. The stage of a unit says whether it may be sent. A piece claims its units: if there are several pieces,
 *    by one bit for each unit (fetch_or), so that one of them gets a unit that is in two; then it checks and
 *    sets the stages. Only then it copies actions, so each row has one writer.
 * 4. If anything is refused, all units that were claimed are idle again. Rows of actions may have changed,
 *    but nothing reads them before the next send of their units. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_SEND_H
#define SHOAL_SEND_H

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

enum shoal_refused { SHOAL_ACCEPTED, SHOAL_BAD_ID, SHOAL_SENT_TWICE, SHOAL_BAD_ACTION };

/* Why a send was refused: the id with index `at`, or row `at` of a field of actions. */
typedef struct shoal_refusal {
    enum shoal_refused reason;
    uint64_t at, field;
} shoal_refusal;

/* What is sent. `ids` has `num_ids` ids of environments, and each field of actions as many rows. */
typedef struct shoal_sending {
    const int64_t *ids;
    uint64_t num_ids;
    const void *const *actions;
    int checks_ranges, checks_nan;
} shoal_sending;

#ifndef __cplusplus
enum {
    SHOAL_MOST_PIECES = 32,
    SHOAL_UNDER_WAY = 0, /* the stages of a unit: from send until a thread has stepped it; */
    SHOAL_IDLE = 1,      /* it may be sent; */
    SHOAL_IN_BATCH = 2   /* + b: it is in batch number b, and may be sent when the batch was received */
};

typedef struct shoal_run {
    uint64_t first, count;
} shoal_run;

typedef struct shoal_piece {
    _Alignas(64) shoal_refusal refusal;
    shoal_run *runs;
    uint64_t num_runs; /* whose stages it has set */
} shoal_piece;

typedef struct shoal_send {
    const shoal_description *description;
    uint64_t unit, num_units, agents, lanes;
    uint32_t shift, num_threads; /* a unit has 2 ** shift environments */
    _Atomic(uint64_t) *stages;   /* by unit. Writers: pieces; and the thread that has stepped the unit */
    void *const *rows;           /* where the actions are copied to */
    shoal_run *runs;             /* room for one per unit */
    _Atomic(uint64_t) *claimed;  /* a bit for each unit, 0 between sends. Writers: pieces; the sender */
    shoal_sending now;           /* the send in progress. Writer: the sender */
    uint64_t last_stage;         /* that may be sent */
    uint32_t num_pieces, number;
    _Alignas(64) _Atomic(uint64_t) open; /* see 2. Writers: the sender, and threads that take pieces */
    _Alignas(64) shoal_word finished;    /* pieces. Writers: those who did them */
    shoal_piece pieces[SHOAL_MOST_PIECES];
} shoal_send;

/* Returns 0 or -ENOMEM; `send` can be closed in both cases. */
int shoal_send_open(shoal_send *send, const shoal_description *description, uint64_t num_units, uint64_t unit,
                    uint32_t num_threads);
void shoal_send_close(shoal_send *send);

/* Sender: checks and copies what is sent after `received` batches. Returns 1 if the units of all runs in
 * `pieces` are under way from now on; 0, with the reason, if the send is refused. */
int shoal_send_run(shoal_send *send, const shoal_sending *sending, uint64_t received, shoal_refusal *refusal);

/* Sender: all units, which are idle, are under way from now on. */
void shoal_send_all(shoal_send *send);

/* Thread number `thread` does a piece, if there is one. */
void shoal_send_help(shoal_send *send, uint32_t thread);

static inline int shoal_send_needs_help(const shoal_send *send) {
    return (uint32_t)atomic_load_explicit(&send->open, memory_order_relaxed) != 0;
}
#endif

#ifdef __cplusplus
}
#endif
#endif
