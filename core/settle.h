/* What follows a plug-in's step where an environment is one row: lengths and returns of episodes, the time
 * limit, who ended and who is reset next.
 *
 *   dense loops  for what every row needs: reward, length, flags
 *   sparse lists for the few that began or ended */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_SETTLE_H
#define SHOAL_SETTLE_H

#include "engine.h"

enum { SHOAL_SETTLED = 1024, SHOAL_LIST_SLACK = 4 }; /* SETTLED: environments settled together, at most */

/* Which of SHOAL_SETTLED environments the next step resets, and the flags that this was read from: who writes
 * flags need not know of it. Zeros: nobody. */
typedef struct shoal_due {
    uint8_t flags[SHOAL_SETTLED];
    uint16_t count, list[SHOAL_SETTLED + SHOAL_LIST_SLACK];
} shoal_due;

/* Settles environments begin .. begin + count, which have just been stepped into `to`. Returns how many
 * ended: they are listed in `due` and flagged in arrays->reset. */
uint64_t shoal_settle(const shoal_engine_arrays *arrays, const shoal_envs *to, uint64_t begin, uint64_t count,
                      uint32_t time_limit, shoal_due *due, shoal_statistics *statistics);

#endif
