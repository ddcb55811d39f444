#include "four.h"

#define OBS_SIZE 3
#define NUM_ATNS 2
#define ACT_SIZES {4, 3}
#define OBS_TENSOR_T FloatTensor
#define MY_ACTION_MASK 7
#define MY_STATE
#define Env Four
#include "vecenv.h"

void my_init(Env *env, Dict *kwargs) {
    env->num_agents = dict_get(kwargs, "num_agents")->value;
    env->limit = dict_get(kwargs, "limit")->value;
    env->fields = dict_get_unsafe(kwargs, "fields") == NULL ? 2 : dict_get(kwargs, "fields")->value;
    env->kept = dict_get(kwargs, "limit")->key;
}

int my_state(void *e, StateField *fields, int max_fields) {
    Four *env = e;
    if (env->fields > max_fields)
        return env->fields;
    fields[0] = (StateField){"map", env->map, "int8", 2, {2, 3}, PUFF_STATE_ZERO_COPY};
    fields[1] = (StateField){"tick", &env->tick, env->fields == 3 ? "int33" : "int32", 1, {1}, 0};
    return 2;
}

void my_log(Log *log, Dict *out) {
    char name[16] = "score";
    dict_set(out, name, log->score);
    strcpy(name, "n");
    dict_set(out, name, log->n);
}
