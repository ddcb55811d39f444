/* Plain C as a limit: CartPole in its own loops, and memcpy.
 *
 *   loop_scalar   one environment after the other, double, the sine of libm
 *   loop_double   an array per quantity, so that the compiler makes vector code; double
 *   loop_float    the same in float
 *   copy_run      memcpy on one thread or two
 *
 * All loops do the work of one vector step with NEXT_STEP autoreset: rows of float32 observations, double
 * rewards, flags, a step counter with the limit of 500, resets from a cheap generator. They neither check
 * actions nor keep statistics. Each call does `steps` steps, so that calling costs nothing. */
// SPDX-License-Identifier: MIT
#ifndef REAL
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define X_LIMIT 2.4
#define THETA_LIMIT (12 * 2 * 3.141592653589793 / 360)
enum { BLOCK = 64, TIME_LIMIT = 500 }; /* BLOCK: environments whose arrays are passed over together */

static void *zeroed(uint64_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    if (memory == NULL)
        abort(); /* enough for a benchmark */
    return memset(memory, 0, bytes);
}

/* ---- CartPole --------------------------------------------------------------------------------------------
 */

typedef struct loop {
    uint64_t num_envs, rows; /* rows: num_envs in whole blocks */
    uint64_t num_actions, turn;
    int64_t *actions; /* [num_actions][rows], used in turn */
    double *state;    /* four numbers per environment, in the order of the loop */
    uint32_t *length;
    uint8_t *reset; /* the next step resets it */
    float *observations;
    double *rewards;
    uint8_t *terminated, *truncated;
    uint64_t random;
} loop;

EXPORT loop *loop_create(uint64_t num_envs, const int64_t *actions, uint64_t num_actions) {
    loop *self = zeroed(sizeof *self);
    uint64_t rows = (num_envs + BLOCK - 1) / BLOCK * BLOCK;
    *self = (loop){.num_envs = num_envs, .rows = rows, .num_actions = num_actions, .random = 1};
    self->actions = zeroed(num_actions * rows * sizeof *self->actions);
    for (uint64_t i = 0; i < num_actions; i++)
        memcpy(self->actions + i * rows, actions + i * num_envs, num_envs * sizeof *actions);
    self->state = zeroed(4 * rows * sizeof *self->state);
    self->length = zeroed(rows * sizeof *self->length);
    self->reset = zeroed(rows);
    memset(self->reset, 1, num_envs);
    self->observations = zeroed(4 * rows * sizeof *self->observations);
    self->rewards = zeroed(rows * sizeof *self->rewards);
    self->terminated = zeroed(rows);
    self->truncated = zeroed(rows);
    return self;
}

EXPORT void loop_free(loop *self) {
    void *all[] = {self->actions, self->state,      self->length,    self->reset, self->observations,
                   self->rewards, self->terminated, self->truncated, self};
    for (uint64_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static const int64_t *next_actions(loop *self) {
    return self->actions + self->turn++ % self->num_actions * self->rows;
}

static inline double draw(uint64_t *random) { /* xorshift; from -0.05 to 0.05 */
    uint64_t x = *random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *random = x;
    return (double)(x >> 11) * (0.1 / 9007199254740992.0) - 0.05;
}

static void step_scalar(loop *self, const int64_t *actions) {
    const double gravity = 9.8, length = 0.5, pole_mass = 0.1, mass = 1.1, push = 10, tau = 0.02;
    for (uint64_t i = 0; i < self->num_envs; i++) {
        double *state = self->state + 4 * i;
        float *row = self->observations + 4 * i;
        if (self->reset[i]) {
            for (int k = 0; k < 4; k++)
                row[k] = (float)(state[k] = draw(&self->random));
            self->length[i] = 0;
            self->rewards[i] = 0;
            self->reset[i] = self->terminated[i] = self->truncated[i] = 0;
            continue;
        }
        double x = state[0], x_dot = state[1], theta = state[2], theta_dot = state[3];
        double force = actions[i] == 1 ? push : -push, sine = sin(theta), cosine = cos(theta);
        double temp = (force + pole_mass * length * (theta_dot * theta_dot) * sine) / mass;
        double theta_acc =
            (gravity * sine - cosine * temp) / (length * (4.0 / 3.0 - pole_mass * (cosine * cosine) / mass));
        double x_acc = temp - pole_mass * length * theta_acc * cosine / mass;
        state[0] = x = x + tau * x_dot;
        state[1] = x_dot = x_dot + tau * x_acc;
        state[2] = theta = theta + tau * theta_dot;
        state[3] = theta_dot = theta_dot + tau * theta_acc;
        for (int k = 0; k < 4; k++)
            row[k] = (float)state[k];
        self->rewards[i] = 1;
        self->terminated[i] = x < -X_LIMIT || x > X_LIMIT || theta < -THETA_LIMIT || theta > THETA_LIMIT;
        self->truncated[i] = ++self->length[i] >= TIME_LIMIT;
        self->reset[i] = self->terminated[i] | self->truncated[i];
    }
}

EXPORT void loop_scalar(loop *self, uint64_t steps) {
    for (uint64_t i = 0; i < steps; i++)
        step_scalar(self, next_actions(self));
}

/* Polynomials for |x| < 0.78: a pole is reset before it leans further. */
static inline double sine_double(double x) {
    double z = x * x;
    double p = 1.5896067520000301e-10;
    p = p * z - 2.5050745037952375e-08;
    p = p * z + 2.7557313604526984e-06;
    p = p * z - 0.0001984126982954261;
    p = p * z + 0.008333333333322063;
    p = p * z - 0.1666666666666663;
    return x + x * (z * p);
}
static inline double cosine_double(double x) {
    double z = x * x;
    double p = -1.1358423540692638e-11;
    p = p * z + 2.0875698709079934e-09;
    p = p * z - 2.7557314163981447e-07;
    p = p * z + 2.480158728880005e-05;
    p = p * z - 0.0013888888888872975;
    p = p * z + 0.041666666666666595;
    return 1 - 0.5 * z + z * z * p;
}
static inline float sine_float(float x) {
    float z = x * x;
    float p = -0.00019514957655854584f;
    p = p * z + 0.008332158409914935f;
    p = p * z - 0.16666654573141712f;
    return x + x * (z * p);
}
static inline float cosine_float(float x) {
    float z = x * x;
    float p = 2.443278512451336e-05f;
    p = p * z - 0.0013887313063000385f;
    p = p * z + 0.04166664561880505f;
    return 1 - 0.5f * z + z * z * p;
}

#define REAL double
#define NAME(name) name##_double
#include "loops.c"
#undef REAL
#undef NAME
#define REAL float
#define NAME(name) name##_float
#include "loops.c"

/* ---- memcpy ----------------------------------------------------------------------------------------------
 */

typedef struct copy {
    void *to;
    const void *from;
    uint64_t bytes, times;
} copy;

static void *copy_times(void *argument) {
    const copy *self = argument;
    for (uint64_t i = 0; i < self->times; i++) {
        memcpy(self->to, self->from, self->bytes);
        __asm__ volatile("" ::: "memory"); /* every copy happens */
    }
    return NULL;
}

/* Copies `bytes` on one thread, or one half on each of two. */
EXPORT void copy_run(char *to, const char *from, uint64_t bytes, uint64_t num_threads, uint64_t times) {
    uint64_t half = num_threads == 2 ? bytes / 2 : 0;
    copy first = {to, from, half, times}, second = {to + half, from + half, bytes - half, times};
    pthread_t thread;
    if (half != 0 && pthread_create(&thread, NULL, copy_times, &first) != 0)
        abort();
    copy_times(&second);
    if (half != 0)
        pthread_join(thread, NULL);
}

#else /* The vector loops, once per precision. */

static inline void NAME(step_block)(REAL *restrict state, uint64_t rows, const int64_t *restrict actions,
                                    uint32_t *restrict length, float *restrict observations,
                                    double *restrict rewards, uint8_t *restrict terminated,
                                    uint8_t *restrict truncated) {
    const REAL gravity = 9.8, half = 0.5, pole_mass = 0.1, per_mass = 1 / 1.1, push = 10, tau = 0.02;
    REAL *restrict xs = state, *restrict x_dots = state + rows, *restrict thetas = state + 2 * rows,
                   *restrict theta_dots = state + 3 * rows;
    REAL over[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        REAL x = xs[i], x_dot = x_dots[i], theta = thetas[i], theta_dot = theta_dots[i];
        REAL force = (REAL)(2 * (int32_t)actions[i] - 1) * push;
        REAL sine = NAME(sine)(theta), cosine = NAME(cosine)(theta);
        REAL temp = (force + pole_mass * half * (theta_dot * theta_dot) * sine) * per_mass;
        REAL theta_acc = (gravity * sine - cosine * temp) /
                         (half * (REAL)(4.0 / 3.0) - half * pole_mass * per_mass * (cosine * cosine));
        REAL x_acc = temp - pole_mass * half * per_mass * theta_acc * cosine;
        xs[i] = x = x + tau * x_dot;
        x_dots[i] = x_dot = x_dot + tau * x_acc;
        thetas[i] = theta = theta + tau * theta_dot;
        theta_dots[i] = theta_dot = theta_dot + tau * theta_acc;
        observations[4 * i] = (float)x;
        observations[4 * i + 1] = (float)x_dot;
        observations[4 * i + 2] = (float)theta;
        observations[4 * i + 3] = (float)theta_dot;
        over[i] = (x < 0 ? -x : x) - (REAL)X_LIMIT;
        REAL lean = (theta < 0 ? -theta : theta) - (REAL)THETA_LIMIT;
        over[i] = over[i] > lean ? over[i] : lean;
        rewards[i] = 1;
    }
    for (int i = 0; i < BLOCK; i++)
        terminated[i] = over[i] > 0;
    for (int i = 0; i < BLOCK; i++)
        truncated[i] = ++length[i] >= TIME_LIMIT;
}

static void NAME(reset_row)(loop *self, uint64_t row) {
    REAL *state = (REAL *)self->state;
    for (uint64_t k = 0; k < 4; k++)
        self->observations[4 * row + k] = (float)(state[k * self->rows + row] = (REAL)draw(&self->random));
    self->length[row] = 0;
    self->rewards[row] = 0;
    self->terminated[row] = self->truncated[row] = 0;
}

EXPORT void NAME(loop)(loop *self, uint64_t steps) {
    for (uint64_t step = 0; step < steps; step++) {
        const int64_t *actions = next_actions(self);
        for (uint64_t at = 0; at < self->rows; at += BLOCK) {
            NAME(step_block)((REAL *)self->state + at, self->rows, actions + at, self->length + at,
                             self->observations + 4 * at, self->rewards + at, self->terminated + at,
                             self->truncated + at);
            for (uint64_t row = at; row < at + BLOCK; row += 8) { /* few are set, so check eight at once */
                uint64_t flags, terminated, truncated;
                memcpy(&flags, self->reset + row, sizeof flags);
                for (; flags != 0; flags &= ~((uint64_t)0xff << (__builtin_ctzll(flags) & ~7)))
                    NAME(reset_row)(self, row + ((uint64_t)__builtin_ctzll(flags) >> 3));
                memcpy(&terminated, self->terminated + row, sizeof flags);
                memcpy(&truncated, self->truncated + row, sizeof flags);
                flags = terminated | truncated;
                memcpy(self->reset + row, &flags, sizeof flags);
            }
        }
    }
}
#endif
