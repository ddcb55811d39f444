/* Contract 4.0 in the dialect of before: a type's name for observations, actions of doubles, no generator. */
// SPDX-License-Identifier: MIT
typedef struct Log {
    float score;
    float n;
} Log;

typedef struct Old {
    Log log;
    char *observations;
    double *actions;
    float *rewards, *terminals;
    int num_agents, tick;
} Old;

void c_reset(Old *env) { env->observations[0] = -3; }

void c_step(Old *env) {
    env->observations[1] = (char)-env->actions[0];
    env->terminals[0] = ++env->tick % 3 == 0;
    env->log.n += env->terminals[0];
    env->log.score += 4 * env->terminals[0];
}

void c_render(Old *env) { (void)env; }
void c_close(Old *env) { (void)env; }
