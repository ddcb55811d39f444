/* Contract 4.0: floats for actions and ends, a mask, exported state, a generator of its own. */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

typedef struct Log {
    float score;
    float n;
} Log;

typedef struct Four {
    Log log;
    float *observations, *actions, *rewards, *terminals;
    unsigned char *action_mask;
    int num_agents, tick, limit, fields;
    unsigned int rng;
    signed char map[2][3];
    const char *kept; /* an option's name, by pointer */
} Four;

static void observe(Four *env) {
    for (int i = 0; i < env->num_agents; i++) {
        env->observations[3 * i] = (float)env->tick;
        env->observations[3 * i + 1] = (float)(rand_r(&env->rng) % 1000);
        env->observations[3 * i + 2] = env->actions[2 * i];
        memset(env->action_mask + 7 * i, 1, 7);
        env->action_mask[7 * i + env->tick % 7] = 0;
    }
    env->map[0][0] = (signed char)env->tick;
}

void c_reset(Four *env) {
    env->tick = 0;
    observe(env);
}

void c_step(Four *env) {
    env->tick++;
    for (int i = 0; i < env->num_agents; i++)
        env->rewards[i] = env->actions[2 * i] - env->actions[2 * i + 1];
    if (env->tick == env->limit) {
        for (int i = 0; i < env->num_agents; i++)
            env->terminals[i] = 1;
        env->log.score += 2;
        env->log.n++;
        c_reset(env);
        return;
    }
    observe(env);
}

void c_render(Four *env) { (void)env; }
void c_close(Four *env) { (void)env; }
