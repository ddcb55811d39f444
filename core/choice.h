/* Runs a job on one thread or on a pool, whichever has been faster. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_CHOICE_H
#define SHOAL_CHOICE_H

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Measures which way is faster, and tries the other way from time to time, a few jobs in a row. The first
 * ones are not measured: they wake the threads of a pool, which takes longer than many short jobs.
 *
 * 1. Trials cost at most half a percent: after a trial that lost, the next one comes after 200 times its
 *    loss. The slower jobs that follow a trial, because rows move back to the caches of their threads, count
 *    as a part of the loss. A trial of one thread ends as soon as it is clearly slower. All times are times
 *    of jobs: time that passes between jobs does not count, so rare jobs have rare trials.
 * 2. The pause before the next trial begins at 10 ms. A trial that loses doubles it, up to 80 ms. A switch
 *    within a second of the previous switch doubles it, up to 640 ms. So two ways that are about equal, or a
 *    machine whose load changes, do not make the choice go back and forth.
 * 3. While the pool is used and is not clearly faster than one thread was in its last trial, for example
 *    because other programs use the cores, that trial is repeated soon.
 *
 * All zero at the beginning. */
typedef struct shoal_choice {
    double cost_ns[2];   /* averages: on one thread, on the pool */
    int preferred;       /* 0: one thread, 1: pool */
    uint32_t trial;      /* jobs left to measure in a trial; 0: there is none */
    uint32_t trial_jobs; /* jobs of the trial so far, */
    double trial_ns;     /* their cost, */
    double measured_ns;  /* and the cost of those that were measured */
    double passed_ns;    /* the time that the trial's jobs took: their cost, not scaled */
    double lost_ns;      /* the time that the last trial cost */
    uint32_t recovering; /* jobs after it that still belong to its cost */
    uint64_t worked_ns;  /* total time of all measured jobs; the clock of the next three */
    uint64_t next_trial_ns, tried_ns, switched_ns;
    uint32_t doublings;  /* of the pause */
    uint32_t unmeasured; /* jobs to run without reading the clock, which is too slow for tiny jobs */
    uint64_t trials, switches;
    uint32_t jobs; /* that the average of the preferred way has seen */
} shoal_choice;

/* Runs the job on the pool, or all of it on this thread. `scale` makes the costs of jobs of different size
 * comparable. Returns the sum of what the chunks returned. */
uint64_t shoal_choice_run(shoal_choice *choice, shoal_pool *pool, const shoal_pool_job *job, double scale);

/* Whether the next job runs on the pool. */
static inline int shoal_choice_prefers_pool(const shoal_choice *choice) {
    return (choice->trial != 0) != (choice->preferred != 0);
}

#ifdef __cplusplus
}
#endif
#endif
