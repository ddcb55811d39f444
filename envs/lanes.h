/* For plug-ins that step LANES environments at once: the layout of a block, loops over blocks, sines and
 * cosines that compilers vectorise, checkpoints and observations. envs/cartpole/cartpole.c is an example.
 *
 *   block: REAL x[LANES], v[LANES], ...    one block per LANES environments, one array per quantity
 *   reset_lane(block, lane, envs, env)     starts an episode in one environment, writes its observation
 *   step_block(block, options, actions, rows, rewards, terminated, lanes)
 *                                          steps `lanes` lanes, LANES or LANES_FEW, by loops over lanes
 *                                          without branches; one action and one observation field
 *   observe_lane(block, lane, row)         writes the same bytes of one observation as those two
 *
 * A plug-in includes itself twice, with REAL as double and as float, and offers the choice as its first
 * option. Everything called from a lane loop is LANES_INLINE, so that the loop is vectorised. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_LANES_H
#define SHOAL_LANES_H

#include <math.h>
#include <shoal/env.h>
#include <shoal/ext/checkpoint.h>
#include <shoal/ext/info.h>
#include <shoal/ext/observe.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { LANES = 32, LANES_FEW = 8 };

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "lanes_mask reads flags as words");

#define LANES_INLINE static inline __attribute__((always_inline))
#define LANES_JOIN_(name, real) name##_##real
#define LANES_JOIN(name, real) LANES_JOIN_(name, real)
#define LANES_NAME(name) LANES_JOIN(name, REAL) /* name_double, name_float */

/* ---- Precision: the first option of every such plug-in ---- */

#define LANES_PRECISION                                                                                      \
    {.name = "precision",                                                                                    \
     .help = "type of the state and the arithmetic: double, as in Gymnasium, or float, which is faster",     \
     .type = SHOAL_OPTION_STRING,                                                                            \
     .value = {.s = "double"}}

/* Bytes of a REAL under these options; 0 if the precision is unknown. */
static inline uint64_t lanes_real_bytes(const shoal_value *options) {
    if (!strcmp(options[0].s, "double"))
        return sizeof(double);
    return strcmp(options[0].s, "float") ? 0 : sizeof(float);
}

/* Sets lanes and instance_bytes, or returns an error message. All members of a block must be REALs. */
static inline const char *lanes_describe(const shoal_value *options, shoal_spec *spec,
                                         uint64_t float_block_bytes) {
    uint64_t real = lanes_real_bytes(options);
    if (!real)
        return "precision must be double or float";
    spec->lanes = LANES;
    spec->instance_bytes = float_block_bytes / (LANES * sizeof(float)) * real;
    return 0;
}

/* ---- Bits: choices without branches ---- */

typedef uint64_t lanes_word_double;
typedef uint32_t lanes_word_float;

LANES_INLINE uint64_t lanes_bits_double(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
LANES_INLINE uint32_t lanes_bits_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
LANES_INLINE double lanes_from_bits_double(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
LANES_INLINE float lanes_from_bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 1 if a < b, else 0, for finite numbers. (A plain comparison may become a branch, or prevent vector code.)
 */
LANES_INLINE uint64_t lanes_less_double(double a, double b) { return lanes_bits_double(a - b) >> 63; }
LANES_INLINE uint32_t lanes_less_float(float a, float b) { return lanes_bits_float(a - b) >> 31; }

LANES_INLINE double lanes_abs_double(double x) {
    return lanes_from_bits_double(lanes_bits_double(x) & ~(uint64_t)0 >> 1);
}
LANES_INLINE float lanes_abs_float(float x) {
    return lanes_from_bits_float(lanes_bits_float(x) & ~(uint32_t)0 >> 1);
}

/* `yes` if the condition is 1, `no` if it is 0. */
LANES_INLINE double lanes_select_double(uint64_t condition, double yes, double no) {
    uint64_t mask = -condition;
    return lanes_from_bits_double((lanes_bits_double(yes) & mask) | (lanes_bits_double(no) & ~mask));
}
LANES_INLINE float lanes_select_float(uint32_t condition, float yes, float no) {
    uint32_t mask = -condition;
    return lanes_from_bits_float((lanes_bits_float(yes) & mask) | (lanes_bits_float(no) & ~mask));
}

LANES_INLINE double lanes_clip_double(double x, double low, double high) {
    x = lanes_select_double(lanes_less_double(x, low), low, x);
    return lanes_select_double(lanes_less_double(high, x), high, x);
}
LANES_INLINE float lanes_clip_float(float x, float low, float high) {
    x = lanes_select_float(lanes_less_float(x, low), low, x);
    return lanes_select_float(lanes_less_float(high, x), high, x);
}

/* ---- Sines and cosines ----
 *
 * The error is below 1.6 ulp for |x| < 1e6 (float: below 7e-8 for |x| < 1e4), and larger beyond. The _near
 * functions are for |x| <= 0.785 only, where they give the same bits as the others. */

LANES_INLINE double lanes_sin_near_double(double x) {
    double z = x * x;
    double p = 1.5896067520000301e-10;
    p = p * z - 2.5050745037952375e-08;
    p = p * z + 2.7557313604526984e-06;
    p = p * z - 0.0001984126982954261;
    p = p * z + 0.008333333333322063;
    p = p * z - 0.1666666666666663;
    return x + x * (z * p);
}
LANES_INLINE double lanes_cos_near_double(double x) {
    double z = x * x;
    double p = -1.1358423540692638e-11;
    p = p * z + 2.0875698709079934e-09;
    p = p * z - 2.7557314163981447e-07;
    p = p * z + 2.480158728880005e-05;
    p = p * z - 0.0013888888888872975;
    p = p * z + 0.041666666666666595;
    double half = 0.5 * z, rough = 1 - half; /* the rounding error is added below */
    return rough + (((1 - rough) - half) + z * z * p);
}
LANES_INLINE float lanes_sin_near_float(float x) {
    float z = x * x;
    float p = -0.00019514957655854584f;
    p = p * z + 0.008332158409914935f;
    p = p * z - 0.16666654573141712f;
    return x + x * (z * p);
}
LANES_INLINE float lanes_cos_near_float(float x) {
    float z = x * x;
    float p = 2.443278512451336e-05f;
    p = p * z - 0.0013887313063000385f;
    p = p * z + 0.04166664561880505f;
    float half = 0.5f * z, rough = 1 - half;
    return rough + (((1 - rough) - half) + z * z * p);
}

/* The nearest integer, for |x| < 2^51 (float: 2^22): adding ROUND leaves no bits for a fraction. */
#define LANES_ROUND_double 0x1.8p52
#define LANES_ROUND_float 0x1.8p23f
LANES_INLINE double lanes_round_double(double x) { return (x + LANES_ROUND_double) - LANES_ROUND_double; }
LANES_INLINE float lanes_round_float(float x) { return (x + LANES_ROUND_float) - LANES_ROUND_float; }

/* Returns x minus the nearest multiple of pi/2; the low two bits of `quarter` say which multiple.
 * pi/2 is split into three parts, so that the first products are exact. */
LANES_INLINE double lanes_reduce_double(double x, uint64_t *quarter) {
    double sum = x * 0.6366197723675814 + LANES_ROUND_double;
    *quarter = lanes_bits_double(sum);
    double n = sum - LANES_ROUND_double;
    double head = x - n * 0x1.921fb544p+0;
    double part = n * 0x1.0b4611a6p-34;
    double rest = head - part;
    return rest + (((head - rest) - part) - n * 0x1.3198a2e037073p-69);
}
LANES_INLINE float lanes_reduce_float(float x, uint32_t *quarter) {
    float sum = x * 0.63661975f + LANES_ROUND_float;
    *quarter = lanes_bits_float(sum);
    float n = sum - LANES_ROUND_float;
    float head = x - n * 0x1.92p+0f;
    float part = n * 0x1.fb4p-12f;
    float rest = head - part;
    return rest + (((head - rest) - part) - n * 0x1.4442d2p-24f);
}

/* Odd quarters swap sine and cosine; the second bit is the sign. */
LANES_INLINE double lanes_turn_double(double rest, uint64_t quarter) {
    double turned =
        lanes_select_double(quarter & 1, lanes_cos_near_double(rest), lanes_sin_near_double(rest));
    return lanes_from_bits_double(lanes_bits_double(turned) ^ (quarter & 2) << 62);
}
LANES_INLINE float lanes_turn_float(float rest, uint32_t quarter) {
    float turned = lanes_select_float(quarter & 1, lanes_cos_near_float(rest), lanes_sin_near_float(rest));
    return lanes_from_bits_float(lanes_bits_float(turned) ^ (quarter & 2) << 30);
}

LANES_INLINE double lanes_sin_double(double x) {
    uint64_t quarter;
    double rest = lanes_reduce_double(x, &quarter);
    return lanes_turn_double(rest, quarter);
}
LANES_INLINE float lanes_sin_float(float x) {
    uint32_t quarter;
    float rest = lanes_reduce_float(x, &quarter);
    return lanes_turn_float(rest, quarter);
}
LANES_INLINE double lanes_cos_double(double x) {
    uint64_t quarter;
    double rest = lanes_reduce_double(x, &quarter);
    return lanes_turn_double(rest, quarter + 1);
}
LANES_INLINE float lanes_cos_float(float x) {
    uint32_t quarter;
    float rest = lanes_reduce_float(x, &quarter);
    return lanes_turn_float(rest, quarter + 1);
}

/* The names without their precision, for code in which REAL is defined. */
#define lanes_word LANES_NAME(lanes_word)
#define lanes_bits LANES_NAME(lanes_bits)
#define lanes_from_bits LANES_NAME(lanes_from_bits)
#define lanes_select LANES_NAME(lanes_select)
#define lanes_abs LANES_NAME(lanes_abs)
#define lanes_less LANES_NAME(lanes_less)
#define lanes_clip LANES_NAME(lanes_clip)
#define lanes_round LANES_NAME(lanes_round)
#define lanes_sin LANES_NAME(lanes_sin)
#define lanes_cos LANES_NAME(lanes_cos)
#define lanes_sin_near LANES_NAME(lanes_sin_near)
#define lanes_cos_near LANES_NAME(lanes_cos_near)

/* ---- Blocks ---- */

/* The block that holds environment `env`. */
LANES_INLINE void *lanes_block(const shoal_envs *envs, uint64_t env) {
    return (char *)envs->instances + env / LANES * LANES * envs->instance_bytes;
}

/* Environments that are listed, stepped and reset together, so that their memory stays in the cache. */
enum { LANES_STRETCH = 512, LANES_SLACK = 4 };

/* Up to 64 reset flags from environment `env` on, a bit each. */
LANES_INLINE uint64_t lanes_mask(const shoal_envs *envs, uint64_t env, uint64_t end) {
    const uint8_t *flags = envs->reset + env;
    uint64_t mask = 0, at = 0, word;
#ifdef __SSE2__
    for (; end - env >= 64 && at < 64; at += 16) {
        __m128i some = _mm_loadu_si128((const __m128i *)(flags + at));
        mask |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_slli_epi16(some, 7)) << at;
    }
#endif
    for (; at < 64 && at + 8 <= end - env;
         at += 8) { /* eight flags become eight bits by one multiplication */
        memcpy(&word, flags + at, sizeof word);
        mask |= (word * 0x0102040810204080u >> 56) << at;
    }
    for (; at < 64 && at < end - env; at++)
        mask |= (uint64_t)flags[at] << at;
    return mask;
}

/* Lists the environments of a range to reset, as distances from `begin`, and prefetches their generators,
 * which are not in the cache if there are many environments. The number of resets is unpredictable, so the
 * loop always writes four entries at a time, to avoid a mispredicted branch. */
LANES_INLINE uint64_t lanes_list(const shoal_envs *envs, uint64_t begin, uint64_t end,
                                 uint16_t list[LANES_STRETCH + LANES_SLACK]) {
    uint64_t listed = 0;
    for (uint64_t row = begin; row < end; row += 64) {
        uint64_t mask = lanes_mask(envs, row, end), found = (uint64_t)__builtin_popcountll(mask);
        uint16_t *at = list + listed, *last = at + found;
        do {
            for (int i = 0; i < LANES_SLACK; i++) {
                *at++ = (uint16_t)(row - begin + (uint64_t)__builtin_ctzll(mask | (uint64_t)1 << 63));
                mask &= mask - 1;
            }
        } while (at < last);
        listed += found;
    }
    for (uint64_t i = 0; i < listed; i++) {
        const char *rng = (const char *)&envs->rng[begin + list[i]];
        __builtin_prefetch(rng, 1);
        __builtin_prefetch(rng + sizeof *envs->rng - 1, 1);
    }
    return listed;
}

/* Defines the batch functions reset_REAL and step_REAL. */
#define LANES_BATCH(Block, Action, reset_lane, step_block)                                                   \
    static void LANES_NAME(reset)(shoal_envs * envs, uint64_t begin, uint64_t end) {                         \
        for (uint64_t env = begin; env < end; env++)                                                         \
            reset_lane((Block *)lanes_block(envs, env), env % LANES, envs, env);                             \
    }                                                                                                        \
    LANES_STEP_RANGE(Block, Action, reset_lane, step_block)

#ifdef SHOAL_GRID
/* On a GPU each thread steps one lane: it passes the address of its own number in the first array of the
 * block as the block, so that index 0 of every array is its lane. Neighbouring threads read neighbouring
 * numbers. */
#define LANES_STEP_ANY /* a range may begin inside a block of lanes */
#define LANES_STEP_RANGE(Block, Action, reset_lane, step_block)                                              \
    static void LANES_NAME(step)(shoal_envs * envs, uint64_t begin, uint64_t end) {                          \
        for (uint64_t env = begin; env < end; env++) {                                                       \
            REAL *block = lanes_block(envs, env);                                                            \
            if (envs->reset[env])                                                                            \
                reset_lane((Block *)block, env % LANES, envs, env);                                          \
            else                                                                                             \
                step_block((Block *)(block + env % LANES), envs->options,                                    \
                           SHOAL_ACTION(Action, envs, 0, env), SHOAL_OBSERVATION(float, envs, 0, env),       \
                           envs->rewards + env, envs->terminated + env, 1);                                  \
        }                                                                                                    \
    }
#else
/* Environments to reset are stepped too, and then reset. */
#define LANES_STEP_RANGE(Block, Action, reset_lane, step_block)                                              \
    static void LANES_NAME(step)(shoal_envs * envs, uint64_t begin, uint64_t last) {                         \
        for (uint64_t end; begin < last; begin = end) {                                                      \
            end = last - begin < LANES_STRETCH ? last : begin + LANES_STRETCH;                               \
            uint16_t list[LANES_STRETCH + LANES_SLACK];                                                      \
            uint64_t listed = lanes_list(envs, begin, end, list), row;                                       \
            for (row = begin; row + LANES_FEW < end; row += LANES)                                           \
                LANES_STEP(step_block, Block, Action, LANES);                                                \
            if (row < end)                                                                                   \
                LANES_STEP(step_block, Block, Action, LANES_FEW);                                            \
            for (uint64_t i = 0; i < listed; i++) {                                                          \
                uint64_t env = begin + list[i];                                                              \
                reset_lane((Block *)lanes_block(envs, env), env % LANES, envs, env);                         \
                envs->rewards[env] = 0;                                                                      \
                envs->terminated[env] = 0;                                                                   \
            }                                                                                                \
        }                                                                                                    \
    }
#endif
#define LANES_STEP(step, Block, Action, lanes)                                                               \
    step((Block *)lanes_block(envs, row), envs->options, SHOAL_ACTION(Action, envs, 0, row),                 \
         SHOAL_OBSERVATION(float, envs, 0, row), envs->rewards + row, envs->terminated + row, lanes)

/* Defines observe_REAL. Ranges may begin and end inside a block. Step and reset do not use observe_lane,
 * because they write the values that they have just computed. */
#define LANES_OBSERVE(Block, observe_lane)                                                                   \
    static void LANES_NAME(observe)(shoal_envs * envs, uint64_t begin, uint64_t end) {                       \
        for (uint64_t env = begin; env < end; env++)                                                         \
            observe_lane((const Block *)lanes_block(envs, env), env % LANES,                                 \
                         SHOAL_OBSERVATION(float, envs, 0, env));                                            \
    }

/* Writes reset, step and observe, which call those of the chosen precision, and lanes_get_extension, which
 * also returns the plug-in's INFO. */
#define LANES_BOTH_PRECISIONS                                                                                \
    static void reset(shoal_envs *envs, uint64_t begin, uint64_t end) {                                      \
        if (envs->options[0].s[0] == 'f')                                                                    \
            reset_float(envs, begin, end);                                                                   \
        else                                                                                                 \
            reset_double(envs, begin, end);                                                                  \
    }                                                                                                        \
    static void step(shoal_envs *envs, uint64_t begin, uint64_t end) {                                       \
        if (envs->options[0].s[0] == 'f')                                                                    \
            step_float(envs, begin, end);                                                                    \
        else                                                                                                 \
            step_double(envs, begin, end);                                                                   \
    }                                                                                                        \
    static void observe(shoal_envs *envs, uint64_t begin, uint64_t end) {                                    \
        if (envs->options[0].s[0] == 'f')                                                                    \
            observe_float(envs, begin, end);                                                                 \
        else                                                                                                 \
            observe_double(envs, begin, end);                                                                \
    }                                                                                                        \
    static const void *lanes_get_extension(const char *id) {                                                 \
        static const shoal_checkpoint_v1 checkpoint = {lanes_checkpoint_size, lanes_checkpoint_save,         \
                                                       lanes_checkpoint_restore};                            \
        static const shoal_observe_v1 observer = {observe};                                                  \
        if (strcmp(id, SHOAL_EXT_INFO) == 0)                                                                 \
            return &INFO;                                                                                    \
        if (strcmp(id, SHOAL_EXT_OBSERVE) == 0)                                                              \
            return &observer;                                                                                \
        return strcmp(id, SHOAL_EXT_CHECKPOINT) == 0 ? &checkpoint : 0;                                      \
    }

/* ---- shoal.checkpoint/1: one lane of every array of a block ---- */

static inline uint64_t lanes_checkpoint_size(shoal_envs *envs, uint64_t env) {
    (void)env;
    return envs->instance_bytes;
}
static inline void lanes_checkpoint_save(shoal_envs *envs, uint64_t env, void *out) {
    uint64_t real = lanes_real_bytes(envs->options);
    const char *lane = (const char *)lanes_block(envs, env) + env % LANES * real;
    for (uint64_t at = 0; at < envs->instance_bytes; at += real)
        memcpy((char *)out + at, lane + at * LANES, real);
}
static inline const char *lanes_checkpoint_restore(shoal_envs *envs, uint64_t env, const void *in,
                                                   uint64_t bytes) {
    if (bytes != envs->instance_bytes)
        return "the checkpoint is of another size: was it saved with the same options?";
    uint64_t real = lanes_real_bytes(envs->options);
    char *lane = (char *)lanes_block(envs, env) + env % LANES * real;
    for (uint64_t at = 0; at < bytes; at += real)
        memcpy(lane + at * LANES, (const char *)in + at, real);
    return 0;
}

#endif
