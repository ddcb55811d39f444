#include "half.h"

#define OBS_SIZE 3
#define NUM_ATNS 1
#define ACT_SIZES {1}
#define OBS_TENSOR_T PrecisionTensor
#define Env Half
#include "vecenv.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int times;
static void count(void) { atomic_fetch_add(&times, 1); }

void my_init(Env *env, Dict *kwargs) {
    (void)kwargs;
    pthread_once(&once, count);
    env->num_agents = 1;
    env->kept = (float)atomic_load(&times);
    env->read = first_number("resources/half/not_there.txt");
}

void my_log(Log *log, Dict *out) { dict_set(out, "n", log->n); }
