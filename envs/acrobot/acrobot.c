/* Acrobot-v1: swing a two-link arm above a line by its middle joint. Gymnasium's environment ("book"
 * dynamics, no torque noise): the same dynamics, draws, rewards and spaces. */
// SPDX-License-Identifier: MIT
#ifndef REAL
#include "../lanes_view.h"

#define PI 3.141592653589793
#define MAX_SPEED_1 (4 * PI)
#define MAX_SPEED_2 (9 * PI)

enum { PRECISION };
static const shoal_option OPTIONS[] = {
    LANES_PRECISION,
};

static const shoal_info_field OBSERVED[] = {
    {"The angles of both joints, as cosine and sine, and their speeds. Angle 1 is zero when the first link "
     "hangs down; angle 2 is relative to the first link.",
     SHOAL_NAMES("cos(angle 1)", "sin(angle 1)", "cos(angle 2)", "sin(angle 2)", "angular velocity 1, rad/s",
                 "angular velocity 2, rad/s"),
     0, 0},
};
static const shoal_info_field ACTED[] = {
    {"The torque on the joint between the two links.", 0, 0,
     SHOAL_NAMES("torque -1", "no torque", "torque +1")},
};
static const shoal_info_v1 INFO = {
    .summary = "Swing the tip of a two-link arm above a line by the torque of its middle joint",
    .reward = "-1 for every step, and 0 for the step that reaches the line.",
    .ending = "The tip is above the line, which is one link length above the fixed joint: "
              "-cos(angle 1) - cos(angle 1 + angle 2) > 1.",
    .observations = OBSERVED,
    .num_observations = 1,
    .actions = ACTED,
    .num_actions = 1,
};

#define REAL double
#include "acrobot.c"
#undef REAL
#define REAL float
#include "acrobot.c"
#undef REAL

LANES_BOTH_PRECISIONS

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    static const double lows[] = {-1, -1, -1, -1, (float)-MAX_SPEED_1, (float)-MAX_SPEED_2};
    static const double highs[] = {1, 1, 1, 1, (float)MAX_SPEED_1, (float)MAX_SPEED_2};
    spec->max_episode_steps = 500;
    shoal_field observation = {.dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {6}, .lows = lows, .highs = highs};
    shoal_field torque = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 2};
    spec->add_observation(spec->host, &observation);
    spec->add_action(spec->host, &torque);
    return lanes_describe(options, spec, sizeof(Acrobot_float));
}

/* Gymnasium's picture: the line to reach, and two links of one meter, each with a joint at its upper end. */
static void draw_state(const shoal_canvas *canvas, const double *state) {
    const double scale = 500 / 4.4;
    double x = 250, y = 250, angle = 0;
    shoal_draw_rectangle(canvas, 0, 136, 500, 1, 0x000000);
    for (int link = 0; link < 2; link++) {
        angle += state[link];
        double end_x = x + scale * lanes_sin_double(angle), end_y = y + scale * lanes_cos_double(angle);
        shoal_draw_line(canvas, x, y, end_x, end_y, 23.5, 0x00cccc);
        shoal_draw_circle(canvas, x, y, 11.5, 0xcccc00);
        x = end_x;
        y = end_y;
    }
}

LANES_VIEW(500, 500, 15, draw_state, "theta_1", "theta_2", "theta_dot_1", "theta_dot_2")

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Acrobot-v1",
    .options = OPTIONS,
    .num_options = sizeof OPTIONS / sizeof OPTIONS[0],
    .describe = describe,
    .reset = reset,
    .step = step,
    .get_extension = lanes_view_extension,
};

#else /* The physics, once per precision. */
#define Acrobot LANES_NAME(Acrobot)
#define reset_lane LANES_NAME(reset_lane)
#define step_block LANES_NAME(step_block)
#define observe_lane LANES_NAME(observe_lane)
#define Arm LANES_NAME(Arm)
#define change LANES_NAME(change)
#define advance LANES_NAME(advance)

typedef struct Acrobot {
    REAL theta_1[LANES], theta_2[LANES], speed_1[LANES], speed_2[LANES];
} Acrobot;

typedef struct Arm {
    REAL theta_1, theta_2, speed_1, speed_2;
} Arm;

LANES_INLINE void reset_lane(Acrobot *block, uint64_t lane, shoal_envs *envs, uint64_t env) {
    shoal_rng *rng = &envs->rng[env];
    float *row = SHOAL_OBSERVATION(float, envs, 0, env);
    volatile float start[4]; /* volatile: otherwise GCC 12 does not round pairs to float and back */
    for (int i = 0; i < 4; i++)
        start[i] = (float)shoal_uniform(rng, -0.1, 0.1);
    REAL theta_1 = block->theta_1[lane] = start[0];
    REAL theta_2 = block->theta_2[lane] = start[1];
    block->speed_1[lane] = start[2];
    block->speed_2[lane] = start[3];
    row[0] = (float)lanes_cos(theta_1);
    row[1] = (float)lanes_sin(theta_1);
    row[2] = (float)lanes_cos(theta_2);
    row[3] = (float)lanes_sin(theta_2);
    row[4] = start[2];
    row[5] = start[3];
}

/* The time derivative of an arm: links of length, mass and inertia 1, with the centre of mass in the
 * middle. */
LANES_INLINE Arm change(Arm arm, REAL torque) {
    const REAL g = (REAL)9.8, half = (REAL)0.5;
    REAL sin_1 = lanes_sin(arm.theta_1), cos_1 = lanes_cos(arm.theta_1);
    REAL sin_2 = lanes_sin(arm.theta_2), cos_2 = lanes_cos(arm.theta_2);
    REAL d1 = (REAL)3.5 + cos_2, d2 = (REAL)1.25 + half * cos_2, per_d1 = 1 / d1;
    REAL phi_2 = half * g * (sin_1 * cos_2 + cos_1 * sin_2);
    REAL phi_1 = -half * (arm.speed_2 * arm.speed_2) * sin_2 - arm.speed_2 * arm.speed_1 * sin_2 +
                 (REAL)1.5 * g * sin_1 + phi_2;
    REAL acc_2 = (torque + d2 * per_d1 * phi_1 - half * (arm.speed_1 * arm.speed_1) * sin_2 - phi_2) /
                 ((REAL)1.25 - d2 * d2 * per_d1);
    REAL acc_1 = -(d2 * acc_2 + phi_1) * per_d1;
    return (Arm){arm.speed_1, arm.speed_2, acc_1, acc_2};
}

LANES_INLINE Arm advance(Arm arm, Arm rate, REAL dt) {
    return (Arm){arm.theta_1 + dt * rate.theta_1, arm.theta_2 + dt * rate.theta_2,
                 arm.speed_1 + dt * rate.speed_1, arm.speed_2 + dt * rate.speed_2};
}

/* One Runge-Kutta step of fourth order. */
LANES_INLINE void step_block(Acrobot *restrict block, const shoal_value *options,
                             const int64_t *restrict actions, float *restrict rows, double *restrict rewards,
                             uint8_t *restrict terminated, int lanes) {
    const REAL dt = 0.2, turn = 2 * PI, per_turn = 1 / (2 * PI), max_1 = MAX_SPEED_1, max_2 = MAX_SPEED_2;
    lanes_word up[LANES];
    (void)options;
    for (int i = 0; i < lanes; i++) {
        Arm arm = {block->theta_1[i], block->theta_2[i], block->speed_1[i], block->speed_2[i]};
        REAL torque = (REAL)((int32_t)actions[i] - 1);
        Arm k1 = change(arm, torque);
        Arm k2 = change(advance(arm, k1, dt / 2), torque);
        Arm k3 = change(advance(arm, k2, dt / 2), torque);
        Arm k4 = change(advance(arm, k3, dt), torque);
        arm = advance(arm, advance(advance(advance(k1, k2, 2), k3, 2), k4, 1), dt / 6);
        arm.theta_1 -= turn * lanes_round(arm.theta_1 * per_turn);
        arm.theta_2 -= turn * lanes_round(arm.theta_2 * per_turn);
        arm.speed_1 = lanes_clip(arm.speed_1, -max_1, max_1);
        arm.speed_2 = lanes_clip(arm.speed_2, -max_2, max_2);
        block->theta_1[i] = arm.theta_1;
        block->theta_2[i] = arm.theta_2;
        block->speed_1[i] = arm.speed_1;
        block->speed_2[i] = arm.speed_2;
        REAL sin_1 = lanes_sin(arm.theta_1), cos_1 = lanes_cos(arm.theta_1);
        REAL sin_2 = lanes_sin(arm.theta_2), cos_2 = lanes_cos(arm.theta_2);
        rows[6 * i] = (float)cos_1;
        rows[6 * i + 1] = (float)sin_1;
        rows[6 * i + 2] = (float)cos_2;
        rows[6 * i + 3] = (float)sin_2;
        rows[6 * i + 4] = (float)arm.speed_1;
        rows[6 * i + 5] = (float)arm.speed_2;
        up[i] = lanes_less(1, -cos_1 - (cos_1 * cos_2 - sin_1 * sin_2));
        rewards[i] = lanes_select(up[i], 0, -1);
    }
    for (int i = 0; i < lanes; i++)
        terminated[i] = (uint8_t)up[i];
}

LANES_INLINE void observe_lane(const Acrobot *block, uint64_t lane, float *row) {
    row[0] = (float)lanes_cos(block->theta_1[lane]);
    row[1] = (float)lanes_sin(block->theta_1[lane]);
    row[2] = (float)lanes_cos(block->theta_2[lane]);
    row[3] = (float)lanes_sin(block->theta_2[lane]);
    row[4] = (float)block->speed_1[lane];
    row[5] = (float)block->speed_2[lane];
}

LANES_BATCH(Acrobot, int64_t, reset_lane, step_block)
LANES_OBSERVE(Acrobot, observe_lane)

#undef Acrobot
#undef reset_lane
#undef step_block
#undef observe_lane
#undef Arm
#undef change
#undef advance
#endif
