/* The terrain of Reef-v0: smooth noise, divided into categories.
 *
 *   ground: deep water -> water -> shallows -> sand -> rock, each a fixed share of the map for every seed
 *   growth: in water and shallows, coral where it is high and kelp where it is low
 *
 * All cells without rock are one connected piece: pools apart from the largest one become rock. */
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

#define TERRAIN_INLINE static inline __attribute__((always_inline))

/* A hash from 0 to 1 for each corner of the lattice. */
TERRAIN_INLINE float terrain_corner(uint32_t seed, int32_t row, int32_t column) {
    uint32_t mixed = seed + (uint32_t)row * 0x9e3779b1u + (uint32_t)column * 0x85ebca77u;
    mixed = (mixed ^ mixed >> 15) * 0x2c1b3c6du;
    mixed = (mixed ^ mixed >> 12) * 0x297a2d39u;
    return (float)(int32_t)((mixed ^ mixed >> 15) >> 8) * (1.0f / 16777216);
}

/* Blends four corners so that slopes are continuous. */
TERRAIN_INLINE float terrain_noise(uint32_t seed, float y, float x) {
    int32_t row = (int32_t)y - (y < 0), column = (int32_t)x - (x < 0);
    float v = y - (float)row, u = x - (float)column;
    v = v * v * (3 - 2 * v);
    u = u * u * (3 - 2 * u);
    float above = terrain_corner(seed, row, column) * (1 - u) + terrain_corner(seed, row, column + 1) * u;
    float below =
        terrain_corner(seed, row + 1, column) * (1 - u) + terrain_corner(seed, row + 1, column + 1) * u;
    return above * (1 - v) + below * v;
}

enum { STRIP = 32 }; /* cells of a line that vector code computes at once */

/* Adds noise at several scales for the cells from (y, x) on. Each scale is half as strong as the one twice as
 * coarse, and rotated, so that coasts do not follow the lattice. The sum is below 1. `bend` shifts each cell.
 */
TERRAIN_INLINE void terrain_fractal(float sums[STRIP], uint32_t seed, float y, float x, float scale,
                                    const float bend[STRIP], int octaves) {
    float ys[STRIP], xs[STRIP], strength = 0.5f;
    for (int i = 0; i < STRIP; i++) {
        sums[i] = 0;
        ys[i] = y * scale + bend[i];
        xs[i] = (x + (float)i) * scale - bend[i];
    }
    for (int octave = 0; octave < octaves; octave++, strength /= 2, seed++)
        for (int i = 0; i < STRIP; i++) {
            float turned = 1.6f * ys[i] + 1.2f * xs[i];
            xs[i] = 1.6f * xs[i] - 1.2f * ys[i];
            ys[i] = turned;
            sums[i] += strength * terrain_noise(seed, ys[i], xs[i]);
        }
}

enum { TERRAIN_LEVELS = 4096 };

/* Returns the level below which this share of the cells is. */
static inline int32_t terrain_level(const int32_t counts[TERRAIN_LEVELS], double share, int32_t cells) {
    int32_t level = 0, below = 0;
    while (level < TERRAIN_LEVELS - 1 && below + counts[level] <= share * cells)
        below += counts[level++];
    return level;
}

/* Gives `label` to all cells that can be reached from `start`; returns their number. */
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
        if (2 * most < cells && terrain[cell] == ROCK) /* too many pieces: remove the rock instead */
            terrain[cell] = SAND;
        else if (2 * most >= cells && labels[cell] != largest)
            terrain[cell] = ROCK;
}

/* Ground and growth of every cell, as levels below TERRAIN_LEVELS. */
static void terrain_raise(int32_t *grounds, int32_t *growths, int32_t height, int32_t width, uint32_t seed) {
    int32_t edge = height < width ? height : width;
    float scale = 1 / (edge < 28    ? 20
                       : edge < 112 ? (float)edge / 1.4f
                                    : 80); /* small maps have small bays */
    for (int32_t row = 0; row < height; row++)
        for (int32_t column = 0; column < width; column += STRIP) {
            float bend[STRIP] = {0}, ground[STRIP], growth[STRIP], y = (float)row, x = (float)column;
            terrain_fractal(growth, seed + 100, y, x, 1 / 27.0f, bend, 3);
            terrain_fractal(ground, seed + 200, y, x, scale, bend, 2);
            for (int i = 0; i < STRIP; i++)
                bend[i] = 0.6f * ground[i]; /* makes coasts wind */
            terrain_fractal(ground, seed, y, x, scale, bend, 5);
            for (int32_t i = 0; i < STRIP && column + i < width; i++) {
                grounds[row * width + column + i] = (int32_t)(ground[i] * TERRAIN_LEVELS);
                growths[row * width + column + i] = (int32_t)(growth[i] * TERRAIN_LEVELS);
            }
        }
}

/* Fills in terrain[height][width]; scratch holds twice as many numbers. */
static inline void terrain_generate(int8_t *terrain, int32_t height, int32_t width, shoal_rng *rng,
                                    int32_t *scratch) {
    int32_t cells = height * width, counts[TERRAIN_LEVELS] = {0}, *grounds = scratch,
            *growths = scratch + cells;
    terrain_raise(grounds, growths, height, width, shoal_random32(rng));
    for (int32_t cell = 0; cell < cells; cell++)
        counts[grounds[cell]]++;
    int32_t water = terrain_level(counts, 0.24, cells), shallows = terrain_level(counts, 0.52, cells);
    int32_t sand = terrain_level(counts, 0.76, cells), rock = terrain_level(counts, 0.92, cells);
    const int32_t coral = TERRAIN_LEVELS * 56 / 100, kelp = TERRAIN_LEVELS * 34 / 100;
    for (int32_t cell = 0; cell < cells; cell++) {
        int32_t ground = grounds[cell], growth = growths[cell];
        int kind = ground < water ? DEEP : ground < shallows ? WATER : ground < sand ? SHALLOWS : SAND;
        if (kind == WATER || kind == SHALLOWS)
            kind = growth > coral ? CORAL : growth < kelp ? KELP : kind;
        terrain[cell] = (int8_t)(ground >= rock ? ROCK : kind);
    }
    terrain_connect(terrain, height, width, scratch, scratch + cells);
}

#endif
