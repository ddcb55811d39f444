#include "crowd.h"

#define OBS_SIZE 1
#define NUM_ATNS 1
#define ACT_SIZES {1}
#define OBS_TENSOR_T ByteTensor
#define MY_VEC_INIT
#define MY_VEC_CLOSE
#define MY_VEC_STEP_RANGE step_some
#define MY_USES_PERM
#define MY_USES_TAGS
#define Env Crowd
#include "vecenv.h"

void my_setup_perm(StaticVec *vec, Env *env, int slot) {
    assert(vec->buffer_env_starts[0] == 0 && vec->buffer_env_counts[0] == vec->size);
    for (int i = 0; i < env->num_agents; i++) {
        const int row = vec->agent_perm != NULL ? vec->agent_perm[slot + i] : slot + i;
        env->obs_ptr[i] = (unsigned char *)vec->observations + row * OBS_SIZE * obs_element_size();
        env->action_ptr[i] = vec->actions + row * NUM_ATNS;
        env->reward_ptr[i] = vec->rewards + row;
        env->end_ptr[i] = vec->terminals + row;
    }
}

void step_some(StaticVec *vec, int start, int count, int num_workers) {
    Crowd *envs = vec->envs;
    for (int i = start; i < start + count && num_workers == 1; i++) {
        envs[i].is_stepped_with_others = 1;
        c_step(&envs[i]);
    }
}

Env *my_vec_init(int *num_envs, int *starts, int *counts, Dict *vec_kwargs, Dict *env_kwargs) {
    const int total = dict_get(vec_kwargs, "total_agents")->value, more = dict_get(env_kwargs, "more")->value;
    *num_envs = more < 0 ? 0 : (total + 1) / 2;
    assert(dict_get(vec_kwargs, "num_frozen_banks")->value == 0); /* nobody else plays */
    Env *envs = calloc(*num_envs, sizeof *envs);
    int *shared = calloc(1, sizeof *shared);
    for (int i = 0; i < *num_envs; i++) {
        envs[i].num_agents = (2 * i + 1 < total ? 2 : 1) + more;
        envs[i].number = i;
        envs[i].shared = shared;
    }
    starts[0] = 0;
    counts[0] = *num_envs;
    return envs;
}

void my_vec_close(Env *envs) { free(envs[0].shared); }
void my_log(Log *log, Dict *out) { dict_set(out, "score", log->score); }
