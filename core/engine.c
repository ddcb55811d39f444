/* The engine: divides environments among threads, steps them and updates episodes. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "engine.h"

#include "choice.h"
#include "platform.h"
#include "seed.h"
#include "settle.h"

#include <shoal/ext/observe.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_ENVS = 64 }; /* parts begin at multiples of this: no two threads share a cache line of flags */
typedef struct part {
    _Alignas(64) shoal_statistics statistics; /* writer: the thread of this part */
    uint64_t begin, end, finished;
    shoal_due *due; /* one for each SHOAL_SETTLED environments */
} part;

struct shoal_engine {
    const shoal_entry_v1 *entry;
    const shoal_description *description;
    const shoal_observe_v1 *observe; /* NULL: the plug-in lacks this extension */
    shoal_envs envs;
    shoal_engine_arrays arrays;
    void *const *final_observations;
    uint64_t *observation_bytes, *action_bytes;
    uint64_t agents, ready; /* environments to close */
    uint32_t time_limit;
    enum shoal_autoreset autoreset;
    shoal_pool *pool;
    part *parts;
    shoal_due *due; /* of all parts */
    uint32_t num_parts;
    shoal_choice choice;
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
    engine->due = calloc(num_envs / SHOAL_SETTLED + num_threads, sizeof *engine->due);
    shoal_due *next = engine->due;
    for (uint32_t i = 0; i < num_threads; i++) {
        engine->parts[i].begin = most * i / num_threads * align;
        uint64_t end = most * (i + 1) / num_threads * align;
        engine->parts[i].end = end < num_envs ? end : num_envs;
        engine->parts[i].due = next;
        next += (engine->parts[i].end - engine->parts[i].begin + SHOAL_SETTLED - 1) / SHOAL_SETTLED;
    }
    engine->entry = plugin->entry;
    if (engine->entry->get_extension != NULL)
        engine->observe = engine->entry->get_extension(SHOAL_EXT_OBSERVE);
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
    int error = engine->observation_bytes == NULL || engine->action_bytes == NULL || engine->due == NULL
                    ? -12
                    : shoal_pool_create(num_threads, &engine->pool);
    if (error != 0) {
        snprintf(why->text, sizeof why->text, "cannot start %u threads: %s", num_threads, strerror(-error));
        shoal_engine_destroy(engine);
        return -1;
    }
    for (uint64_t i = 0; i < num_envs; i++) {
        shoal_rng_seed(&arrays->rng[i], i); /* until the user seeds: init may draw numbers, too */
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
    free(engine->due);
    free(engine);
}

shoal_envs *shoal_engine_envs(shoal_engine *engine) { return &engine->envs; }

static void set_targets(shoal_engine *engine, const shoal_targets *targets) {
    engine->final_observations = targets->final_observations;
    engine->envs.observations = targets->observations;
    engine->envs.rewards = targets->rewards;
    engine->envs.terminated = targets->terminated;
    engine->envs.truncated = targets->truncated;
}

static void clear_episode(shoal_engine *engine, uint64_t env) {
    engine->arrays.elapsed[env] = 0;
    engine->arrays.episode[env]++;
    for (uint64_t row = env * engine->agents; row < (env + 1) * engine->agents; row++) {
        engine->arrays.total[row] = 0;
        engine->arrays.length[row] = 0;
    }
}

void shoal_engine_reset(shoal_engine *engine, const uint8_t *mask, const shoal_targets *targets) {
    set_targets(engine, targets);
    for (uint64_t env = 0; env < engine->envs.num_envs; env++) {
        if (mask != NULL && !mask[env])
            continue;
        engine->entry->reset(&engine->envs, env, env + 1);
        engine->arrays.reset[env] = 0;
        clear_episode(engine, env);
    }
}

int shoal_engine_can_observe(const shoal_engine *engine) { return engine->observe != NULL; }

void shoal_engine_observe(shoal_engine *engine, const shoal_targets *targets) {
    set_targets(engine, targets);
    engine->observe->observe(&engine->envs, 0, engine->envs.num_envs);
}

static void finish_row(shoal_engine *engine, uint64_t row, shoal_statistics *statistics) {
    engine->arrays.last_return[row] = engine->arrays.total[row];
    engine->arrays.last_length[row] = engine->arrays.length[row];
    statistics->episodes++;
    statistics->return_sum += engine->arrays.total[row];
    statistics->length_sum += engine->arrays.length[row];
    if (engine->arrays.epoch != NULL)
        shoal_range_add(statistics->ranges, atomic_load_explicit(engine->arrays.epoch, memory_order_relaxed),
                        engine->arrays.total[row], engine->arrays.length[row]);
}

/* SHOAL_SAME_STEP: copies the last observation of an episode before the reset overwrites it. */
static void save_final_observation(shoal_engine *engine, const shoal_envs *envs, uint64_t row) {
    for (uint64_t f = 0; f < engine->description->observations.count; f++) {
        uint64_t bytes = engine->observation_bytes[f];
        memcpy((char *)engine->final_observations[f] + row * bytes,
               (char *)envs->observations[f] + row * bytes, bytes);
    }
}

static void reset_now(shoal_engine *engine, shoal_envs *envs, uint64_t env) {
    engine->entry->reset(envs, env, env + 1);
    clear_episode(engine, env);
}

/* One row per environment. */
static uint64_t settle_rows(shoal_engine *engine, shoal_envs *to, uint64_t begin, uint64_t count,
                            shoal_due *due, shoal_statistics *statistics) {
    uint64_t ended = shoal_settle(&engine->arrays, to, begin, count, engine->time_limit, due, statistics);
    if (engine->autoreset == SHOAL_NEXT_STEP || ended == 0)
        return ended;
    for (uint64_t i = 0; i < ended && engine->autoreset == SHOAL_SAME_STEP; i++) {
        save_final_observation(engine, to, begin + due->list[i]);
        reset_now(engine, to, begin + due->list[i]);
    }
    memset(engine->arrays.reset + begin, 0, count); /* the next step resets none */
    memset(due->flags, 0, count);
    due->count = 0;
    return ended;
}

/* Several rows per environment. If only some rows end, the environment continues. It ends when all of its
 * rows end in the same step, or at the time limit. */
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
            clear_episode(engine, env);
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
                    save_final_observation(engine, to, row);
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

/* Steps and settles SHOAL_SETTLED environments at a time, while their rows are in the cache. `known` belongs
 * to these environments; NULL: nothing is kept from one step to the next. */
static uint64_t step_some(shoal_engine *engine, shoal_envs *envs, uint64_t begin, uint64_t end,
                          shoal_due *known, shoal_statistics *statistics) {
    shoal_due unknown;
    uint64_t agents = engine->agents, lanes = engine->description->spec.lanes, finished = 0;
    uint64_t stride = lanes > SHOAL_SETTLED ? lanes : SHOAL_SETTLED; /* both are powers of two */
    for (uint64_t to; begin < end; begin = to) {
        to = end - begin < stride ? end : begin + stride;
        memset(envs->truncated + begin * agents, 0, (to - begin) * agents);
        engine->entry->step(envs, begin, to);
        if (agents != 1)
            finished += settle_agents(engine, envs, begin, to, statistics);
        for (uint64_t env = begin; agents == 1 && env < to; env += SHOAL_SETTLED) {
            uint64_t count = to - env < SHOAL_SETTLED ? to - env : SHOAL_SETTLED;
            if (known == NULL) {
                memset(unknown.flags, 0, count);
                unknown.count = 0;
            }
            finished += settle_rows(engine, envs, env, count, known == NULL ? &unknown : known++, statistics);
        }
    }
    return finished;
}

uint64_t shoal_engine_step_range(shoal_engine *engine, shoal_envs *envs, uint64_t begin, uint64_t end,
                                 shoal_statistics *statistics) {
    return step_some(engine, envs, begin, end, NULL, statistics);
}

static void part_step(void *context, uint32_t index) {
    shoal_engine *engine = context;
    part *own = &engine->parts[index];
    own->finished = step_some(engine, &engine->envs, own->begin, own->end, own->due, &own->statistics);
}

uint64_t shoal_engine_step(shoal_engine *engine, const void *const *actions, const shoal_targets *targets) {
    set_targets(engine, targets);
    engine->envs.actions = actions;
    shoal_choice_run(&engine->choice, engine->pool, engine->num_parts, part_step, engine, 1);
    uint64_t finished = 0;
    for (uint32_t i = 0; i < engine->num_parts; i++)
        finished += engine->parts[i].finished;
    return finished;
}

void shoal_engine_statistics(const shoal_engine *engine, shoal_statistics *sum) {
    memset(sum, 0, sizeof *sum);
    for (uint32_t i = 0; i < engine->num_parts; i++)
        shoal_statistics_add(sum, &engine->parts[i].statistics);
}

void shoal_statistics_add(shoal_statistics *sum, const shoal_statistics *one) {
    sum->steps += one->steps;
    sum->episodes += one->episodes;
    sum->length_sum += one->length_sum;
    sum->return_sum += one->return_sum;
    shoal_ranges_merge(sum->ranges, one->ranges);
}

void shoal_engine_set_epoch(shoal_engine *engine, const shoal_word *epoch) { engine->arrays.epoch = epoch; }
