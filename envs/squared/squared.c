/* Squared: walk to the goal on a square board. Copy this file to start your own environment: it has
 * everything that an author needs, and no more.
 *
 * The board is size x size; the agent starts in the middle, the goal is in a random other cell. The reward is
 * 1 at the goal and -1 for leaving the board, and both end the episode. `cc -DSQUARED_MAIN -I include
 * envs/squared/squared.c && ./a.out` plays it. */
// SPDX-License-Identifier: MIT
#include <shoal/draw.h>
#include <shoal/env.h>
#include <shoal/ext/checkpoint.h>
#include <shoal/ext/info.h>
#include <shoal/ext/observe.h>
#include <shoal/ext/render.h>
#include <shoal/ext/state.h>
#include <string.h>

enum { EMPTY = 0, AGENT = 1, GOAL = 2 };
enum { STAY = 0, DOWN = 1, UP = 2, LEFT = 3, RIGHT = 4, NUM_ACTIONS = 5 };
enum { MAX_SIZE = 255, PIXELS = 512 };

typedef struct Squared {
    int32_t size, row, column, goal_row, goal_column;
} Squared;

static const shoal_option OPTIONS[] = {
    {.name = "size",
     .help = "cells along an edge of the board; must be odd; the time limit is 2 * size steps",
     .type = SHOAL_OPTION_INT,
     .value = {.i = 11}},
};

static const shoal_info_field OBSERVED[] = {
    {"The board, size x size cells.", 0, 0, SHOAL_NAMES("empty", "agent", "goal")},
};
static const shoal_info_field ACTED[] = {
    {"Where the agent moves.", 0, 0, SHOAL_NAMES("stay", "down", "up", "left", "right")},
};
static const shoal_info_v1 INFO = {
    .summary = "Walk to the goal on a square board (a small example to copy for your own environment)",
    .reward = "1 for reaching the goal and -1 for leaving the board.",
    .ending = "The agent reaches the goal or leaves the board.",
    .observations = OBSERVED,
    .num_observations = 1,
    .actions = ACTED,
    .num_actions = 1,
};

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    int64_t size = options[0].i;
    if (size < 3 || size > MAX_SIZE || size % 2 == 0)
        return "size must be odd, from 3 to 255";
    spec->instance_bytes = sizeof(Squared);
    spec->max_episode_steps = 2 * size;
    shoal_field board = {.dtype = SHOAL_UINT8, .kind = SHOAL_BOX, .ndim = 2, .low = 0, .high = 2};
    board.shape[0] = board.shape[1] = size;
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = NUM_ACTIONS - 1};
    spec->add_observation(spec->host, &board);
    spec->add_action(spec->host, &move);
    return 0;
}

static void observe(const Squared *self, shoal_envs *envs, uint64_t env) {
    uint8_t *board = SHOAL_OBSERVATION(uint8_t, envs, 0, env);
    memset(board, EMPTY, envs->observation_bytes[0]);
    board[self->goal_row * self->size + self->goal_column] = GOAL;
    if (self->row >= 0 && self->row < self->size && self->column >= 0 && self->column < self->size)
        board[self->row * self->size + self->column] = AGENT;
}

static void reset_one(Squared *self, shoal_envs *envs, uint64_t env) {
    self->size = (int32_t)envs->options[0].i;
    self->row = self->column = self->size / 2;
    do {
        self->goal_row = (int32_t)shoal_integers(&envs->rng[env], 0, self->size);
        self->goal_column = (int32_t)shoal_integers(&envs->rng[env], 0, self->size);
    } while (self->goal_row == self->row && self->goal_column == self->column);
    observe(self, envs, env);
}

static void step_one(Squared *self, shoal_envs *envs, uint64_t env) {
    int64_t action = *SHOAL_ACTION(int64_t, envs, 0, env);
    self->row += (action == DOWN) - (action == UP);
    self->column += (action == RIGHT) - (action == LEFT);
    int outside = self->row < 0 || self->row >= self->size || self->column < 0 || self->column >= self->size;
    int found = self->row == self->goal_row && self->column == self->goal_column;
    envs->rewards[env] = found - outside;
    envs->terminated[env] = (uint8_t)(found || outside);
    observe(self, envs, env);
}

SHOAL_BATCH(Squared, reset_one, step_one)
SHOAL_OBSERVE(Squared, observe)

/* Exports the state to watchers: the board with the goal, and the agent. add copies both. */
static void state_fields(shoal_envs *envs, uint64_t env, void *host,
                         void (*add)(void *host, const shoal_state_field *field)) {
    static const shoal_category tiles[] = {{EMPTY, "empty", 0xffffff, 0}, {GOAL, "goal", 0xff0000, 0}};
    static const shoal_category kinds[] = {{AGENT, "agent", 0x0000ff, 0}};
    static const char *const columns[] = {"kind", "r", "c"};
    const Squared *self = SHOAL_INSTANCE(Squared, envs, env);
    uint8_t cells[MAX_SIZE * MAX_SIZE] = {EMPTY};
    cells[self->goal_row * self->size + self->goal_column] = GOAL;
    int inside = self->row >= 0 && self->row < self->size && self->column >= 0 && self->column < self->size;
    int32_t agent[] = {AGENT, inside ? self->row : -1, inside ? self->column : -1}; /* -1: outside */
    shoal_state_field board = {.name = "board", .dtype = SHOAL_UINT8, .ndim = 2, .role = SHOAL_ROLE_GRID};
    board.shape[0] = board.shape[1] = self->size;
    board.data = cells;
    board.categories = tiles;
    board.num_categories = 2;
    shoal_state_field walker = {.name = "agent", .dtype = SHOAL_INT32, .ndim = 2, .shape = {1, 3}};
    walker.data = agent;
    walker.role = SHOAL_ROLE_ENTITIES;
    walker.columns = columns;
    walker.num_columns = 3;
    walker.categories = kinds;
    walker.num_categories = 1;
    add(host, &board);
    add(host, &walker);
}

/* Draws one environment: the goal as a square, the agent as a circle, and the lines of the board. */
static void render_size(shoal_envs *envs, uint64_t env, uint32_t *height, uint32_t *width) {
    (void)envs, (void)env;
    *height = *width = PIXELS;
}
static void render_draw(shoal_envs *envs, uint64_t env, uint8_t *rgb) {
    const Squared *self = SHOAL_INSTANCE(Squared, envs, env);
    shoal_canvas canvas = {rgb, PIXELS, PIXELS};
    double cell = PIXELS / (double)envs->options[0].i, line = cell > 24 ? 3 : cell / 8;
    shoal_draw_fill(&canvas, 0xffffff);
    shoal_draw_rectangle(&canvas, self->goal_column * cell, self->goal_row * cell, cell, cell, 0xff0000);
    shoal_draw_circle(&canvas, (self->column + 0.5) * cell, (self->row + 0.5) * cell, cell / 3, 0x0000ff);
    for (int64_t i = 0; cell >= 8 && i <= envs->options[0].i; i++) {
        shoal_draw_rectangle(&canvas, 0, (double)i * cell - line / 2, PIXELS, line, 0x000000);
        shoal_draw_rectangle(&canvas, (double)i * cell - line / 2, 0, line, PIXELS, 0x000000);
    }
}

static const void *get_extension(const char *id) {
    static const shoal_checkpoint_v1 plain = {0, 0, 0}; /* the host copies the struct */
    static const shoal_observe_v1 observer = {Squared_observe};
    static const shoal_render_v1 render = {.fps = 4, .size = render_size, .draw = render_draw};
    static const shoal_state_v1 state = {state_fields};
    if (strcmp(id, SHOAL_EXT_INFO) == 0)
        return &INFO;
    if (strcmp(id, SHOAL_EXT_RENDER) == 0)
        return &render;
    if (strcmp(id, SHOAL_EXT_STATE) == 0)
        return &state;
    if (strcmp(id, SHOAL_EXT_OBSERVE) == 0)
        return &observer;
    return strcmp(id, SHOAL_EXT_CHECKPOINT) == 0 ? &plain : 0;
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Squared-v0",
    .options = OPTIONS,
    .num_options = sizeof OPTIONS / sizeof OPTIONS[0],
    .describe = describe,
    .reset = Squared_reset,
    .step = Squared_step,
    .get_extension = get_extension,
};

#ifdef SQUARED_MAIN
#include <stdio.h>
#include <time.h>

/* The host of one environment. Type w, a, s or d and Enter to move; any other key waits; the program ends at
 * the end of input. */
int main(void) {
    enum { SIZE = 11 };
    Squared self = {0};
    uint8_t board[SIZE * SIZE], terminated = 0, truncated = 0, reset = 1;
    int64_t action = STAY;
    double reward = 0;
    shoal_value options[] = {{.i = SIZE}};
    shoal_rng rng = {.state_low = (uint64_t)time(0), .inc_low = 1};
    shoal_envs envs = {
        .num_envs = 1,
        .options = options,
        .instances = &self,
        .instance_bytes = sizeof self,
        .rng = &rng,
        .observations = (void *[]){board},
        .observation_bytes = (uint64_t[]){sizeof board},
        .actions = (const void *[]){&action},
        .action_bytes = (uint64_t[]){sizeof action},
        .rewards = &reward,
        .terminated = &terminated,
        .truncated = &truncated,
        .reset = &reset,
    };
    for (int key = 0; key != EOF;) {
        Squared_step(&envs, 0, 1);
        reset = terminated; /* the next step starts a new episode */
        terminated = 0;
        for (int i = 0; i < SIZE * SIZE; i++)
            printf("%c%c", ".A*"[board[i]], (i + 1) % SIZE ? ' ' : '\n');
        if (reset)
            printf("reward %g; any key for another round", reward);
        printf("\n");
        while ((key = getchar()) == '\n')
            continue;
        action = key == 's' ? DOWN : key == 'w' ? UP : key == 'a' ? LEFT : key == 'd' ? RIGHT : STAY;
    }
    return 0;
}
#endif
