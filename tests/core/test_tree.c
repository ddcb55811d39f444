/* Tests of core/tree.c: every part of the total has its leaf, whatever the weights are. */
// SPDX-License-Identifier: MIT
#include "tree.h"

#include "check.h"
#include "seed.h"

#include <math.h>
#include <string.h>

enum { MOST = 5000, PARTS = 4096 };

static const uint64_t SIZES[] = {1, 2, 15, 16, 17, 100, 255, 256, 257, 4096, MOST};
enum { NUM_SIZES = sizeof SIZES / sizeof *SIZES };

static shoal_tree tree;
static float weights[MOST];
static shoal_rng rng;

static void make(uint64_t leaves) {
    static _Alignas(64) float memory[2 * MOST];
    CHECK(shoal_tree_floats(leaves) <= 2 * MOST);
    memset(memory, 0, sizeof memory);
    memset(weights, 0, sizeof weights);
    shoal_tree_init(&tree, leaves, memory);
}

/* As the kind says: all alike, any, mostly none, one alone, from the least there can be to the highest. */
enum { ALIKE, ANY, FEW, ONE, WIDE, KINDS };
static float weight_of(int kind, uint64_t leaf, uint64_t leaves) {
    const double drawn = shoal_random(&rng);
    switch (kind) {
    case ALIKE:
        return 1;
    case ANY:
        return (float)(drawn + 0.01);
    case FEW:
        return drawn < 0.95 && leaf != leaves / 2 ? 0 : (float)drawn;
    case ONE:
        return leaf == leaves / 3 ? 7 : 0;
    default:
        return (float)pow(10, 50 * drawn - 25);
    }
}

/* Sets every leaf, in an order that has nothing to do with theirs, some twice. */
static void weigh(int kind, uint64_t leaves) {
    uint64_t order[2 * MOST];
    float given[2 * MOST];
    for (uint64_t i = 0; i < 2 * leaves; i++) {
        order[i] = i < leaves ? (uint64_t)shoal_integers(&rng, 0, (int64_t)leaves) : i - leaves;
        given[i] = weight_of(kind, order[i], leaves);
        weights[order[i]] = given[i];
    }
    shoal_tree_set(&tree, order, given, 2 * leaves);
}

static double total_of(uint64_t leaves) {
    double total = 0;
    for (uint64_t leaf = 0; leaf < leaves; leaf++) {
        CHECK(shoal_tree_get(&tree, leaf) == weights[leaf]);
        total += (double)weights[leaf];
    }
    CHECK(fabs((double)shoal_tree_total(&tree) - total) <= total * 1e-6);
    return total;
}

/* A leaf lies over a stretch of the parts that is as long as its weight, and each part is drawn from once: so
 * it comes as often as it covers parts, and never if it weighs nothing. */
static void draw_and_count(uint64_t leaves, uint64_t parts) {
    uint64_t drawn[PARTS], count[MOST] = {0};
    float drawn_weights[PARTS];
    for (uint64_t at = 0, end; at < parts; at = end) {
        end = at + SHOAL_TREE_AHEAD < parts ? at + SHOAL_TREE_AHEAD : parts;
        shoal_tree_draw(&tree, &rng, parts, at, end, drawn + at, drawn_weights + at);
    }
    const double total = total_of(leaves);
    for (uint64_t i = 0; i < parts; i++) {
        CHECK(drawn[i] < leaves);
        CHECK(weights[drawn[i]] > 0);
        CHECK(drawn_weights[i] == weights[drawn[i]]);
        count[drawn[i]]++;
    }
    for (uint64_t leaf = 0; leaf < leaves; leaf++) {
        const double covered = (double)weights[leaf] / total * (double)parts;
        CHECK(fabs((double)count[leaf] - covered) < 2 + covered * 1e-5);
    }
}

static void test_a_leaf_is_drawn_as_often_as_it_weighs(void) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int size = 0; size < NUM_SIZES; size++) {
            make(SIZES[size]);
            weigh(kind, SIZES[size]);
            for (uint64_t parts = 1; parts <= PARTS; parts = parts * 3 + 1)
                draw_and_count(SIZES[size], parts);
            draw_and_count(SIZES[size], PARTS);
        }
}

/* So many parts that the last ones' places round to the total itself, behind every leaf. */
static void test_the_very_end_is_a_leaf_that_weighs_something(void) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int size = 0; size < NUM_SIZES; size++) {
            make(SIZES[size]);
            weigh(kind, SIZES[size]);
            for (uint64_t parts = 1 << 20; parts < (uint64_t)1 << 62; parts *= 2) {
                uint64_t drawn[SHOAL_TREE_AHEAD];
                float drawn_weights[SHOAL_TREE_AHEAD];
                shoal_tree_draw(&tree, &rng, parts, parts - SHOAL_TREE_AHEAD, parts, drawn, drawn_weights);
                for (int i = 0; i < SHOAL_TREE_AHEAD; i++) {
                    CHECK(drawn[i] < SIZES[size]);
                    CHECK(drawn_weights[i] > 0 && drawn_weights[i] == weights[drawn[i]]);
                }
            }
        }
}

static void test_a_stretch_is_filled(void) {
    for (int size = 0; size < NUM_SIZES; size++)
        for (int turn = 0; turn < 20; turn++) {
            const uint64_t leaves = SIZES[size];
            const uint64_t begin = (uint64_t)shoal_integers(&rng, 0, (int64_t)leaves);
            const uint64_t end = (uint64_t)shoal_integers(&rng, (int64_t)begin, (int64_t)leaves + 1);
            make(leaves);
            weigh(ANY, leaves);
            shoal_tree_fill(&tree, begin, end, 3);
            for (uint64_t leaf = begin; leaf < end; leaf++)
                weights[leaf] = 3;
            draw_and_count(leaves, 1000);
        }
}

/* Sums of the levels do not go astray with the number of changes: they are made anew, never added to. */
static void test_what_went_is_gone(void) {
    make(MOST);
    weigh(WIDE, MOST);
    for (int turn = 0; turn < 50; turn++)
        weigh(turn % KINDS, MOST);
    for (uint64_t leaf = 0; leaf < MOST; leaf++) {
        const float none = 0;
        if (leaf != 4321)
            shoal_tree_set(&tree, &leaf, &none, 1), weights[leaf] = 0;
    }
    shoal_tree_fill(&tree, 4321, 4322, 1e-25f);
    weights[4321] = 1e-25f;
    CHECK(shoal_tree_total(&tree) == 1e-25f);
    draw_and_count(MOST, 100);
}

static void test_a_loaded_tree_draws_as_the_one_it_came_from(void) {
    for (int size = 0; size < NUM_SIZES; size++) {
        const uint64_t leaves = SIZES[size];
        make(leaves);
        weigh(WIDE, leaves);
        const uint64_t bytes = (shoal_tree_floats(leaves) * sizeof(float) + 63) / 64 * 64;
        float *memory = aligned_alloc(64, bytes), drawn[2][16];
        uint64_t found[2][16];
        shoal_tree other;
        memset(memory, 0, bytes);
        shoal_tree_init(&other, leaves, memory);
        shoal_tree_load(&other, tree.level[0]);
        CHECK(shoal_tree_total(&other) == shoal_tree_total(&tree));
        for (int which = 0; which < 2; which++) {
            shoal_rng same;
            shoal_rng_seed(&same, (uint64_t)size);
            shoal_tree_draw(which ? &other : &tree, &same, 16, 0, 16, found[which], drawn[which]);
        }
        CHECK(memcmp(found[0], found[1], sizeof found[0]) == 0);
        CHECK(memcmp(drawn[0], drawn[1], sizeof drawn[0]) == 0);
        free(memory);
    }
}

int main(void) {
    shoal_rng_seed(&rng, 5);
    RUN(test_a_leaf_is_drawn_as_often_as_it_weighs);
    RUN(test_the_very_end_is_a_leaf_that_weighs_something);
    RUN(test_a_stretch_is_filled);
    RUN(test_what_went_is_gone);
    RUN(test_a_loaded_tree_draws_as_the_one_it_came_from);
    return 0;
}
