/* The engine: one plug-in's environments, stepped by a pool, with episode statistics, time limit and
 * autoreset.
 *
 *   step(actions, targets), for each part of the environments, on its thread:
 *
 *     plug-in's step   writes observations, rewards, terminated; resets environments that ended before
 *     settle           updates lengths and returns, applies the time limit, lists episodes that ended
 *
 * All arrays belong to the caller's segment, padded to a multiple of the plug-in's lanes. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_ENGINE_H
#define SHOAL_ENGINE_H

#include "history.h"
#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

enum shoal_autoreset { SHOAL_NEXT_STEP = 0, SHOAL_SAME_STEP = 1, SHOAL_DISABLED = 2 };

/* The state between steps. Writer of an environment's entries: the thread that steps it. */
typedef struct shoal_engine_arrays {
    void *instances;
    shoal_rng *rng;
    uint8_t *reset;          /* per environment: the next step resets it */
    uint32_t *elapsed;       /* per environment: steps of this episode */
    double *total;           /* per row: reward so far of this episode */
    uint32_t *length;        /* per row: steps so far of this episode */
    double *last_return;     /* per row: return of the last finished episode */
    uint32_t *last_length;   /* per row: its length */
    uint32_t *episode;       /* per environment: episodes started */
    const shoal_word *epoch; /* the epoch of the session's history (history.h); NULL: no session */
} shoal_engine_arrays;

/* Where one step's results go. */
typedef struct shoal_targets {
    void *const *observations;
    double *rewards;
    uint8_t *terminated, *truncated;
    void *const *final_observations; /* SHOAL_SAME_STEP: finished rows, before a reset */
} shoal_targets;

typedef struct shoal_statistics {
    uint64_t steps, episodes, length_sum;
    uint64_t odd_returns;  /* episodes whose return is NaN or infinite */
    double return_sum;     /* without these: one of them would be in every later sum */
    shoal_range ranges[2]; /* by epoch % 2 */
} shoal_statistics;

/* Adds `one`, which its thread may be writing. */
void shoal_statistics_add(shoal_statistics *sum, const shoal_statistics *one);

typedef struct shoal_engine shoal_engine;

/* Calls the plug-in's init for every environment. `description` and `values` must outlive the engine. Returns
 * 0, or -1 with `why`. */
int shoal_engine_create(const shoal_plugin *plugin, const shoal_description *description,
                        const shoal_value *values, uint64_t num_envs, uint32_t num_threads,
                        enum shoal_autoreset autoreset, uint64_t time_limit,
                        const shoal_engine_arrays *arrays, shoal_engine **engine, shoal_message *why);
void shoal_engine_destroy(shoal_engine *engine);

/* Resets the environments with a nonzero mask (NULL: all) and writes their observations; other rows are
 * untouched. */
void shoal_engine_reset(shoal_engine *engine, const uint8_t *mask, const shoal_targets *targets);

/* Whether the plug-in can write its observations again (shoal.observe/1), and writing those of every
 * environment again. */
int shoal_engine_can_observe(const shoal_engine *engine);
void shoal_engine_observe(shoal_engine *engine, const shoal_targets *targets);

/* Steps every environment. Returns how many rows finished an episode. The caller has checked and padded
 * `actions`. */
uint64_t shoal_engine_step(shoal_engine *engine, const void *const *actions, const shoal_targets *targets);

/* Steps environments begin .. end of `envs`, whose arrays may be anywhere. For a caller with threads of its
 * own; different ranges may run at the same time. */
uint64_t shoal_engine_step_range(shoal_engine *engine, shoal_envs *envs, uint64_t begin, uint64_t end,
                                 shoal_statistics *statistics);

/* Returns the first row whose action is out of bounds (or NaN, with `check_nan`); -1 if there is none. */
int64_t shoal_engine_bad_action(const shoal_field *field, const void *rows, uint64_t count, int check_nan);

/* Whether every valid action of a field is an integer from 0 to 255 that takes more than one byte; and the
 * actions of such a field as bytes. Returns the first row that is out of bounds, or -1. */
int shoal_engine_actions_fit_bytes(const shoal_field *field);
int64_t shoal_engine_actions_to_bytes(const shoal_field *field, const void *rows, uint64_t count,
                                      uint8_t *bytes);

/* The same for one row per agent of every environment, on several threads if steps run on them. */
int64_t shoal_engine_check_actions(shoal_engine *engine, const shoal_field *field, const void *rows);

/* Statistics have ranges for the epochs of this word from now on. */
void shoal_engine_set_epoch(shoal_engine *engine, const shoal_word *epoch); /* [main] */
void shoal_engine_statistics(const shoal_engine *engine, shoal_statistics *sum);
shoal_envs *shoal_engine_envs(shoal_engine *engine); /* for extensions [main] */

#ifdef __cplusplus
}
#endif
#endif
