/* The contract between Shoal and an environment written in C: include this header and export one symbol. A
 * plug-in is one C file; copy envs/squared/squared.c to start.
 *
 *   host                                               plug-in
 *   loads the library, checks shoal_entry.abi_major
 *   describe(options, spec)  ------------------------> declares fields and sizes
 *   allocates everything, seeds rng[i]
 *   init(envs, i)            ------------------------> once per environment, its memory zeroed
 *   reset / step(envs, begin, end)  -----------------> writes observations, rewards, terminated of those rows
 *   close(envs, i)           ------------------------> once per environment
 *
 * The host owns all memory. The result arrays can be at different addresses in every call, so write the whole
 * row each time and never read from it. Use no global variables: the whole state of an environment is in its
 * instance, so any number of environments can run side by side. The structs below never grow; optional
 * features are extensions (get_extension). Thread tags: [main] is called by one thread, while no other call
 * on these environments runs; [worker] is called by any thread, while other threads may run other ranges. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_ENV_H
#define SHOAL_ENV_H

#include <stdint.h>

#ifdef __cplusplus
#define SHOAL_EXTERN extern "C"
extern "C" {
#else
#define SHOAL_EXTERN extern
#endif

#define SHOAL_ABI_MAJOR 1u
#define SHOAL_ABI_MINOR 0u
#define SHOAL_MAX_NDIM 6

/* ---- Fields: observations and actions ---- */

typedef struct shoal_dtype { /* DLPack's four bytes */
    uint8_t code;            /* 0 signed, 1 unsigned, 2 float, 6 bool */
    uint8_t bits;
    uint16_t lanes; /* 1 */
} shoal_dtype;

enum shoal_dtype_code { SHOAL_CODE_INT = 0, SHOAL_CODE_UINT = 1, SHOAL_CODE_FLOAT = 2, SHOAL_CODE_BOOL = 6 };

/* clang-format off */
#define SHOAL_INT8    {SHOAL_CODE_INT, 8, 1}
#define SHOAL_INT32   {SHOAL_CODE_INT, 32, 1}
#define SHOAL_INT64   {SHOAL_CODE_INT, 64, 1}
#define SHOAL_UINT8   {SHOAL_CODE_UINT, 8, 1}
#define SHOAL_FLOAT32 {SHOAL_CODE_FLOAT, 32, 1}
#define SHOAL_FLOAT64 {SHOAL_CODE_FLOAT, 64, 1}
#define SHOAL_BOOL    {SHOAL_CODE_BOOL, 8, 1}
/* clang-format on */

/* The kinds of Gymnasium's spaces. A discrete field is an integer from low to high, both included. */
enum shoal_kind { SHOAL_BOX = 0, SHOAL_DISCRETE = 1, SHOAL_MULTI_DISCRETE = 2, SHOAL_MULTI_BINARY = 3 };

typedef struct shoal_field {
    const char *name; /* the key in a Dict space; NULL if the space is this one field */
    shoal_dtype dtype;
    uint32_t kind; /* shoal_kind */
    uint32_t ndim;
    uint32_t reserved;             /* 0 */
    int64_t shape[SHOAL_MAX_NDIM]; /* of one agent's row; at most 2**26 elements */
    double low, high; /* bounds of every element; low is ignored if lows is set, high if highs is set */
    const double *lows, *highs; /* one bound for each element, or NULL */
} shoal_field;

/* ---- Options that a user can choose ---- */

enum shoal_option_type { SHOAL_OPTION_INT = 0, SHOAL_OPTION_FLOAT = 1, SHOAL_OPTION_STRING = 2 };

typedef union shoal_value {
    int64_t i;
    double f;
    const char *s; /* owned by the host; valid as long as the environments */
} shoal_value;

typedef struct shoal_option {
    const char *name;
    const char *help;
    uint32_t type;     /* shoal_option_type */
    uint32_t reserved; /* 0 */
    shoal_value value; /* the default */
} shoal_option;

/* ---- The spec that describe() fills in ---- */

typedef struct shoal_spec {
    uint64_t instance_bytes; /* size of one environment's own memory */
    uint32_t lanes;  /* a power of two: that many environments share one block of instance_bytes * lanes;
                        1 (the default): one struct per environment */
    uint32_t agents; /* rows per environment; default 1 */
    int64_t max_episode_steps; /* the host truncates an episode after so many; 0: never */
    void *host;
    void (*add_observation)(void *host, const shoal_field *field); /* copies the field */
    void (*add_action)(void *host, const shoal_field *field);
} shoal_spec;

/* ---- The environments of one call ---- */

typedef struct shoal_rng { /* NumPy's PCG64 */
    uint64_t state_high, state_low, inc_high, inc_low;
    uint32_t half, has_half; /* the unused half of a 64-bit random number */
} shoal_rng;

typedef struct shoal_envs {
    uint64_t num_envs;
    const shoal_value *options; /* in the order of shoal_entry.options */
    void *instances;            /* 64-byte aligned, zeroed before init; one lane: environment i begins at
                                 * i * instance_bytes; else see spec.lanes */
    uint64_t instance_bytes;
    shoal_rng *rng;                    /* one per environment, seeded by the host */
    void *const *observations;         /* [field] -> packed rows */
    const uint64_t *observation_bytes; /* [field] -> bytes of a row: the field's size */
    const void *const *actions;        /* [field] -> rows; the host checked dtype, shape, discrete ranges */
    const uint64_t *action_bytes;
    double *rewards;      /* per row; ignored in a row that is reset */
    uint8_t *terminated;  /* per row, 0 or 1; ignored in a row that is reset */
    uint8_t *truncated;   /* per row, 0 before the call; step may set 1; the host sets 1 at the time limit */
    const uint8_t *reset; /* per environment, read by step: 1 means reset it instead of stepping it */
} shoal_envs;

/* ---- The exported symbol ---- */

typedef struct shoal_entry_v1 {
    uint32_t abi_major, abi_minor; /* always the first eight bytes */
    const char *name;
    const shoal_option *options;
    uint64_t num_options;
    /* Fills in the spec; returns NULL or an error message, which the plug-in owns. [main] */
    const char *(*describe)(const shoal_value *options, shoal_spec *spec);
    /* Prepares environment `env`; returns NULL or an error message. May be NULL. [main] */
    const char *(*init)(shoal_envs *envs, uint64_t env);
    /* Starts a new episode in each environment of the range and writes its observations. The range may begin
     * and end inside a block of lanes. [worker] */
    void (*reset)(shoal_envs *envs, uint64_t begin, uint64_t end);
    /* Steps each environment of the range, or resets it if envs->reset is 1 (then only its observations are
     * used; an environment whose episode ended is always reset before it is stepped). `begin` is a multiple
     * of spec.lanes; `end` may not be one. The rows of observations, rewards, flags and actions up to the
     * next multiple of spec.lanes exist and may be read and written. [worker] */
    void (*step)(shoal_envs *envs, uint64_t begin, uint64_t end);
    /* Releases what init allocated. May be NULL. [main] */
    void (*close)(shoal_envs *envs, uint64_t env);
    /* Returns the extension with an id such as "shoal.checkpoint/1", or NULL. May be NULL. [main] */
    const void *(*get_extension)(const char *id);
} shoal_entry_v1;

#ifdef SHOAL_GRID /* the plug-in is part of a kernel (shoal build --device cuda), which exports nothing of   \
                     it */
#define SHOAL_EXPORT
#else
#define SHOAL_EXPORT SHOAL_EXTERN __attribute__((visibility("default")))
SHOAL_EXPORT const shoal_entry_v1 shoal_entry;
#endif

/* ---- Helpers ---- */

/* One environment's own memory, for plug-ins with one lane. */
#define SHOAL_INSTANCE(Type, envs, env) ((Type *)((char *)(envs)->instances + (env) * (envs)->instance_bytes))

/* Row `row` of an observation or action field, as a pointer to its elements. */
#define SHOAL_OBSERVATION(type, envs, field, row)                                                            \
    ((type *)((char *)(envs)->observations[field] + (row) * (envs)->observation_bytes[field]))
#define SHOAL_ACTION(type, envs, field, row)                                                                 \
    ((const type *)((const char *)(envs)->actions[field] + (row) * (envs)->action_bytes[field]))

/* Defines the batch functions Type_reset and Type_step from the functions of one environment:
 * void reset_one(Type *self, shoal_envs *envs, uint64_t env) and the same for step_one. For plug-ins with one
 * lane. */
#define SHOAL_BATCH(Type, reset_one, step_one)                                                               \
    static void Type##_reset(shoal_envs *envs, uint64_t begin, uint64_t end) {                               \
        for (uint64_t env = begin; env < end; env++)                                                         \
            reset_one(SHOAL_INSTANCE(Type, envs, env), envs, env);                                           \
    }                                                                                                        \
    static void Type##_step(shoal_envs *envs, uint64_t begin, uint64_t end) {                                \
        for (uint64_t env = begin; env < end; env++) {                                                       \
            if (envs->reset[env])                                                                            \
                reset_one(SHOAL_INSTANCE(Type, envs, env), envs, env);                                       \
            else                                                                                             \
                step_one(SHOAL_INSTANCE(Type, envs, env), envs, env);                                        \
        }                                                                                                    \
    }

/* Has no effect; it remains for sources that use it. `shoal build` compiles the whole file once for each
 * instruction set (x86-64, AVX2, AVX-512), and Shoal chooses one when it loads the library. The results are
 * the same, because plug-ins are compiled with -ffp-contract=off. Define SHOAL_ONE_ISA for the first set
 * alone. */
#define SHOAL_MULTIVERSION

/* The stream of numpy.random.Generator(PCG64(seed)): the same random numbers in the same order as in Python.
 */
__extension__ typedef unsigned __int128 shoal_u128;
static inline uint64_t shoal_random64(shoal_rng *rng) {
    shoal_u128 state = (shoal_u128)rng->state_high << 64 | rng->state_low;
    shoal_u128 multiplier = (shoal_u128)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u;
    state = state * multiplier + ((shoal_u128)rng->inc_high << 64 | rng->inc_low);
    rng->state_high = (uint64_t)(state >> 64);
    rng->state_low = (uint64_t)state;
    uint64_t mixed = rng->state_high ^ rng->state_low;
    unsigned turn = (unsigned)(rng->state_high >> 58);
    return mixed >> turn | mixed << (-turn & 63);
}

static inline uint32_t shoal_random32(shoal_rng *rng) {
    if (rng->has_half) {
        rng->has_half = 0;
        return rng->half;
    }
    uint64_t whole = shoal_random64(rng);
    rng->has_half = 1;
    rng->half = (uint32_t)(whole >> 32);
    return (uint32_t)whole;
}

/* Generator.random() and Generator.uniform(low, high). */
static inline double shoal_random(shoal_rng *rng) {
    return (double)(shoal_random64(rng) >> 11) * (1.0 / 9007199254740992.0);
}
static inline double shoal_uniform(shoal_rng *rng, double low, double high) {
    return low + (high - low) * shoal_random(rng);
}

/* Generator.integers(low, high): from low to high - 1, for ranges up to 2**32. */
static inline int64_t shoal_integers(shoal_rng *rng, int64_t low, int64_t high) {
    uint64_t count = (uint64_t)(high - low);
    if (count <= 1)
        return low;
    uint64_t product = (uint64_t)shoal_random32(rng) * count;
    if (count <= 0xffffffffu && (uint32_t)product < count) {
        uint32_t threshold = (uint32_t)((0x100000000u - count) % count);
        while ((uint32_t)product < threshold)
            product = (uint64_t)shoal_random32(rng) * count;
    }
    return low + (int64_t)(product >> 32);
}

#ifdef __cplusplus
}
#endif
#endif
