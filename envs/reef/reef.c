/* Reef: fish eat and fight on a reef, among crabs, eels and sharks. One environment has `num_agents` rows,
 * one for each fish; `num_enemies` enemies move by fixed rules.
 *
 * Fish can swim anywhere but into rock. Food grows on kelp and coral, and grows back where it was eaten. A
 * fish that has eaten heals, and one that starves loses health. Crabs stay in the shallow parts, eels in the
 * weeds, sharks in open water. Each enemy follows fish that it sees, slower than they swim, and its bite
 * takes health by its level. Eating raises a fish's prof_lvl, and beating enemies raises its comb_lvl.
 *
 * Food gives a reward of 0.1, a beaten enemy 0.2 for each of its levels, death -1. A dead fish's row is
 * terminated, and the fish respawns on sand or in the shallows within the same step: that row's observation
 * is the first after the respawn. A dead enemy is away for some steps (r = c = -1). Reset makes a new map. */
// SPDX-License-Identifier: MIT
#include "picture.h"
#include "world.h"
#include <shoal/ext/checkpoint.h>
#include <shoal/ext/info.h>
#include <shoal/ext/observe.h>
#include <shoal/ext/render.h>

enum { STAY = 0, MOVE = 1, GATHER = 5, ATTACK = 6, NUM_ACTIONS = 7 }; /* MOVE + direction */
enum { ANIM_IDLE = 0, ANIM_MOVE = 1, ANIM_GATHER = 2, ANIM_BITE = 3, ANIM_HURT = 4 };
enum { MIN_EDGE = 8, MAX_EDGE = 4096, MAX_WINDOW = 63, MAX_STEPS = 1000 };
enum { FULL = 100, MAX_LEVEL = 20, ABSENCE = 32, ALERT = 6, OWN_NUMBERS = 7 };
static const double FOOD_REWARD = 0.1, LEVEL_REWARD = 0.2, DEATH_REWARD = -1;

static const struct {
    uint32_t waters;             /* terrains that it can enter */
    int32_t hp, lowest, highest; /* health at level 0, and the range of levels */
    int32_t pace;                /* it acts once in this many steps */
} SPECIES[NUM_KINDS] = {
    [FISH] = {ANYWHERE, 26, 1, 1, 1},
    [CRAB] = {IN(SHALLOWS) | IN(SAND) | IN(CORAL), 6, 1, 3, 3},
    [EEL] = {IN(WATER) | IN(SHALLOWS) | IN(KELP) | IN(CORAL), 12, 3, 6, 2},
    [SHARK] = {IN(DEEP) | IN(WATER) | IN(KELP), 20, 6, 10, 2},
};

#define INT_OPTION(id, text, number)                                                                         \
    {                                                                                                        \
        .name = id, .help = text, .type = SHOAL_OPTION_INT, .value = {.i = number }                          \
    }
static const shoal_option OPTIONS[NUM_OPTIONS] = {
    [HEIGHT] = INT_OPTION("height", "rows of cells of the map", 64),
    [WIDTH] = INT_OPTION("width", "cells in a row of the map", 64),
    [NUM_AGENTS] = INT_OPTION("num_agents", "number of fish; each is one agent", 16),
    [NUM_ENEMIES] = INT_OPTION("num_enemies", "number of crabs, eels and sharks", 16),
    [WINDOW] = INT_OPTION("window", "cells along an edge of the window that a fish sees; must be odd", 11),
};

static const shoal_info_field OBSERVED[] = {
    {"The square window around the fish: [window, window, 4]. Cells outside the map are rock.",
     SHOAL_NAMES("terrain: 0 deep water, 1 water, 2 shallows, 3 sand, 4 kelp, 5 coral, 6 rock",
                 "food: 1 if there is some", "occupant: 0 nobody, 1 fish, 2 crab, 3 eel, 4 shark",
                 "level of the occupant"),
     0, 0},
    {"What the fish knows about itself; all numbers are between 0 and 1.",
     SHOAL_NAMES("health / maximum health", "energy / 100", "combat level / 20", "gathering level / 20",
                 "1 while in a fight", "row / (height - 1)", "column / (width - 1)"),
     0, 0},
};
static const shoal_info_field ACTED[] = {
    {"What the fish does in this step. An attack bites the enemy ahead, or else one beside or behind the "
     "fish.",
     0, 0, SHOAL_NAMES("stay", "move up", "move right", "move down", "move left", "gather food", "attack")},
};
static const shoal_info_v1 INFO = {
    .summary =
        "Feed, fight and survive as fish on a generated reef with crabs, eels and sharks (several agents)",
    .reward = "0.1 for food, 0.2 times the level of an enemy that the fish beats, and -1 for dying. Each "
              "fish gets its own reward.",
    .ending =
        "A fish that dies is terminated and respawns in the same step; its observation is the first one of "
        "the new episode. Other fish are not affected. The time limit ends all episodes and makes a new map.",
    .observations = OBSERVED,
    .num_observations = 2,
    .actions = ACTED,
    .num_actions = 1,
};

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    int64_t height = options[HEIGHT].i, width = options[WIDTH].i, window = options[WINDOW].i;
    int64_t agents = options[NUM_AGENTS].i, enemies = options[NUM_ENEMIES].i;
    if (height < MIN_EDGE || height > MAX_EDGE || width < MIN_EDGE || width > MAX_EDGE)
        return "height and width must be from 8 to 4096";
    if (agents < 1 || agents > height * width / 4)
        return "num_agents must be from 1 to a quarter of the map's cells";
    if (enemies < 0 || enemies > height * width / 4 - agents)
        return "num_enemies must be 0 or more, and with num_agents no more than a quarter of the map's cells";
    if (window < 3 || window > MAX_WINDOW || window % 2 == 0)
        return "window must be odd, from 3 to 63";
    Reef sizes;
    measure(&sizes, options);
    spec->instance_bytes = bytes_of(&sizes);
    spec->agents = (uint32_t)agents;
    spec->max_episode_steps = MAX_STEPS;
    shoal_field map = {.name = "map", .dtype = SHOAL_UINT8, .ndim = 3, .low = 0, .high = MAX_LEVEL};
    map.shape[0] = map.shape[1] = window;
    map.shape[2] = sizeof(Tile);
    shoal_field own = {.name = "self", .dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {OWN_NUMBERS}, .high = 1};
    shoal_field act = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = NUM_ACTIONS - 1};
    spec->add_observation(spec->host, &map);
    spec->add_observation(spec->host, &own);
    spec->add_action(spec->host, &act);
    return 0;
}

static void spawn(Reef *self, int32_t index, shoal_rng *rng) {
    Entity *entity = &entities_of(self)[index];
    int32_t nth = (index - self->num_agents) % 10; /* of ten enemies, five are crabs and two are sharks */
    int kind = index < self->num_agents ? FISH : nth % 2 ? CRAB : nth < 6 ? EEL : SHARK;
    int32_t level = (int32_t)shoal_integers(rng, SPECIES[kind].lowest, SPECIES[kind].highest + 1);
    int32_t hp = SPECIES[kind].hp + 4 * level;
    *entity = (Entity){.kind = kind, .hp = hp, .hp_max = hp, .comb_lvl = level, .prof_lvl = kind == FISH};
    entity->dir = (int32_t)shoal_integers(rng, 0, 4);
    inner_of(self)[index] = (Inner){.energy = kind == FISH ? FULL : 0, .target = -1};
    enter(self, entity, free_cell(self, kind == FISH ? IN(SAND) | IN(SHALLOWS) : SPECIES[kind].waters, rng));
}

/* ---- The actions of entities ---- */

static int swim(Reef *self, Entity *entity, int direction) {
    int32_t cell = next_to(self, entity, direction);
    entity->dir = direction;
    if (cell < 0 || !is_free(self, cell, SPECIES[entity->kind].waters))
        return 0;
    leave(self, entity);
    enter(self, entity, cell);
    entity->anim = ANIM_MOVE;
    return 1;
}

/* Raises the level as often as the experience suffices. */
static void learn(int32_t *level, int32_t *experience, int32_t gained, int32_t per_level) {
    *experience += gained;
    while (*level < MAX_LEVEL && *experience >= per_level * *level)
        *experience -= per_level * (*level)++;
}

/* Returns whether the victim died. */
static int bite(Reef *self, Entity *entity, Entity *victim, shoal_rng *rng) {
    int32_t harm = 2 + entity->comb_lvl + (int32_t)shoal_integers(rng, 0, 3);
    victim->hp = victim->hp > harm ? victim->hp - harm : 0;
    entity->anim = ANIM_BITE;
    victim->anim = ANIM_HURT;
    entity->in_combat = victim->in_combat = 1;
    inner_of(self)[entity - entities_of(self)].alert = inner_of(self)[victim - entities_of(self)].alert =
        ALERT;
    return victim->hp == 0;
}

static void calm_down(Reef *self) {
    for (int32_t i = 0; i < self->num_entities; i++) {
        Entity *entity = &entities_of(self)[i];
        Inner *inner = &inner_of(self)[i];
        inner->alert -= inner->alert > 0;
        entity->in_combat = inner->alert > 0;
        entity->anim = ANIM_IDLE;
    }
}

static double gather(Reef *self, int32_t index) {
    Entity *entity = &entities_of(self)[index];
    Inner *inner = &inner_of(self)[index];
    int32_t cell = cell_of(self, entity);
    entity->anim = ANIM_GATHER;
    if (!food_of(self)[cell])
        return 0;
    food_of(self)[cell] = 0;
    meals_of(self)[self->tick % REGROWTH * self->num_agents + index] = 1 + cell;
    self->food_left--;
    self->eaten++;
    inner->energy += 10 + entity->prof_lvl;
    inner->energy = inner->energy < FULL ? inner->energy : FULL;
    learn(&entity->prof_lvl, &inner->prof_xp, 1, 5);
    show(self, cell);
    return FOOD_REWARD;
}

/* Bites the enemy ahead, or else one at the side or behind. */
static double attack(Reef *self, int32_t index, shoal_rng *rng) {
    Entity *entities = entities_of(self), *entity = &entities[index];
    for (int turn = 0; turn < 4; turn++) {
        int direction = (entity->dir + turn) % 4;
        int32_t cell = next_to(self, entity, direction), other = cell < 0 ? 0 : holders_of(self)[cell];
        if (other <= self->num_agents)
            continue;
        Entity *victim = &entities[other - 1];
        entity->dir = direction;
        if (!bite(self, entity, victim, rng))
            return 0;
        int32_t level = entity->comb_lvl;
        learn(&entity->comb_lvl, &inner_of(self)[index].comb_xp, victim->comb_lvl, 3);
        entity->hp_max += 4 * (entity->comb_lvl - level);
        show(self, cell_of(self, entity));
        leave(self, victim);
        inner_of(self)[other - 1].absence = 1 + ABSENCE; /* + 1: this step counts */
        self->enemies--;
        self->beaten++;
        return LEVEL_REWARD * victim->comb_lvl;
    }
    return 0;
}

static double act(Reef *self, int32_t index, int64_t action, shoal_rng *rng) {
    if (action == GATHER)
        return gather(self, index);
    if (action == ATTACK)
        return attack(self, index, rng);
    if (action != STAY)
        swim(self, &entities_of(self)[index], (int)(action - MOVE) & 3);
    return 0;
}

/* The nearest fish within SIGHT; -1: none. */
static int32_t look_for_fish(const Reef *self, const Entity *entity) {
    int32_t found = -1, nearest = 2 * SIGHT + 1;
    for (int32_t dr = -SIGHT; dr <= SIGHT; dr++) {
        const Tile *line = tile_at(self, entity->r + dr, entity->c);
        for (int32_t dc = -SIGHT; dc <= SIGHT; dc++) {
            int32_t distance = (dr < 0 ? -dr : dr) + (dc < 0 ? -dc : dc);
            if (line[dc].kind == 1 + FISH && distance < nearest) {
                nearest = distance;
                found = holders_of(self)[(entity->r + dr) * self->width + entity->c + dc] - 1;
            }
        }
    }
    return found;
}

static void hunt(Reef *self, int32_t index, shoal_rng *rng) {
    Entity *entity = &entities_of(self)[index];
    Inner *inner = &inner_of(self)[index];
    if (entity->hp == 0) {
        if (--inner->absence == 0) {
            spawn(self, index, rng);
            self->enemies++;
        }
        return;
    }
    if ((self->tick + index) % SPECIES[entity->kind].pace != 0)
        return;
    inner->target = look_for_fish(self, entity);
    if (inner->target < 0) {
        int64_t direction = shoal_integers(rng, 0, 16); /* it mostly waits */
        if (direction < 4)
            swim(self, entity, (int)direction);
        else if (entity->hp < entity->hp_max && !entity->in_combat)
            entity->hp++;
        return;
    }
    Entity *fish = &entities_of(self)[inner->target];
    int32_t down = fish->r - entity->r, right = fish->c - entity->c;
    int vertical = down > 0 ? DOWN : UP, sideways = right > 0 ? RIGHT : LEFT;
    int32_t rows = down < 0 ? -down : down, columns = right < 0 ? -right : right;
    int first = rows > columns ? vertical : sideways, second = rows > columns ? sideways : vertical;
    if (rows + columns == 1) {
        entity->dir = first;
        if (fish->hp > 0)
            bite(self, entity, fish, rng);
    } else if (!swim(self, entity, first) && rows && columns) {
        swim(self, entity, second);
    }
}

/* Applies hunger and healing to a fish; returns whether it died. */
static int live(Reef *self, int32_t index, shoal_rng *rng) {
    Entity *entity = &entities_of(self)[index];
    Inner *inner = &inner_of(self)[index];
    if (self->tick % 2 == 0 && entity->hp > 0) {
        entity->hp -= inner->energy == 0;
        inner->energy -= inner->energy > 0;
        entity->hp += inner->energy > FULL / 2 && !entity->in_combat && entity->hp < entity->hp_max;
    }
    if (entity->hp > 0)
        return 0;
    leave(self, entity);
    spawn(self, index, rng);
    self->fallen++;
    return 1;
}

/* ---- The environment ---- */

static void observe(const Reef *self, shoal_envs *envs, uint64_t env) {
    uint64_t row = env * (uint64_t)self->num_agents, line = (uint64_t)self->window * sizeof(Tile);
    int32_t half = self->window / 2;
    for (int32_t i = 0; i < self->num_agents; i++, row++) {
        const Entity *fish = &entities_of(self)[i];
        const Tile *tiles = tile_at(self, fish->r - half, fish->c - half);
        uint8_t *map = SHOAL_OBSERVATION(uint8_t, envs, 0, row);
        for (int32_t r = 0; r < self->window; r++, tiles += self->stride, map += line)
            memcpy(map, tiles, line);
        float *own = SHOAL_OBSERVATION(float, envs, 1, row);
        own[0] = (float)fish->hp / (float)fish->hp_max;
        own[1] = (float)inner_of(self)[i].energy / FULL;
        own[2] = (float)fish->comb_lvl / MAX_LEVEL;
        own[3] = (float)fish->prof_lvl / MAX_LEVEL;
        own[4] = (float)fish->in_combat;
        own[5] = (float)fish->r / (float)(self->height - 1);
        own[6] = (float)fish->c / (float)(self->width - 1);
    }
}

/* Makes an empty sea, which watchers see before the first reset. */
static const char *init(shoal_envs *envs, uint64_t env) {
    Reef *self = SHOAL_INSTANCE(Reef, envs, env);
    memset(self, 0, envs->instance_bytes);
    measure(self, envs->options);
    for (int32_t i = 0; i < self->num_entities; i++)
        entities_of(self)[i].r = entities_of(self)[i].c = -1;
    return 0;
}

static void reset_one(Reef *self, shoal_envs *envs, uint64_t env) {
    shoal_rng *rng = &envs->rng[env];
    init(envs, env);
    terrain_generate(terrain_of(self), self->height, self->width, rng, holders_of(self)); /* as scratch */
    memset(holders_of(self), 0, (size_t)((char *)tiles_of(self) - (char *)holders_of(self)));
    for (Tile *tile = tiles_of(self); (char *)tile < (char *)terrain_of(self); tile++)
        *tile = (Tile){.terrain = ROCK};
    for (int32_t cell = 0; cell < self->cells; cell++) {
        int fertile = terrain_of(self)[cell] == KELP || terrain_of(self)[cell] == CORAL;
        food_of(self)[cell] = fertile && shoal_random32(rng) % 5 < 2;
        self->food_left += food_of(self)[cell];
        show(self, cell);
    }
    for (int32_t i = 0; i < self->num_entities; i++)
        spawn(self, i, rng);
    self->enemies = self->num_entities - self->num_agents;
    observe(self, envs, env);
}

static void regrow(Reef *self) {
    int32_t *meals = meals_of(self) + self->tick % REGROWTH * self->num_agents;
    for (int32_t i = 0; i < self->num_agents; i++)
        if (meals[i]) {
            food_of(self)[meals[i] - 1] = 1;
            self->food_left++;
            show(self, meals[i] - 1);
            meals[i] = 0;
        }
}

static void step_one(Reef *self, shoal_envs *envs, uint64_t env) {
    shoal_rng *rng = &envs->rng[env];
    uint64_t row = env * (uint64_t)self->num_agents;
    self->tick++;
    regrow(self);
    calm_down(self);
    for (int32_t i = 0; i < self->num_agents; i++)
        envs->rewards[row + (uint64_t)i] =
            act(self, i, *SHOAL_ACTION(int64_t, envs, 0, row + (uint64_t)i), rng);
    for (int32_t i = self->num_agents; i < self->num_entities; i++)
        hunt(self, i, rng);
    for (int32_t i = 0; i < self->num_agents; i++, row++) {
        envs->terminated[row] = (uint8_t)live(self, i, rng);
        envs->rewards[row] += envs->terminated[row] ? DEATH_REWARD : 0;
    }
    observe(self, envs, env);
}

SHOAL_BATCH(Reef, reset_one, step_one)
SHOAL_OBSERVE(Reef, observe)

/* ---- Extensions: shoal.state/1, shoal.observe/1, shoal.render/1, shoal.checkpoint/1 ---- */

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* Exports the whole state, except the entity on each cell, which follows from the rest. Terrain changes only
 * at a reset and is read in place; fields that every step changes are copied. */
static void state_fields(shoal_envs *envs, uint64_t env, void *host,
                         void (*add)(void *host, const shoal_state_field *field)) {
    static const shoal_category food[] = {{1, "food", 0xb8f26b, 0}};
    const Reef *self = SHOAL_INSTANCE(Reef, envs, env);
    /* clang-format off */
    shoal_state_field fields[] = {
        {"terrain", SHOAL_INT8, 2, {self->height, self->width}, terrain_of(self), SHOAL_STATE_STABLE, SHOAL_ROLE_GRID,
         0, 0, TERRAINS, NUM_TERRAINS},
        {"food", SHOAL_UINT8, 2, {self->height, self->width}, food_of(self), 0, SHOAL_ROLE_GRID,
         0, 0, food, COUNT(food)},
        {"positions", SHOAL_INT32, 2, {self->num_entities, COUNT(COLUMNS)}, entities_of(self), 0,
         SHOAL_ROLE_ENTITIES, COLUMNS, COUNT(COLUMNS), KINDS, NUM_KINDS},
        {"inner", SHOAL_INT32, 2, {self->num_entities, COUNT(INNER_COLUMNS)}, inner_of(self), 0,
         SHOAL_ROLE_NONE, INNER_COLUMNS, COUNT(INNER_COLUMNS), 0, 0},
        {"tick", SHOAL_INT32, 0, {0}, &self->tick, 0, SHOAL_ROLE_SCALAR, 0, 0, 0, 0},
        {"totals", SHOAL_INT32, 1, {COUNT(TOTALS)}, &self->food_left, 0, SHOAL_ROLE_SCALAR,
         TOTALS, COUNT(TOTALS), 0, 0},
    };
    /* clang-format on */
    for (uint64_t i = 0; i < COUNT(fields); i++)
        add(host, &fields[i]);
}

static const void *get_extension(const char *id) {
    static const shoal_checkpoint_v1 checkpoint = {0}; /* the host copies the instance */
    static const shoal_observe_v1 observer = {Reef_observe};
    static const shoal_state_v1 state = {state_fields};
    static const shoal_render_v1 render = {.fps = 10, .size = render_size, .draw = render_draw};
    if (strcmp(id, SHOAL_EXT_INFO) == 0)
        return &INFO;
    if (strcmp(id, SHOAL_EXT_CHECKPOINT) == 0)
        return &checkpoint;
    if (strcmp(id, SHOAL_EXT_STATE) == 0)
        return &state;
    if (strcmp(id, SHOAL_EXT_OBSERVE) == 0)
        return &observer;
    return strcmp(id, SHOAL_EXT_RENDER) == 0 ? &render : 0;
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Reef-v0",
    .options = OPTIONS,
    .num_options = NUM_OPTIONS,
    .describe = describe,
    .init = init,
    .reset = Reef_reset,
    .step = Reef_step,
    .get_extension = get_extension,
};
