/* A world: one plug-in instance over environments that allocated themselves, and the plug-in table. Included
 * last by each of the three contracts, which say before how such an environment is made, bound and stepped:
 *
 *   settings (text)  --describe-->  agents and fields
 *   init             --make------>  Env structs of their own making
 *                    --bind------>  pointers into the buffers, in the instance, for their life
 *   step             actions in, step, observations, rewards and ends out
 *
 *   | puffer_world | guard | observations | guard | actions | guard | rewards | guard | ends | guard | mask |
 * ...
 */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_WORLD_H
#define SHOAL_PUFFER_WORLD_H

#include <shoal/env.h>
#include <shoal/ext/observe.h>
#include <shoal/ext/state.h>

enum { PUFFER_TOGETHER = 16, PUFFER_LOGS = 64 };

struct puffer_world {
    /* A cache line of what every step needs. */
    Env *envs; /* of their own making; `count` of them in a row */
    puffer_random random;
    puffer_buffers buffers;
    uint32_t agents;
    uint32_t num_actions;
    int count;
    uint8_t is_fresh;   /* they reset themselves, and were not stepped since */
    uint8_t is_stepped; /* since they were made */
    uint8_t wants_seed; /* they drew numbers, or asked for the seed, when they were made */
    uint8_t tells;      /* the log is wanted */

    void *mask;
    shoal_rng left;          /* the host's generator as it was left: another one is a new seed */
    puffer_options *options; /* theirs too: they may keep pointers into it */
    puffer_guarded guarded;
    PUFFER_VECTOR vector; /* what the contract says of many environments, for the few of this world */
    double log[];         /* the last that was told, if it is told */
};

/* The contract's part. */
static const char *puffer_make(puffer_world *world, const puffer_settings *s, int seed);
static void puffer_bind(puffer_world *world, const puffer_settings *s, Env *env, int row);
static void puffer_unmake(puffer_world *world);
static int puffer_agents(const puffer_settings *s, Env *env);
static const char *puffer_spaces(puffer_settings *s);

#define PUFFER_END_T __typeof__(PUFFER_END((Env *)0))
#define PUFFER_ACTION_T __typeof__(PUFFER_ACTION((Env *)0))

#include <puffer/made.h>

/* ---- Stepped ---- */

#include <puffer/seen.h>

/* memcpy for rows, which are short: no call, and no look at what the processor likes best. */
static inline void puffer_copy(char *to, const char *from, uint64_t bytes) {
    if (bytes >= 1024 || bytes < 16) {
        memcpy(to, from, bytes);
        return;
    }
    uint64_t at = 0;
    for (; at + 16 <= bytes; at += 16)
        memcpy(to + at, from + at, 16);
    memcpy(to + bytes - 16, from + bytes - 16, 16);
}

static void puffer_show(puffer_world *world, shoal_envs *envs, uint64_t row) {
    void *to = SHOAL_OBSERVATION(void, envs, 0, row);
    const uint64_t bytes = world->agents * envs->observation_bytes[0];
    if (PUFFER_WIDENS)
        puffer_widen(to, world->buffers.observations, bytes / sizeof(float));
    else
        puffer_copy(to, world->buffers.observations, bytes);
#ifdef PUFFER_SHOWS_MASK
    memcpy(SHOAL_OBSERVATION(void, envs, 1, row), world->mask, world->agents * envs->observation_bytes[1]);
#endif
}

static void puffer_act(puffer_world *world, const shoal_envs *envs, uint64_t row) {
    PUFFER_ACTION_T *to = world->buffers.actions;
    const uint64_t count = (uint64_t)world->agents * world->num_actions;
    if (envs->action_bytes[0] ==
        world->num_actions * sizeof(float)) { /* numbers; discrete ones have 8 bytes */
        const float *from = SHOAL_ACTION(float, envs, 0, row);
        for (uint64_t i = 0; i < count; i++)
            to[i] = (PUFFER_ACTION_T)from[i];
    } else {
        const int64_t *from = SHOAL_ACTION(int64_t, envs, 0, row);
        for (uint64_t i = 0; i < count; i++)
            to[i] = (PUFFER_ACTION_T)from[i];
    }
}

static void puffer_reset_one(puffer_world *world, shoal_envs *envs, uint64_t env) {
    shoal_rng *rng = &envs->rng[env];
    const int is_seeded = memcmp(&world->left, rng, sizeof *rng) != 0;
    if (is_seeded) {
        const uint64_t seed = shoal_random64(rng);
        if (world->is_stepped || world->wants_seed) {
            puffer_settings s;
            puffer_depopulate(world);
            const char *refusal = puffer_settings_read(&s, envs->options[0].s);
            s.agents = (int)world->agents;
            if (refusal == NULL)
                refusal = puffer_spaces(&s);
            if (refusal == NULL)
                refusal = puffer_populate(world, &s, seed);
            puffer_settings_free(&s);
            if (refusal != NULL)
                puffer_stop("%s", refusal);
        }
        world->random = (puffer_random){.state = seed};
        for (int i = 0; i < world->count; i++)
            PUFFER_SEED(&world->envs[i], (unsigned)(puffer_mixed(seed + (uint64_t)i) >> 33));
        world->left = *rng;
    }
    if (is_seeded || !world->is_fresh) {
        puffer_drawing = &world->random;
        for (int i = 0; i < world->count; i++)
            PUFFER_RESET(&world->envs[i]);
        puffer_drawing = NULL;
    }
    world->is_fresh = 0;
}

static void puffer_step_one(puffer_world *world, const shoal_envs *envs, uint64_t env) {
    const uint64_t agents = world->agents;
    PUFFER_UNUSED float *rewards = world->buffers.rewards;
    PUFFER_UNUSED PUFFER_END_T *ends = world->buffers.ends;
    puffer_act(world, envs, env * agents);
#ifdef PUFFER_CLEARS
    rewards[0] = 0;
    ends[0] = 0;
    if (agents > 1) { /* for one, two calls of memset would take as long as the rest */
        memset(rewards, 0, agents * sizeof *rewards);
        memset(ends, 0, agents * sizeof *ends);
    }
#endif
    puffer_drawing = &world->random;
    PUFFER_STEP_ALL(world);
    world->is_stepped = 1;
}

/* What a step left in the buffers. */
static void puffer_collect(puffer_world *world, shoal_envs *envs, uint64_t env) {
    const uint64_t agents = world->agents, row = env * agents;
    const float *rewards = world->buffers.rewards;
    const PUFFER_END_T *ends = world->buffers.ends;
    uint64_t ended = 0;
    for (uint64_t i = 0; i < agents; i++) {
        envs->rewards[row + i] = rewards[i];
        ended += envs->terminated[row + i] = ends[i] != 0;
    }
    world->is_fresh = ended == agents;
    if (world->tells)
        puffer_tell(world);
}

static void puffer_world_reset(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (uint64_t env = begin; env < end; env++) {
        puffer_world *world = SHOAL_INSTANCE(puffer_world, envs, env);
        puffer_reset_one(world, envs, env);
        puffer_show(world, envs, env * world->agents);
    }
}

/* Some are stepped, then what they wrote is taken: to read at once what was just written, in other pieces,
 * would make the processor wait for each. */
static void puffer_world_step(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (uint64_t first = begin; first < end; first += PUFFER_TOGETHER) {
        const uint64_t last = first + PUFFER_TOGETHER < end ? first + PUFFER_TOGETHER : end;
        for (uint64_t env = first; env < last; env++) {
            puffer_world *world = SHOAL_INSTANCE(puffer_world, envs, env);
            if (env + 2 < end) /* their structs lie anywhere: the next one is on its way meanwhile */
                __builtin_prefetch(SHOAL_INSTANCE(puffer_world, envs, env + 2)->envs);
            if (envs->reset[env])
                puffer_reset_one(world, envs, env);
            else
                puffer_step_one(world, envs, env);
        }
        for (uint64_t env = first; env < last; env++) {
            puffer_world *world = SHOAL_INSTANCE(puffer_world, envs, env);
            puffer_show(world, envs, env * world->agents);
            if (!envs->reset[env])
                puffer_collect(world, envs, env);
        }
    }
    puffer_drawing = NULL;
}

/* The buffers keep what the environments wrote last. */
static void puffer_world_observe(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (uint64_t env = begin; env < end; env++) {
        puffer_world *world = SHOAL_INSTANCE(puffer_world, envs, env);
        puffer_show(world, envs, env * world->agents);
    }
}

/* ---- The table ---- */

static const void *puffer_extension(const char *id) {
    static const shoal_observe_v1 observer = {puffer_world_observe};
    static const shoal_state_v1 state = {puffer_state_fields};
    if (strcmp(id, SHOAL_EXT_OBSERVE) == 0)
        return &observer;
    return strcmp(id, SHOAL_EXT_STATE) == 0 ? &state : NULL;
}

static const char *puffer_describe(const shoal_value *options, shoal_spec *spec) {
    puffer_settings settings, *s = &settings;
    const char *refusal = puffer_settings_read(s, options[0].s);
    if (refusal == NULL)
        refusal = puffer_spaces(s);
    if (refusal == NULL) {
        puffer_guarded unused;
        char *const end = puffer_lay(&unused, s, (char *)NULL + puffer_head_bytes(s->tells), PUFFER_GUARD);
        spec->agents = (uint32_t)s->agents;
        spec->instance_bytes = ((uint64_t)(end - (char *)NULL) + 63) & ~(uint64_t)63;
        spec->add_observation(spec->host, &s->observation);
#ifdef PUFFER_SHOWS_MASK
        spec->add_observation(spec->host, &s->mask);
#endif
        spec->add_action(spec->host, &s->action);
    }
    puffer_settings_free(s);
    return refusal;
}

#ifndef SHOAL_PUFFER_SETTINGS
#define SHOAL_PUFFER_SETTINGS ""
#endif
#ifndef SHOAL_PUFFER_NAME
#define SHOAL_PUFFER_NAME "puffer"
#endif

static const shoal_option puffer_table_options[] = {
    {"settings",
     "spaces and options, as shoal.make_vec(\"puffer:PATH\") resolves them",
     SHOAL_OPTION_STRING,
     0,
     {.s = SHOAL_PUFFER_SETTINGS}}};

const shoal_entry_v1 shoal_entry = {
    SHOAL_ABI_MAJOR, SHOAL_ABI_MINOR, "puffer/" SHOAL_PUFFER_NAME, puffer_table_options, 1,
    puffer_describe, puffer_init,     puffer_world_reset,          puffer_world_step,    puffer_close,
    puffer_extension};

#endif
