/* MountainCarContinuous-v0: rock a weak car out of a valley with any force, which costs reward.
 * Gymnasium's environment: the same dynamics, draws, rewards and spaces.
 *
 * In Gymnasium a reset leaves a float64 state and each step a float32 state, which NumPy computes in float32
 * except for the cosine. In double precision, this file casts to float wherever NumPy rounds. */
// SPDX-License-Identifier: MIT
#ifndef REAL
#include "../mountain_car/picture.h"

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
    {"The force of the engine; values beyond the bounds are clipped.", SHOAL_NAMES("force"), 0, 0},
};
static const shoal_info_v1 INFO = {
    .summary = "Rock a weak car out of a valley with a force of your choice, which costs reward",
    .reward = "100 for the step that reaches the goal, minus 0.1 * force^2 for every step.",
    .ending = "The car reaches position 0.45 with a velocity of at least `goal_velocity`.",
    .observations = OBSERVED,
    .num_observations = 1,
    .actions = ACTED,
    .num_actions = 1,
};

#define REAL double
#include "mountain_car_continuous.c"
#undef REAL
#define REAL float
#include "mountain_car_continuous.c"
#undef REAL

LANES_BOTH_PRECISIONS

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    static const double lows[] = {(float)MIN_POSITION, (float)-MAX_SPEED};
    static const double highs[] = {(float)MAX_POSITION, (float)MAX_SPEED};
    if (!isfinite(options[GOAL_VELOCITY].f))
        return "goal_velocity must be finite";
    spec->max_episode_steps = 999;
    shoal_field observation = {.dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {2}, .lows = lows, .highs = highs};
    shoal_field force = {.dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {1}, .low = -1, .high = 1};
    spec->add_observation(spec->host, &observation);
    spec->add_action(spec->host, &force);
    return lanes_describe(options, spec, sizeof(MountainCarContinuous_float));
}

static void draw_state(const shoal_canvas *canvas, const double *state) {
    draw_mountain_car(canvas, 0.45, state[0]);
}

LANES_VIEW(PICTURE_HIGH, PICTURE_WIDE, 30, draw_state, "position", "velocity")

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "MountainCarContinuous-v0",
    .options = OPTIONS,
    .num_options = sizeof OPTIONS / sizeof OPTIONS[0],
    .describe = describe,
    .reset = reset,
    .step = step,
    .get_extension = lanes_view_extension,
};

#else /* The physics, once per precision. */
#define MountainCarContinuous LANES_NAME(MountainCarContinuous)
#define reset_lane LANES_NAME(reset_lane)
#define step_block LANES_NAME(step_block)
#define observe_lane LANES_NAME(observe_lane)

typedef struct MountainCarContinuous {
    REAL position[LANES], velocity[LANES];
} MountainCarContinuous;

LANES_INLINE void reset_lane(MountainCarContinuous *block, uint64_t lane, shoal_envs *envs, uint64_t env) {
    float *row = SHOAL_OBSERVATION(float, envs, 0, env);
    row[0] = (float)(block->position[lane] = (REAL)shoal_uniform(&envs->rng[env], -0.6, -0.4));
    row[1] = (float)(block->velocity[lane] = 0);
}

LANES_INLINE void step_block(MountainCarContinuous *restrict block, const shoal_value *options,
                             const float *restrict actions, float *restrict rows, double *restrict rewards,
                             uint8_t *restrict terminated, int lanes) {
    const float power = 0.0015f, max_speed = MAX_SPEED, min_position = MIN_POSITION,
                max_position = MAX_POSITION;
    const float goal_position = 0.45f, goal_velocity = (float)options[GOAL_VELOCITY].f;
    uint32_t done[LANES];
    for (int i = 0; i < lanes; i++) {
        REAL angle = 3 * block->position[i];
        /* Only a reset leaves a position that is not a float32. */
        lanes_word fresh = lanes_less(0, lanes_abs(block->position[i] - (REAL)(float)block->position[i]));
        angle = lanes_select(fresh, angle, (REAL)(float)angle);
        float force = lanes_clip_float(actions[i], -1, 1);
        float push = force * power - (float)((REAL)0.0025 * lanes_cos(angle));
        float velocity = lanes_clip_float((float)block->velocity[i] + push, -max_speed, max_speed);
        float position = (float)(block->position[i] + (REAL)velocity);
        position = lanes_clip_float(position, min_position, max_position);
        uint32_t at_wall = 1 ^ lanes_less_float(min_position, position); /* the wall stops the car */
        velocity = lanes_select_float(at_wall & lanes_less_float(velocity, 0), 0, velocity);
        block->position[i] = position;
        block->velocity[i] = velocity;
        rows[2 * i] = position;
        rows[2 * i + 1] = velocity;
        done[i] = 1 ^ (lanes_less_float(position, goal_position) | lanes_less_float(velocity, goal_velocity));
        rewards[i] = (double)(100 * (int32_t)done[i]) - (double)actions[i] * (double)actions[i] * 0.1;
    }
    for (int i = 0; i < lanes; i++)
        terminated[i] = (uint8_t)done[i];
}

LANES_INLINE void observe_lane(const MountainCarContinuous *block, uint64_t lane, float *row) {
    row[0] = (float)block->position[lane];
    row[1] = (float)block->velocity[lane];
}

LANES_BATCH(MountainCarContinuous, float, reset_lane, step_block)
LANES_OBSERVE(MountainCarContinuous, observe_lane)

#undef MountainCarContinuous
#undef reset_lane
#undef step_block
#undef observe_lane
#endif
