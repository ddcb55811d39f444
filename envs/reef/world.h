/* The world of Reef-v0: its memory layout and the places of entities, without the rules of the game.
 *
 *   Reef | entities | inner | holders [cells] | meals [REGROWTH][fish] | tiles | terrain [cells] | food
 * [cells]
 *
 * Fish come first among the entities, then enemies. A cell is r * width + c. Tiles are the visible part of
 * the cells, with a margin of rock as wide as a fish can see. */
// SPDX-License-Identifier: MIT
#ifndef REEF_WORLD_H
#define REEF_WORLD_H

#include "terrain.h"

enum { HEIGHT, WIDTH, NUM_AGENTS, NUM_ENEMIES, WINDOW, NUM_OPTIONS };
enum { UP = 0, RIGHT = 1, DOWN = 2, LEFT = 3 };
enum { FISH = 0, CRAB = 1, EEL = 2, SHARK = 3, NUM_KINDS = 4 };
enum { SIGHT = 4 /* of enemies, in cells */, REGROWTH = 64 /* steps until food is back */ };

/* A row of the exported state, so all members are int32_t; COLUMNS has their names. */
typedef struct Entity {
    int32_t kind, r, c, hp, hp_max, comb_lvl, prof_lvl, dir, anim, in_combat;
} Entity;
static const char *const COLUMNS[] = {"kind",     "r",        "c",   "hp",   "hp_max",
                                      "comb_lvl", "prof_lvl", "dir", "anim", "in_combat"};

/* The rest of an entity's state, exported in the same way. */
typedef struct Inner {
    int32_t energy;           /* from FULL down to 0, where a fish starves */
    int32_t comb_xp, prof_xp; /* towards the next level */
    int32_t alert;            /* steps for which the last bite still counts as a fight */
    int32_t target;           /* the fish that an enemy is after; -1: none */
    int32_t absence;          /* steps until a dead enemy is back */
} Inner;
static const char *const INNER_COLUMNS[] = {"energy", "comb_xp", "prof_xp", "alert", "target", "absence"};

typedef struct Tile { /* one cell, as fish see it */
    uint8_t terrain, food, kind /* 1 + the kind of the entity there; 0: none */, level;
} Tile;

typedef struct Reef {
    int32_t height, width, cells;
    int32_t num_agents, num_entities, window;
    int32_t margin, stride;                            /* of the tiles */
    int32_t tick;                                      /* steps of this episode */
    int32_t food_left, enemies, eaten, beaten, fallen; /* of this episode; in the order of TOTALS */
} Reef;
static const char *const TOTALS[] = {"food_left", "enemies", "eaten", "beaten", "fallen"};

static const shoal_category KINDS[NUM_KINDS] = {{FISH, "fish", 0xffd23f, 0},
                                                {CRAB, "crab", 0xd62839, 0},
                                                {EEL, "eel", 0x7d4fb3, 0},
                                                {SHARK, "shark", 0xdfe6ee, 0}};

/* A set of terrains, as bits. */
#define IN(terrain) (1u << (terrain))
#define ANYWHERE (IN(ROCK) - 1)

/* ---- Layout ---- */

static void measure(Reef *self, const shoal_value *options) {
    self->height = (int32_t)options[HEIGHT].i;
    self->width = (int32_t)options[WIDTH].i;
    self->cells = self->height * self->width;
    self->num_agents = (int32_t)options[NUM_AGENTS].i;
    self->num_entities = self->num_agents + (int32_t)options[NUM_ENEMIES].i;
    self->window = (int32_t)options[WINDOW].i;
    self->margin = self->window / 2 > SIGHT ? self->window / 2 : SIGHT;
    self->stride = self->width + 2 * self->margin;
}

static Entity *entities_of(const Reef *self) { return (Entity *)(self + 1); }
static Inner *inner_of(const Reef *self) { return (Inner *)(entities_of(self) + self->num_entities); }
/* 1 + the entity on each cell; 0: none. */
static int32_t *holders_of(const Reef *self) { return (int32_t *)(inner_of(self) + self->num_entities); }
/* [step % REGROWTH][fish]: 1 + the cell whose food it ate in that step; 0: none. */
static int32_t *meals_of(const Reef *self) { return holders_of(self) + self->cells; }
static Tile *tiles_of(const Reef *self) {
    return (Tile *)(meals_of(self) + (int64_t)REGROWTH * self->num_agents);
}
static int8_t *terrain_of(const Reef *self) {
    return (int8_t *)(tiles_of(self) + (int64_t)self->stride * (self->height + 2 * self->margin));
}
static uint8_t *food_of(const Reef *self) { return (uint8_t *)(terrain_of(self) + self->cells); }
static uint64_t bytes_of(const Reef *self) {
    int64_t tiles = (int64_t)self->stride * (self->height + 2 * self->margin);
    int64_t numbers = self->cells + (int64_t)REGROWTH * self->num_agents;
    uint64_t bytes = sizeof(Reef) + (uint64_t)self->num_entities * (sizeof(Entity) + sizeof(Inner)) +
                     (uint64_t)numbers * sizeof(int32_t) + (uint64_t)tiles * sizeof(Tile) +
                     (uint64_t)self->cells * 2;
    return (bytes + 63) / 64 * 64; /* environments do not share cache lines */
}

/* ---- Places ---- */

static Tile *tile_at(const Reef *self, int32_t r, int32_t c) {
    return &tiles_of(self)[(r + self->margin) * self->stride + c + self->margin];
}

static int32_t cell_of(const Reef *self, const Entity *entity) { return entity->r * self->width + entity->c; }

/* The cell next to an entity in a direction; -1: beyond the map. */
static int32_t next_to(const Reef *self, const Entity *entity, int direction) {
    int32_t r = entity->r + (direction == DOWN) - (direction == UP);
    int32_t c = entity->c + (direction == RIGHT) - (direction == LEFT);
    return r < 0 || r >= self->height || c < 0 || c >= self->width ? -1 : r * self->width + c;
}

/* Updates the tile of a cell; call it after anything on the cell has changed. */
static void show(Reef *self, int32_t cell) {
    int32_t holder = holders_of(self)[cell];
    const Entity *entity = &entities_of(self)[holder - (holder > 0)];
    *tile_at(self, cell / self->width, cell % self->width) =
        (Tile){(uint8_t)terrain_of(self)[cell], food_of(self)[cell], (uint8_t)(holder ? 1 + entity->kind : 0),
               (uint8_t)(holder ? entity->comb_lvl : 0)};
}

static void leave(Reef *self, Entity *entity) {
    int32_t cell = cell_of(self, entity);
    holders_of(self)[cell] = 0;
    entity->r = entity->c = -1;
    show(self, cell);
}

static void enter(Reef *self, Entity *entity, int32_t cell) {
    entity->r = cell / self->width;
    entity->c = cell % self->width;
    holders_of(self)[cell] = 1 + (int32_t)(entity - entities_of(self));
    show(self, cell);
}

static int is_free(const Reef *self, int32_t cell, uint32_t waters) {
    return holders_of(self)[cell] == 0 && waters >> terrain_of(self)[cell] & 1;
}

/* Returns a random free cell in these waters. If they are crowded or missing, it is the next free one after a
 * random cell, then any that is not rock. There is always one: at most half of the map is rock and a quarter
 * is occupied. */
static int32_t free_cell(const Reef *self, uint32_t waters, shoal_rng *rng) {
    int32_t cell = 0;
    for (int tries = 0; tries < 64; tries++) {
        cell = (int32_t)shoal_integers(rng, 0, self->cells);
        if (is_free(self, cell, waters))
            return cell;
    }
    for (int32_t i = 0; i < 2 * self->cells; i++, cell = (cell + 1) % self->cells)
        if (is_free(self, cell, i < self->cells ? waters : ANYWHERE))
            break;
    return cell;
}

#endif
