/* Rows that lead to each other: transitions, n-step returns, stacks and sequences, drawn and copied.
 *
 *    row j:   obs | action, reward, flags of the step that led to it | first of an episode? | previous
 *             previous = id + 1 of the row before j             next[slot of j] = id + 1 of the row after j
 *
 *    stack <---- row before <---- j ----> row after ----> ... ----> last of n steps, or of a sequence
 *
 * 1. A link back is part of its row, so it is whole if the row is. It is an id, and ids are never used again:
 * it leads to the row that was meant, or to none.
 * 2. A link forward lies beside the records and is a hint, for its writer may have been overtaken by a whole
 * lap. It is believed only if the row it leads to is whole, has that id, and links back.
 * 3. Each row is read as in ring.h: look, copy, look again. A place of a batch one of whose rows was not
 * there is drawn again from the beginning. So every whole transition comes with the same chance, or by its
 * weight.
 */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_LINKS_H
#define SHOAL_LINKS_H

#include "gather.h"
#include "listed.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the links of a ring are. */
typedef struct shoal_links {
    const shoal_ring *ring;
    uint64_t *next;        /* [capacity], shared. Writers: who links a row. Readers: all */
    shoal_column first;    /* uint8 */
    shoal_column previous; /* uint64 */
    shoal_column step[3];  /* reward, float; terminated and truncated, uint8 */
    uint64_t apart;        /* ids from a row to the next, usually: what to fetch before links are read */
} shoal_links;

/* Links the rows before new ones to them: last[i] is the id + 1 of the row before row ids[i], or 0; then that
 * of the new row. */
void shoal_links_set(const shoal_links *links, uint64_t *last, const uint64_t *ids, uint64_t count);

/* One batch: what it is to hold, where that goes, and how far it is. Arrays of observations are
 * [count, stack, ...] (no dimension for a stack of 1), all of sequences [count, length, ...]. */
typedef struct shoal_walk {
    const shoal_links *links;
    uint64_t count;
    uint64_t stack, steps; /* transitions: both at least 1 */
    uint64_t length;       /* sequences; 0: transitions */
    double gamma;
    int across_episodes; /* sequences go on behind an episode's end */
    shoal_columns obs;   /* transitions: of the row before and of the last */
    shoal_columns rest;  /* transitions: of the row that is drawn; sequences: of every row */
    void *const *obs_out, *const *next_out, *const *rest_out;
    void *step_out[3];        /* transitions of several steps: of rest_out those of links->step */
    float *discount;          /* [count], or NULL */
    uint8_t *mask;            /* sequences: [count, length] */
    uint64_t *ids;            /* [count]: of the rows that were drawn */
    float *weights;           /* [count], with a tree */
    uint64_t *slots, *places; /* [count] each: of the caller's own, of nobody else's reach */
    float *drawn;             /* [count], with a tree */
    /* how far it is: zeros at first */
    uint64_t missing, rounds, misses;
    shoal_listed list;
} shoal_walk;

/* A batch is drawn and gathered until nothing is missing:
 *
 *    begin -> draw -> gather -> missing? draw -> gather ... -> end */
void shoal_walk_begin(shoal_walk *walk);
/* Draws rows for the places that are missing; 0 if there is no row that would do. */
int shoal_walk_draw(shoal_walk *walk, const shoal_tree *tree, shoal_rng *rng);
/* Reads what was drawn and where it leads to; how many places are still missing. */
uint64_t shoal_walk_gather(shoal_walk *walk, shoal_hands hands);
void shoal_walk_end(shoal_walk *walk);

#ifdef __cplusplus
}
#endif
#endif
