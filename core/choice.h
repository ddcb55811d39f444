/* One thread or many, whichever has been cheaper: a pool that also knows when not to be used. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_CHOICE_H
#define SHOAL_CHOICE_H

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which way is cheaper as measured. The other way is tried again now and then, a few jobs in a row (the first
 * wakes the threads up), so seldom that trials cost a percent at most. All zero to begin with. */
typedef struct shoal_choice {
    double cost_ns[2]; /* moving averages: alone, pooled */
    int preferred;     /* 0 alone, 1 pooled */
    uint32_t trial;    /* jobs left of a trial */
    double trial_ns;   /* what it took so far */
    uint64_t next_trial_ns;
    uint32_t unmeasured; /* jobs left before the clock is read: where the pool cannot pay, it would cost */
} shoal_choice;

/* Runs parts 0 .. parts - 1, on the pool (of so many threads) or one after the other. Costs of jobs of
 * different size are made comparable by `scale`. */
void shoal_choice_run(shoal_choice *choice, shoal_pool *pool, uint32_t parts, shoal_pool_part part,
                      void *context, double scale);

#ifdef __cplusplus
}
#endif
#endif
