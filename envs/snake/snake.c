/* Snake: several snakes on one board; each sees a window around its own head. One environment has `agents`
 * rows.
 *
 * All snakes move at once. A cell is deadly if it is a wall or a body, if a head was in it, or if another
 * head moves into it; the cell that a tail leaves is free. Food gives a reward of 1 and one cell of length,
 * death gives -1. A snake cannot turn back on itself: that action moves it straight on.
 *
 * A dead snake's row is terminated, and the snake respawns with one cell in a free place within the same
 * step: that row's observation is the first after the respawn. Reset clears the whole board. */
// SPDX-License-Identifier: MIT
#include <shoal/env.h>
#include <shoal/ext/checkpoint.h>
#include <shoal/ext/info.h>
#include <shoal/ext/observe.h>
#include <shoal/ext/render.h>
#include <shoal/ext/state.h>
#include <string.h>

enum { WIDTH, HEIGHT, AGENTS, FOODS, VISION, NUM_OPTIONS };
enum { DOWN = 0, UP = 1, LEFT = 2, RIGHT = 3, NUM_ACTIONS = 4 }; /* the opposite direction is action ^ 1 */
enum { SEE_EMPTY = 0, SEE_FOOD = 1, SEE_OWN = 2, SEE_OTHER = 3, SEE_WALL = 4 };
enum { EMPTY = 0, FOOD = 1, WALL = 2, BODY = 3 }; /* on the board; BODY + agent is that agent's body */
enum { MAX_AGENTS = 250, MAX_EDGE = 1024, MAX_VISION = 64, PIXELS = 8 };

typedef struct Body {
    int32_t head, tail; /* cells; `course` leads from the tail to the head */
    int32_t next;       /* the cell to which the head moves in this step */
    uint8_t eats, dead;
    uint8_t lingers; /* one cell long: its cell is deadly until all have moved */
} Body;

/* Followed by a Body per agent, the board and the course: one byte per cell of a board with a margin of walls
 * as wide as a snake can see. */
typedef struct Snake {
    int32_t width, height, agents, vision;
    int32_t stride; /* cells from one line to the next */
    int32_t cells;  /* with the margin */
    int32_t foods;  /* on the board now */
    int32_t most_foods;
} Snake;

#define INT_OPTION(id, text, number)                                                                         \
    {                                                                                                        \
        .name = id, .help = text, .type = SHOAL_OPTION_INT, .value = {.i = number }                          \
    }
static const shoal_option OPTIONS[NUM_OPTIONS] = {
    [WIDTH] = INT_OPTION("width", "cells in a row of the board", 24),
    [HEIGHT] = INT_OPTION("height", "rows of cells of the board", 24),
    [AGENTS] = INT_OPTION("agents", "number of snakes; each is one agent", 4),
    [FOODS] = INT_OPTION("food", "number of pieces of food on the board", 8),
    [VISION] = INT_OPTION("vision", "how many cells a snake sees in each direction", 5),
};

static const shoal_info_field OBSERVED[] = {
    {"The square window around the head of the snake, 2 * vision + 1 cells wide.", 0, 0,
     SHOAL_NAMES("empty", "food", "own body", "other snake", "wall")},
};
static const shoal_info_field ACTED[] = {
    {"Where the head moves. A snake cannot reverse: if the action is the opposite of its direction, the "
     "snake moves straight on.",
     0, 0, SHOAL_NAMES("down", "up", "left", "right")},
};
static const shoal_info_v1 INFO = {
    .summary = "Eat and survive as one of several snakes on a board (several agents)",
    .reward = "1 for food and -1 for dying. Each snake gets its own reward.",
    .ending =
        "A snake that hits a wall, a body or another head is terminated and respawns in the same step; its "
        "observation is the first one of the new episode. Other snakes are not affected.",
    .observations = OBSERVED,
    .num_observations = 1,
    .actions = ACTED,
    .num_actions = 1,
};

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    int64_t width = options[WIDTH].i, height = options[HEIGHT].i, agents = options[AGENTS].i;
    int64_t foods = options[FOODS].i, vision = options[VISION].i;
    if (width < 1 || width > MAX_EDGE || height < 1 || height > MAX_EDGE)
        return "width and height must be from 1 to 1024";
    if (agents < 1 || agents > MAX_AGENTS || agents > width * height)
        return "agents must be from 1 to 250, and no more than the board has cells";
    if (foods < 0 || foods > width * height)
        return "food must be from 0 to the number of cells";
    if (vision < 1 || vision > MAX_VISION)
        return "vision must be from 1 to 64";
    uint64_t cells = (uint64_t)((width + 2 * vision) * (height + 2 * vision));
    uint64_t bytes = sizeof(Snake) + (uint64_t)agents * sizeof(Body) + 2 * cells;
    spec->instance_bytes = (bytes + 63) / 64 * 64; /* environments do not share cache lines */
    spec->agents = (uint32_t)agents;
    shoal_field window = {.dtype = SHOAL_UINT8, .kind = SHOAL_BOX, .ndim = 2, .low = 0, .high = SEE_WALL};
    window.shape[0] = window.shape[1] = 2 * vision + 1;
    shoal_field turn = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = NUM_ACTIONS - 1};
    spec->add_observation(spec->host, &window);
    spec->add_action(spec->host, &turn);
    return 0;
}

static Body *bodies_of(const Snake *self) { return (Body *)(self + 1); }
static uint8_t *board_of(const Snake *self) { return (uint8_t *)(bodies_of(self) + self->agents); }
/* The direction in which the snake left each cell of its body; at its head, the direction in which it came.
 */
static uint8_t *course_of(const Snake *self) { return board_of(self) + self->cells; }

static int32_t neighbour(const Snake *self, int32_t cell, int action) {
    return cell + ((action == DOWN) - (action == UP)) * self->stride + (action == RIGHT) - (action == LEFT);
}

static int32_t cell_at(const Snake *self, int32_t line, int32_t column) {
    return (line + self->vision) * self->stride + column + self->vision;
}

/* Returns a random empty cell, or -1 if there is none. On a crowded board it is the first empty cell after a
 * random one. */
static int32_t empty_cell(const Snake *self, shoal_rng *rng) {
    const uint8_t *board = board_of(self);
    int32_t count = self->width * self->height, place = 0, cell;
    for (int tries = 0; tries < 32; tries++) {
        place = (int32_t)shoal_integers(rng, 0, count);
        cell = cell_at(self, place / self->width, place % self->width);
        if (board[cell] == EMPTY)
            return cell;
    }
    for (int32_t i = 0; i < count; i++, place = (place + 1) % count) {
        cell = cell_at(self, place / self->width, place % self->width);
        if (board[cell] == EMPTY)
            return cell;
    }
    return -1;
}

/* There is always room, because no snake enters a cell of a snake that dies in the same step. */
static void spawn(Snake *self, int32_t agent, shoal_rng *rng) {
    Body *body = &bodies_of(self)[agent];
    body->head = body->tail = empty_cell(self, rng);
    board_of(self)[body->head] = (uint8_t)(BODY + agent);
}

static void scatter_food(Snake *self, shoal_rng *rng) {
    int32_t cell;
    while (self->foods < self->most_foods && (cell = empty_cell(self, rng)) >= 0) {
        board_of(self)[cell] = FOOD;
        self->foods++;
    }
}

/* How a snake with the body `own` sees a cell. */
static uint8_t see(uint8_t cell, uint8_t own) {
    return cell < WALL ? cell : cell == WALL ? SEE_WALL : cell == own ? SEE_OWN : SEE_OTHER;
}

#ifndef SHOAL_GRID
/* A loop of constant length, which compilers turn into few instructions. */
static void see_16(uint8_t *restrict seen, const uint8_t *restrict line, uint8_t own) {
    for (int i = 0; i < 16; i++)
        seen[i] = see(line[i], own);
}
#endif

/* Writes one line of a window. On a CPU, 16 cells are computed at a time. A line of 9 to 15 cells is copied
 * as two halves that overlap; in a longer line, the last 16 cells may overlap those before them. Up to 7
 * bytes after a short line are read and not used; after the last line, these are bytes of the course. */
static void observe_line(uint8_t *window, const uint8_t *line, int32_t edge, uint8_t own) {
#ifndef SHOAL_GRID
    uint8_t seen[16];
    if (edge >= 8 && edge < 16) {
        see_16(seen, line, own);
        memcpy(window, seen, 8);
        memcpy(window + edge - 8, seen + edge - 8, 8);
        return;
    }
    if (edge >= 16) {
        for (int32_t at = 0; at + 16 < edge; at += 16)
            see_16(window + at, line + at, own);
        see_16(window + edge - 16, line + edge - 16, own);
        return;
    }
#endif
    for (int32_t i = 0; i < edge; i++)
        window[i] = see(line[i], own);
}

static void observe(const Snake *self, shoal_envs *envs, uint64_t env) {
    int32_t edge = 2 * self->vision + 1;
    for (int32_t agent = 0; agent < self->agents; agent++) {
        uint8_t *window = SHOAL_OBSERVATION(uint8_t, envs, 0, env *(uint64_t)self->agents + (uint64_t)agent);
        const uint8_t *line =
            board_of(self) + bodies_of(self)[agent].head - self->vision * (self->stride + 1);
        for (int32_t i = 0; i < edge; i++, line += self->stride, window += edge)
            observe_line(window, line, edge, (uint8_t)(BODY + agent));
    }
}

static void reset_one(Snake *self, shoal_envs *envs, uint64_t env) {
    self->width = (int32_t)envs->options[WIDTH].i;
    self->height = (int32_t)envs->options[HEIGHT].i;
    self->agents = (int32_t)envs->options[AGENTS].i;
    self->vision = (int32_t)envs->options[VISION].i;
    self->stride = self->width + 2 * self->vision;
    self->cells = self->stride * (self->height + 2 * self->vision);
    self->most_foods = (int32_t)envs->options[FOODS].i;
    self->foods = 0;
    memset(board_of(self), WALL, (size_t)self->cells);
    for (int32_t line = 0; line < self->height; line++)
        memset(board_of(self) + cell_at(self, line, 0), EMPTY, (size_t)self->width);
    for (int32_t agent = 0; agent < self->agents; agent++)
        spawn(self, agent, &envs->rng[env]);
    scatter_food(self, &envs->rng[env]);
    observe(self, envs, env);
}

/* Decides where the head goes, and moves the tail unless the snake is about to eat. */
static void set_out(Snake *self, Body *body, int action) {
    uint8_t *board = board_of(self), *course = course_of(self);
    if (body->head != body->tail && action == (course[body->head] ^ 1))
        action = course[body->head];
    course[body->head] = (uint8_t)action;
    body->next = neighbour(self, body->head, action);
    body->eats = board[body->next] == FOOD;
    body->dead = 0;
    body->lingers = body->head == body->tail && !body->eats;
    if (!body->eats && !body->lingers) {
        board[body->tail] = EMPTY;
        body->tail = neighbour(self, body->tail, course[body->tail]);
    }
}

static void enter(Snake *self, int32_t agent) {
    Body *bodies = bodies_of(self), *body = &bodies[agent];
    uint8_t *cell = &board_of(self)[body->next];
    if (*cell >= WALL) {
        body->dead = 1;
        if (*cell >= BODY && bodies[*cell - BODY].next == body->next)
            bodies[*cell - BODY].dead = 1; /* two heads in one cell: the first one dies too */
        return;
    }
    self->foods -= *cell == FOOD;
    *cell = (uint8_t)(BODY + agent);
    course_of(self)[body->next] = course_of(self)[body->head];
    body->head = body->next;
}

static void leave(Snake *self, Body *body) {
    uint8_t *board = board_of(self), *course = course_of(self);
    if (body->dead || body->lingers) {
        for (; body->tail != body->head; body->tail = neighbour(self, body->tail, course[body->tail]))
            board[body->tail] = EMPTY;
        if (body->dead)
            board[body->head] = EMPTY;
    }
}

static void step_one(Snake *self, shoal_envs *envs, uint64_t env) {
    Body *bodies = bodies_of(self);
    uint64_t row = env * (uint64_t)self->agents;
    for (int32_t agent = 0; agent < self->agents; agent++)
        set_out(self, &bodies[agent], (int)(*SHOAL_ACTION(int64_t, envs, 0, row + (uint64_t)agent) & 3));
    for (int32_t agent = 0; agent < self->agents; agent++)
        enter(self, agent);
    for (int32_t agent = 0; agent < self->agents; agent++)
        leave(self, &bodies[agent]);
    for (int32_t agent = 0; agent < self->agents; agent++, row++) {
        if (bodies[agent].dead)
            spawn(self, agent, &envs->rng[env]);
        envs->rewards[row] = bodies[agent].dead ? -1.0 : bodies[agent].eats;
        envs->terminated[row] = bodies[agent].dead;
    }
    scatter_food(self, &envs->rng[env]);
    observe(self, envs, env);
}

SHOAL_BATCH(Snake, reset_one, step_one)
SHOAL_OBSERVE(Snake, observe)

static const uint8_t SKINS[6][3] = {{88, 166, 92},   {82, 139, 220}, {219, 171, 64},
                                    {168, 108, 201}, {77, 184, 182}, {222, 130, 176}};

static void render_size(shoal_envs *envs, uint64_t env, uint32_t *height, uint32_t *width) {
    (void)env;
    *height = PIXELS * (uint32_t)envs->options[HEIGHT].i;
    *width = PIXELS * (uint32_t)envs->options[WIDTH].i;
}

static void render_draw(shoal_envs *envs, uint64_t env, uint8_t *rgb) {
    static const uint8_t ground[3] = {24, 26, 31}, food[3] = {224, 76, 76};
    const Snake *self = SHOAL_INSTANCE(const Snake, envs, env);
    for (int32_t y = 0; y < PIXELS * self->height; y++)
        for (int32_t x = 0; x < PIXELS * self->width; x++, rgb += 3) {
            int32_t cell = cell_at(self, y / PIXELS, x / PIXELS), on = board_of(self)[cell];
            const uint8_t *colour = on == EMPTY ? ground : on == FOOD ? food : SKINS[(on - BODY) % 6];
            int is_head = on >= BODY && bodies_of(self)[on - BODY].head == cell;
            for (int i = 0; i < 3; i++)
                rgb[i] = (uint8_t)(is_head ? 128 + colour[i] / 2 : colour[i]);
        }
}

/* Exports the state to watchers: the board in place, with walls, the heads, and the lengths of the snakes. */
static void state_fields(shoal_envs *envs, uint64_t env, void *host,
                         void (*add)(void *host, const shoal_state_field *field)) {
    shoal_category tiles[BODY + MAX_AGENTS] = {
        {EMPTY, "empty", 0x181a1f, 0}, {FOOD, "food", 0xe04c4c, 0}, {WALL, "wall", 0x3a3f4b, 0}};
    static const shoal_category kinds[] = {{0, "head", 0xf4f4f4, 0}};
    static const char *const columns[] = {"kind", "r", "c", "dir"};
    static const int32_t facing[NUM_ACTIONS] = {[DOWN] = 2, [UP] = 0, [LEFT] = 3, [RIGHT] = 1};
    const Snake *self = SHOAL_INSTANCE(const Snake, envs, env);
    const uint8_t *board = board_of(self);
    int32_t heads[MAX_AGENTS][4], lengths[MAX_AGENTS] = {0};
    for (int32_t cell = 0; cell < self->cells; cell++)
        if (board[cell] >= BODY)
            lengths[board[cell] - BODY]++;
    for (int32_t agent = 0; agent < self->agents; agent++) {
        const uint8_t *skin = SKINS[agent % 6];
        uint32_t colour = (uint32_t)skin[0] << 16 | (uint32_t)skin[1] << 8 | skin[2];
        tiles[BODY + agent] = (shoal_category){BODY + agent, "snake", colour, 0};
        int32_t head = bodies_of(self)[agent].head;
        heads[agent][0] = 0;
        heads[agent][1] = head / self->stride;
        heads[agent][2] = head % self->stride;
        heads[agent][3] = facing[course_of(self)[head]];
    }
    shoal_state_field grid = {.name = "board", .dtype = SHOAL_UINT8, .ndim = 2};
    grid.role = SHOAL_ROLE_GRID;
    grid.shape[0] = self->stride ? self->cells / self->stride : 0;
    grid.shape[1] = self->stride;
    grid.data = board;
    grid.categories = tiles;
    grid.num_categories = (uint64_t)(BODY + self->agents);
    add(host, &grid);
    shoal_state_field entities = {.name = "heads", .dtype = SHOAL_INT32, .ndim = 2};
    entities.role = SHOAL_ROLE_ENTITIES;
    entities.shape[0] = self->agents;
    entities.shape[1] = 4;
    entities.data = heads;
    entities.columns = columns;
    entities.num_columns = 4;
    entities.categories = kinds;
    entities.num_categories = 1;
    add(host, &entities);
    shoal_state_field scores = {.name = "lengths", .dtype = SHOAL_INT32, .ndim = 1};
    scores.role = SHOAL_ROLE_SCALAR;
    scores.shape[0] = self->agents;
    scores.data = lengths;
    add(host, &scores);
}

static const void *get_extension(const char *id) {
    static const shoal_checkpoint_v1 checkpoint = {0}; /* the host copies the instance */
    static const shoal_observe_v1 observer = {Snake_observe};
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
    .name = "Snake-v0",
    .options = OPTIONS,
    .num_options = NUM_OPTIONS,
    .describe = describe,
    .reset = Snake_reset,
    .step = Snake_step,
    .get_extension = get_extension,
};
