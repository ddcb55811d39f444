/* CartPole-v1: keep a pole upright on a cart that is pushed left or right. Gymnasium's environment: the same
 * dynamics, draws, rewards and spaces. */
// SPDX-License-Identifier: MIT
#ifndef REAL
#include "../lanes_view.h"

#define X_LIMIT 2.4
#define THETA_LIMIT (12 * 2 * 3.141592653589793 / 360)

enum { PRECISION, SUTTON_BARTO_REWARD };
static const shoal_option OPTIONS[] = {
    LANES_PRECISION,
    {.name = "sutton_barto_reward",
     .help = "1: the reward is 0 for each step and -1 for the fall, instead of 1 for each step",
     .type = SHOAL_OPTION_INT,
     .value = {.i = 0}},
};

static const shoal_info_field OBSERVED[] = {
    {"Position and speed of the cart, angle of the pole from upright and its speed.",
     SHOAL_NAMES("cart position, m", "cart velocity, m/s", "pole angle, rad", "pole angular velocity, rad/s"),
     0, 0},
};
static const shoal_info_field ACTED[] = {
    {"The direction in which the cart is pushed with 10 N.", 0, 0, SHOAL_NAMES("push left", "push right")},
};
static const shoal_info_v1 INFO = {
    .summary = "Keep a pole upright on a cart by pushing the cart left or right",
    .reward = "1 for every step, including the last one. With sutton_barto_reward=1: 0 for every step and -1 "
              "for the step in which the pole falls.",
    .ending =
        "The pole leans more than 12 degrees from upright, or the cart is more than 2.4 m from the middle.",
    .observations = OBSERVED,
    .num_observations = 1,
    .actions = ACTED,
    .num_actions = 1,
};

#define REAL double
#include "cartpole.c"
#undef REAL
#define REAL float
#include "cartpole.c"
#undef REAL

LANES_BOTH_PRECISIONS

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    static const double highs[] = {(float)(2 * X_LIMIT), INFINITY, (float)(2 * THETA_LIMIT), INFINITY};
    static const double lows[] = {(float)(-2 * X_LIMIT), -INFINITY, (float)(-2 * THETA_LIMIT), -INFINITY};
    if (options[SUTTON_BARTO_REWARD].i != 0 && options[SUTTON_BARTO_REWARD].i != 1)
        return "sutton_barto_reward must be 0 or 1";
    spec->max_episode_steps = 500;
    shoal_field observation = {.dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {4}, .lows = lows, .highs = highs};
    shoal_field push = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 1};
    spec->add_observation(spec->host, &observation);
    spec->add_action(spec->host, &push);
    return lanes_describe(options, spec, sizeof(CartPole_float));
}

/* Gymnasium's picture: a cart of 50 x 30 pixels on a track, and the pole, 125 pixels for its meter. */
static void draw_state(const shoal_canvas *canvas, const double *state) {
    double x = 300 + state[0] * (600 / (2 * X_LIMIT)), y = 292.5; /* the axle */
    double aside = lanes_sin_double(state[2]), up = lanes_cos_double(state[2]);
    shoal_draw_rectangle(canvas, x - 25.5, 284, 51, 31, 0x000000);
    shoal_draw_line(canvas, x - 5.5 * aside, y + 5.5 * up, x + 120.5 * aside, y - 120.5 * up, 11, 0xca9865);
    shoal_draw_circle(canvas, x, y, 5.5, 0x8184cb);
    shoal_draw_rectangle(canvas, 0, 299, 600, 1, 0x000000);
}

LANES_VIEW(400, 600, 50, draw_state, "x", "x_dot", "theta", "theta_dot")

/* Only a damaged checkpoint has a pole further down than after the step in which it fell. */
static const char *restore(shoal_envs *envs, uint64_t env, const void *in, uint64_t bytes) {
    float single;
    double theta = INFINITY;
    if (bytes == 4 * sizeof single) {
        memcpy(&single, (const char *)in + 2 * sizeof single, sizeof single);
        theta = single;
    } else if (bytes == 4 * sizeof theta) {
        memcpy(&theta, (const char *)in + 2 * sizeof theta, sizeof theta);
    }
    if (bytes == envs->instance_bytes && !(fabs(theta) < 0.78))
        return "the checkpoint is damaged: its pole is too far down";
    return lanes_checkpoint_restore(envs, env, in, bytes);
}

static const void *get_extension(const char *id) {
    static const shoal_checkpoint_v1 checkpoint = {lanes_checkpoint_size, lanes_checkpoint_save, restore};
    return strcmp(id, SHOAL_EXT_CHECKPOINT) == 0 ? &checkpoint : lanes_view_extension(id);
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "CartPole-v1",
    .options = OPTIONS,
    .num_options = sizeof OPTIONS / sizeof OPTIONS[0],
    .describe = describe,
    .reset = reset,
    .step = step,
    .get_extension = get_extension,
};

#else /* The physics, once per precision. */
#define CartPole LANES_NAME(CartPole)
#define reset_lane LANES_NAME(reset_lane)
#define step_lanes LANES_NAME(step_lanes)
#define observe_lane LANES_NAME(observe_lane)

typedef struct CartPole {
    REAL x[LANES], x_dot[LANES], theta[LANES], theta_dot[LANES];
} CartPole;

LANES_INLINE void reset_lane(CartPole *block, uint64_t lane, shoal_envs *envs, uint64_t env) {
    shoal_rng *rng = &envs->rng[env];
    float *row = SHOAL_OBSERVATION(float, envs, 0, env);
    row[0] = (float)(block->x[lane] = (REAL)shoal_uniform(rng, -0.05, 0.05));
    row[1] = (float)(block->x_dot[lane] = (REAL)shoal_uniform(rng, -0.05, 0.05));
    row[2] = (float)(block->theta[lane] = (REAL)shoal_uniform(rng, -0.05, 0.05));
    row[3] = (float)(block->theta_dot[lane] = (REAL)shoal_uniform(rng, -0.05, 0.05));
}

/* A pole that has fallen is reset before it is stepped again, so all angles are small here, and the sines for
 * small angles suffice. */
LANES_INLINE void step_lanes(CartPole *restrict block, const shoal_value *options,
                             const int64_t *restrict actions, float *restrict rows, double *restrict rewards,
                             uint8_t *restrict terminated, int lanes) {
    const REAL gravity = 9.8, length = 0.5, pole_mass = 0.1, per_mass = 1 / 1.1, push = 10, tau = 0.02;
    REAL sines[LANES], cosines[LANES], pushed[LANES], turning[LANES];
    lanes_word down[LANES];
    for (int i = 0; i < lanes; i++) {
        sines[i] = lanes_sin_near(block->theta[i]);
        cosines[i] = lanes_cos_near(block->theta[i]);
    }
    for (int i = 0; i < lanes; i++) {
        REAL theta_dot = block->theta_dot[i], sine = sines[i], cosine = cosines[i];
        REAL force = lanes_select((lanes_word)actions[i] & 1, push, -push);
        REAL temp = (force + pole_mass * length * (theta_dot * theta_dot) * sine) * per_mass;
        pushed[i] = temp;
        turning[i] = (gravity * sine - cosine * temp) /
                     (length * (REAL)(4.0 / 3.0) - length * pole_mass * per_mass * (cosine * cosine));
    }
    for (int i = 0; i < lanes; i++) {
        REAL x = block->x[i], x_dot = block->x_dot[i];
        REAL theta = block->theta[i], theta_dot = block->theta_dot[i];
        REAL theta_acc = turning[i];
        REAL x_acc = pushed[i] - pole_mass * length * per_mass * theta_acc * cosines[i];
        block->x[i] = x = x + tau * x_dot;
        block->x_dot[i] = x_dot = x_dot + tau * x_acc;
        block->theta[i] = theta = theta + tau * theta_dot;
        block->theta_dot[i] = theta_dot = theta_dot + tau * theta_acc;
        rows[4 * i] = (float)x;
        rows[4 * i + 1] = (float)x_dot;
        rows[4 * i + 2] = (float)theta;
        rows[4 * i + 3] = (float)theta_dot;
        down[i] = lanes_less(X_LIMIT, lanes_abs(x)) | lanes_less(THETA_LIMIT, lanes_abs(theta));
    }
    for (int i = 0; i < lanes; i++)
        terminated[i] = (uint8_t)down[i];
    /* A separate loop: a reward that is nearly always the same number is then stored, not selected and
     * converted. */
    if (options[SUTTON_BARTO_REWARD].i)
        for (int i = 0; i < lanes; i++)
            rewards[i] = lanes_select(down[i], (REAL)-1, (REAL)0);
    else
        for (int i = 0; i < lanes; i++)
            rewards[i] = 1;
}

LANES_INLINE void observe_lane(const CartPole *block, uint64_t lane, float *row) {
    row[0] = (float)block->x[lane];
    row[1] = (float)block->x_dot[lane];
    row[2] = (float)block->theta[lane];
    row[3] = (float)block->theta_dot[lane];
}

LANES_BATCH(CartPole, int64_t, reset_lane, step_lanes)
LANES_OBSERVE(CartPole, observe_lane)

#undef CartPole
#undef reset_lane
#undef step_lanes
#undef observe_lane
#endif
