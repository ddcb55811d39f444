/* A sum tree with 16 children per node: draws leaves in proportion to their weight.
 *
 *    level 0   weights, one per leaf          level h   sums of 16 neighbours of level h - 1
 *
 * The children of a node fill one cache line. A batch of draws descends level by level, so that the cache
 * misses of a level overlap. Not thread-safe: the caller serializes all access. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_TREE_H
#define SHOAL_TREE_H

#include <shoal/env.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHOAL_TREE_FANOUT = 16, SHOAL_TREE_LEVELS = 12, SHOAL_TREE_AHEAD = 64 };

typedef struct shoal_tree {
    uint64_t leaves;
    uint32_t levels; /* the last level is one cache line; its sum is the total */
    float *level[SHOAL_TREE_LEVELS];
    uint64_t size[SHOAL_TREE_LEVELS]; /* nodes, a multiple of the fanout */
} shoal_tree;

/* The number of floats that a tree of so many leaves needs. shoal_tree_init takes that memory, zeroed and
 * aligned to 64 bytes. */
uint64_t shoal_tree_floats(uint64_t leaves);
void shoal_tree_init(shoal_tree *tree, uint64_t leaves, float *memory);

float shoal_tree_total(const shoal_tree *tree);
float shoal_tree_get(const shoal_tree *tree, uint64_t leaf);
/* Sets some leaves. Weights must be finite and at least 0. If a leaf is given twice, the last weight counts.
 */
void shoal_tree_set(shoal_tree *tree, const uint64_t *leaves, const float *weights, uint64_t count);
/* Sets leaves begin .. end - 1 to one weight. */
void shoal_tree_fill(shoal_tree *tree, uint64_t begin, uint64_t end, float weight);
/* Sets all leaves. */
void shoal_tree_load(shoal_tree *tree, const float *weights);
/* Stratified sampling: divides the total, which must be positive, into `parts` equal intervals and draws one
 * leaf from each of the intervals begin .. end - 1 (at most SHOAL_TREE_AHEAD). Stores the leaves and their
 * weights. */
void shoal_tree_draw(const shoal_tree *tree, shoal_rng *rng, uint64_t parts, uint64_t begin, uint64_t end,
                     uint64_t *leaves, float *weights);

#ifdef __cplusplus
}
#endif
#endif
