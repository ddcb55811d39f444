/* Copies rows between the ring and a caller's arrays, column by column. */
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

/* Pushes `count` rows, row i of column c from in[c] + i * bytes, and stores their ids in increasing order.
 * Returns how many rows were pushed: fewer than `count` only if other living writers hold every slot. The
 * writer then holds no slot; it can wait for room and push the rest. */
uint64_t shoal_ring_push(shoal_ring *ring, shoal_columns columns, const void *const *in, uint64_t count,
                         uint64_t *ids);
/* Writes `count` saved rows under their old ids into an empty ring that no other process uses. Then the next
 * ticket is `tail`, and `total` rows count as pushed. The ids must increase and be less than `tail`. */
void shoal_ring_restore(shoal_ring *ring, shoal_columns columns, const void *const *in, const uint64_t *ids,
                        uint64_t count, uint64_t tail, uint64_t total);
/* Sleeps briefly while no slot is free. `since` is the time of this writer's first wait, or 0. Returns 0 if
 * that was more than two seconds ago, else 1. */
int shoal_ring_wait_for_room(uint64_t *since);

/* Copies the rows `ids` to out[c] + i * bytes. Sets `found[i]` to 1, or to 0 if the row was overwritten.
 * Returns how many were found. */
uint64_t shoal_ring_fetch(const shoal_ring *ring, shoal_columns columns, const uint64_t *ids, uint64_t count,
                          void *const *out, uint8_t *found);

/* Threads that share the copying of long rows where that is faster. If `pool` is NULL, the caller copies
 * alone. */
typedef struct shoal_copy_threads {
    shoal_pool *pool;
    uint32_t count;
    shoal_choice *choice;
} shoal_copy_threads;

enum {
    SHOAL_COPY_LEAST_BYTES = 1 << 18, /* several threads copy batches from this size on */
    SHOAL_COPY_CHUNKS = 32            /* for each thread; many, since rows that are in no cache take longer */
};

/* Into how many chunks the threads divide `count` rows: each has at least `least`. Rows are prefetched only
 * inside a chunk, so short rows need larger ones. */
static inline uint32_t shoal_copy_chunks(shoal_copy_threads threads, uint64_t count, uint64_t least) {
    const uint64_t chunks = SHOAL_COPY_CHUNKS * (uint64_t)threads.count, most = count / least;
    return (uint32_t)(most == 0 ? 1 : most < chunks ? most : chunks);
}

/* Sampling draws slots, copies their rows, and draws again for slots whose row could not be read. Each
 * readable row has the same probability or, with a tree over the slots, a probability in proportion to its
 * weight.
 *
 *    draw -> slots     gather -> rows, ids, number missing     redraw -> the missing rows
 *
 * `slots` must be private memory of the caller. */
/* Returns `count`, or 0 if there is nothing to draw. With a tree it also stores the weights. */
uint64_t shoal_ring_draw(const shoal_ring *ring, const shoal_tree *tree, shoal_rng *rng, uint64_t count,
                         uint64_t *slots, float *weights);
uint64_t shoal_ring_gather(const shoal_ring *ring, shoal_columns columns, uint64_t count, uint64_t *slots,
                           void *const *out, uint64_t *ids, shoal_copy_threads threads);
/* Returns 0 if no row can be read. */
int shoal_ring_redraw(const shoal_ring *ring, const shoal_tree *tree, shoal_rng *rng, shoal_columns columns,
                      uint64_t count, uint64_t *slots, void *const *out, uint64_t *ids, float *weights);

/* Sets the weight of all rows pushed since ticket `seen`. Returns the next value of `seen`. */
uint64_t shoal_ring_set_new_weights(const shoal_ring *ring, shoal_tree *tree, uint64_t seen, float weight);
/* Sets the weights of the rows `ids`. Skips rows that were overwritten, and rows whose slot already has the
 * weight of a newer row below ticket `seen`. Returns how many were set. `slots` and `kept` must have room for
 * `count` entries. */
uint64_t shoal_ring_set_weights(const shoal_ring *ring, shoal_tree *tree, uint64_t seen, const uint64_t *ids,
                                const float *weights, uint64_t count, uint64_t *slots, float *kept);

/* Stores the ids of the rows in `slots`; UINT64_MAX for a slot without a readable row. */
void shoal_ring_ids(const shoal_ring *ring, const uint64_t *slots, uint64_t count, uint64_t *ids);

/* Stores the ids of the newest `count` readable rows, oldest first. Returns how many there are. */
uint64_t shoal_ring_latest(const shoal_ring *ring, uint64_t count, uint64_t *ids);

#ifdef __cplusplus
}
#endif
#endif
