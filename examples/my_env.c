/* Tide: a crab gathers shells on a beach while the tide rises and falls. examples/my_env.py builds and plays
 * it.
 *
 * The beach is HEIGHT x WIDTH cells, with dunes at the top. The sea covers the lowest rows: one row more or
 * one row fewer every `pace` steps, and it leaves shells behind when it falls. A shell gives a reward of 1.
 * If the sea reaches the crab, the reward is -1 and the episode ends. New shells lie next to the water, so a
 * good policy gathers them there and moves up in time. */
// SPDX-License-Identifier: MIT
#include <shoal/env.h>
#include <shoal/ext/checkpoint.h>
#include <shoal/ext/observe.h>
#include <shoal/ext/state.h>
#include <string.h>

enum { HEIGHT = 12, WIDTH = 20, HIGH_TIDE = 9 };
enum { SAND = 0, SEA = 1, SHELL = 2, CRAB = 3 };
enum { STAY = 0, UP = 1, RIGHT = 2, DOWN = 3, LEFT = 4, NUM_ACTIONS = 5 };

/* The state of one environment. The host owns it and zeroes it before the first reset. It has no pointers, so
 * the host can save it by copying. */
typedef struct Tide {
    uint8_t beach[HEIGHT][WIDTH]; /* without the crab */
    int32_t row, column, facing;
    int32_t level;  /* rows under water */
    int32_t rising; /* 1 or -1 */
    int32_t wait;   /* steps until the level changes */
    int32_t shells; /* gathered in this episode */
} Tide;

static const shoal_option OPTIONS[] = {
    {.name = "pace", .help = "steps until the tide moves a row", .type = SHOAL_OPTION_INT, .value = {.i = 4}},
    {.name = "shells",
     .help = "probability of a shell in each cell",
     .type = SHOAL_OPTION_FLOAT,
     .value = {.f = 0.15}},
};

/* Declares the observations and actions, or returns an error message about the options. */
static const char *describe(const shoal_value *options, shoal_spec *spec) {
    if (options[0].i < 1 || options[0].i > 1000)
        return "pace must be from 1 to 1000";
    if (!(options[1].f >= 0 && options[1].f <= 1))
        return "shells must be from 0 to 1";
    spec->instance_bytes = sizeof(Tide);
    spec->max_episode_steps = 500;
    shoal_field beach = {.name = "beach", .dtype = SHOAL_UINT8, .kind = SHOAL_BOX, .low = 0, .high = CRAB};
    beach.ndim = 2;
    beach.shape[0] = HEIGHT;
    beach.shape[1] = WIDTH;
    shoal_field tide = {.name = "tide", .dtype = SHOAL_FLOAT32, .kind = SHOAL_BOX, .low = -1, .high = 1};
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = NUM_ACTIONS - 1};
    spec->add_observation(spec->host, &beach);
    spec->add_observation(spec->host, &tide);
    spec->add_action(spec->host, &move);
    return 0;
}

/* Writes every byte of the rows, because the host can pass different arrays in every call. */
static void observe(const Tide *self, shoal_envs *envs, uint64_t env) {
    uint8_t *beach = SHOAL_OBSERVATION(uint8_t, envs, 0, env);
    memcpy(beach, self->beach, sizeof self->beach);
    beach[self->row * WIDTH + self->column] = CRAB;
    *SHOAL_OBSERVATION(float, envs, 1, env) = (float)(self->rising * self->level) / HIGH_TIDE;
}

/* Fills one row with sand and new shells. */
static void scatter_shells(Tide *self, shoal_envs *envs, uint64_t env, int32_t row) {
    for (int32_t column = 0; column < WIDTH; column++)
        self->beach[row][column] = shoal_random(&envs->rng[env]) < envs->options[1].f ? SHELL : SAND;
}

static void reset_one(Tide *self, shoal_envs *envs, uint64_t env) {
    memset(self, 0, sizeof *self);
    self->level = (int32_t)shoal_integers(&envs->rng[env], 1, 4);
    self->rising = shoal_integers(&envs->rng[env], 0, 2) ? 1 : -1;
    self->wait = (int32_t)envs->options[0].i;
    for (int32_t row = 1; row < HEIGHT - self->level; row++)
        scatter_shells(self, envs, env, row);
    memset(self->beach[HEIGHT - self->level], SEA, (size_t)(self->level * WIDTH));
    self->row = 1;
    self->column = (int32_t)shoal_integers(&envs->rng[env], 0, WIDTH);
    self->beach[self->row][self->column] = SAND;
    self->facing = DOWN;
    observe(self, envs, env);
}

static void move_tide(Tide *self, shoal_envs *envs, uint64_t env) {
    if (--self->wait > 0)
        return;
    self->wait = (int32_t)envs->options[0].i;
    if (self->level == HIGH_TIDE || self->level == 1)
        self->rising = self->level == 1 ? 1 : -1;
    if (self->rising > 0)
        memset(self->beach[HEIGHT - self->level - 1], SEA, WIDTH);
    else
        scatter_shells(self, envs, env, HEIGHT - self->level);
    self->level += self->rising;
}

static void step_one(Tide *self, shoal_envs *envs, uint64_t env) {
    int64_t action = *SHOAL_ACTION(int64_t, envs, 0, env);
    int32_t row = self->row + (action == DOWN) - (action == UP);
    int32_t column = self->column + (action == RIGHT) - (action == LEFT);
    if (row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH) {
        self->row = row;
        self->column = column;
    }
    if (action != STAY)
        self->facing = (int32_t)action;
    uint8_t *here = &self->beach[self->row][self->column];
    int found = *here == SHELL;
    if (found)
        *here = SAND;
    self->shells += found;
    move_tide(self, envs, env);
    int drowned = *here == SEA;
    envs->rewards[env] = found - drowned;
    envs->terminated[env] = (uint8_t)drowned;
    observe(self, envs, env);
}

SHOAL_BATCH(Tide, reset_one, step_one)
SHOAL_OBSERVE(Tide, observe)

/* Exports the state to watchers. The beach stays at the same address in the instance, so watchers read it
 * without a copy (SHOAL_STATE_STABLE); add copies the other fields before it returns. */
static void state_fields(shoal_envs *envs, uint64_t env, void *host,
                         void (*add)(void *host, const shoal_state_field *field)) {
    static const shoal_category tiles[] = {
        {SAND, "sand", 0xe3cf9d, 0}, {SEA, "sea", 0x2a6f97, 0}, {SHELL, "shell", 0xf7f3ea, 0}};
    static const shoal_category kinds[] = {{CRAB, "crab", 0xc8442f, 0}};
    static const char *const columns[] = {"kind", "r", "c", "dir"};
    const Tide *self = SHOAL_INSTANCE(Tide, envs, env);
    int32_t crab[] = {CRAB, self->row, self->column, self->facing - UP};
    shoal_state_field beach = {.name = "beach", .dtype = SHOAL_UINT8, .ndim = 2, .shape = {HEIGHT, WIDTH}};
    beach.data = self->beach;
    beach.flags = SHOAL_STATE_STABLE;
    beach.role = SHOAL_ROLE_GRID;
    beach.categories = tiles;
    beach.num_categories = 3;
    shoal_state_field walker = {.name = "crab", .dtype = SHOAL_INT32, .ndim = 2, .shape = {1, 4}};
    walker.data = crab;
    walker.role = SHOAL_ROLE_ENTITIES;
    walker.columns = columns;
    walker.num_columns = 4;
    walker.categories = kinds;
    walker.num_categories = 1;
    shoal_state_field level = {.name = "level", .dtype = SHOAL_INT32, .role = SHOAL_ROLE_SCALAR};
    level.data = &self->level;
    shoal_state_field shells = {.name = "shells", .dtype = SHOAL_INT32, .role = SHOAL_ROLE_SCALAR};
    shells.data = &self->shells;
    add(host, &beach);
    add(host, &walker);
    add(host, &level);
    add(host, &shells);
}

static const void *get_extension(const char *id) {
    static const shoal_checkpoint_v1 plain = {0, 0, 0}; /* the host copies the struct */
    static const shoal_observe_v1 observer = {Tide_observe};
    static const shoal_state_v1 state = {state_fields};
    if (strcmp(id, SHOAL_EXT_STATE) == 0)
        return &state;
    if (strcmp(id, SHOAL_EXT_OBSERVE) == 0)
        return &observer;
    return strcmp(id, SHOAL_EXT_CHECKPOINT) == 0 ? &plain : 0;
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Tide-v0",
    .options = OPTIONS,
    .num_options = sizeof OPTIONS / sizeof OPTIONS[0],
    .describe = describe,
    .reset = Tide_reset,
    .step = Tide_step,
    .get_extension = get_extension,
};
