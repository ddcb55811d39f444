/* Several agents against contract 3.0, with float actions, something shared, and a global. */
// SPDX-License-Identifier: MIT
#include <stdlib.h>

typedef struct Log {
    float score;
    float n;
} Log;

typedef struct Herd {
    Log log;
    float *observations, *actions, *rewards;
    unsigned char *terminals;
    int num_agents, tick;
    const float *table;
} Herd;

static int steps_of_all; /* a variable of the whole process */

static void observe(Herd *env) {
    for (int i = 0; i < env->num_agents; i++) {
        env->observations[2 * i] = (float)env->tick;
        env->observations[2 * i + 1] = env->table[i];
    }
}

void c_reset(Herd *env) {
    env->tick = 0;
    observe(env);
}

void c_step(Herd *env) {
    env->tick++;
    steps_of_all++;
    for (int i = 0; i < env->num_agents; i++) {
        env->rewards[i] = env->actions[2 * i] + 10 * env->actions[2 * i + 1];
        env->terminals[i] = env->tick == 5 || (i == 0 && env->tick == 2);
    }
    if (env->tick == 5) {
        env->log.n++;
        env->log.score += 1;
        c_reset(env);
    }
    observe(env);
}

void c_render(Herd *env) { (void)env; }
void c_close(Herd *env) { (void)env; }
