/* Contract 5.0: agents with pointers of their own, options with strings and lists, bfloat16 observations. */
// SPDX-License-Identifier: MIT
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef uint16_t obs_t;
#include "pufferenv.h"

#define OBS_SIZE 2
#define NUM_ATNS 1
#define ACT_SIZES {5}
#define MY_STATE

struct Log {
    float score;
    float n;
};

struct Env {
    Log log;
    Agent agents[4];
    int tag, boundary_reached, num_agents;
    unsigned int rng;
    int tick, limit, first;
    char title[16];
};

static void observe(Env *env) {
    for (int i = 0; i < env->num_agents; i++) {
        env->agents[i].observations[0] = f32_to_bf16((float)env->tick);
        env->agents[i].observations[1] = f32_to_bf16((float)(rand_r(&env->rng) % 64));
        if (env->agents[i].action_mask == NULL) /* as its .ini says, or does not */
            continue;
        memset(env->agents[i].action_mask, 1, 5);
        env->agents[i].action_mask[i] = 0;
    }
}

void puf_init(Env *env, Dict *kwargs) {
    env->num_agents = (int)dict_get(kwargs, "num_agents");
    env->limit = (int)dict_get(kwargs, "limit");
    Dict copy;
    dict_copy(&copy, kwargs);
    DictItem *sizes = dict_find(&copy, "sizes");
    env->first = sizes == NULL || sizes->len == 0 ? 0 : (int)sizes->values[sizes->len - 1];
    snprintf(env->title, sizeof env->title, "%s", dict_get_str(&copy, "title"));
    dict_clear(&copy);
    for (int i = 0; i < env->num_agents && i < 4; i++)
        env->agents[i].action_mask = NULL; /* whoever binds it may say otherwise */
}

void puf_reset(Env *env) {
    env->tick = 0;
    observe(env);
}

void puf_step(Env *env) {
    env->tick++;
    for (int i = 0; i < env->num_agents; i++) {
        *env->agents[i].rewards = *env->agents[i].actions + (float)env->first + (float)strlen(env->title);
        *env->agents[i].terminals = env->tick == env->limit;
    }
    if (env->tick == env->limit) {
        env->log.score += 3;
        env->log.n++;
        puf_reset(env);
        return;
    }
    observe(env);
}

void puf_render(Env *env) { (void)env; }
void puf_close(Env *env) { (void)env; }
void puf_log(Log *log, Dict *out) { dict_set(out, "score", log->score); }

#include <puffer/state.h>
int my_state(void *env, StateField *fields, int max_fields) {
    fields[0] = (StateField){"tick", &((Env *)env)->tick, "int32", 1, {1}, 0};
    return max_fields > 0;
}
