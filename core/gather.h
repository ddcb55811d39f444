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

/* Pushes `count` rows, row i of column c from in[c] + i * bytes; their ids, which grow, into `ids`. */
void shoal_ring_push(shoal_ring *ring, shoal_columns columns, const void *const *in, uint64_t count,
                     uint64_t *ids);

/* Copies the rows `ids` to out[c] + i * bytes; `found[i]` is 1, or 0 if the row is gone. Returns how many. */
uint64_t shoal_ring_fetch(const shoal_ring *ring, shoal_columns columns, const uint64_t *ids, uint64_t count,
                          void *const *out, uint8_t *found);

/* Threads that copy long rows together, where that is quicker; pool NULL: the caller alone. */
typedef struct shoal_hands {
    shoal_pool *pool;
    uint32_t count;
    shoal_choice *choice;
} shoal_hands;

/* Draws `count` rows, each of those that can be read with the same chance, and copies them; their ids into
 * `ids`. Returns how many: fewer only if there is nothing to be read. */
uint64_t shoal_ring_sample(const shoal_ring *ring, shoal_rng *rng, shoal_columns columns, uint64_t count,
                           void *const *out, uint64_t *ids, shoal_hands hands);

/* Likewise in proportion to the weights of a tree over the slots; the weights too. */
uint64_t shoal_ring_sample_weighted(const shoal_ring *ring, const shoal_tree *tree, shoal_rng *rng,
                                    shoal_columns columns, uint64_t count, void *const *out, uint64_t *ids,
                                    float *weights, shoal_hands hands);
/* Gives the rows pushed since ticket `seen` a weight; returns the ticket up to which they have one. */
uint64_t shoal_ring_weigh_new(const shoal_ring *ring, shoal_tree *tree, uint64_t seen, float weight);
/* Gives the rows `ids` new weights; those that are gone are left out. Returns how many were given. `slots`
 * and `kept` have room for all. */
uint64_t shoal_ring_weigh(const shoal_ring *ring, shoal_tree *tree, const uint64_t *ids, const float *weights,
                          uint64_t count, uint64_t *slots, float *kept);

/* The ids of the last `count` rows that can be read, oldest first; returns how many there are. */
uint64_t shoal_ring_latest(const shoal_ring *ring, uint64_t count, uint64_t *ids);

#ifdef __cplusplus
}
#endif
#endif
