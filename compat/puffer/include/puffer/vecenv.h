/* Contract 4.0: a binding.c that says OBS_SIZE, NUM_ATNS, ACT_SIZES, OBS_TENSOR_T and Env, includes this, and
 * defines my_init and my_log over a Dict; with MY_VEC_INIT it makes several environments at once, which are
 * then one world. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_VECENV_H
#define SHOAL_PUFFER_VECENV_H

#include <puffer/settings.h>
#include <puffer/state.h>
#include <puffer/tensor.h>

#include <pthread.h> /* as these have always come with it */
#include <stdatomic.h>

/* Some were never moved on from the names of before 4.0, which are types alone. */
#if defined(OBS_TYPE) && !defined(OBS_TENSOR_T)
PUFFER_TENSOR(puffer_tensor_FLOAT, float);
PUFFER_TENSOR(puffer_tensor_DOUBLE, double);
PUFFER_TENSOR(puffer_tensor_INT, int);
PUFFER_TENSOR(puffer_tensor_CHAR, signed char);
PUFFER_TENSOR(puffer_tensor_UNSIGNED_CHAR, unsigned char);
#define PUFFER_TENSOR_OF(type) puffer_tensor_##type
#define PUFFER_TENSOR_NAMED(type) PUFFER_TENSOR_OF(type)
#define OBS_TENSOR_T PUFFER_TENSOR_NAMED(OBS_TYPE)
#endif
#if !defined(OBS_SIZE) || !defined(NUM_ATNS) || !defined(ACT_SIZES) || !defined(OBS_TENSOR_T)
#error "define OBS_SIZE, NUM_ATNS, ACT_SIZES and OBS_TENSOR_T before vecenv.h is included"
#endif

/* Of a trainer's choice, which here is what the environment itself writes: float, or bfloat16. */
PUFFER_TENSOR(PrecisionTensor, __typeof__(*((Env *)0)->observations));

/* ---- What the environment sees ---- */

typedef struct DictItem {
    const char *key; /* a copy: the caller's may lie on its stack */
    double value;
    void *ptr;
    const char *str_value; /* NULL: a number */
} DictItem;

typedef struct Dict {
    DictItem *items;
    int size, capacity;
} Dict;

static PUFFER_UNUSED Dict *create_dict(int capacity) {
    Dict *dict = (Dict *)calloc(1, sizeof *dict);
    if (dict == NULL || (dict->items = (DictItem *)calloc((size_t)capacity + 1, sizeof *dict->items)) == NULL)
        puffer_stop("out of memory");
    dict->capacity = capacity;
    return dict;
}

static PUFFER_UNUSED DictItem *dict_get_unsafe(Dict *dict, const char *key) {
    for (int i = 0; i < dict->size; i++)
        if (strcmp(dict->items[i].key, key) == 0)
            return &dict->items[i];
    return NULL;
}

static PUFFER_UNUSED DictItem *dict_get(Dict *dict, const char *key) {
    DictItem *item = dict_get_unsafe(dict, key);
    if (item == NULL)
        puffer_stop("it wants the option %s: give it, %s=..., or add it to [env] in its .ini", key, key);
    return item;
}

/* Items stay where they are, as environments may keep pointers to them: so there is room for so many. */
static PUFFER_UNUSED void dict_set(Dict *dict, const char *key, double value) {
    DictItem *item = dict_get_unsafe(dict, key);
    if (item == NULL) {
        if (dict->size == dict->capacity)
            puffer_stop("more than %d items in a Dict; the next is %s", dict->capacity, key);
        item = &dict->items[dict->size++];
        item->key = strdup(key);
    }
    item->value = value;
}

typedef struct StaticVec {
    void *envs;
    int size, total_agents, buffers, agents_per_buffer;
    int *buffer_env_starts, *buffer_env_counts;
    void *observations;
    float *actions, *rewards, *terminals;
    unsigned char *action_mask;
    int *agent_perm; /* NULL: in order */
    int action_mask_size, obs_size, num_atns, gpu;
    int puffer_start, puffer_count; /* of the one buffer */
} StaticVec;

static PUFFER_UNUSED size_t obs_element_size(void) { return sizeof *((OBS_TENSOR_T *)0)->data; }

void my_init(Env *env, Dict *kwargs);
void my_log(Log *log, Dict *out);
Env *my_vec_init(int *num_envs, int *buffer_env_starts, int *buffer_env_counts, Dict *vec_kwargs,
                 Dict *env_kwargs);
void my_vec_close(Env *envs);
void my_setup_perm(StaticVec *vec, Env *env, int slot);
void *my_shared(void *env, Dict *kwargs);
void my_shared_close(void *env);
void *my_get(void *env, Dict *out);
int my_put(void *env, Dict *kwargs);
#ifdef MY_VEC_STEP
void MY_VEC_STEP(StaticVec *vec);
#endif
#ifdef MY_VEC_STEP_RANGE
void MY_VEC_STEP_RANGE(StaticVec *vec, int start, int count, int num_workers);
#endif

/* ---- What a world does with it ---- */

#define PUFFER_OBSERVATION_T __typeof__(*((OBS_TENSOR_T *)0)->data)
#define PUFFER_ACTION(env) (*(env)->actions)
#define PUFFER_END(env) (*(env)->terminals)
#define PUFFER_VECTOR StaticVec
#define PUFFER_RESET c_reset
#define PUFFER_CLEARS /* rewards and ends before a step; with 3.0 some look at what they said last */
#define PUFFER_WIDENS _Generic((PUFFER_OBSERVATION_T)0, uint16_t: 1, default: 0)
#ifdef MY_ACTION_MASK
#define PUFFER_SHOWS_MASK MY_ACTION_MASK
#endif
#ifdef MY_VEC_STEP
#define PUFFER_STEP_ALL(world) MY_VEC_STEP(&(world)->vector)
#elif defined(MY_VEC_STEP_RANGE)
#define PUFFER_STEP_ALL(world) MY_VEC_STEP_RANGE(&(world)->vector, 0, (world)->count, 1)
#else
#define PUFFER_STEP_ALL(world)                                                                               \
    for (int number = 0; number < (world)->count; number++)                                                  \
    c_step(&(world)->envs[number])
#endif
#ifdef PUFFER_HAS_RNG
#define PUFFER_SEED(env, seed) ((env)->rng = (seed))
#else
#define PUFFER_SEED(env, seed) ((void)(env), (void)(seed))
#endif

enum { PUFFER_ITEMS = 1024 };

typedef Dict puffer_options;
static int puffer_options_count(const puffer_options *options) { return options->size; }
static const char *puffer_options_name(const puffer_options *options, int i) { return options->items[i].key; }
static double puffer_options_number(const puffer_options *options, int i) { return options->items[i].value; }
static void puffer_options_free(puffer_options *options) {
    for (int i = 0; options != NULL && i < options->size; i++) {
        free((void *)options->items[i].key);
        free((void *)options->items[i].str_value);
    }
    if (options != NULL)
        free(options->items);
    free(options);
}

static puffer_options *puffer_log(Log *log) {
    puffer_options *out = create_dict(PUFFER_ITEMS);
    my_log(log, out);
    dict_set(out, "n", log->n);
    return out;
}

#include <puffer/world.h>

#define PUFFER_NEW_OPTIONS() create_dict(PUFFER_ITEMS)
#define PUFFER_FIND dict_get_unsafe
#define PUFFER_INIT my_init
#include <puffer/macros.h>

static const char *puffer_make(puffer_world *world, const puffer_settings *s, int seed) {
    world->options = create_dict(PUFFER_ITEMS);
    for (int i = 0; i < s->num_words; i++) {
        dict_set(world->options, s->words[i].name, s->words[i].number);
        if (s->words[i].kind == 's')
            dict_get(world->options, s->words[i].name)->str_value = strdup(s->words[i].text);
    }
    const char *refusal = puffer_make_envs(world, s, seed);
    if (refusal != NULL)
        return refusal;
    world->vector = (StaticVec){.envs = world->envs,
                                .size = world->count,
                                .total_agents = s->agents,
                                .buffers = 1,
                                .agents_per_buffer = s->agents,
                                .observations = world->buffers.observations,
                                .actions = (float *)world->buffers.actions,
                                .rewards = (float *)world->buffers.rewards,
                                .terminals = (float *)world->buffers.ends,
                                .action_mask = (unsigned char *)world->mask,
                                .action_mask_size = (int)s->mask_bytes,
                                .obs_size = OBS_SIZE,
                                .num_atns = NUM_ATNS,
                                .puffer_count = world->count};
    world->vector.buffer_env_starts = &world->vector.puffer_start;
    world->vector.buffer_env_counts = &world->vector.puffer_count;
    return NULL;
}

static void puffer_bind(puffer_world *world, const puffer_settings *s, Env *env, int row) {
    StaticVec *vector = &world->vector;
    if (s->agents == 0)
        return; /* they are only counted */
    env->observations = (void *)((PUFFER_OBSERVATION_T *)vector->observations + (size_t)row * OBS_SIZE);
    env->actions = (void *)((PUFFER_ACTION_T *)world->buffers.actions + (size_t)row * NUM_ATNS);
    env->rewards = (void *)(vector->rewards + row);
    env->terminals = (void *)((PUFFER_END_T *)world->buffers.ends + row);
#ifdef MY_ACTION_MASK
    env->action_mask = vector->action_mask + (size_t)row * MY_ACTION_MASK;
#endif
#ifdef MY_USES_PERM
    my_setup_perm(vector, env, row);
#endif
}

static int puffer_agents(const puffer_settings *s, Env *env) {
    (void)s;
    return env->num_agents;
}

static void puffer_unmake(puffer_world *world) {
    for (int i = 0; i < world->count; i++)
        c_close(&world->envs[i]);
#ifdef MY_VEC_CLOSE
    my_vec_close(world->envs);
#endif
    puffer_closing = NULL;
    free(world->envs);
}

#endif
