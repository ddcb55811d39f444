/* The sum tree: see tree.h. */
// SPDX-License-Identifier: MIT
#include "tree.h"

#include <stdlib.h>
#include <string.h>

enum { FANOUT = SHOAL_TREE_FANOUT, AHEAD = 64 };

static uint64_t rounded(uint64_t nodes) { return (nodes + FANOUT - 1) / FANOUT * FANOUT; }

uint64_t shoal_tree_floats(uint64_t leaves) {
    uint64_t total = 0;
    for (uint64_t nodes = leaves;; nodes = rounded(nodes) / FANOUT) {
        total += rounded(nodes);
        if (nodes <= FANOUT)
            return total;
    }
}

void shoal_tree_init(shoal_tree *tree, uint64_t leaves, float *memory) {
    tree->leaves = leaves;
    tree->levels = 0;
    for (uint64_t nodes = leaves;; nodes = rounded(nodes) / FANOUT) {
        tree->level[tree->levels] = memory;
        tree->size[tree->levels++] = rounded(nodes);
        memory += rounded(nodes);
        if (nodes <= FANOUT)
            return;
    }
}

/* Four partial sums, so that it does not depend on how a compiler vectorises it. */
static float sum_line(const float *line) {
    float part[4] = {0, 0, 0, 0};
    for (int i = 0; i < FANOUT; i += 4)
        for (int j = 0; j < 4; j++)
            part[j] += line[i + j];
    return (part[0] + part[1]) + (part[2] + part[3]);
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

/* The child in which `*at` falls, and `*at` within it. Rounding may leave it behind the last: then the last
 * that weighs something. */
static uint64_t descend(const float *line, double *at) {
    double left = *at;
    int last = -1;
    for (int i = 0; i < FANOUT; i++) {
        if (line[i] <= 0)
            continue;
        if (left < line[i]) {
            *at = left;
            return (uint64_t)i;
        }
        left -= line[i];
        last = i;
    }
    *at = last < 0 ? 0 : line[last] * 0.5;
    return last < 0 ? 0 : (uint64_t)last;
}

void shoal_tree_draw(const shoal_tree *tree, shoal_rng *rng, uint64_t *leaves, float *weights,
                     uint64_t count) {
    const double total = shoal_tree_total(tree), part = total / (double)count;
    for (uint64_t done = 0; done < count; done += AHEAD) {
        const uint64_t now = count - done < AHEAD ? count - done : AHEAD;
        double at[AHEAD]; /* a float would be too coarse for a leaf among a million */
        uint64_t *node = leaves + done;
        for (uint64_t i = 0; i < now; i++) {
            at[i] = ((double)(done + i) + shoal_random(rng)) * part;
            node[i] = 0; /* a line of the level */
        }
        for (uint32_t h = tree->levels; h-- > 0;)
            for (uint64_t i = 0; i < now; i++) {
                node[i] = node[i] * FANOUT + descend(tree->level[h] + node[i] * FANOUT, &at[i]);
                if (h > 0)
                    __builtin_prefetch(tree->level[h - 1] + node[i] * FANOUT);
            }
        for (uint64_t i = 0; i < now; i++)
            weights[done + i] = tree->level[0][node[i]];
    }
}
