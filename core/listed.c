/* A list of readable slots: see listed.h. */
// SPDX-License-Identifier: MIT
#include "listed.h"

#include <stdlib.h>

void shoal_listed_free(shoal_listed *list) {
    free(list->slots);
    free(list->sums);
    *list = (shoal_listed){NULL, NULL, 0};
}

int shoal_listed_renew(shoal_listed *list, const shoal_ring *ring, const shoal_tree *tree,
                       shoal_listed_test test, const void *context) {
    const uint64_t used = shoal_ring_length(ring);
    double sum = 0;
    shoal_listed_free(list);
    if (used == 0)
        return 0;
    list->slots = malloc(used * sizeof *list->slots);
    list->sums = malloc(used * sizeof *list->sums);
    if (list->slots == NULL || list->sums == NULL)
        return 1;
    for (uint64_t slot = 0; slot < used; slot++) {
        const float weight = tree == NULL ? 1 : shoal_tree_get(tree, slot);
        if (!(weight > 0) || shoal_ring_load_full(ring, slot) == 0 || (test != NULL && !test(context, slot)))
            continue;
        list->slots[list->count] = slot;
        list->sums[list->count++] = sum += weight;
    }
    return list->count != 0;
}

uint64_t shoal_listed_draw(const shoal_listed *list, shoal_rng *rng) {
    const double at = shoal_random(rng) * list->sums[list->count - 1];
    uint64_t low = 0, high = list->count - 1; /* find the first whose sum is greater than `at` */
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (list->sums[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return list->slots[low];
}
