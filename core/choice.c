/* One thread or many: see choice.h. */
// SPDX-License-Identifier: MIT
#include "choice.h"

#include "platform.h"

enum { TRIAL_STEPS = 8, TRIAL_WARM_UP = 2, TRIAL_PAUSE_NS = 10000000, POOL_START_NS = 3000 };

static int choose(shoal_choice *choice, uint64_t now) {
    int worth_it = choice->preferred == 1 || choice->cost_ns[0] > POOL_START_NS;
    if (choice->trial == 0 && now >= choice->next_trial_ns && worth_it) {
        choice->trial = TRIAL_STEPS;
        choice->trial_ns = 0;
        choice->cost_ns[!choice->preferred] = 0;
    }
    return choice->trial != 0 ? !choice->preferred : choice->preferred;
}

static void learn(shoal_choice *choice, double took, uint64_t now) {
    double *usual = &choice->cost_ns[choice->preferred], *other = &choice->cost_ns[!choice->preferred];
    if (choice->trial == 0) {
        *usual += *usual == 0 ? took : (took - *usual) * 0.1;
        return;
    }
    choice->trial--;
    choice->trial_ns += took;
    if (choice->trial < TRIAL_STEPS - TRIAL_WARM_UP)
        *other += took / (TRIAL_STEPS - TRIAL_WARM_UP);
    if (choice->trial != 0 && choice->trial_ns < 20 * TRIAL_STEPS * *usual)
        return;
    /* The trial is over, or it is already far too slow. */
    double loss = choice->trial_ns - TRIAL_STEPS * *usual;
    double pause = loss > 0 ? 100 * loss : 0;
    choice->next_trial_ns = now + (uint64_t)(pause > TRIAL_PAUSE_NS ? pause : TRIAL_PAUSE_NS);
    if (choice->trial == 0 && *other < 0.95 * *usual)
        choice->preferred = !choice->preferred;
    choice->trial = 0;
}

static void run_alone(uint32_t parts, shoal_pool_part part, void *context) {
    for (uint32_t i = 0; i < parts; i++)
        part(context, i);
}

void shoal_choice_run(shoal_choice *choice, shoal_pool *pool, uint32_t parts, shoal_pool_part part,
                      void *context, double scale) {
    if (parts == 1 || choice->unmeasured != 0) {
        choice->unmeasured -= choice->unmeasured != 0;
        run_alone(parts, part, context);
        return;
    }
    const uint64_t begin = shoal_now_ns();
    if (choose(choice, begin))
        shoal_pool_run(pool, part, context);
    else
        run_alone(parts, part, context);
    const uint64_t end = shoal_now_ns();
    learn(choice, (double)(end - begin) * scale, end);
    if (choice->preferred == 0 && choice->trial == 0 && choice->cost_ns[0] < POOL_START_NS)
        choice->unmeasured = 64;
}
