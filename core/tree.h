/* A sum tree with 16 children a node: draws leaves in proportion to their weight.
 *
 *    level 0   weights, one per leaf          level h   sums of 16 neighbours of level h - 1
 *
 * A node's children fill one cache line. Whole batches go through it level by level, so that the misses of a
 * level overlap. One writer; not for several threads at once. */
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
    uint32_t levels; /* the last has one line, of which the first node is the whole when there is one */
    float *level[SHOAL_TREE_LEVELS];
    uint64_t size[SHOAL_TREE_LEVELS]; /* nodes, a multiple of the fanout */
} shoal_tree;

/* Floats that a tree of so many leaves needs; 64-byte aligned and zeroed, they are given to shoal_tree_init.
 */
uint64_t shoal_tree_floats(uint64_t leaves);
void shoal_tree_init(shoal_tree *tree, uint64_t leaves, float *memory);

float shoal_tree_total(const shoal_tree *tree);
float shoal_tree_get(const shoal_tree *tree, uint64_t leaf);
/* Sets some leaves; weights are finite and not negative. A leaf named twice gets the last. */
void shoal_tree_set(shoal_tree *tree, const uint64_t *leaves, const float *weights, uint64_t count);
/* Sets leaves begin .. end to one weight. */
void shoal_tree_fill(shoal_tree *tree, uint64_t begin, uint64_t end, float weight);
/* Sets all leaves. */
void shoal_tree_load(shoal_tree *tree, const float *weights);
/* Draws one leaf from each of the equal parts begin .. end - 1, at most SHOAL_TREE_AHEAD of them, out of
 * `parts` that make up the total, which must be positive; their weights too. */
void shoal_tree_draw(const shoal_tree *tree, shoal_rng *rng, uint64_t parts, uint64_t begin, uint64_t end,
                     uint64_t *leaves, float *weights);

#ifdef __cplusplus
}
#endif
#endif
