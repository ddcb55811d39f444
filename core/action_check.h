/* Checks the actions of all environments before a step, on one thread or on a pool.
 *
 *   rows:   | block | block | block | block | ...      a chunk of the job is some whole blocks
 *   bytes:  | b | b | b | b | ...                      if asked for: the same actions as bytes
 *   first bad row: the least one that any thread found
 *
 * Nothing is stepped meanwhile, so a bad action prevents the step of every environment. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_ACTION_CHECK_H
#define SHOAL_ACTION_CHECK_H

#include "choice.h"
#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_action_check {
    const shoal_field *field;
    const void *rows;
    uint64_t num_rows;
    uint64_t block_rows; /* with several threads: a thread's part begins at a multiple of this */
    uint8_t *bytes;      /* NULL, or where to write the actions; the field must fit (engine.h) */
} shoal_action_check;

/* Returns the first row whose action is out of bounds or NaN; -1 if there is none. After a bad row, `bytes`
 * holds the actions of some rows. `choice` decides between one thread and the pool; NULL: the pool. A `pool`
 * of NULL: this thread. */
int64_t shoal_action_check_run(const shoal_action_check *check, shoal_pool *pool, uint32_t num_threads,
                               shoal_choice *choice);

#ifdef __cplusplus
}
#endif
#endif
