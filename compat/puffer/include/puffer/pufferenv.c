/* A plug-in of contract 5.0: the environment's own file, named by SHOAL_PUFFER_SOURCE, and behind it the
 * table. */
// SPDX-License-Identifier: MIT
#include <puffer/prelude.h>

#include SHOAL_PUFFER_SOURCE

#include <puffer/pufferenv.h>
#include <puffer/state.h>

#define PUFFER_OBSERVATION_T obs_t
#define PUFFER_ACTION(env) ((float)0)
#define PUFFER_END(env) ((float)0)
#define PUFFER_VECTOR int
#define PUFFER_RESET puf_reset
#define PUFFER_CLEARS /* rewards and ends before a step; with 3.0 some look at what they said last */
#define PUFFER_WIDENS _Generic((obs_t)0, uint16_t: 1, default: 0)
#define PUFFER_STEP_ALL(world)                                                                               \
    for (int number = 0; number < (world)->count; number++)                                                  \
    puf_step(&(world)->envs[number])
#ifdef PUFFER_HAS_RNG
#define PUFFER_SEED(env, seed) ((env)->rng = (seed))
#else
#define PUFFER_SEED(env, seed) ((void)(env), (void)(seed))
#endif

typedef Dict puffer_options;
static int puffer_options_count(const puffer_options *options) { return options->size; }
static const char *puffer_options_name(const puffer_options *options, int i) { return options->items[i].key; }
static double puffer_options_number(const puffer_options *options, int i) { return options->items[i].value; }
static void puffer_options_free(puffer_options *options) {
    if (options != NULL)
        dict_clear(options);
    free(options);
}

static puffer_options *puffer_new_options(void) {
    Dict *dict = (Dict *)calloc(1, sizeof *dict);
    if (dict == NULL)
        puffer_stop("out of memory");
    return dict;
}

static puffer_options *puffer_log(Log *log) {
    puffer_options *out = puffer_new_options();
    puf_log(log, out);
    dict_set(out, "n", log->n);
    return out;
}

#include <puffer/world.h>

#define PUFFER_NEW_OPTIONS() puffer_new_options()
#define PUFFER_FIND dict_find
#define PUFFER_INIT puf_init
#include <puffer/macros.h>

static const char *puffer_make(puffer_world *world, const puffer_settings *s, int seed) {
    world->options = puffer_new_options();
    for (int i = 0; i < s->num_words; i++)
        puffer_ini_set(world->options, s->words[i].name, s->words[i].text);
    return puffer_make_envs(world, s, seed);
}

static void puffer_bind(puffer_world *world, const puffer_settings *s, Env *env, int row) {
    const puffer_buffers *b = &world->buffers;
    const int room = (int)(sizeof env->agents / sizeof env->agents[0]);
    if (env->num_agents > room && room > 1)
        puffer_stop("num_agents is %d where struct Env has room for %d", env->num_agents, room);
    for (int i = 0; s->agents != 0 && i < env->num_agents; i++) {
        const size_t at = (size_t)row + (size_t)i;
        Agent *agent = &env->agents[i];
        agent->observations = (void *)((obs_t *)b->observations + at * OBS_SIZE);
        agent->actions = (float *)b->actions + at * NUM_ATNS;
        agent->rewards = (float *)b->rewards + at;
        agent->terminals = (float *)b->ends + at;
        agent->action_mask = s->mask_bytes == 0 ? NULL : (unsigned char *)world->mask + at * s->mask_bytes;
    }
}

static int puffer_agents(const puffer_settings *s, Env *env) {
    (void)s;
    return env->num_agents;
}

static void puffer_unmake(puffer_world *world) {
    for (int i = 0; i < world->count; i++)
        puf_close(&world->envs[i]);
#ifdef MY_VEC_CLOSE
    my_vec_close(world->envs);
#endif
    puffer_closing = NULL;
    free(world->envs);
}
