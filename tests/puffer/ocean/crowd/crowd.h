/* Contract 4.0 with environments made together, whose agents have pointers of their own. */
// SPDX-License-Identifier: MIT
#include <assert.h>
#include <stdlib.h>

typedef struct Log {
    float score;
    float n;
} Log;

typedef struct Crowd {
    Log log;
    unsigned char *observations;
    float *actions, *rewards, *terminals;
    int num_agents, number, tick, tag, boundary_reached, is_stepped_with_others;
    unsigned char *obs_ptr[2];
    float *action_ptr[2], *reward_ptr[2], *end_ptr[2];
    int *shared;
} Crowd;

void c_reset(Crowd *env) {
    for (int i = 0; i < env->num_agents; i++)
        env->obs_ptr[i][0] = (unsigned char)(10 * env->number + i);
}

void c_step(Crowd *env) {
    assert(env->is_stepped_with_others);
    ++*env->shared;
    for (int i = 0; i < env->num_agents; i++)
        *env->reward_ptr[i] = *env->action_ptr[i] * 100 + env->obs_ptr[i][0];
    env->log.score += 1; /* one keeps a score for two steps and says so, the others never say so */
    if (env->number > 0 || ++env->tick % 2 != 0)
        return;
    env->log.n += 1;
    for (int i = 0; i < env->num_agents; i++)
        *env->end_ptr[i] = 1;
}

void c_render(Crowd *env) { (void)env; }
void c_close(Crowd *env) { (void)env; }
