/* The sum tree: see tree.h. */
// SPDX-License-Identifier: MIT
#include "tree.h"

#include <stdlib.h>
#include <string.h>

enum { FANOUT = SHOAL_TREE_FANOUT, LANES = 4, AHEAD = SHOAL_TREE_AHEAD };

static uint64_t round_up(uint64_t nodes) { return (nodes + FANOUT - 1) / FANOUT * FANOUT; }

uint64_t shoal_tree_floats(uint64_t leaves) {
    uint64_t total = 0;
    for (uint64_t nodes = leaves;; nodes = round_up(nodes) / FANOUT) {
        total += round_up(nodes);
        if (nodes <= FANOUT)
            return total;
    }
}

void shoal_tree_init(shoal_tree *tree, uint64_t leaves, float *memory) {
    tree->leaves = leaves;
    tree->levels = 0;
    for (uint64_t nodes = leaves;; nodes = round_up(nodes) / FANOUT) {
        tree->level[tree->levels] = memory;
        tree->size[tree->levels++] = round_up(nodes);
        memory += round_up(nodes);
        if (nodes <= FANOUT)
            return;
    }
}

/* A cache line as a 4 x 4 matrix, with running sums down its columns. */
typedef float columns[LANES][LANES];

static inline void add_down(const float *line, columns sums) {
    for (int j = 0; j < LANES; j++)
        sums[0][j] = line[j];
    for (int i = 1; i < LANES; i++)
        for (int j = 0; j < LANES; j++)
            sums[i][j] = sums[i - 1][j] + line[i * LANES + j];
}

/* Adds in a fixed order, so that the result does not depend on vectorization. */
static float sum_line(const float *line) {
    columns sums;
    add_down(line, sums);
    const float *whole = sums[LANES - 1];
    return (whole[0] + whole[1]) + (whole[2] + whole[3]);
}

float shoal_tree_total(const shoal_tree *tree) { return sum_line(tree->level[tree->levels - 1]); }

float shoal_tree_get(const shoal_tree *tree, uint64_t leaf) { return tree->level[0][leaf]; }

void shoal_tree_set(shoal_tree *tree, const uint64_t *leaves, const float *weights, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        if (i + AHEAD < count)
            __builtin_prefetch(&tree->level[0][leaves[i + AHEAD]], 1);
        tree->level[0][leaves[i]] = weights[i];
    }
    uint64_t divisor = FANOUT;
    for (uint32_t h = 1; h < tree->levels; h++, divisor *= FANOUT) {
        const float *below = tree->level[h - 1];
        uint64_t last = UINT64_MAX;
        for (uint64_t i = 0; i < count; i++) {
            const uint64_t node = leaves[i] / divisor;
            if (node != last) /* neighbours often share a parent */
                tree->level[h][node] = sum_line(below + node * FANOUT);
            last = node;
        }
    }
}

void shoal_tree_fill(shoal_tree *tree, uint64_t begin, uint64_t end, float weight) {
    if (begin >= end)
        return;
    for (uint64_t leaf = begin; leaf < end; leaf++)
        tree->level[0][leaf] = weight;
    uint64_t first = begin, last = end - 1;
    for (uint32_t h = 1; h < tree->levels; h++) {
        first /= FANOUT;
        last /= FANOUT;
        for (uint64_t node = first; node <= last; node++)
            tree->level[h][node] = sum_line(tree->level[h - 1] + node * FANOUT);
    }
}

void shoal_tree_load(shoal_tree *tree, const float *weights) {
    memcpy(tree->level[0], weights, tree->leaves * sizeof *weights);
    for (uint32_t h = 1; h < tree->levels; h++)
        for (uint64_t node = 0; node * FANOUT < tree->size[h - 1]; node++)
            tree->level[h][node] = sum_line(tree->level[h - 1] + node * FANOUT);
}

/* Picks the last child with a positive weight, for a position that rounding moved past the end. */
static uint64_t pick_last_child(const float *line, double *at) {
    uint64_t child = FANOUT - 1;
    while (child > 0 && !(line[child] > 0))
        child--;
    *at = line[child] * 0.5;
    return child;
}

/* Returns the child that contains position `*at` and makes `*at` relative to it. Positions count children
 * column by column. It has no branch that depends on the weights, because such branches are unpredictable. */
static inline uint64_t descend(const float *line, double *at) {
    columns sums;
    add_down(line, sums);
    const float *whole = sums[LANES - 1];
    const double one = whole[0], two = one + whole[1], three = two + whole[2];
    const double before_lane[LANES] = {0, one, two, three};
    const uint64_t lane = (uint64_t)(*at >= one) + (*at >= two) + (*at >= three);
    double left = *at - before_lane[lane];
    const double first = sums[0][lane], second = sums[1][lane], third = sums[2][lane];
    const double before[LANES] = {0, first, second, third};
    const uint64_t row = (uint64_t)(left >= first) + (left >= second) + (left >= third);
    const uint64_t child = row * LANES + lane;
    left -= before[row];
    if (__builtin_expect(!(left < line[child]), 0))
        return pick_last_child(line, at);
    *at = left;
    return child;
}

void shoal_tree_draw(const shoal_tree *tree, shoal_rng *rng, uint64_t parts, uint64_t begin, uint64_t end,
                     uint64_t *leaves, float *weights) {
    const double part = shoal_tree_total(tree) / (double)parts;
    const uint64_t count = end - begin;
    double at[AHEAD]; /* a float would be too coarse for a leaf among a million */
    for (uint64_t i = 0; i < count; i++) {
        at[i] = ((double)(begin + i) + shoal_random(rng)) * part;
        leaves[i] = 0; /* the index of a line in the level */
    }
    for (uint32_t h = tree->levels; h-- > 0;)
        for (uint64_t i = 0; i < count; i++) {
            leaves[i] = leaves[i] * FANOUT + descend(tree->level[h] + leaves[i] * FANOUT, &at[i]);
            if (h > 0)
                __builtin_prefetch(tree->level[h - 1] + leaves[i] * FANOUT);
        }
    for (uint64_t i = 0; i < count; i++)
        weights[i] = shoal_tree_get(tree, leaves[i]);
}
