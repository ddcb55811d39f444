/* Grains: the numbers of adjacent tickets that a thread of a flow takes at once. Private to flow.c.
 *
 *   tickets   | 0 . . . | 4 . . . | 8 . . . |     a thread takes up to the next multiple of a grain, here 4
 *   places    | 0 . . . | 4 . . . | 8 . . . |     and delivers to as many places
 *
 * Each grain divides the next one, and all divide the number of units in a batch. So, if the user sends what
 * it has received, units that were adjacent in the queue are delivered to one batch, and are adjacent when
 * they are sent again: one call steps them together. Without this rule, each batch would cut some of these
 * runs in two, and after some thousand batches none would be left. A unit that is taken alone, because it is
 * slow, breaks the rule for a while; shoal_flow_send joins runs that have become short. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GRAIN_H
#define SHOAL_GRAIN_H

#include <stdint.h>

enum { SHOAL_MOST_GRAINS = 16 };

typedef struct shoal_grains {
    uint32_t sizes[SHOAL_MOST_GRAINS], count;
} shoal_grains;

/* Grains of at most `most` units. */
static inline void shoal_grains_choose(shoal_grains *grains, uint64_t units_per_batch, uint64_t most) {
    uint64_t size = 1, rest = units_per_batch;
    grains->count = 0;
    grains->sizes[grains->count++] = 1;
    for (uint64_t factor = 2; grains->count < SHOAL_MOST_GRAINS && factor <= rest && size * factor <= most;) {
        if (rest % factor != 0) {
            factor++;
            continue;
        }
        rest /= factor;
        size *= factor;
        grains->sizes[grains->count++] = (uint32_t)size;
    }
}

/* How many units to take, at least 1 and at most `most`, from ticket `first` on. */
static inline uint32_t shoal_grains_take(const shoal_grains *grains, uint64_t first, uint64_t most) {
    uint32_t at = grains->count - 1;
    while (at != 0 && grains->sizes[at] > most)
        at--;
    const uint32_t size = grains->sizes[at];
    if (at + 1 == grains->count && 4 * (uint64_t)size < most)
        return (uint32_t)most; /* no larger number divides a batch */
    return size - (uint32_t)(first % size);
}

#endif
