/* Settling: the work after a plug-in's step, for environments with one agent (engine.c does it for
 * environments with several agents). It updates lengths and returns of episodes, applies the time limit, and
 * lists the environments that ended and that the next step resets.
 *
 *   dense loops   for every row: reward, length, flags
 *   sparse lists  for the few episodes that started or ended */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_SETTLE_H
#define SHOAL_SETTLE_H

#include "engine.h"

enum { SHOAL_SETTLED = 1024, SHOAL_LIST_SLACK = 4 }; /* SETTLED: most environments settled together */

/* The environments, of up to SHOAL_SETTLED, that the next step resets, and a copy of the flags from which the
 * list was made: if other code changes the flags, or if this struct is used for another number of
 * environments, the list is made again. Zeros: none. */
typedef struct shoal_due {
    uint8_t flags[SHOAL_SETTLED];
    uint16_t num_envs, count, list[SHOAL_SETTLED + SHOAL_LIST_SLACK];
} shoal_due;

/* Settles environments begin .. begin + count, which have just been stepped into `to`. Returns how many
 * ended, lists them in `due` and flags them in arrays->reset. */
uint64_t shoal_settle(const shoal_engine_arrays *arrays, const shoal_envs *to, uint64_t begin, uint64_t count,
                      uint32_t time_limit, shoal_due *due, shoal_statistics *statistics);

#endif
