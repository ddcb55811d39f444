/* A list of the slots that can be drawn and read, with the sums of their weights: for a ring most of whose
 * rows cannot be read, or are not what is asked for. Where that is rare, draws that failed are repeated. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_LISTED_H
#define SHOAL_LISTED_H

#include "ring.h"
#include "tree.h"

enum { SHOAL_LISTED_MISSES = 4096 }; /* failed draws after which a list is worth its making */

typedef struct shoal_listed {
    uint64_t *slots;
    double *sums;
    uint64_t count;
} shoal_listed;

/* Whether the row in a slot, which can be read, may be drawn. */
typedef int (*shoal_listed_test)(const void *context, uint64_t slot);

/* Lists the slots there are now. `tree`: NULL if all weigh the same; `test`: NULL if every row will do.
 * Returns 0 if there is no such row; where there is no memory for a list it is empty, and 1 is returned. */
int shoal_listed_renew(shoal_listed *list, const shoal_ring *ring, const shoal_tree *tree,
                       shoal_listed_test test, const void *context);
/* A slot of a list that is not empty. */
uint64_t shoal_listed_draw(const shoal_listed *list, shoal_rng *rng);
void shoal_listed_free(shoal_listed *list);

#endif
