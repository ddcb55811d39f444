#include "old.h"

#define OBS_SIZE 2
#define NUM_ATNS 1
#define ACT_SIZES {5}
#define OBS_TYPE CHAR
#define ACT_TYPE DOUBLE
#define Env Old
#include "vecenv.h"

void my_init(Env *env, Dict *kwargs) {
    (void)kwargs;
    env->num_agents = 1;
}

void my_log(Log *log, Dict *out) { dict_set(out, "score", log->score); }
