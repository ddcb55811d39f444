/* MountainCar-v0: rock a weak car out of a valley, pushing left, not at all, or right. Gymnasium's
 * environment: the same dynamics, draws, rewards and spaces. */
// SPDX-License-Identifier: MIT
#ifndef REAL
#include "picture.h"

#define MIN_POSITION -1.2
#define MAX_POSITION 0.6
#define MAX_SPEED 0.07

enum { PRECISION, GOAL_VELOCITY };
static const shoal_option OPTIONS[] = {
    LANES_PRECISION,
    {.name = "goal_velocity",
     .help = "the episode ends only if the car reaches the goal with at least this velocity",
     .type = SHOAL_OPTION_FLOAT,
     .value = {.f = 0}},
};

static const shoal_info_field OBSERVED[] = {
    {"Where the car is along the valley, and how fast it moves.", SHOAL_NAMES("position", "velocity"), 0, 0},
};
static const shoal_info_field ACTED[] = {
    {"The direction in which the engine pushes.", 0, 0, SHOAL_NAMES("push left", "no push", "push right")},
};
static const shoal_info_v1 INFO = {
    .summary = "Rock a weak car out of a valley: push it left, push it right, or do not push",
    .reward = "-1 for every step.",
    .ending = "The car reaches position 0.5 with a velocity of at least `goal_velocity`.",
    .observations = OBSERVED,
    .num_observations = 1,
    .actions = ACTED,
    .num_actions = 1,
};

#define REAL double
#include "mountain_car.c"
#undef REAL
#define REAL float
#include "mountain_car.c"
#undef REAL

LANES_BOTH_PRECISIONS

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    static const double lows[] = {(float)MIN_POSITION, (float)-MAX_SPEED};
    static const double highs[] = {(float)MAX_POSITION, (float)MAX_SPEED};
    if (!isfinite(options[GOAL_VELOCITY].f))
        return "goal_velocity must be finite";
    spec->max_episode_steps = 200;
    shoal_field observation = {.dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {2}, .lows = lows, .highs = highs};
    shoal_field push = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 2};
    spec->add_observation(spec->host, &observation);
    spec->add_action(spec->host, &push);
    return lanes_describe(options, spec, sizeof(MountainCar_float));
}

static void draw_state(const shoal_canvas *canvas, const double *state) {
    draw_mountain_car(canvas, 0.5, state[0]);
}

LANES_VIEW(PICTURE_HIGH, PICTURE_WIDE, 30, draw_state, "position", "velocity")

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "MountainCar-v0",
    .options = OPTIONS,
    .num_options = sizeof OPTIONS / sizeof OPTIONS[0],
    .describe = describe,
    .reset = reset,
    .step = step,
    .get_extension = lanes_view_extension,
};

#else /* The physics, once per precision. */
#define MountainCar LANES_NAME(MountainCar)
#define reset_lane LANES_NAME(reset_lane)
#define step_block LANES_NAME(step_block)
#define observe_lane LANES_NAME(observe_lane)

typedef struct MountainCar {
    REAL position[LANES], velocity[LANES];
} MountainCar;

LANES_INLINE void reset_lane(MountainCar *block, uint64_t lane, shoal_envs *envs, uint64_t env) {
    float *row = SHOAL_OBSERVATION(float, envs, 0, env);
    row[0] = (float)(block->position[lane] = (REAL)shoal_uniform(&envs->rng[env], -0.6, -0.4));
    row[1] = (float)(block->velocity[lane] = 0);
}

LANES_INLINE void step_block(MountainCar *restrict block, const shoal_value *options,
                             const int64_t *restrict actions, float *restrict rows, double *restrict rewards,
                             uint8_t *restrict terminated, int lanes) {
    const REAL force = 0.001, gravity = 0.0025, min_position = MIN_POSITION, max_position = MAX_POSITION;
    const REAL max_speed = MAX_SPEED, goal_position = 0.5, goal_velocity = (REAL)options[GOAL_VELOCITY].f;
    lanes_word done[LANES];
    for (int i = 0; i < lanes; i++) {
        REAL position = block->position[i], velocity = block->velocity[i];
        velocity += (REAL)((int32_t)actions[i] - 1) * force + lanes_cos(3 * position) * -gravity;
        velocity = lanes_clip(velocity, -max_speed, max_speed);
        position = lanes_clip(position + velocity, min_position, max_position);
        lanes_word at_wall = 1 ^ lanes_less(min_position, position); /* the wall stops the car */
        velocity = lanes_select(at_wall & lanes_less(velocity, 0), 0, velocity);
        block->position[i] = position;
        block->velocity[i] = velocity;
        rows[2 * i] = (float)position;
        rows[2 * i + 1] = (float)velocity;
        rewards[i] = -1;
        done[i] = 1 ^ (lanes_less(position, goal_position) | lanes_less(velocity, goal_velocity));
    }
    for (int i = 0; i < lanes; i++)
        terminated[i] = (uint8_t)done[i];
}

LANES_INLINE void observe_lane(const MountainCar *block, uint64_t lane, float *row) {
    row[0] = (float)block->position[lane];
    row[1] = (float)block->velocity[lane];
}

LANES_BATCH(MountainCar, int64_t, reset_lane, step_block)
LANES_OBSERVE(MountainCar, observe_lane)

#undef MountainCar
#undef reset_lane
#undef step_block
#undef observe_lane
#endif
