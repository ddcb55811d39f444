/* Pendulum-v1: swing a pendulum up and hold it there with little torque. Gymnasium's environment: the same
 * dynamics, draws, rewards and spaces. */
// SPDX-License-Identifier: MIT
#ifndef REAL
#include "../lanes_view.h"

#define PI 3.141592653589793
#define MAX_SPEED 8
#define MAX_TORQUE 2

enum { PRECISION, GRAVITY };
static const shoal_option OPTIONS[] = {
    LANES_PRECISION,
    {.name = "g", .help = "acceleration of gravity in m/s^2", .type = SHOAL_OPTION_FLOAT, .value = {.f = 10}},
};

static const shoal_info_field OBSERVED[] = {
    {"The angle from upright, as cosine and sine, and its speed.",
     SHOAL_NAMES("cos(angle)", "sin(angle)", "angular velocity, rad/s"), 0, 0},
};
static const shoal_info_field ACTED[] = {
    {"The torque on the joint; values beyond the bounds are clipped.", SHOAL_NAMES("torque"), 0, 0},
};
static const shoal_info_v1 INFO = {
    .summary = "Swing a pendulum up and hold it there with little torque",
    .reward =
        "-(angle^2 + 0.1 * velocity^2 + 0.001 * torque^2), with the angle from upright between -pi and pi.",
    .ending = "Only the time limit ends an episode.",
    .observations = OBSERVED,
    .num_observations = 1,
    .actions = ACTED,
    .num_actions = 1,
};

#define REAL double
#include "pendulum.c"
#undef REAL
#define REAL float
#include "pendulum.c"
#undef REAL

LANES_BOTH_PRECISIONS

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    static const double lows[] = {-1, -1, -MAX_SPEED}, highs[] = {1, 1, MAX_SPEED};
    if (!isfinite(options[GRAVITY].f))
        return "g must be finite";
    spec->max_episode_steps = 200;
    shoal_field observation = {.dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {3}, .lows = lows, .highs = highs};
    shoal_field torque = {
        .dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {1}, .low = -MAX_TORQUE, .high = MAX_TORQUE};
    spec->add_observation(spec->host, &observation);
    spec->add_action(spec->host, &torque);
    return lanes_describe(options, spec, sizeof(Pendulum_float));
}

/* Gymnasium's picture, without the arrow of the last torque, which is no part of the state. */
static void draw_state(const shoal_canvas *canvas, const double *state) {
    const double scale = 500 / 4.4, middle = 250;
    double x = middle - scale * lanes_sin_double(state[0]), y = middle - scale * lanes_cos_double(state[0]);
    shoal_draw_line(canvas, middle, middle, x, y, 23.5, 0xcc4d4d);
    shoal_draw_circle(canvas, middle, middle, 11.5, 0xcc4d4d);
    shoal_draw_circle(canvas, x, y, 11.5, 0xcc4d4d);
    shoal_draw_circle(canvas, middle, middle, 5.5, 0x000000);
}

LANES_VIEW(500, 500, 30, draw_state, "theta", "theta_dot")

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Pendulum-v1",
    .options = OPTIONS,
    .num_options = sizeof OPTIONS / sizeof OPTIONS[0],
    .describe = describe,
    .reset = reset,
    .step = step,
    .get_extension = lanes_view_extension,
};

#else /* The physics, once per precision. */
#define Pendulum LANES_NAME(Pendulum)
#define reset_lane LANES_NAME(reset_lane)
#define step_block LANES_NAME(step_block)
#define observe_lane LANES_NAME(observe_lane)

typedef struct Pendulum {
    REAL theta[LANES], theta_dot[LANES];
} Pendulum;

LANES_INLINE void reset_lane(Pendulum *block, uint64_t lane, shoal_envs *envs, uint64_t env) {
    REAL theta = (REAL)shoal_uniform(&envs->rng[env], -PI, PI);
    REAL theta_dot = (REAL)shoal_uniform(&envs->rng[env], -1, 1);
    float *row = SHOAL_OBSERVATION(float, envs, 0, env);
    row[0] = (float)lanes_cos(theta);
    row[1] = (float)lanes_sin(theta);
    row[2] = (float)theta_dot;
    block->theta[lane] = theta;
    block->theta_dot[lane] = theta_dot;
}

/* Terms with the torque are rounded to float32, as NumPy does with a float32 action. */
LANES_INLINE void step_block(Pendulum *restrict block, const shoal_value *options,
                             const float *restrict actions, float *restrict rows, double *restrict rewards,
                             uint8_t *restrict terminated, int lanes) {
    const REAL dt = 0.05, pull = (REAL)(3 * options[GRAVITY].f / 2), turn = 2 * PI, per_turn = 1 / (2 * PI);
    for (int i = 0; i < lanes; i++) {
        REAL theta = block->theta[i], theta_dot = block->theta_dot[i];
        float torque = lanes_clip_float(actions[i], -MAX_TORQUE, MAX_TORQUE);
        REAL angle = theta - turn * lanes_round(theta * per_turn);
        REAL cost = angle * angle + (REAL)0.1 * (theta_dot * theta_dot) + (REAL)(0.001f * (torque * torque));
        theta_dot += (pull * lanes_sin(theta) + (REAL)(3 * torque)) * dt;
        theta_dot = lanes_clip(theta_dot, -MAX_SPEED, MAX_SPEED);
        theta += theta_dot * dt;
        block->theta[i] = theta;
        block->theta_dot[i] = theta_dot;
        rewards[i] = -cost;
    }
    for (int i = 0; i < lanes; i++) { /* apart: of two short loops, the CPU overlaps more rounds */
        rows[3 * i] = (float)lanes_cos(block->theta[i]);
        rows[3 * i + 1] = (float)lanes_sin(block->theta[i]);
        rows[3 * i + 2] = (float)block->theta_dot[i];
    }
    memset(terminated, 0, (size_t)lanes);
}

LANES_INLINE void observe_lane(const Pendulum *block, uint64_t lane, float *row) {
    row[0] = (float)lanes_cos(block->theta[lane]);
    row[1] = (float)lanes_sin(block->theta[lane]);
    row[2] = (float)block->theta_dot[lane];
}

LANES_BATCH(Pendulum, float, reset_lane, step_block)
LANES_OBSERVE(Pendulum, observe_lane)

#undef Pendulum
#undef reset_lane
#undef step_block
#undef observe_lane
#endif
