/* One thread or many: see choice.h. */
// SPDX-License-Identifier: MIT
#include "choice.h"

#include "platform.h"

enum {
    TRIAL_STEPS = 6,          /* a trial measures so many jobs */
    TRIAL_WARM_UP = 2,        /* before that, it runs so many without measuring them */
    POOL_WARM_UP_NS = 200000, /* and on a pool, jobs for this time: the threads wake up meanwhile */
    HOPELESS_JOBS = 160,      /* a trial of a pool ends when it has cost as much as so many usual jobs, */
    HOPELESS_NS = 5000000,    /* or when it is clearly slower and has lost this time */
    RECOVERY_JOBS = 2,        /* after a trial of one thread; rows move back to the caches of their threads */
    LEARNED_JOBS = 6,         /* at least between two trials, for the average of the usual way */
    TRIAL_PAUSE_NS = 10000000,
    MOST_DOUBLINGS = 6,          /* of the pause between trials, */
    MOST_DOUBLINGS_BY_LOSS = 3,  /* and by trials that lose */
    MOST_LOSSES = 3,             /* so many are counted; see plan_trial */
    OSCILLATION_NS = 1000000000, /* a switch within this time of the last one was a mistake */
    MOST_JOBS = 1024,            /* so many are counted; then LEAST_WEIGHT decides */
    POOL_START_NS = 3000,        /* jobs below this are never worth a pool */
    PAUSE_PER_LOSS = 100,        /* see plan_trial for these three */
    WORK_PER_LOSS_OF_POOL = 25,
    WORK_PER_LOSS_OF_ONE = 200
};
static const double WINDOW_NS = 2e7, LEAST_WEIGHT = 1.0 / 1024, MOST_WEIGHT = 0.1;
static const double CLEARLY = 0.95; /* a way that costs less than this part of the other is clearly faster */

static int choose(shoal_choice *choice, uint64_t now) {
    const int worth_it = choice->preferred == 1 || choice->cost_ns[0] > POOL_START_NS;
    if (choice->trial == 0 && choice->recovering == 0 && now - choice->tried_ns >= choice->pause_ns &&
        choice->worked_ns >= choice->least_work_ns && worth_it) {
        choice->trial = TRIAL_STEPS;
        choice->trial_jobs = 0;
        choice->trial_ns = choice->measured_ns = choice->passed_ns = 0;
        choice->trials++;
    }
    return choice->trial != 0 ? !choice->preferred : choice->preferred;
}

/* The time that a trial has cost so far, compared with usual jobs. */
static double lost_in_trial(const shoal_choice *choice) {
    const double usual = choice->cost_ns[choice->preferred];
    return (1 - choice->trial_jobs * usual / choice->trial_ns) * choice->passed_ns;
}

/* Whether a trial is so slow that its result is known. A pool needs some time to wake its threads. */
static int is_hopeless(const shoal_choice *choice) {
    const double usual = choice->cost_ns[choice->preferred];
    if (choice->preferred == 1)
        return choice->trial_ns > 2 * (choice->trial_jobs + 1) * usual;
    return choice->trial_ns > HOPELESS_JOBS * usual ||
           (choice->trial_ns > 2 * choice->trial_jobs * usual && lost_in_trial(choice) > HOPELESS_NS);
}

/* Sets when the next trial begins: after jobs have taken a time that depends on what the last trial lost, so
 * a program that runs jobs rarely has few trials. This time is shorter for a trial of the pool, which may
 * have lost because of other programs, and these may end; but then more time has to pass as well. The first
 * and the second loss since a switch may be accidents, so then these times are 1/16 and 1/4 as long. */
static void plan_trial(shoal_choice *choice) {
    const double lost_ns = choice->lost_ns > 0 ? choice->lost_ns : 0;
    const double counted_ns = lost_ns / (1 << 2 * (MOST_LOSSES - choice->losses));
    const uint64_t least_ns = (uint64_t)TRIAL_PAUSE_NS << choice->doublings,
                   pause_ns = choice->preferred == 0 ? (uint64_t)(PAUSE_PER_LOSS * counted_ns) : 0;
    choice->pause_ns = pause_ns > least_ns ? pause_ns : least_ns;
    choice->least_work_ns =
        (uint64_t)((choice->preferred == 1 ? WORK_PER_LOSS_OF_ONE : WORK_PER_LOSS_OF_POOL) * counted_ns);
    choice->worked_ns = 0;
}

static void end_trial(shoal_choice *choice, uint64_t now) {
    const double usual = choice->cost_ns[choice->preferred];
    const uint32_t measured = TRIAL_STEPS - choice->trial;
    double *other = &choice->cost_ns[!choice->preferred];
    const double cost =
        measured != 0 ? choice->measured_ns / measured : choice->trial_ns / choice->trial_jobs;
    const int won = choice->trial == 0 && cost < CLEARLY * usual;
    const int soon = choice->switched_ns != 0 && now - choice->switched_ns < OSCILLATION_NS;
    choice->lost_ns = lost_in_trial(choice);
    /* One thread that takes far longer than ever before was probably stopped for a moment. */
    if (choice->preferred == 1 && cost > 2 * *other) {
        choice->lost_ns *= 2 * *other / cost;
        *other *= 2;
    } else {
        *other = cost;
    }
    choice->recovering = LEARNED_JOBS;
    if (won) {
        choice->doublings += soon ? choice->doublings < MOST_DOUBLINGS : -(choice->doublings != 0);
        choice->preferred = !choice->preferred;
        choice->switched_ns = now;
        choice->switches++;
        choice->jobs = TRIAL_STEPS;
        choice->losses = 0;
    } else {
        choice->doublings += choice->doublings < MOST_DOUBLINGS_BY_LOSS;
        choice->losses += choice->losses < MOST_LOSSES;
        choice->recovering += choice->preferred == 1 ? RECOVERY_JOBS : 0;
    }
    choice->tried_ns = now;
    choice->trial = 0;
    plan_trial(choice);
}

/* A job after a trial of one thread: its loss is a part of the trial's cost, but it says nothing about usual
 * jobs. Of a job that was stopped for a moment, only a part counts. */
static void add_recovery(shoal_choice *choice, double took, double passed_ns) {
    const double usual = choice->cost_ns[1], counted = took < 4 * usual ? took : 4 * usual;
    choice->lost_ns += (counted - usual) / took * passed_ns;
    plan_trial(choice);
}

/* A job cost `took`, which is its time `passed_ns`, scaled. */
static void learn(shoal_choice *choice, double took, double passed_ns, uint64_t now) {
    double *usual = &choice->cost_ns[choice->preferred];
    if (choice->trial != 0) {
        const int is_warm = choice->trial_jobs >= TRIAL_WARM_UP &&
                            (choice->preferred == 1 || choice->passed_ns >= POOL_WARM_UP_NS);
        choice->trial_jobs++;
        choice->trial_ns += took;
        choice->passed_ns += passed_ns;
        if (is_warm) {
            choice->trial--;
            choice->measured_ns += took;
        }
        if (choice->trial == 0 || is_hopeless(choice))
            end_trial(choice, now);
        return;
    }
    if (choice->recovering != 0 && choice->recovering-- > LEARNED_JOBS) {
        add_recovery(choice, took, passed_ns);
        return;
    }
    /* A plain mean at first, then one over some tens of milliseconds: other programs take a core away for
     * milliseconds at a time, which is a part of the cost, but one such time must not decide. */
    const double weight = *usual / WINDOW_NS > LEAST_WEIGHT ? *usual / WINDOW_NS : LEAST_WEIGHT;
    choice->jobs += choice->jobs < MOST_JOBS;
    const double first = 1.0 / choice->jobs;
    *usual += (took - *usual) * (first > weight ? first : weight < MOST_WEIGHT ? weight : MOST_WEIGHT);
    if (choice->preferred == 1 && *usual > CLEARLY * choice->cost_ns[0]) {
        if (choice->pause_ns > TRIAL_PAUSE_NS)
            choice->pause_ns = TRIAL_PAUSE_NS;
        if (choice->least_work_ns > TRIAL_PAUSE_NS)
            choice->least_work_ns = TRIAL_PAUSE_NS;
    }
}

uint64_t shoal_choice_run(shoal_choice *choice, shoal_pool *pool, const shoal_pool_job *job, double scale) {
    if (job->chunks == 1 || choice->unmeasured != 0) {
        choice->unmeasured -= choice->unmeasured != 0;
        return job->run_all(job->context);
    }
    const uint64_t begin = shoal_now_ns();
    const uint64_t sum = choose(choice, begin) ? shoal_pool_run(pool, job) : job->run_all(job->context);
    const uint64_t end = shoal_now_ns();
    const double passed_ns = (double)(end - begin);
    choice->worked_ns += end - begin;
    learn(choice, passed_ns * scale, passed_ns, end);
    if (choice->preferred == 0 && choice->trial == 0 && choice->cost_ns[0] < POOL_START_NS)
        choice->unmeasured = 64;
    return sum;
}
