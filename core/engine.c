/* The engine: partition, settle, and the choice between one thread and many. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "engine.h"

#include "platform.h"
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_ENVS = 64 }; /* parts begin at multiples of this: no two threads share a line of flags */

typedef struct part {
    _Alignas(64) shoal_statistics statistics; /* writer: the thread of this part */
    uint64_t begin, end, finished;
} part;

/* Which way of stepping is cheaper, on one thread or on the pool, as measured. The other way is tried again
 * now and then, a few steps in a row (the first wakes the threads up), so seldom that trials cost a percent
 * at most. */
typedef struct choice {
    double cost_ns[2]; /* moving averages: alone, pooled */
    int preferred;     /* 0 alone, 1 pooled */
    uint32_t trial;    /* steps left of a trial */
    double trial_ns;   /* what it took so far */
    uint64_t next_trial_ns;
    uint32_t
        unmeasured; /* steps left before the clock is read again: where the pool cannot pay, it would cost */
} choice;

struct shoal_engine {
    const shoal_entry_v1 *entry;
    const shoal_description *description;
    shoal_envs envs;
    shoal_engine_arrays arrays;
    void *const *final_observations;
    uint64_t *observation_bytes, *action_bytes;
    uint64_t agents, ready; /* environments to close */
    uint32_t time_limit;
    enum shoal_autoreset autoreset;
    shoal_pool *pool;
    part *parts;
    uint32_t num_parts;
    choice choice;
};

static uint64_t *row_bytes(const shoal_fields *fields) {
    uint64_t *bytes = calloc(fields->count, sizeof *bytes);
    for (uint64_t i = 0; bytes != NULL && i < fields->count; i++)
        bytes[i] = shoal_field_bytes(&fields->items[i]);
    return bytes;
}

int shoal_engine_create(const shoal_plugin *plugin, const shoal_description *description,
                        const shoal_value *values, uint64_t num_envs, uint32_t num_threads,
                        enum shoal_autoreset autoreset, uint64_t time_limit,
                        const shoal_engine_arrays *arrays, shoal_engine **out, shoal_message *why) {
    *out = NULL;
    why->text[0] = '\0';
    shoal_engine *engine = calloc(1, sizeof *engine);
    void *parts = NULL;
    uint64_t align = description->spec.lanes > PART_ENVS ? description->spec.lanes : PART_ENVS;
    uint64_t most = (num_envs + align - 1) / align;
    if (num_threads > most)
        num_threads = (uint32_t)most;
    if (engine == NULL || posix_memalign(&parts, 64, num_threads * sizeof *engine->parts) != 0) {
        free(engine);
        snprintf(why->text, sizeof why->text, "out of memory");
        return -1;
    }
    memset(parts, 0, num_threads * sizeof *engine->parts);
    engine->parts = parts;
    engine->num_parts = num_threads;
    for (uint32_t i = 0; i < num_threads; i++) {
        engine->parts[i].begin = most * i / num_threads * align;
        uint64_t end = most * (i + 1) / num_threads * align;
        engine->parts[i].end = end < num_envs ? end : num_envs;
    }
    engine->entry = plugin->entry;
    engine->description = description;
    engine->arrays = *arrays;
    engine->agents = description->spec.agents;
    engine->time_limit = time_limit == 0 ? UINT32_MAX : (uint32_t)time_limit;
    engine->autoreset = autoreset;
    engine->observation_bytes = row_bytes(&description->observations);
    engine->action_bytes = row_bytes(&description->actions);
    engine->envs = (shoal_envs){.num_envs = num_envs,
                                .options = values,
                                .instances = arrays->instances,
                                .instance_bytes = description->spec.instance_bytes,
                                .rng = arrays->rng,
                                .observation_bytes = engine->observation_bytes,
                                .action_bytes = engine->action_bytes,
                                .reset = arrays->reset};
    int error = engine->observation_bytes == NULL || engine->action_bytes == NULL
                    ? -12
                    : shoal_pool_create(num_threads, &engine->pool);
    if (error != 0) {
        snprintf(why->text, sizeof why->text, "cannot start %u threads: %s", num_threads, strerror(-error));
        shoal_engine_destroy(engine);
        return -1;
    }
    for (uint64_t i = 0; i < num_envs; i++) {
        const char *refusal = engine->entry->init == NULL ? NULL : engine->entry->init(&engine->envs, i);
        if (refusal != NULL) {
            snprintf(why->text, sizeof why->text, "environment %llu: %s", (unsigned long long)i, refusal);
            shoal_engine_destroy(engine);
            return -1;
        }
        engine->ready = i + 1;
    }
    *out = engine;
    return 0;
}

void shoal_engine_destroy(shoal_engine *engine) {
    if (engine == NULL)
        return;
    shoal_pool_destroy(engine->pool);
    for (uint64_t i = 0; engine->entry->close != NULL && i < engine->ready; i++)
        engine->entry->close(&engine->envs, i);
    free(engine->observation_bytes);
    free(engine->action_bytes);
    free(engine->parts);
    free(engine);
}

shoal_envs *shoal_engine_envs(shoal_engine *engine) { return &engine->envs; }

static void aim(shoal_engine *engine, const shoal_targets *targets) {
    engine->final_observations = targets->final_observations;
    engine->envs.observations = targets->observations;
    engine->envs.rewards = targets->rewards;
    engine->envs.terminated = targets->terminated;
    engine->envs.truncated = targets->truncated;
}

static void forget_episode(shoal_engine *engine, uint64_t env) {
    engine->arrays.elapsed[env] = 0;
    for (uint64_t row = env * engine->agents; row < (env + 1) * engine->agents; row++) {
        engine->arrays.total[row] = 0;
        engine->arrays.length[row] = 0;
    }
}

void shoal_engine_reset(shoal_engine *engine, const uint8_t *mask, const shoal_targets *targets) {
    aim(engine, targets);
    for (uint64_t env = 0; env < engine->envs.num_envs; env++) {
        if (mask != NULL && !mask[env])
            continue;
        engine->entry->reset(&engine->envs, env, env + 1);
        engine->arrays.reset[env] = 0;
        forget_episode(engine, env);
    }
}

/* Calls `visit(i)` for each nonzero byte of flags[begin, end): most are zero, so eight are looked at at once.
 */
#define EACH_SET(flags, begin, end, i, visit)                                                                \
    for (uint64_t base_ = (begin); base_ < (end);) {                                                         \
        uint64_t word_ = 0, count_ = (end) - base_ < 8 ? (end) - base_ : 8;                                  \
        memcpy(&word_, (flags) + base_, count_);                                                             \
        for (; word_ != 0; word_ &= ~((uint64_t)0xff << (__builtin_ctzll(word_) & ~7))) {                    \
            uint64_t i = base_ + ((uint64_t)__builtin_ctzll(word_) >> 3);                                    \
            visit                                                                                            \
        }                                                                                                    \
        base_ += count_;                                                                                     \
    }

static void finish_row(shoal_engine *engine, uint64_t row, shoal_statistics *statistics) {
    engine->arrays.last_return[row] = engine->arrays.total[row];
    engine->arrays.last_length[row] = engine->arrays.length[row];
    statistics->episodes++;
    statistics->return_sum += engine->arrays.total[row];
    statistics->length_sum += engine->arrays.length[row];
}

/* SHOAL_SAME_STEP: what a row ended with, before a reset may write over it. */
static void keep_final(shoal_engine *engine, const shoal_envs *envs, uint64_t row) {
    for (uint64_t f = 0; f < engine->description->observations.count; f++) {
        uint64_t bytes = engine->observation_bytes[f];
        memcpy((char *)engine->final_observations[f] + row * bytes,
               (char *)envs->observations[f] + row * bytes, bytes);
    }
}

static void reset_now(shoal_engine *engine, shoal_envs *envs, uint64_t env) {
    engine->entry->reset(envs, env, env + 1);
    forget_episode(engine, env);
}

SHOAL_MULTIVERSION
static void count_steps(uint32_t *restrict length, double *restrict total, const double *restrict rewards,
                        uint8_t *restrict truncated, uint32_t limit, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        length[i] += 1;
        total[i] += rewards[i];
    }
    for (uint64_t i = 0; i < count; i++)
        truncated[i] |= length[i] >= limit;
}

SHOAL_MULTIVERSION
static void merge_flags(uint8_t *restrict done, const uint8_t *restrict terminated,
                        const uint8_t *restrict truncated, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        done[i] = terminated[i] | truncated[i];
}

/* One row per environment: dense loops for what every row needs, sparse visits for resets and endings. */
static uint64_t settle_rows(shoal_engine *engine, shoal_envs *to, uint64_t begin, uint64_t end,
                            shoal_statistics *statistics) {
    const shoal_engine_arrays *arrays = &engine->arrays;
    uint64_t count = end - begin, finished = statistics->episodes;
    count_steps(arrays->length + begin, arrays->total + begin, to->rewards + begin, to->truncated + begin,
                engine->time_limit, count);
    statistics->steps += count;
    EACH_SET(arrays->reset, begin, end, env, {
        to->rewards[env] = 0;
        to->terminated[env] = to->truncated[env] = 0;
        forget_episode(engine, env);
        arrays->reset[env] = 0;
        statistics->steps--;
    })
    uint8_t done[PART_ENVS * 16];
    for (uint64_t from = begin; from < end; from += sizeof done) {
        uint64_t some = end - from < sizeof done ? end - from : sizeof done;
        uint8_t *flags = engine->autoreset == SHOAL_NEXT_STEP ? arrays->reset + from : done;
        merge_flags(flags, to->terminated + from, to->truncated + from, some);
        EACH_SET(flags, 0, some, offset, {
            finish_row(engine, from + offset, statistics);
            if (engine->autoreset == SHOAL_SAME_STEP) {
                keep_final(engine, to, from + offset);
                reset_now(engine, to, from + offset);
            }
        })
    }
    return statistics->episodes - finished;
}

/* Several rows per environment. A row that ends alone lives on in its environment; when all rows of an
 * environment end in one step, or its time is up, the environment itself is over. */
static uint64_t settle_agents(shoal_engine *engine, shoal_envs *to, uint64_t begin, uint64_t end,
                              shoal_statistics *statistics) {
    const shoal_engine_arrays *arrays = &engine->arrays;
    uint64_t finished = statistics->episodes, agents = engine->agents;
    for (uint64_t env = begin; env < end; env++) {
        uint64_t first = env * agents, over = 0;
        if (arrays->reset[env]) {
            memset(to->rewards + first, 0, agents * sizeof *to->rewards);
            memset(to->terminated + first, 0, agents);
            memset(to->truncated + first, 0, agents);
            forget_episode(engine, env);
            arrays->reset[env] = 0;
            continue;
        }
        uint8_t late = ++arrays->elapsed[env] >= engine->time_limit;
        for (uint64_t row = first; row < first + agents; row++) {
            arrays->length[row]++;
            arrays->total[row] += to->rewards[row];
            to->truncated[row] |= late;
            if (to->terminated[row] | to->truncated[row]) {
                finish_row(engine, row, statistics);
                arrays->total[row] = 0;
                arrays->length[row] = 0;
                if (engine->autoreset == SHOAL_SAME_STEP)
                    keep_final(engine, to, row);
                over++;
            }
        }
        statistics->steps += agents;
        if (over == agents && engine->autoreset == SHOAL_NEXT_STEP)
            arrays->reset[env] = 1;
        else if (over == agents && engine->autoreset == SHOAL_SAME_STEP)
            reset_now(engine, to, env);
    }
    return statistics->episodes - finished;
}

uint64_t shoal_engine_step_range(shoal_engine *engine, shoal_envs *envs, uint64_t begin, uint64_t end,
                                 shoal_statistics *statistics) {
    uint64_t agents = engine->agents;
    memset(envs->truncated + begin * agents, 0, (end - begin) * agents);
    engine->entry->step(envs, begin, end);
    return agents == 1 ? settle_rows(engine, envs, begin, end, statistics)
                       : settle_agents(engine, envs, begin, end, statistics);
}

static void part_step(void *context, uint32_t index) {
    shoal_engine *engine = context;
    part *own = &engine->parts[index];
    own->finished = shoal_engine_step_range(engine, &engine->envs, own->begin, own->end, &own->statistics);
}

enum { TRIAL_STEPS = 8, TRIAL_WARM_UP = 2, TRIAL_PAUSE_NS = 10000000, HAND_OFF_NS = 3000 };

static int choose(choice *choice, uint64_t now) {
    int worth_it = choice->preferred == 1 || choice->cost_ns[0] > HAND_OFF_NS;
    if (choice->trial == 0 && now >= choice->next_trial_ns && worth_it) {
        choice->trial = TRIAL_STEPS;
        choice->trial_ns = 0;
        choice->cost_ns[!choice->preferred] = 0;
    }
    return choice->trial != 0 ? !choice->preferred : choice->preferred;
}

static void learn(choice *choice, double took, uint64_t now) {
    double *usual = &choice->cost_ns[choice->preferred], *other = &choice->cost_ns[!choice->preferred];
    if (choice->trial == 0) {
        *usual += *usual == 0 ? took : (took - *usual) * 0.1;
        return;
    }
    choice->trial--;
    choice->trial_ns += took;
    if (choice->trial < TRIAL_STEPS - TRIAL_WARM_UP)
        *other += took / (TRIAL_STEPS - TRIAL_WARM_UP);
    if (choice->trial != 0 && choice->trial_ns < 20 * TRIAL_STEPS * *usual)
        return;
    /* Over, or hopeless. */
    double loss = choice->trial_ns - TRIAL_STEPS * *usual;
    double pause = loss > 0 ? 100 * loss : 0;
    choice->next_trial_ns = now + (uint64_t)(pause > TRIAL_PAUSE_NS ? pause : TRIAL_PAUSE_NS);
    if (choice->trial == 0 && *other < 0.95 * *usual)
        choice->preferred = !choice->preferred;
    choice->trial = 0;
}

static void run_parts(shoal_engine *engine) {
    if (engine->num_parts == 1) {
        part_step(engine, 0);
        return;
    }
    choice *choice = &engine->choice;
    if (choice->unmeasured != 0) {
        choice->unmeasured--;
        for (uint32_t i = 0; i < engine->num_parts; i++)
            part_step(engine, i);
        return;
    }
    uint64_t begin = shoal_now_ns();
    if (choose(choice, begin))
        shoal_pool_run(engine->pool, part_step, engine);
    else
        for (uint32_t i = 0; i < engine->num_parts; i++)
            part_step(engine, i);
    uint64_t end = shoal_now_ns();
    learn(choice, (double)(end - begin), end);
    if (choice->preferred == 0 && choice->trial == 0 && choice->cost_ns[0] < HAND_OFF_NS)
        choice->unmeasured = 64;
}

uint64_t shoal_engine_step(shoal_engine *engine, const void *const *actions, const shoal_targets *targets) {
    aim(engine, targets);
    engine->envs.actions = actions;
    run_parts(engine);
    uint64_t finished = 0;
    for (uint32_t i = 0; i < engine->num_parts; i++)
        finished += engine->parts[i].finished;
    return finished;
}

void shoal_engine_statistics(const shoal_engine *engine, shoal_statistics *sum) {
    memset(sum, 0, sizeof *sum);
    for (uint32_t i = 0; i < engine->num_parts; i++) {
        const shoal_statistics *one = &engine->parts[i].statistics;
        sum->steps += one->steps;
        sum->episodes += one->episodes;
        sum->length_sum += one->length_sum;
        sum->return_sum += one->return_sum;
    }
}

/* The dense answer "is any outside?" first; only then which. Bounds per element take the plain way. */
#define OUTSIDE(T)                                                                                           \
    {                                                                                                        \
        const T *values = rows;                                                                              \
        const T low = field->lows == NULL ? (T)field->low : 0;                                               \
        const T high = field->highs == NULL ? (T)field->high : 0;                                            \
        uint64_t bad = field->lows != NULL || field->highs != NULL;                                          \
        for (uint64_t i = 0; i < count * elements && !bad; i += 4096) {                                      \
            uint64_t some = count * elements - i < 4096 ? count * elements - i : 4096;                       \
            for (uint64_t k = i; k < i + some; k++)                                                          \
                bad |= (uint64_t)(values[k] < low) | (uint64_t)(values[k] > high);                           \
        }                                                                                                    \
        for (uint64_t i = 0; bad && i < count * elements; i++) {                                             \
            T least = field->lows == NULL ? low : (T)field->lows[i % elements];                              \
            T most = field->highs == NULL ? high : (T)field->highs[i % elements];                            \
            if (values[i] < least || values[i] > most)                                                       \
                return (int64_t)(i / elements);                                                              \
        }                                                                                                    \
        return -1;                                                                                           \
    }

#define IS_NAN(x) ((x) != (x))
#define IS_NAN_HALF(x) (((x) & 0x7fff) > 0x7c00)
#define NOT_A_NUMBER(T, is_nan)                                                                              \
    {                                                                                                        \
        const T *values = rows;                                                                              \
        uint64_t bad = 0;                                                                                    \
        for (uint64_t i = 0; i < count * elements; i++)                                                      \
            bad |= (uint64_t)is_nan(values[i]);                                                              \
        if (bad)                                                                                             \
            for (uint64_t i = 0; i < count * elements; i++)                                                  \
                if (is_nan(values[i]))                                                                       \
                    return (int64_t)(i / elements);                                                          \
        return -1;                                                                                           \
    }

SHOAL_MULTIVERSION
int64_t shoal_engine_bad_action(const shoal_field *field, const void *rows, uint64_t count, int check_nan) {
    uint64_t elements = shoal_field_elements(field);
    int is_float = field->dtype.code == SHOAL_CODE_FLOAT;
    if (is_float) { /* a Box action beyond its bounds is the environment's to clip, as in Gymnasium */
        if (!check_nan)
            return -1;
        if (field->dtype.bits == 16)
            NOT_A_NUMBER(uint16_t, IS_NAN_HALF)
        if (field->dtype.bits == 32)
            NOT_A_NUMBER(float, IS_NAN)
        NOT_A_NUMBER(double, IS_NAN)
    }
    if (field->kind == SHOAL_BOX)
        return -1;
    int is_signed = field->dtype.code == SHOAL_CODE_INT;
    switch (field->dtype.bits) {
    case 8:
        if (is_signed)
            OUTSIDE(int8_t)
        OUTSIDE(uint8_t)
    case 16:
        if (is_signed)
            OUTSIDE(int16_t)
        OUTSIDE(uint16_t)
    case 32:
        if (is_signed)
            OUTSIDE(int32_t)
        OUTSIDE(uint32_t)
    default:
        if (is_signed)
            OUTSIDE(int64_t)
        OUTSIDE(uint64_t)
    }
}
