/* TemplateEnv: catch the falling ball.
 *
 * A ball starts in a random column at the top and falls one line per step; the paddle moves along the bottom.
 * The episode ends when the ball reaches the bottom: the reward is 1 if it was caught, and -1 if not.
 * Everything is in this one file: change the struct, the fields in describe(), and what reset_one() and
 * step_one() do. README.md has the commands. */
#include <shoal/env.h>
#include <shoal/ext/checkpoint.h>
#include <shoal/ext/observe.h>
#include <string.h>

enum { EMPTY = 0, BALL = 1, PADDLE = 2 };
enum { STAY = 0, LEFT = 1, RIGHT = 2, NUM_ACTIONS = 3 };

/* The state of one environment. The host owns it and zeroes it before the first reset. It has no pointers, so
 * the host can save it by copying. */
typedef struct TemplateEnv {
    int32_t height, width, ball_line, ball_column, paddle_column;
} TemplateEnv;

/* Options that a user can pass: shoal.make_vec("template_env.c", height=20). */
static const shoal_option OPTIONS[] = {
    {.name = "height", .help = "lines of the board", .type = SHOAL_OPTION_INT, .value = {.i = 8}},
    {.name = "width", .help = "columns of the board", .type = SHOAL_OPTION_INT, .value = {.i = 5}},
};

/* Declares the observations and actions, or returns an error message about the options. */
static const char *describe(const shoal_value *options, shoal_spec *spec) {
    int64_t height = options[0].i, width = options[1].i;
    if (height < 2 || height > 255 || width < 1 || width > 255)
        return "height must be from 2 to 255, width from 1 to 255";
    spec->instance_bytes = sizeof(TemplateEnv);
    shoal_field board = {.dtype = SHOAL_UINT8, .kind = SHOAL_BOX, .ndim = 2, .low = 0, .high = PADDLE};
    board.shape[0] = height;
    board.shape[1] = width;
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = NUM_ACTIONS - 1};
    spec->add_observation(spec->host, &board);
    spec->add_action(spec->host, &move);
    return 0;
}

/* Writes every byte of the row, because the host can pass different arrays in every call. */
static void observe(const TemplateEnv *self, shoal_envs *envs, uint64_t env) {
    uint8_t *board = SHOAL_OBSERVATION(uint8_t, envs, 0, env);
    memset(board, EMPTY, envs->observation_bytes[0]);
    board[(self->height - 1) * self->width + self->paddle_column] = PADDLE;
    board[self->ball_line * self->width + self->ball_column] = BALL;
}

static void reset_one(TemplateEnv *self, shoal_envs *envs, uint64_t env) {
    self->height = (int32_t)envs->options[0].i;
    self->width = (int32_t)envs->options[1].i;
    self->ball_line = 0;
    self->ball_column = (int32_t)shoal_integers(&envs->rng[env], 0, self->width);
    self->paddle_column = self->width / 2;
    observe(self, envs, env);
}

static void step_one(TemplateEnv *self, shoal_envs *envs, uint64_t env) {
    int64_t action = *SHOAL_ACTION(int64_t, envs, 0, env);
    if (action == LEFT && self->paddle_column > 0)
        self->paddle_column--;
    if (action == RIGHT && self->paddle_column < self->width - 1)
        self->paddle_column++;
    self->ball_line++;
    int down = self->ball_line == self->height - 1;
    int caught = down && self->ball_column == self->paddle_column;
    envs->rewards[env] = caught ? 1 : down ? -1 : 0;
    envs->terminated[env] = (uint8_t)down;
    observe(self, envs, env);
}

SHOAL_BATCH(TemplateEnv, reset_one, step_one)
SHOAL_OBSERVE(TemplateEnv, observe)

/* The struct contains the whole state, so the host can save it by copying, and observe() can write the last
 * observation again. */
static const void *get_extension(const char *id) {
    static const shoal_checkpoint_v1 plain = {0, 0, 0};
    static const shoal_observe_v1 observer = {TemplateEnv_observe};
    if (strcmp(id, SHOAL_EXT_OBSERVE) == 0)
        return &observer;
    return strcmp(id, SHOAL_EXT_CHECKPOINT) == 0 ? &plain : 0;
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "TemplateEnv-v0",
    .options = OPTIONS,
    .num_options = sizeof OPTIONS / sizeof OPTIONS[0],
    .describe = describe,
    .reset = TemplateEnv_reset,
    .step = TemplateEnv_step,
    .get_extension = get_extension,
};

#ifdef TEMPLATE_ENV_MAIN
#include <stdio.h>
#include <time.h>

/* Plays it without Python, as the host of one environment. Type a or d and Enter to move; any other key
 * waits; the program ends at the end of input. */
int main(void) {
    enum { HEIGHT = 8, WIDTH = 5 };
    TemplateEnv self = {0};
    uint8_t board[HEIGHT * WIDTH], terminated = 0, truncated = 0, reset = 1;
    int64_t action = STAY;
    double reward = 0;
    shoal_value options[] = {{.i = HEIGHT}, {.i = WIDTH}};
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
        TemplateEnv_step(&envs, 0, 1);
        reset = terminated; /* the next step starts a new episode */
        terminated = 0;
        for (int i = 0; i < HEIGHT * WIDTH; i++)
            printf("%c%c", ".o="[board[i]], (i + 1) % WIDTH ? ' ' : '\n');
        if (reset)
            printf("reward %g; any key for another round", reward);
        printf("\n");
        while ((key = getchar()) == '\n')
            continue;
        action = key == 'a' ? LEFT : key == 'd' ? RIGHT : STAY;
    }
    return 0;
}
#endif
