/* Runs a job on one thread or on a pool, whichever has been faster. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_CHOICE_H
#define SHOAL_CHOICE_H

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Measures which way is faster. It tries the other way from time to time, a few jobs in a row (the first ones
 * wake the threads), so rarely that trials cost at most one percent. All zero at the beginning. */
typedef struct shoal_choice {
    double cost_ns[2]; /* moving averages: on one thread, on the pool */
    int preferred;     /* 0: one thread, 1: pool */
    uint32_t trial;    /* jobs left in a trial */
    double trial_ns;   /* time of the trial so far */
    uint64_t next_trial_ns;
    uint32_t unmeasured; /* jobs to run without reading the clock, which is too slow for tiny jobs */
} shoal_choice;

/* Runs parts 0 .. parts - 1, on the pool (which has that many threads) or one after the other. `scale` makes
 * the costs of jobs of different size comparable. */
void shoal_choice_run(shoal_choice *choice, shoal_pool *pool, uint32_t parts, shoal_pool_part part,
                      void *context, double scale);

#ifdef __cplusplus
}
#endif
#endif
