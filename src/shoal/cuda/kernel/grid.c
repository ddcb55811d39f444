/* The kernels of one plug-in: a thread calls the plug-in's functions for one environment and settles its
 * episode, as core/engine.c does on the CPU.
 *
 *   baked.h   generated: the plug-in's file, its options, sizes and fields as constants
 *   step      mark what must be reset -> reset it, or check the actions -> plug-in's step -> settle
 *             -> rows from shared memory to global
 *
 * Small rows are written to a tile in shared memory first: threads write their rows byte by byte, and the
 * block copies the tile out in words of 16 bytes. A plug-in does not notice: it gets an address such that row
 * `i` is in the tile. Everything else has the layout of the native backend, so that the host can copy one
 * block of lanes and call the plug-in's other functions on it. */
// SPDX-License-Identifier: MIT
#include <shoal/env.h>

#define shoal_entry_v1 static shoal_entry_v1 /* the plug-in's symbol: what no kernel uses is left out */
#include "baked.h"
#include GRID_PLUGIN
#undef shoal_entry_v1

#include <shoal/ext/observe.h>

#include "core/seed.c"
#include "grid.h"

enum { GRID_NEXT_STEP = 0, GRID_SAME_STEP = 1, GRID_DISABLED = 2 };
enum { GRID_CHECK_ACTIONS = 4, GRID_CHECK_NAN = 8 }; /* as in core/binding/stepper.hpp */
enum { GRID_BAD_ACTION = 1, GRID_IS_OVER = 2, GRID_IS_NAN = 3, GRID_INIT_FAILED = 4 }; /* a fault */
enum { GRID_STRIPES = 1024 };
enum { GRID_SPARE = 32 }; /* most threads of a block that have no environment */

typedef struct grid_sums {
    uint64_t steps, episodes, length;
    double total;
} grid_sums;

#if defined(LANES_STEP_ANY) || GRID_LANES == 1
#define GRID_UNIT 1 /* environments of a thread: the plug-in's step takes any range */
#else
#define GRID_UNIT GRID_LANES
#endif

/* The one argument of every kernel: words of eight bytes, in the order of src/shoal/vector/device_state.py.
 */
typedef struct shoal_grid {
    uint64_t num_envs, time_limit, autoreset, checks;
    /* One thread in 2 ** spread steps an environment, so that fewer of a warp run different code. */
    uint64_t spread;
    /* Threads of a block: GRID_BLOCK, or with spare ones, which reset environments while the others step. */
    uint64_t threads;
    /* The blocks run from the last to the first. If every second step does so, it begins with the state that
     * the step before it used last, which the cache still holds. */
    uint64_t is_backward;
    /* State, as in core/engine.h. */
    void *instances;
    shoal_rng *rng;
    uint8_t *reset;
    uint32_t *elapsed;
    double *total;
    uint32_t *length;
    double *last_return;
    uint32_t *last_length;
    uint32_t *episode;
    uint8_t *over;
    uint8_t *faults;     /* per environment: its first fault; 0: none */
    uint32_t *any_fault; /* whether there is one */
    grid_sums *sums;     /* GRID_STRIPES */
    /* Arguments of a reset; NULL: all environments, no seeds. */
    const uint8_t *mask;
    const uint64_t *seeds;
    const uint8_t *is_seeded;
    const void *saved[GRID_OBSERVATIONS]; /* the last observations, if the plug-in cannot write them again */
    /* Results; those of finished episodes may be NULL. */
    double *rewards;
    uint8_t *terminated, *truncated;
    uint8_t *finished;
    double *finished_return;
    int64_t *finished_length;
    void *observations[GRID_OBSERVATIONS];
    void *finals[GRID_OBSERVATIONS];
    const void *actions[GRID_ACTIONS];
} shoal_grid;

static const shoal_value GRID_OPTIONS[] = GRID_VALUES;
static const uint64_t GRID_ROW[] = GRID_OBSERVATION_BYTES;
static const uint64_t GRID_ACTION[] = GRID_ACTION_BYTES;

/* Declares `envs` and the arrays that it points to: three variables, because the compiler keeps no struct in
 * registers that has its own address in it. */
#define GRID_ENVS(a)                                                                                         \
    void *observations[GRID_OBSERVATIONS];                                                                   \
    const void *actions[GRID_ACTIONS];                                                                       \
    for (int f = 0; f < GRID_OBSERVATIONS; f++)                                                              \
        observations[f] = (a)->observations[f];                                                              \
    for (int f = 0; f < GRID_ACTIONS; f++)                                                                   \
        actions[f] = (a)->actions[f];                                                                        \
    shoal_envs envs = {.num_envs = (a)->num_envs,                                                            \
                       .options = GRID_OPTIONS,                                                              \
                       .instances = (a)->instances,                                                          \
                       .instance_bytes = GRID_INSTANCE_BYTES,                                                \
                       .rng = (a)->rng,                                                                      \
                       .observations = observations,                                                         \
                       .observation_bytes = GRID_ROW,                                                        \
                       .actions = actions,                                                                   \
                       .action_bytes = GRID_ACTION,                                                          \
                       .rewards = (a)->rewards,                                                              \
                       .terminated = (a)->terminated,                                                        \
                       .truncated = (a)->truncated,                                                          \
                       .reset = (a)->reset}

/* ---- Tiles ---- */

#if GRID_LANES > 1 && !defined(LANES_STEP_ANY)
#undef GRID_TILE_BYTES /* a thread steps a whole block of lanes */
#define GRID_TILE_BYTES 0
#endif

#if GRID_TILE_BYTES
GRID_SHARED unsigned char grid_tile[GRID_TILE_BYTES];
static const uint64_t GRID_TILE_AT[] = GRID_TILE_OFFSETS; /* where the rows of each field begin */

/* Makes the plug-in write the rows of this block into the tile. */
GRID_INLINE void grid_use_tile(void **rows, uint64_t first) {
    for (int f = 0; f < GRID_OBSERVATIONS; f++)
        rows[f] = (char *)grid_tile + GRID_TILE_AT[f] - first * GRID_AGENTS * GRID_ROW[f];
}

GRID_INLINE void grid_copy_tile(const shoal_grid *a, uint64_t first, uint64_t most, uint32_t t) {
    const uint64_t envs = a->num_envs - first < most ? a->num_envs - first : most;
    for (int f = 0; f < GRID_OBSERVATIONS; f++) {
        const unsigned char *from = (const unsigned char *)grid_tile + GRID_TILE_AT[f];
        unsigned char *to = (unsigned char *)a->observations[f] + first * GRID_AGENTS * GRID_ROW[f];
        const uint32_t bytes = (uint32_t)(envs * GRID_AGENTS * GRID_ROW[f]);
        const uint32_t words = (uintptr_t)to % 16 ? 0 : bytes / 16; /* rows of a rollout begin anywhere */
        for (uint32_t i = t; i < words; i += (uint32_t)a->threads)
            grid_stream_words((grid_words *)to + i, ((const grid_words *)from)[i]);
        for (uint32_t i = words * 16 + t; i < bytes; i += (uint32_t)a->threads)
            to[i] = from[i];
    }
}
#else
GRID_INLINE void grid_use_tile(void **rows, uint64_t first) { (void)rows, (void)first; }
GRID_INLINE void grid_copy_tile(const shoal_grid *a, uint64_t first, uint64_t most, uint32_t t) {
    (void)a, (void)first, (void)most, (void)t;
}
#endif

/* ---- Checks ---- */

GRID_INLINE void grid_fault(const shoal_grid *a, uint64_t env, uint8_t kind) {
    if (a->faults[env] == 0)
        a->faults[env] = kind;
    *a->any_fault = 1;
}

/* Whether one of `count` elements is out of bounds (for integers), or NaN. Environments clip a Box. */
GRID_INLINE int grid_is_outside(const void *values, uint8_t code, uint8_t bits, uint32_t kind, uint64_t count,
                                const double *lows, const double *highs, uint64_t bounds) {
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t at = bounds == 1 ? 0 : i;
        if (code == SHOAL_CODE_FLOAT) {
            if ((bits == 64 && ((const double *)values)[i] != ((const double *)values)[i]) ||
                (bits == 32 && ((const float *)values)[i] != ((const float *)values)[i]) ||
                (bits == 16 && (((const uint16_t *)values)[i] & 0x7fff) > 0x7c00))
                return 1;
        } else if (kind != SHOAL_BOX && code == SHOAL_CODE_INT) {
            const int64_t value = bits == 8    ? ((const int8_t *)values)[i]
                                  : bits == 16 ? ((const int16_t *)values)[i]
                                  : bits == 32 ? ((const int32_t *)values)[i]
                                               : ((const int64_t *)values)[i];
            if (value < (int64_t)lows[at] || value > (int64_t)highs[at])
                return 1;
        } else if (kind != SHOAL_BOX) {
            const uint64_t value = bits == 8    ? ((const uint8_t *)values)[i]
                                   : bits == 16 ? ((const uint16_t *)values)[i]
                                   : bits == 32 ? ((const uint32_t *)values)[i]
                                                : ((const uint64_t *)values)[i];
            if (value < (uint64_t)lows[at] || value > (uint64_t)highs[at])
                return 1;
        }
    }
    return 0;
}

GRID_INLINE int grid_has_bad_action(const shoal_grid *a, uint64_t env) {
    for (uint64_t row = env * GRID_AGENTS; row < (env + 1) * GRID_AGENTS; row++) {
#define GRID_FIELD(number, code, bits, kind, count, lows, highs, bounds)                                     \
    if ((code == SHOAL_CODE_FLOAT || (a->checks & GRID_CHECK_ACTIONS)) &&                                    \
        grid_is_outside((const char *)a->actions[number] + row * GRID_ACTION[number], code, bits, kind,      \
                        count, lows, highs, bounds))                                                         \
        return 1;
        GRID_ACTION_FIELDS
#undef GRID_FIELD
    }
    return 0;
}

GRID_INLINE int grid_has_nan(const shoal_envs *envs, uint64_t env) {
    for (uint64_t row = env * GRID_AGENTS; row < (env + 1) * GRID_AGENTS; row++) {
        if (envs->rewards[row] != envs->rewards[row])
            return 1;
#define GRID_FIELD(number, code, bits, count)                                                                \
    if (code == SHOAL_CODE_FLOAT &&                                                                          \
        grid_is_outside((const char *)envs->observations[number] + row * GRID_ROW[number], code, bits,       \
                        SHOAL_BOX, count, 0, 0, 1))                                                          \
        return 1;
        GRID_OBSERVATION_FIELDS
#undef GRID_FIELD
    }
    return 0;
}

/* ---- Episodes ---- */

GRID_INLINE void grid_clear_progress(const shoal_grid *a, uint64_t env) {
    if (GRID_AGENTS > 1)
        a->elapsed[env] = 0;
    for (uint64_t row = env * GRID_AGENTS; row < (env + 1) * GRID_AGENTS; row++) {
        a->total[row] = 0;
        a->length[row] = 0;
    }
}

GRID_INLINE void grid_begin_episode(const shoal_grid *a, uint64_t env) {
    a->episode[env]++;
    grid_clear_progress(a, env);
}

GRID_INLINE void grid_write_row(const shoal_grid *a, uint64_t row, double reward, uint8_t terminated,
                                uint8_t truncated) {
    grid_stream_real(&a->rewards[row], reward);
    grid_stream_byte(&a->terminated[row], terminated);
    grid_stream_byte(&a->truncated[row], truncated);
}

/* Writes the results for an episode that ends in this step; zeros if none does. */
GRID_INLINE void grid_write_episode(const shoal_grid *a, uint64_t row, uint8_t ends, double total,
                                    uint32_t length) {
    if (a->finished != 0)
        grid_stream_byte(&a->finished[row], ends);
    if (a->finished_return != 0) {
        grid_stream_real(&a->finished_return[row], ends ? total : 0);
        grid_stream_word(&a->finished_length[row], ends ? length : 0);
    }
}

GRID_INLINE void grid_clear_row(const shoal_grid *a, uint64_t row) {
    grid_write_row(a, row, 0, 0, 0);
    grid_write_episode(a, row, 0, 0, 0);
}

/* Writes the last observation again, for a row that is neither stepped nor reset. */
GRID_INLINE void grid_observe(const shoal_grid *a, shoal_envs *envs, uint64_t env) {
#if GRID_HAS_OBSERVE
    const shoal_observe_v1 *extension = shoal_entry.get_extension(SHOAL_EXT_OBSERVE);
    extension->observe(envs, env, env + 1);
#else
    for (int f = 0; f < GRID_OBSERVATIONS; f++)
        __builtin_memcpy((char *)envs->observations[f] + env * GRID_AGENTS * GRID_ROW[f],
                         (const char *)a->saved[f] + env * GRID_AGENTS * GRID_ROW[f],
                         GRID_AGENTS * GRID_ROW[f]);
#endif
    (void)a;
}

/* The statistics of a block's step. Its threads add to them, and its first thread adds them to the sums.
 * Returns are added to the sums at once: shared memory has no addition of doubles. */
GRID_SHARED struct grid_count {
    uint32_t steps, episodes, length;
} grid_counted;

GRID_INLINE void grid_begin_counts(uint32_t t) {
    if (t == 0)
        grid_counted.steps = grid_counted.episodes = grid_counted.length = 0;
}

GRID_INLINE grid_sums *grid_find_sums(const shoal_grid *a, uint64_t block) {
    return &a->sums[block % GRID_STRIPES];
}

GRID_INLINE void grid_add_counts(grid_sums *sums, uint32_t t) {
    if (t != 0)
        return;
    grid_add(&sums->steps, grid_counted.steps);
    if (grid_counted.episodes != 0) {
        grid_add(&sums->episodes, grid_counted.episodes);
        grid_add(&sums->length, grid_counted.length);
    }
}

/* Rewards and flags of one thread's rows, in registers if they are few. */
enum { GRID_ROWS = GRID_UNIT * GRID_AGENTS, GRID_IS_LOCAL = GRID_ROWS <= 8 };
typedef struct grid_rows {
    double rewards[GRID_IS_LOCAL ? GRID_ROWS : 1];
    uint8_t terminated[GRID_IS_LOCAL ? GRID_ROWS : 1], truncated[GRID_IS_LOCAL ? GRID_ROWS : 1];
} grid_rows;

/* What is known of the episode of a single row. A thread loads it before it knows whether it will step, so
 * that settling waits for no memory; a prefetch would be a second request for the same memory. */
enum { GRID_IS_SINGLE = GRID_ROWS == 1 };
typedef struct grid_progress {
    double total;
    uint32_t length;
} grid_progress;

/* Updates the rows of one environment after a step. If it is reset instead (`is_reset`), it writes zeros, so
 * that the threads of a warp store all their rows together. Returns whether the environment must be reset in
 * this step. */
GRID_INLINE int grid_settle(const shoal_grid *a, shoal_envs *envs, uint64_t env,
                            const grid_progress *progress, int is_reset) {
    const uint64_t first = env * GRID_AGENTS;
    uint32_t over = 0, longest = 0;
    if (GRID_AGENTS > 1)
        a->elapsed[env] = longest = is_reset ? 0 : a->elapsed[env] + 1;
    for (uint64_t row = first; row < first + GRID_AGENTS; row++) {
        const double reward = is_reset ? 0 : envs->rewards[row];
        const uint32_t length = is_reset ? 0 : (GRID_IS_SINGLE ? progress->length : a->length[row]) + 1;
        const double total = is_reset ? 0 : (GRID_IS_SINGLE ? progress->total : a->total[row]) + reward;
        if (GRID_AGENTS == 1)
            longest = length;
        const uint8_t terminated = is_reset ? 0 : envs->terminated[row];
        const uint8_t truncated = is_reset ? 0 : envs->truncated[row] | (longest >= a->time_limit);
        const uint8_t ends = (terminated | truncated) != 0;
        grid_write_row(a, row, reward, terminated, truncated);
        grid_write_episode(a, row, ends, total, length);
        const int starts_anew = ends && GRID_AGENTS > 1; /* other rows of the environment go on */
        a->length[row] = starts_anew ? 0 : length;
        a->total[row] = starts_anew ? 0 : total;
        if (ends) {
            if (row < GRID_LAST_ROWS) { /* not all rows: each costs two scattered writes */
                a->last_return[row] = total;
                a->last_length[row] = length;
            }
            grid_add_real(&grid_find_sums(a, env / GRID_BLOCK)->total, total);
            GRID_COUNT(&grid_counted.length, length);
            for (int f = 0; a->autoreset == GRID_SAME_STEP && f < GRID_OBSERVATIONS; f++)
                __builtin_memcpy((char *)a->finals[f] + row * GRID_ROW[f],
                                 (char *)envs->observations[f] + row * GRID_ROW[f], GRID_ROW[f]);
            over++;
        }
    }
    if (over != 0)
        GRID_COUNT(&grid_counted.episodes, over);
    if (a->autoreset == GRID_NEXT_STEP || is_reset)
        a->reset[env] = over == GRID_AGENTS; /* always, so that a warp stores its flags together */
    if (a->autoreset == GRID_DISABLED && over == GRID_AGENTS)
        a->over[env] = 1;
    /* `is_reset`: the flag comes from a checkpoint that another mode saved. */
    return a->autoreset == GRID_SAME_STEP && (is_reset || over == GRID_AGENTS);
}

/* ---- Kernels ---- */

/* What the host asks: environments of a thread, threads of a block, bytes of the argument. */
__attribute__((visibility("default"), used))
const uint32_t shoal_facts[] = {GRID_UNIT, GRID_BLOCK, sizeof(shoal_grid)};

GRID_INLINE void grid_use_rows(shoal_envs *envs, grid_rows *rows, uint64_t begin) {
    if (GRID_IS_LOCAL) {
        envs->rewards = rows->rewards - begin * GRID_AGENTS;
        envs->terminated = rows->terminated - begin * GRID_AGENTS;
        envs->truncated = rows->truncated - begin * GRID_AGENTS;
    }
}

GRID_INLINE void grid_clear_rows(const shoal_grid *a, uint64_t env) {
    for (uint64_t row = env * GRID_AGENTS; row < (env + 1) * GRID_AGENTS; row++)
        grid_clear_row(a, row);
}

/* Returns the fault for which an environment cannot be stepped, and records it; 0: none. */
GRID_INLINE uint8_t grid_find_fault(const shoal_grid *a, uint64_t env) {
    uint8_t fault = 0;
    if (a->autoreset == GRID_DISABLED && a->over[env])
        fault = GRID_IS_OVER;
    else if (a->checks != 0 && grid_has_bad_action(a, env))
        fault = GRID_BAD_ACTION;
    if (fault)
        grid_fault(a, env, fault);
    return fault;
}

GRID_INLINE int grid_settle_checked(const shoal_grid *a, shoal_envs *envs, uint64_t env,
                                    const grid_progress *progress, int is_reset) {
    if (!is_reset && (a->checks & GRID_CHECK_NAN) && grid_has_nan(envs, env))
        grid_fault(a, env, GRID_IS_NAN);
    return grid_settle(a, envs, env, progress, is_reset);
}

#if GRID_UNIT == 1
/* Few environments are reset in a step, one or two in nearly every warp. So the threads mark them, and the
 * last threads of the block reset them: one warp runs the plug-in's reset instead of all. If the block has
 * spare threads, they are the last, and reset what ended in the last step while the others step. */
enum { GRID_WARPS = (GRID_BLOCK + GRID_SPARE) / 32 };
GRID_SHARED uint32_t grid_marks[GRID_WARPS]; /* ended in the last step (NEXT_STEP) */
GRID_SHARED uint32_t grid_ended[GRID_WARPS]; /* ends in this step (SAME_STEP) */

GRID_INLINE uint32_t grid_count_marks(GRID_MARKS marks) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < GRID_BLOCK / 32; i++)
        count += (uint32_t)__builtin_popcount(marks[i]);
    return count;
}

/* The thread with the mark number `n`, which exists. */
GRID_INLINE uint32_t grid_find_mark(GRID_MARKS marks, uint32_t n) {
    uint32_t word = 0, mask = marks[0];
    for (uint32_t here; n >= (here = (uint32_t)__builtin_popcount(mask)); n -= here)
        mask = marks[++word];
    for (; n > 0; n--)
        mask &= mask - 1;
    return word * 32 + (uint32_t)__builtin_ctz(mask);
}

/* A step waits for memory several times: for the reset flag, the actions, the instance, the episode. So the
 * threads first load or prefetch all of them. The memory of neighbouring environments is contiguous, so most
 * threads of a warp ask for the same lines. Not for large instances: a step may read a small part of one. */
enum { GRID_LINE = 128, GRID_MOST_LINES = 2 };
GRID_INLINE void grid_prefetch_entry(const void *array, uint64_t bytes, uint64_t env) {
    for (uint64_t at = 0; bytes <= GRID_LINE * GRID_MOST_LINES && at < bytes; at += GRID_LINE)
        grid_prefetch((const char *)array + env * bytes + at);
}

GRID_INLINE void grid_load_env(const shoal_grid *a, uint64_t env, grid_progress *progress) {
    for (int f = 0; f < GRID_ACTIONS; f++)
        grid_prefetch_entry(a->actions[f], GRID_AGENTS * GRID_ACTION[f], env);
    grid_prefetch_entry(a->instances, GRID_INSTANCE_BYTES, env);
    if (GRID_IS_SINGLE) {
        progress->total = a->total[env];
        progress->length = a->length[env];
    } else {
        grid_prefetch_entry(a->total, GRID_AGENTS * sizeof *a->total, env);
        grid_prefetch_entry(a->length, GRID_AGENTS * sizeof *a->length, env);
    }
}

/* Steps one environment, or writes the rows of one that is reset. Returns whether it must be reset in this
 * step. */
GRID_INLINE int grid_step_one(const shoal_grid *a, shoal_envs *envs, uint64_t env,
                              const grid_progress *progress, int is_reset, int *is_stepped) {
    grid_rows rows;
    const uint8_t no_reset[1] = {0};
    grid_use_rows(envs, &rows, env);
    envs->reset = no_reset - env;
    if (!is_reset) {
        if (grid_find_fault(a, env)) {
            grid_clear_rows(a, env);
            grid_observe(a, envs, env);
            return 0;
        }
        for (uint64_t row = env * GRID_AGENTS; row < (env + 1) * GRID_AGENTS; row++)
            envs->truncated[row] = 0;
        shoal_entry.step(envs, env, env + 1);
        *is_stepped = 1;
    }
    return grid_settle_checked(a, envs, env, progress, is_reset);
}

/* Starts a new episode. The rows of results are written by the thread that has the environment. */
GRID_INLINE void grid_reset_one(const shoal_grid *a, shoal_envs *envs, uint64_t env) {
    grid_rows rows;
    grid_use_rows(envs, &rows, env); /* drops what the plug-in writes as results, if rows are few */
    shoal_entry.reset(envs, env, env + 1);
    rows = (grid_rows){0};
    grid_count_up(&a->episode[env]);
    if (a->autoreset != GRID_NEXT_STEP)
        grid_clear_progress(a, env);
    else if (!GRID_IS_LOCAL)
        grid_clear_rows(a, env);
    if ((a->checks & GRID_CHECK_NAN) && grid_has_nan(envs, env))
        grid_fault(a, env, GRID_IS_NAN);
}

/* Whether thread t has an environment of the block that begins with environment `first`. */
GRID_INLINE int grid_has_env(const shoal_grid *a, uint64_t first, uint32_t t) {
    return t < GRID_BLOCK && first + (t >> a->spread) < a->num_envs && t % (1u << a->spread) == 0;
}

/* Loads what a step reads, and marks the environments that ended in the last step. It prefetches nothing for
 * their resets, because that was slower. */
GRID_INLINE void grid_mark_ended(const shoal_grid *a, uint64_t first, uint32_t t, grid_progress *progress) {
    const uint64_t env = first + (t >> a->spread);
    int must_reset = 0;
    if (grid_has_env(a, first, t)) {
        must_reset = a->reset[env];
        grid_load_env(a, env, progress);
    }
    grid_mark(grid_marks, t, must_reset);
}

/* Steps the environment of thread t, unless it is marked. */
GRID_INLINE void grid_step_unmarked(const shoal_grid *a, uint64_t first, uint32_t t,
                                    const grid_progress *progress) {
    int must_reset = 0, is_stepped = 0;
    if (grid_has_env(a, first, t)) {
        const uint64_t env = first + (t >> a->spread);
        GRID_ENVS(a);
        grid_use_tile(observations, first);
        must_reset = grid_step_one(a, &envs, env, progress, grid_marks[t / 32] >> t % 32 & 1, &is_stepped);
    }
    if (a->autoreset == GRID_SAME_STEP)
        grid_mark(grid_ended, t, must_reset);
    const uint32_t stepped = grid_warp_count(is_stepped);
    if (grid_is_warp_first(t))
        GRID_COUNT(&grid_counted.steps, stepped * GRID_AGENTS);
}

/* Resets the marked environment that thread t takes, if it takes one. */
GRID_INLINE void grid_reset_marked(const shoal_grid *a, uint64_t first, uint32_t t) {
    GRID_MARKS marks = a->autoreset == GRID_SAME_STEP ? grid_ended : grid_marks;
    const uint32_t number = (uint32_t)a->threads - 1 - t;
    if (number < grid_count_marks(marks)) {
        GRID_ENVS(a);
        grid_use_tile(observations, first);
        grid_reset_one(a, &envs, first + (grid_find_mark(marks, number) >> a->spread));
    }
}

GRID_KERNEL(shoal_step) {
    const uint64_t most = GRID_BLOCK >> a->spread, first = block * most;
    GRID_OWN(grid_progress, progress);
    GRID_THREADS(t) {
        grid_begin_counts(t);
        grid_mark_ended(a, first, t, GRID_OWN_OF(progress, t));
    }
    GRID_BARRIER;
    GRID_THREADS(t)
    grid_step_unmarked(a, first, t, GRID_OWN_OF(progress, t));
    if (a->autoreset == GRID_SAME_STEP)
        GRID_BARRIER;
    GRID_THREADS(t)
    grid_reset_marked(a, first, t);
    GRID_BARRIER;
    GRID_THREADS(t) {
        grid_copy_tile(a, first, most, t);
        grid_add_counts(grid_find_sums(a, block), t);
    }
}

#else
/* Steps a block of lanes. If one of its environments has a fault, none is stepped. */
GRID_INLINE void grid_step_block(const shoal_grid *a, shoal_envs *envs, uint64_t begin, uint64_t end) {
    grid_rows rows;
    uint8_t flags[GRID_UNIT] = {0}; /* the plug-in reads a copy */
    uint32_t faults = 0;
    grid_use_rows(envs, &rows, begin);
    envs->reset = flags - begin;
    for (uint64_t env = begin; env < end; env++) {
        flags[env - begin] = a->reset[env];
        faults += !a->reset[env] && grid_find_fault(a, env);
        for (uint64_t row = env * GRID_AGENTS; row < (env + 1) * GRID_AGENTS; row++)
            envs->truncated[row] = 0;
    }
    if (faults == 0)
        shoal_entry.step(envs, begin, end);
    for (uint64_t env = begin; env < end; env++) {
        if (faults == 0 && !flags[env - begin]) {
            GRID_COUNT(&grid_counted.steps, GRID_AGENTS);
            if (grid_settle_checked(a, envs, env, 0, 0)) {
                shoal_entry.reset(envs, env, env + 1);
                grid_begin_episode(a, env);
            }
            continue;
        }
        grid_clear_rows(a, env);
        if (faults != 0) {
            grid_observe(a, envs, env);
        } else {
            a->reset[env] = 0;
            grid_begin_episode(a, env);
        }
    }
}

GRID_KERNEL(shoal_step) {
    GRID_THREADS(t)
    grid_begin_counts(t);
    GRID_BARRIER;
    GRID_THREADS(t) {
        const uint64_t begin = ((uint64_t)block * GRID_BLOCK + t) * GRID_UNIT;
        if (begin < a->num_envs) {
            GRID_ENVS(a);
            const uint64_t end = begin + GRID_UNIT < a->num_envs ? begin + GRID_UNIT : a->num_envs;
            grid_step_block(a, &envs, begin, end);
        }
    }
    GRID_BARRIER;
    GRID_THREADS(t)
    grid_add_counts(grid_find_sums(a, block), t);
}
#endif

/* Resets the environments of the mask, after seeding them; the others write their observations again. */
GRID_KERNEL(shoal_reset) {
    const uint64_t first = (uint64_t)block * GRID_BLOCK;
    GRID_THREADS(t) {
        const uint64_t env = first + t;
        if (env < a->num_envs) {
            GRID_ENVS(a);
            grid_use_tile(observations, first);
            for (uint64_t row = env * GRID_AGENTS; row < (env + 1) * GRID_AGENTS; row++)
                grid_clear_row(a, row);
            if (a->mask == 0 || a->mask[env]) {
                if (a->seeds != 0 && a->is_seeded[env])
                    shoal_rng_seed(&a->rng[env], a->seeds[env]);
                shoal_entry.reset(&envs, env, env + 1);
                a->reset[env] = 0;
                a->over[env] = 0;
                grid_begin_episode(a, env);
            } else {
                grid_observe(a, &envs, env);
            }
        }
    }
    GRID_BARRIER;
    GRID_THREADS(t)
    grid_copy_tile(a, first, GRID_BLOCK, t);
}

/* Prepares every environment, as the native backend does: its generator has its number as the seed. */
GRID_KERNEL(shoal_init) {
    GRID_THREADS(t) {
        const uint64_t env = (uint64_t)block * GRID_BLOCK + t;
        if (env < a->num_envs) {
            GRID_ENVS(a);
            shoal_rng_seed(&a->rng[env], env);
            if (shoal_entry.init != 0 && shoal_entry.init(&envs, env) != 0)
                grid_fault(a, env, GRID_INIT_FAILED);
        }
    }
}
