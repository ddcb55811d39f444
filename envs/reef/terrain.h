/* The ground of Reef-v0: smooth noise cut into categories.
 *
 *   ground: deep water -> water -> shallows -> sand -> rock, each a fixed share of the map whatever the seed
 *   growth: in water and shallows, coral where it is high and kelp where it is low
 *
 * Whatever can be swum is one connected piece: pools shut off from the largest one become rock. */
// SPDX-License-Identifier: MIT
#ifndef REEF_TERRAIN_H
#define REEF_TERRAIN_H

#include <shoal/env.h>
#include <shoal/ext/state.h>
#include <string.h>

enum { DEEP, WATER, SHALLOWS, SAND, KELP, CORAL, ROCK, NUM_TERRAINS };

static const shoal_category TERRAINS[NUM_TERRAINS] = {
    {DEEP, "deep water", 0x0d4272, 0}, {WATER, "water", 0x1a74a8, 0}, {SHALLOWS, "shallows", 0x43b9c4, 0},
    {SAND, "sand", 0xf0dca6, 0},       {KELP, "kelp", 0x2a8a5f, 0},   {CORAL, "coral", 0xf27a7d, 0},
    {ROCK, "rock", 0x6a6f78, 0},
};

/* A mixed number for each corner of the lattice. */
static inline uint64_t terrain_mix(uint64_t seed, int32_t row, int32_t column) {
    uint64_t mixed = seed ^ ((uint64_t)(uint32_t)row << 32 | (uint32_t)column);
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

static inline double terrain_corner(uint64_t seed, int32_t row, int32_t column) {
    return (double)(terrain_mix(seed, row, column) >> 11) * (1.0 / 9007199254740992.0);
}

/* From 0 to 1: four corners blended so that slopes meet without a crease. */
static inline double terrain_noise(uint64_t seed, double y, double x) {
    int32_t row = (int32_t)y - (y < 0), column = (int32_t)x - (x < 0);
    double v = y - row, u = x - column;
    v = v * v * (3 - 2 * v);
    u = u * u * (3 - 2 * u);
    double above = terrain_corner(seed, row, column) * (1 - u) + terrain_corner(seed, row, column + 1) * u;
    double below =
        terrain_corner(seed, row + 1, column) * (1 - u) + terrain_corner(seed, row + 1, column + 1) * u;
    return above * (1 - v) + below * v;
}

/* Noise at several scales, each half as strong as the one twice as coarse, and turned, so that no coast
 * follows the lattice. Sums to less than 1. */
static inline double terrain_fractal(uint64_t seed, double y, double x, int octaves) {
    double sum = 0, strength = 0.5;
    for (int i = 0; i < octaves; i++, strength /= 2) {
        double turned = 1.6 * y + 1.2 * x;
        x = 1.6 * x - 1.2 * y;
        y = turned;
        sum += strength * terrain_noise(seed + (uint64_t)i, y, x);
    }
    return sum;
}

enum { TERRAIN_LEVELS = 4096 };

/* The level below which this share of the cells lies. */
static inline int32_t terrain_level(const int32_t counts[TERRAIN_LEVELS], double share, int32_t cells) {
    int32_t level = 0, below = 0;
    while (level < TERRAIN_LEVELS - 1 && below + counts[level] <= share * cells)
        below += counts[level++];
    return level;
}

/* Gives `label` to all that can be reached from `start`; how many cells that is. */
static inline int32_t terrain_flood(const int8_t *terrain, int32_t height, int32_t width, int32_t start,
                                    int32_t label, int32_t *labels, int32_t *queue) {
    int32_t found = 0;
    labels[start] = label;
    queue[found++] = start;
    for (int32_t done = 0; done < found; done++) {
        int32_t cell = queue[done], row = cell / width, column = cell % width;
        int32_t near[4] = {row > 0 ? cell - width : cell, column + 1 < width ? cell + 1 : cell,
                           row + 1 < height ? cell + width : cell, column > 0 ? cell - 1 : cell};
        for (int i = 0; i < 4; i++)
            if (terrain[near[i]] != ROCK && labels[near[i]] == 0) {
                labels[near[i]] = label;
                queue[found++] = near[i];
            }
    }
    return found;
}

/* Leaves one connected piece of at least half the map. */
static inline void terrain_connect(int8_t *terrain, int32_t height, int32_t width, int32_t *labels,
                                   int32_t *queue) {
    int32_t cells = height * width, label = 0, largest = 0, most = 0;
    memset(labels, 0, (size_t)cells * sizeof *labels);
    for (int32_t cell = 0; cell < cells; cell++)
        if (terrain[cell] != ROCK && labels[cell] == 0) {
            int32_t found = terrain_flood(terrain, height, width, cell, ++label, labels, queue);
            if (found > most) {
                most = found;
                largest = label;
            }
        }
    for (int32_t cell = 0; cell < cells; cell++)
        if (2 * most < cells && terrain[cell] == ROCK) /* cut in pieces: take the rock away instead */
            terrain[cell] = SAND;
        else if (2 * most >= cells && labels[cell] != largest)
            terrain[cell] = ROCK;
}

/* Fills in terrain[height][width]; scratch holds twice as many numbers. */
static inline void terrain_generate(int8_t *terrain, int32_t height, int32_t width, shoal_rng *rng,
                                    int32_t *scratch) {
    uint64_t seed = shoal_random64(rng), bends = seed ^ 0x5bd1e995, grows = seed ^ 0x27d4eb2f;
    int32_t cells = height * width, counts[TERRAIN_LEVELS] = {0};
    int32_t *levels = scratch, edge = height < width ? height : width;
    double scale = 1.0 / (edge < 28 ? 20 : edge < 112 ? edge / 1.4 : 80); /* smaller bays on a small map */
    for (int32_t cell = 0; cell < cells; cell++) {
        double y = cell / width * scale, x = cell % width * scale;
        double bend =
            0.6 * terrain_fractal(bends, y, x, 2); /* coasts that wind instead of lying in squares */
        double ground = terrain_fractal(seed, y + bend, x - bend, 5);
        levels[cell] = (int32_t)(ground * TERRAIN_LEVELS);
        counts[levels[cell]]++;
    }
    int32_t water = terrain_level(counts, 0.24, cells), shallows = terrain_level(counts, 0.52, cells);
    int32_t sand = terrain_level(counts, 0.76, cells), rock = terrain_level(counts, 0.92, cells);
    for (int32_t cell = 0; cell < cells; cell++) {
        int32_t level = levels[cell];
        int kind = level < water ? DEEP : level < shallows ? WATER : level < sand ? SHALLOWS : SAND;
        if (kind == WATER || kind == SHALLOWS) {
            double growth = terrain_fractal(grows, cell / width / 27.0, cell % width / 27.0, 3);
            if (growth > 0.56)
                kind = CORAL;
            else if (growth < 0.34)
                kind = KELP;
        }
        terrain[cell] = (int8_t)(level >= rock ? ROCK : kind);
    }
    terrain_connect(terrain, height, width, scratch, scratch + cells);
}

#endif
