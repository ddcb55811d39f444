/* A list of the slots that can be drawn, with the running sums of their weights. It is for a ring in which
 * most rows cannot be read or may not be drawn (the caller's `test` decides). If only few rows are like that,
 * repeating a failed draw is faster. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_LISTED_H
#define SHOAL_LISTED_H

#include "ring.h"
#include "tree.h"

enum { SHOAL_LISTED_MISSES = 4096 }; /* failed draws after which building a list pays off */

typedef struct shoal_listed {
    uint64_t *slots;
    double *sums;
    uint64_t count;
} shoal_listed;

/* Whether the row in a slot, which is readable, may be drawn. */
typedef int (*shoal_listed_test)(const void *context, uint64_t slot);

/* Lists the slots that can be drawn now. `tree` is NULL if all weights are equal; `test` is NULL if every row
 * may be drawn. Returns 0 if there is no such row. If memory is exhausted, the list is empty and it
 * returns 1. */
int shoal_listed_renew(shoal_listed *list, const shoal_ring *ring, const shoal_tree *tree,
                       shoal_listed_test test, const void *context);
/* Draws a slot from a list that is not empty. */
uint64_t shoal_listed_draw(const shoal_listed *list, shoal_rng *rng);
void shoal_listed_free(shoal_listed *list);

#endif
