/* Rows into the ring from a caller's arrays, and out of it into them, column by column. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GATHER_H
#define SHOAL_GATHER_H

#include "choice.h"
#include "ring.h"
#include "tree.h"

#include <shoal/env.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A field of a record. */
typedef struct shoal_column {
    uint64_t offset, bytes;
} shoal_column;

typedef struct shoal_columns {
    const shoal_column *items;
    uint64_t count;
} shoal_columns;

/* Pushes `count` rows, row i of column c from in[c] + i * bytes; their ids, which grow, into `ids`. Returns
 * how many: fewer only if living writers hold every slot. Then the writer holds nothing, and can wait for
 * room and push the rest. */
uint64_t shoal_ring_push(shoal_ring *ring, shoal_columns columns, const void *const *in, uint64_t count,
                         uint64_t *ids);
/* Puts `count` rows where they were, by their ids, into a ring that nobody else has and that is empty; then
 * the next ticket is `tail`, and `total` rows are counted as pushed. The ids grow, and are below `tail`. */
void shoal_ring_restore(shoal_ring *ring, shoal_columns columns, const void *const *in, const uint64_t *ids,
                        uint64_t count, uint64_t tail, uint64_t total);
/* Sleeps a moment, after which a slot may be free. `since`: when this writer first waited, or 0. Returns 0
 * when that was two seconds ago. */
int shoal_ring_wait_for_room(uint64_t *since);

/* Copies the rows `ids` to out[c] + i * bytes; `found[i]` is 1, or 0 if the row is gone. Returns how many. */
uint64_t shoal_ring_fetch(const shoal_ring *ring, shoal_columns columns, const uint64_t *ids, uint64_t count,
                          void *const *out, uint8_t *found);

/* Threads that copy long rows together, where that is quicker; pool NULL: the caller alone. */
typedef struct shoal_hands {
    shoal_pool *pool;
    uint32_t count;
    shoal_choice *choice;
} shoal_hands;

/* A sample is drawn, gathered, and where rows were missing drawn again: each row that can be read comes with
 * the same chance, or, with a tree over the slots, in proportion to its weight.
 *
 *    draw -> slots     gather -> rows, ids, and how many are missing     redraw, if any is
 *
 * `slots` is the caller's own, of nobody else's reach. */
/* `count`, or 0 if there is nothing to be drawn. The weights too, with a tree. */
uint64_t shoal_ring_draw(const shoal_ring *ring, const shoal_tree *tree, shoal_rng *rng, uint64_t count,
                         uint64_t *slots, float *weights);
uint64_t shoal_ring_gather(const shoal_ring *ring, shoal_columns columns, uint64_t count, uint64_t *slots,
                           void *const *out, uint64_t *ids, shoal_hands hands);
/* 0 if there is nothing to be read. */
int shoal_ring_redraw(const shoal_ring *ring, const shoal_tree *tree, shoal_rng *rng, shoal_columns columns,
                      uint64_t count, uint64_t *slots, void *const *out, uint64_t *ids, float *weights);

/* Gives the rows pushed since ticket `seen` a weight; returns the ticket up to which they have one. */
uint64_t shoal_ring_weigh_new(const shoal_ring *ring, shoal_tree *tree, uint64_t seen, float weight);
/* Gives the rows `ids` new weights; those that are gone are left out, and those whose successors up to ticket
 * `seen` have theirs. Returns how many were given. `slots` and `kept` have room for all. */
uint64_t shoal_ring_weigh(const shoal_ring *ring, shoal_tree *tree, uint64_t seen, const uint64_t *ids,
                          const float *weights, uint64_t count, uint64_t *slots, float *kept);

/* The ids of the rows in `slots`; UINT64_MAX where there is none. */
void shoal_ring_ids(const shoal_ring *ring, const uint64_t *slots, uint64_t count, uint64_t *ids);

/* The ids of the last `count` rows that can be read, oldest first; returns how many there are. */
uint64_t shoal_ring_latest(const shoal_ring *ring, uint64_t count, uint64_t *ids);

#ifdef __cplusplus
}
#endif
#endif
