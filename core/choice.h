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
 * 1. Trials are rare. One thread is tried again after jobs have taken 200 times the time that its last trial
 *    lost; the pool after 25 times, and when 100 times as much has passed. So trials of one thread cost at
 *    most 0.5 % of the time of jobs; those of the pool 4 %, and 1 % of all time. The first and the second
 *    loss since a switch may be accidents: then these times are 1/16 and 1/4 as long. A trial of one thread
 *    ends as soon as it is clearly slower. Jobs are slow after it, because rows move back to the caches of
 *    their threads; they count as a part of its loss.
 * 2. Two ways that are about equal, or a machine whose load changes, do not make the choice go back and
 *    forth. Before any trial there is a pause of at least 10 ms. A trial that loses doubles it, up to 80 ms,
 *    and so does a switch within a second of the previous one, up to 640 ms.
 * 3. While the pool is used and is not clearly faster than one thread was in its last trial, for example
 *    because other programs use the cores, that trial is repeated soon.
 *
 * All zero at the beginning. */
typedef struct shoal_choice {
    double cost_ns[2];      /* averages: on one thread, on the pool */
    int preferred;          /* 0: one thread, 1: pool */
    uint32_t trial;         /* jobs left to measure in a trial; 0: there is none */
    uint32_t trial_jobs;    /* jobs of the trial so far, */
    double trial_ns;        /* their cost, */
    double measured_ns;     /* and the cost of those that were measured */
    double passed_ns;       /* the time that the trial's jobs took: their cost, not scaled */
    double lost_ns;         /* the time that the last trial cost */
    uint32_t recovering;    /* jobs until a trial may begin; the first ones may belong to its cost */
    uint32_t losses;        /* of trials since the last switch, at most 3 */
    uint32_t doublings;     /* of the pause */
    uint64_t worked_ns;     /* time of jobs since the last trial and the jobs that belong to it, */
    uint64_t least_work_ns; /* and at least until the next one */
    uint64_t pause_ns;      /* at least between the last trial and the next one */
    uint64_t tried_ns, switched_ns;
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
