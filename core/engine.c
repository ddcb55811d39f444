/* The engine: divides environments among threads, steps them and updates episodes. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "engine.h"

#include "action_check.h"
#include "choice.h"
#include "platform.h"
#include "seed.h"
#include "settle.h"

#include <shoal/ext/observe.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With several threads, the environments are divided into chunks, which the pool assigns to threads. Small
 * chunks balance environments of uneven cost, but each costs some tens of nanoseconds. So chunks become
 * larger if one takes less than CHUNK_NS, while every thread still gets one, and smaller again if one takes
 * four times as long. With few chunks, the pool does not balance its parts (balance.h); then a step is so
 * short that waiting for threads takes most of it. */
enum {
    CHUNKS_PER_THREAD = 32,
    CHUNK_NS = 1000,
    VECTOR_CHUNK = 128,   /* least environments of a chunk if the plug-in steps several at once */
    SCALAR_CHUNK = 4,     /* and if it steps one at a time; 1 with several agents */
    CHECK_BYTES = 1 << 17 /* actions are checked by all threads from this size on */
};

/* What one thread writes while it steps a chunk; nobody else touches these lines. */
typedef struct chunk {
    _Alignas(64) shoal_statistics statistics;
    shoal_due due; /* used for the first SHOAL_SETTLED environments or fewer */
} chunk;

/* The arrays of one step, as threads read them. Steps with the same arrays use the same view, so its lines
 * stay in every cache, and a thread needs no line that the caller has just written. */
enum { VIEWS = 8, VIEW_ACTIONS = 4 };
typedef struct view {
    _Alignas(64) shoal_envs envs;
    shoal_engine *engine;
    const void *actions[VIEW_ACTIONS]; /* a copy, if there are so few fields */
} view;

struct shoal_engine {
    shoal_envs envs; /* of the last step; the caller's */
    /* Constant, but for `final_observations`. */
    _Alignas(64) void *const *final_observations;
    const shoal_entry_v1 *entry;
    const shoal_description *description;
    const shoal_observe_v1 *observe; /* NULL: the plug-in lacks this extension */
    uint64_t *observation_bytes, *action_bytes;
    uint64_t agents;
    shoal_engine_arrays arrays;
    uint32_t time_limit;
    enum shoal_autoreset autoreset;
    chunk *chunks;                    /* of steps on several threads */
    uint64_t chunk_envs, least_envs;  /* of a chunk, now and at least. Writer: the caller, between runs */
    uint32_t num_chunks, most_chunks; /* now, and at least_envs environments each */
    uint32_t num_threads;
    shoal_pool *pool;
    /* The caller's, apart from what threads read: it writes these in every step. */
    _Alignas(64) shoal_choice choice;
    shoal_statistics statistics; /* of steps on one thread */
    shoal_due *due;              /* in these steps: one for each SHOAL_SETTLED environments */
    uint64_t ready;              /* environments to close */
    uint32_t next_view;
    view views[VIEWS];
};

static uint64_t *row_bytes(const shoal_fields *fields) {
    uint64_t *bytes = calloc(fields->count, sizeof *bytes);
    for (uint64_t i = 0; bytes != NULL && i < fields->count; i++)
        bytes[i] = shoal_field_bytes(&fields->items[i]);
    return bytes;
}

/* How many environments a chunk has at least: a multiple of the lanes, and at most as many as are settled
 * together (or one block of lanes, if that is more). */
static uint64_t choose_least_envs(const shoal_spec *spec, uint64_t num_envs, uint32_t num_threads) {
    uint64_t least = spec->lanes > 1 ? VECTOR_CHUNK : spec->agents > 1 ? 1 : SCALAR_CHUNK;
    uint64_t envs = num_envs / ((uint64_t)num_threads * CHUNKS_PER_THREAD);
    envs = envs < least ? least : envs > SHOAL_SETTLED ? SHOAL_SETTLED : envs;
    return (envs + spec->lanes - 1) / spec->lanes * spec->lanes;
}

static void set_chunk_envs(shoal_engine *engine, uint64_t num_envs, uint64_t chunk_envs) {
    engine->chunk_envs = chunk_envs;
    engine->num_chunks = (uint32_t)((num_envs + chunk_envs - 1) / chunk_envs);
}

/* Caller, before a run: makes chunks larger or smaller, by what a step has cost on one thread. */
static void adapt_chunks(shoal_engine *engine) {
    const uint64_t num_envs = engine->envs.num_envs;
    const double env_ns = engine->choice.cost_ns[0] / (double)num_envs; /* 0: not measured yet */
    uint64_t envs = engine->chunk_envs;
    while (env_ns != 0 && (double)envs * env_ns < CHUNK_NS && 2 * envs <= SHOAL_SETTLED &&
           2 * envs * engine->num_threads <= num_envs)
        envs *= 2;
    while (envs > engine->least_envs && (double)envs * env_ns > 4 * CHUNK_NS)
        envs /= 2;
    if (envs != engine->chunk_envs) /* threads read it in every run */
        set_chunk_envs(engine, num_envs, envs);
}

static int create_chunks(shoal_engine *engine, uint64_t num_envs, uint32_t num_threads) {
    void *chunks = NULL;
    if (num_envs == 0 || num_threads == 0)
        return -EINVAL;
    engine->num_threads = 1;
    engine->due = calloc(num_envs / SHOAL_SETTLED + 1, sizeof *engine->due);
    if (engine->due == NULL)
        return -ENOMEM;
    engine->least_envs = choose_least_envs(&engine->description->spec, num_envs, num_threads);
    uint64_t count = (num_envs + engine->least_envs - 1) / engine->least_envs;
    if (num_threads == 1 || count < 2 || count > SHOAL_POOL_MOST_CHUNKS)
        return 0;
    if (posix_memalign(&chunks, 64, count * sizeof *engine->chunks) != 0)
        return -ENOMEM;
    engine->chunks = memset(chunks, 0, count * sizeof *engine->chunks);
    engine->most_chunks = (uint32_t)count;
    set_chunk_envs(engine, num_envs, engine->least_envs);
    engine->num_threads = count < num_threads ? (uint32_t)count : num_threads;
    return 0;
}

int shoal_engine_create(const shoal_plugin *plugin, const shoal_description *description,
                        const shoal_value *values, uint64_t num_envs, uint32_t num_threads,
                        enum shoal_autoreset autoreset, uint64_t time_limit,
                        const shoal_engine_arrays *arrays, shoal_engine **out, shoal_message *why) {
    *out = NULL;
    why->text[0] = '\0';
    void *memory = NULL;
    if (posix_memalign(&memory, 64, sizeof(shoal_engine)) != 0) {
        snprintf(why->text, sizeof why->text, "out of memory");
        return -1;
    }
    shoal_engine *engine = memset(memory, 0, sizeof *engine);
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
    int error = engine->observation_bytes == NULL || engine->action_bytes == NULL ? -ENOMEM : 0;
    if (error == 0)
        error = create_chunks(engine, num_envs, num_threads);
    if (error == 0)
        error = shoal_pool_create(engine->num_threads, 1, &engine->pool);
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
    free(engine->chunks);
    free(engine->due);
    free(engine);
}

shoal_envs *shoal_engine_envs(shoal_engine *engine) { return &engine->envs; }

static void set_targets(shoal_engine *engine, const shoal_targets *targets) {
    if (engine->final_observations != targets->final_observations)
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
    if (shoal_is_counted(engine->arrays.total[row]))
        statistics->return_sum += engine->arrays.total[row];
    else
        statistics->odd_returns++;
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
                unknown.num_envs = (uint16_t)count;
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

static uint64_t step_chunk(void *context, uint32_t index) {
    view *view = context;
    shoal_engine *engine = view->engine;
    chunk *own = &engine->chunks[index];
    uint64_t begin = index * engine->chunk_envs, end = begin + engine->chunk_envs;
    end = end < view->envs.num_envs ? end : view->envs.num_envs;
    shoal_due *due = engine->chunk_envs <= SHOAL_SETTLED ? &own->due : NULL;
    return step_some(engine, &view->envs, begin, end, due, &own->statistics);
}

static uint64_t step_all(void *context) {
    view *view = context;
    shoal_engine *engine = view->engine;
    return step_some(engine, &view->envs, 0, view->envs.num_envs, engine->due, &engine->statistics);
}

/* Returns the view of these arrays. No thread reads views between two runs. */
static view *find_view(shoal_engine *engine, const void *const *actions) {
    const uint64_t count = engine->description->actions.count, bytes = count * sizeof *actions;
    const shoal_envs *wanted = &engine->envs;
    for (view *at = engine->views; count <= VIEW_ACTIONS && at < engine->views + VIEWS; at++)
        if (at->envs.rewards == wanted->rewards && at->envs.observations == wanted->observations &&
            at->envs.terminated == wanted->terminated && at->envs.truncated == wanted->truncated &&
            memcmp(at->actions, actions, bytes) == 0)
            return at;
    view *oldest = &engine->views[engine->next_view++ % VIEWS];
    oldest->engine = engine;
    oldest->envs = *wanted;
    if (count <= VIEW_ACTIONS)
        oldest->envs.actions = memcpy(oldest->actions, actions, bytes);
    return oldest;
}

uint64_t shoal_engine_step(shoal_engine *engine, const void *const *actions, const shoal_targets *targets) {
    set_targets(engine, targets);
    engine->envs.actions = actions;
    if (engine->num_threads == 1)
        return step_some(engine, &engine->envs, 0, engine->envs.num_envs, engine->due, &engine->statistics);
    if (engine->choice.unmeasured == 0)
        adapt_chunks(engine);
    const shoal_pool_job job = {.run_chunk = step_chunk,
                                .run_all = step_all,
                                .context = find_view(engine, actions),
                                .chunks = engine->num_chunks,
                                .is_steady = 1};
    return shoal_choice_run(&engine->choice, engine->pool, &job, 1);
}

/* A thread's part of the check has about the rows of its part of the step, which it then finds in its cache.
 */
int64_t shoal_engine_check_actions(shoal_engine *engine, const shoal_field *field, const void *rows) {
    const uint64_t count = engine->envs.num_envs * engine->agents;
    if (!shoal_choice_prefers_pool(&engine->choice) || count * shoal_field_bytes(field) < CHECK_BYTES)
        return shoal_engine_bad_action(field, rows, count, 1);
    const shoal_action_check check = {field, rows, count, engine->chunk_envs * engine->agents, NULL};
    return shoal_action_check_run(&check, engine->pool, engine->num_threads, NULL);
}

int shoal_engine_actions_fit_bytes(const shoal_field *field) {
    if (field->dtype.code == SHOAL_CODE_FLOAT || field->dtype.bits <= 8 || field->kind == SHOAL_BOX)
        return 0;
    for (uint64_t i = 0; i < shoal_field_elements(field); i++)
        if ((field->lows == NULL ? field->low : field->lows[i]) < 0 ||
            (field->highs == NULL ? field->high : field->highs[i]) > UINT8_MAX)
            return 0;
    return 1;
}

void shoal_engine_statistics(const shoal_engine *engine, shoal_statistics *sum) {
    *sum = engine->statistics;
    for (uint32_t i = 0; i < engine->most_chunks; i++)
        shoal_statistics_add(sum, &engine->chunks[i].statistics);
}

void shoal_statistics_add(shoal_statistics *sum, const shoal_statistics *one) {
    sum->steps += one->steps;
    sum->episodes += one->episodes;
    sum->length_sum += one->length_sum;
    sum->odd_returns += one->odd_returns;
    sum->return_sum += one->return_sum;
    shoal_ranges_merge(sum->ranges, one->ranges);
}

void shoal_engine_set_epoch(shoal_engine *engine, const shoal_word *epoch) { engine->arrays.epoch = epoch; }
