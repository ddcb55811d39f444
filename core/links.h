/* Linked rows: samples transitions, n-step returns, frame stacks and sequences.
 *
 *    row j:   obs | action, reward, flags of the step that led to it | first of an episode? | previous
 *             previous = id + 1 of the row before j             next[slot of j] = id + 1 of the row after j
 *
 *    stack <---- row before <---- j ----> row after ----> ... ----> last row of n steps, or of a sequence
 *
 * 1. A backward link is a field of the row, so it is valid if the row is. It is an id, and ids are never
 * reused, so it finds the right row or none.
 * 2. A forward link is stored outside the records and is only a hint: other writers may have been a whole lap
 * ahead when it was written. A reader follows it only if the row it finds is whole, has that id, and links
 * back.
 * 3. Each row is read as in ring.h: load the word, copy, load the word again. If a row of a batch entry
 * cannot be read, the whole entry is drawn again. So every complete transition has the same probability, or
 * one in proportion to its weight.
 */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_LINKS_H
#define SHOAL_LINKS_H

#include "gather.h"
#include "listed.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Describes where a ring stores its links. */
typedef struct shoal_links {
    const shoal_ring *ring;
    uint64_t *next;        /* [capacity], shared. Writer: the one that adds the next row. Readers: all */
    shoal_column first;    /* uint8 */
    shoal_column previous; /* uint64 */
    shoal_column step[3];  /* reward, float; terminated and truncated, uint8 */
    uint64_t apart;        /* usual distance in ids from a row to the next: a guess, and for prefetching */
} shoal_links;

/* Links earlier rows forward to new ones: last[i] is the id + 1 of the row before row ids[i], or 0. Then sets
 * last[i] to the id + 1 of the new row. */
void shoal_links_set(const shoal_links *links, uint64_t *last, const uint64_t *ids, uint64_t count);

/* One batch: its contents, its output arrays and its progress. Arrays of observations have the shape
 * [count, stack, ...] (without that dimension for a stack of 1), all arrays of sequences [count, length,
 * ...]. */
typedef struct shoal_walk {
    const shoal_links *links;
    uint64_t count;
    uint64_t stack, steps; /* for transitions; both at least 1 */
    uint64_t length;       /* length of sequences; 0 for transitions */
    double gamma;
    int across_episodes; /* sequences continue into the next episode */
    shoal_columns obs;   /* transitions: read from the row before the drawn row and from the last row */
    shoal_columns rest;  /* transitions: of the drawn row, without links->step; sequences: of every row */
    void *const *obs_out, *const *next_out, *const *rest_out;
    void *step_out[3];        /* transitions: the sum of rewards and the flags of the last step */
    float *discount;          /* transitions: [count], or NULL */
    uint8_t *mask;            /* sequences: [count, length] */
    uint64_t *ids;            /* [count]: of the drawn rows */
    float *weights;           /* [count], with a tree */
    uint64_t *slots, *places; /* [count] each, private memory of the caller */
    float *drawn;             /* [count], with a tree */
    /* progress; shoal_walk_begin sets it */
    uint64_t missing, rounds, misses;
    int is_large; /* see shoal_rows_is_large; shoal_walk_gather sets it */
    shoal_listed list;
} shoal_walk;

/* Draw and gather until no entry is missing:
 *
 *    begin -> draw -> gather -> missing? draw -> gather ... -> end */
void shoal_walk_begin(shoal_walk *walk);
/* Draws rows for the missing entries. Returns 0 if no row can be drawn. */
int shoal_walk_draw(shoal_walk *walk, const shoal_tree *tree, shoal_rng *rng);
/* Copies the drawn rows and the rows they link to. Returns how many entries are still missing. */
uint64_t shoal_walk_gather(shoal_walk *walk, shoal_copy_threads threads);
void shoal_walk_end(shoal_walk *walk);

#ifdef __cplusplus
}
#endif
#endif
