/* Exports all kinds of fields. `cells` and `heap` say tick * 1000003 + i at place i, so a torn one shows;
 * `terrain` is rewritten by reset alone. The option `wrong` makes one field wrong in one way. */
// SPDX-License-Identifier: MIT
#include <shoal/ext/state.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS = 512, SIDE = 8, MOST = 4096 };

typedef struct Stateful {
    int8_t terrain[SIDE][SIDE];
    int64_t tick, cells[CELLS];
    int64_t *heap; /* another place at every step, and another length */
    int64_t length;
} Stateful;

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    shoal_field seen = {.dtype = SHOAL_INT64, .ndim = 1, .shape = {2}, .low = 0, .high = 1e15};
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .high = 1};
    spec->instance_bytes = sizeof(Stateful);
    spec->max_episode_steps = 1000;
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &move);
    return 0;
}

static void fill(Stateful *self, shoal_envs *envs, uint64_t env) {
    for (int64_t i = 0; i < CELLS; i++)
        self->cells[i] = self->tick * 1000003 + i;
    free(self->heap);
    self->length = self->tick % 7;
    self->heap = malloc(8 * (size_t)(self->length + 1));
    for (int64_t i = 0; i < self->length; i++)
        self->heap[i] = self->tick * 1000003 + i;
    int64_t *seen = SHOAL_OBSERVATION(int64_t, envs, 0, env);
    seen[0] = self->tick;
    seen[1] = (int64_t)env;
}

static void reset_one(Stateful *self, shoal_envs *envs, uint64_t env) {
    for (int r = 0; r < SIDE; r++)
        for (int c = 0; c < SIDE; c++)
            self->terrain[r][c] = (int8_t)shoal_integers(&envs->rng[env], 0, 4);
    self->tick = 0;
    fill(self, envs, env);
}

static void step_one(Stateful *self, shoal_envs *envs, uint64_t env) {
    self->tick++;
    fill(self, envs, env);
    envs->rewards[env] = (double)self->tick;
    envs->terminated[env] = *SHOAL_ACTION(int64_t, envs, 0, env) == 1;
}

SHOAL_BATCH(Stateful, reset_one, step_one)

static void finish(shoal_envs *envs, uint64_t env) { free(SHOAL_INSTANCE(Stateful, envs, env)->heap); }

static void fields(shoal_envs *envs, uint64_t env, void *host,
                   void (*add)(void *host, const shoal_state_field *field)) {
    static const shoal_category kinds[] = {{0, "sea", 0x205080, 0},
                                           {1, "sand", 0xe0c080, 0},
                                           {2, "kelp", 0x208040, 0},
                                           {3, "rock", 0x606060, 0}};
    static const char *const columns[] = {"r", "c", "hp"};
    const Stateful *self = SHOAL_INSTANCE(Stateful, envs, env);
    const int32_t entities[2][3] = {{(int32_t)self->tick % SIDE, 1, 5}, {2, 3, 4}}; /* on the stack */
    shoal_state_field all[] = {
        {"terrain",
         SHOAL_INT8,
         2,
         {SIDE, SIDE},
         self->terrain,
         SHOAL_STATE_STABLE,
         SHOAL_ROLE_GRID,
         0,
         0,
         kinds,
         4},
        {"cells", SHOAL_INT64, 1, {CELLS}, self->cells, 0, SHOAL_ROLE_NONE, 0, 0, 0, 0},
        {"heap", SHOAL_INT64, 1, {self->length}, self->heap, SHOAL_STATE_STABLE, SHOAL_ROLE_NONE, 0, 0, 0, 0},
        {"entities", SHOAL_INT32, 2, {2, 3}, entities, 0, SHOAL_ROLE_ENTITIES, columns, 3, 0, 0},
        {"tick", SHOAL_INT64, 0, {0}, &self->tick, 0, SHOAL_ROLE_SCALAR, 0, 0, 0, 0},
    };
    static const shoal_category nameless[] = {{0, "", 0, 0}};
    const shoal_dtype odd = {2, 24, 1};
    shoal_state_field *bad = &all[1];
    switch (envs->options[0].i) {
    case 1:
        bad->name = 0;
        break;
    case 2:
        bad->name = "terrain";
        break;
    case 3:
        bad->dtype = odd;
        break;
    case 4:
        bad->shape[0] = -1;
        break;
    case 5:
        bad->data = 0;
        break;
    case 6:
        bad->role = 9;
        break;
    case 7:
        bad->columns = columns, bad->num_columns = 3;
        break;
    case 8:
        bad->flags = 6;
        break;
    case 9:
        bad->ndim = 7;
        break;
    case 10:
        bad->categories = nameless, bad->num_categories = 1;
        break;
    case 11:
        bad->num_columns = CELLS;
        break;
    case 12:
        bad->role = SHOAL_ROLE_GRID;
        break;
    case 13:
        bad->role = SHOAL_ROLE_IMAGE;
        break;
    case 14:
        bad->role = SHOAL_ROLE_ENTITIES;
        break;
    default:
        break;
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        add(host, &all[i]);
}

static const shoal_state_v1 state = {fields};
static const void *get_extension(const char *id) { return strcmp(id, SHOAL_EXT_STATE) == 0 ? &state : 0; }
static const shoal_option OPTIONS[] = {{"wrong", "which field is", SHOAL_OPTION_INT, 0, {0}}};

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .name = "Stateful-v0",
    .options = OPTIONS,
    .num_options = 1,
    .describe = describe,
    .reset = Stateful_reset,
    .step = Stateful_step,
    .close = finish,
    .get_extension = get_extension,
};
