/* The flow: a queue of units, threads that step them, and batches that are filled as units finish. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "flow.h"

#include "grain.h"
#include "rest.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPIN_NS = 20000,         /* recv spins for this time, */
    SLEEP_NS = 50000000,     /* and then sleeps for at most this time at once */
    TAKE_NS = 10000,         /* a thread takes units for about this time, */
    MOST_TAKEN = 1024,       /* at most so many, */
    SCRATCH_BYTES = 1 << 16, /* and at most so many bytes of results, which stay in its core's cache */
    LITTLE_NS = 100000,      /* work below this is left to fewer threads than there are cores, */
    PATIENCE_NS = 200000,    /* unless recv has waited so long for it */
    MEAN_UNITS = 1 << 16,    /* the mean time of a unit is over about so many of the last ones */
    SLOW_NS = 5 * TAKE_NS,   /* units that took so long together are taken one by one the next time */
    SHORT_RUN = 8,           /* runs of fewer units are joined, */
    FEW_UNITS = 64           /* unless the send has fewer than this */
};

typedef struct batch {
    _Alignas(64) shoal_word count; /* of units in it. Writers: threads. Reader: recv */
    shoal_targets targets;         /* writer: add_batch */
    void **observations;
    int64_t *env_ids;
} batch;

typedef struct worker {
    _Alignas(64) shoal_statistics statistics; /* writer: the thread, like all below */
    pthread_t thread;
    shoal_flow *flow;
    shoal_rester rest;
    uint64_t unit_ns; /* mean time of a unit, 0 if it is not known, and the sums that it is made from */
    uint64_t sum_ns, sum_units;
    uint64_t *units; /* taken from the queue */
    int is_alone;    /* no other thread was spinning when it last waited */
    shoal_envs envs; /* the engine's, with the arrays below */
    void **observations;
    char **scratch; /* the rows of each observation field, of `most` units */
    double *rewards;
    uint8_t *flags;
} worker;

struct shoal_flow {
    shoal_engine *engine;
    const shoal_description *description;
    uint64_t lanes, unit, agents, num_units, units_per_batch, num_batches;
    uint64_t most, rows; /* units that a thread takes at once; rows of results that it has room for */
    shoal_grains grains;
    _Atomic(uint64_t) *queue; /* a ring of units; the unit of ticket t is in cell t % num_cells */
    uint64_t num_cells;
    shoal_word *done; /* per unit: it was stepped. Writers: send clears it, the thread that stepped sets it */
    _Atomic(uint8_t) *is_slow; /* per unit: its last step took long. Writer: the thread that stepped it */
    batch *batches;            /* a ring */
    uint64_t sent, added, received, ended_ns, forks;
    uint32_t sends_without_joining;   /* the sender's, see join_runs */
    uint32_t num_workers, num_places; /* workers that run; workers that there is memory for */
    uint32_t num_cpus, most_spinners;
    _Atomic(uint64_t) unit_ns; /* about the mean time of a unit; 0: not known. Writers: threads */
    worker *workers;
    shoal_rest rest;
    _Alignas(64) _Atomic(uint64_t) tail;   /* tickets sent. Writer: send, after filling cells */
    _Alignas(64) _Atomic(uint64_t) head;   /* tickets taken. Writers: threads, compare-and-swap */
    _Alignas(64) _Atomic(uint64_t) places; /* writers: threads, fetch_add */
    _Alignas(64) shoal_word num_slow;      /* units. Writers: threads, rarely */
    _Alignas(64) shoal_word spinners;      /* writers: threads that wait */
    _Alignas(64) shoal_word completed;     /* writers: threads; recv sleeps on it */
    shoal_word awaited;                    /* writer: recv */
    _Alignas(64) shoal_word stop;          /* writer: destroy */
};

static int has_work(const void *context) {
    const shoal_flow *flow = context;
    return atomic_load_explicit(&flow->tail, memory_order_acquire) !=
               atomic_load_explicit(&flow->head, memory_order_relaxed) ||
           atomic_load_explicit(&flow->stop, memory_order_relaxed);
}

static uint32_t count_awake(const shoal_flow *flow) {
    return flow->num_workers - atomic_load_explicit(&flow->rest.sleepers, memory_order_relaxed);
}

/* Waits until there are units. Some threads spin; one core stays free for the caller. */
static void wait_for_units(shoal_flow *flow, worker *self) {
    if (atomic_fetch_add(&flow->spinners, 1) < flow->most_spinners)
        (void)shoal_rest_spin(&flow->rest, &self->rest, has_work, flow);
    self->is_alone = atomic_fetch_sub(&flow->spinners, 1) == 1;
    while (!has_work(flow))
        (void)shoal_rest_sleep(&flow->rest, &self->rest, has_work, flow);
}

/* Whether `waiting` units are so little work that it does not pay off to wake a thread for the last core. */
static int is_little(const shoal_flow *flow, uint64_t waiting) {
    const uint64_t unit_ns = atomic_load_explicit(&flow->unit_ns, memory_order_relaxed);
    return unit_ns != 0 && unit_ns < TAKE_NS && waiting * unit_ns < LITTLE_NS;
}

/* Wakes threads for `waiting` units, which this thread has made visible, or has left in the queue.
 *
 * If a thread spins, it sees the units. Both it and this function change one word by read-modify-write
 * operations, so a thread that counts as spinning here looks for units once more before it sleeps, and calls
 * this function if it leaves some in the queue. For little work, the last core is left to the caller; if one
 * of the units then takes long after all, recv wakes the others. */
static void wake_others(shoal_flow *flow, uint64_t waiting) {
    if (atomic_fetch_add(&flow->spinners, 0) != 0)
        return;
    const uint32_t awake = count_awake(flow);
    const int is_short = is_little(flow, waiting);
    if (!is_short || awake == 0 || awake + 1 < flow->num_cpus)
        shoal_rest_wake(&flow->rest, is_short ? 1 : SHOAL_REST_FAN_OUT);
}

/* How many units to take, if `waiting` are in the queue from ticket `first` on: about TAKE_NS of work, but
 * not more than a fair share. */
static uint32_t count_to_take(const shoal_flow *flow, const worker *self, uint64_t first, uint64_t waiting) {
    if (self->unit_ns == 0)
        return 1;
    if (self->is_alone && waiting <= flow->most && waiting * self->unit_ns < TAKE_NS)
        return (uint32_t)waiting; /* waking another thread would take longer */
    const uint64_t fair = waiting / (4 * (uint64_t)flow->num_places), wanted = TAKE_NS / self->unit_ns;
    const uint64_t most = fair < wanted ? fair : wanted;
    return shoal_grains_take(&flow->grains, first, most < flow->most ? most : flow->most);
}

/* How many of the first units can be taken together: a slow one is taken alone. Otherwise an environment
 * whose steps always take long would delay, step after step, others that are sent together with it. */
static uint32_t count_before_slow(const shoal_flow *flow, const uint64_t *units, uint32_t count) {
    if (atomic_load_explicit(&flow->num_slow, memory_order_relaxed) == 0)
        return count;
    for (uint32_t i = 0; i < count; i++)
        if (atomic_load_explicit(&flow->is_slow[units[i]], memory_order_relaxed))
            return i == 0 ? 1 : i;
    return count;
}

/* Remembers whether units that were stepped together took long. */
static void mark_slow(shoal_flow *flow, const uint64_t *units, uint32_t count, uint64_t took_ns) {
    const uint8_t is_slow = took_ns > SLOW_NS;
    if (!is_slow && atomic_load_explicit(&flow->num_slow, memory_order_relaxed) == 0)
        return;
    for (uint32_t i = 0; i < count; i++)
        if (atomic_load_explicit(&flow->is_slow[units[i]], memory_order_relaxed) != is_slow) {
            atomic_store_explicit(&flow->is_slow[units[i]], is_slow, memory_order_relaxed);
            atomic_fetch_add_explicit(&flow->num_slow, is_slow ? 1 : UINT32_MAX, memory_order_relaxed);
        }
}

/* Waits for units and takes some. Returns how many; 0: the flow ends. */
static uint32_t take_units(shoal_flow *flow, worker *self) {
    uint64_t first = atomic_load_explicit(&flow->head, memory_order_relaxed);
    for (int has_waited = 0;;) {
        if (atomic_load_explicit(&flow->stop, memory_order_relaxed))
            return 0;
        /* Acquire: partner is send, which filled the cells. A thread may load `first` before the others took
         * later tickets, and `tail` after: then the compare-and-swap fails. */
        const uint64_t waiting = atomic_load_explicit(&flow->tail, memory_order_acquire) - first;
        if (waiting == 0 || waiting > flow->num_cells) {
            wait_for_units(flow, self);
            has_waited = 1;
            first = atomic_load_explicit(&flow->head, memory_order_relaxed);
            continue;
        }
        uint32_t count = count_to_take(flow, self, first, waiting);
        for (uint64_t i = 0, cell = first % flow->num_cells; i < count; i++) {
            self->units[i] = atomic_load_explicit(&flow->queue[cell], memory_order_relaxed);
            cell = cell + 1 == flow->num_cells ? 0 : cell + 1;
        }
        count = count_before_slow(flow, self->units, count);
        /* Release: send overwrites these cells only after it has seen this. If it had done so before, then
         * another thread had taken these tickets, and this fails. */
        if (atomic_compare_exchange_weak_explicit(&flow->head, &first, first + count, memory_order_acq_rel,
                                                  memory_order_relaxed)) {
            if (has_waited && waiting > count)
                wake_others(flow, waiting - count);
            return count;
        }
    }
}

/* Sets the worker's array pointers so that the results of environment `first` are written at row `at` of its
 * own memory. */
static void point_at(worker *self, uint64_t first, uint64_t at) {
    const shoal_flow *flow = self->flow;
    const uint64_t row = first * flow->agents - at;
    for (uint64_t f = 0; f < flow->description->observations.count; f++)
        self->observations[f] = (void *)((uintptr_t)self->scratch[f] - row * self->envs.observation_bytes[f]);
    self->envs.rewards = (double *)((uintptr_t)self->rewards - row * sizeof(double));
    self->envs.terminated = (uint8_t *)((uintptr_t)self->flags - row);
    self->envs.truncated = (uint8_t *)((uintptr_t)self->flags + flow->rows - row);
}

/* Steps the units that the worker has taken: adjacent ones by one call, if their blocks have no unused lanes.
 */
static void step_units(worker *self, uint32_t count) {
    const shoal_flow *flow = self->flow;
    for (uint32_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && self->units[end] == self->units[end - 1] + 1; end++)
            if (flow->unit != flow->lanes)
                break;
        const uint64_t first = self->units[i] * flow->lanes;
        point_at(self, first, i * flow->unit * flow->agents);
        shoal_engine_step_range(flow->engine, &self->envs, first, first + (end - i) * flow->unit,
                                &self->statistics);
        /* Before the units are delivered: then they can be sent again, and send clears these words. Release;
         * partner: is_done. */
        for (uint32_t k = i; k < end; k++)
            atomic_store_explicit(&flow->done[self->units[k]], 1, memory_order_release);
    }
}

/* Copies the results of units `begin` .. `end` of the worker to consecutive places of one batch. */
static void copy_results(const worker *self, batch *into, uint64_t place, uint32_t begin, uint32_t end) {
    const shoal_flow *flow = self->flow;
    const uint64_t per_unit = flow->unit * flow->agents;
    const uint64_t from = begin * per_unit, to = place * per_unit, rows = (end - begin) * per_unit;
    for (uint64_t f = 0; f < flow->description->observations.count; f++) {
        const uint64_t bytes = self->envs.observation_bytes[f];
        memcpy((char *)into->observations[f] + to * bytes, self->scratch[f] + from * bytes, rows * bytes);
    }
    memcpy(into->targets.rewards + to, self->rewards + from, rows * sizeof(double));
    memcpy(into->targets.terminated + to, self->flags + from, rows);
    memcpy(into->targets.truncated + to, self->flags + flow->rows + from, rows);
    int64_t *ids = into->env_ids + place * flow->unit;
    for (uint32_t i = begin; i < end; i++)
        for (uint64_t k = 0; k < flow->unit; k++)
            *ids++ = (int64_t)(self->units[i] * flow->unit + k);
}

static void deliver(worker *self, uint32_t count) {
    shoal_flow *flow = self->flow;
    /* Acquire and release; partner: the other threads here. A batch is added before the send that needs it,
     * and among the units that took a place up to these, at least one was sent after that, so its thread
     * has seen the batch. The chain of these operations makes it visible to this thread, too, even if its own
     * units were sent earlier. */
    uint64_t place = atomic_fetch_add_explicit(&flow->places, count, memory_order_acq_rel);
    for (uint32_t i = 0, end; i < count; i = end) {
        const uint64_t in_batch = place % flow->units_per_batch, room = flow->units_per_batch - in_batch;
        batch *into = &flow->batches[place / flow->units_per_batch % flow->num_batches];
        end = count - i < room ? count : i + (uint32_t)room;
        copy_results(self, into, in_batch, i, end);
        place += end - i;
        const uint32_t added = end - i;
        const uint32_t full = atomic_fetch_add_explicit(&into->count, added, memory_order_acq_rel) + added;
        if (full == flow->units_per_batch) {
            atomic_fetch_add(&flow->completed, 1);
            if (atomic_load(&flow->awaited))
                shoal_futex_wake(&flow->completed);
        }
    }
}

/* The mean is over many units, so it includes rare long steps. If these are a large part of the time, the
 * mean is above TAKE_NS, and units are taken one by one: then a long step delays no other unit. */
static void learn_unit_ns(worker *self, uint64_t took_ns, uint32_t count) {
    self->sum_ns += took_ns;
    self->sum_units += count;
    if (self->sum_units > MEAN_UNITS) {
        self->sum_ns /= 2;
        self->sum_units /= 2;
    }
    self->unit_ns = self->sum_ns / self->sum_units + 1;
    /* The shared number changes rarely, so that its line stays in every cache. */
    const uint64_t shared = atomic_load_explicit(&self->flow->unit_ns, memory_order_relaxed);
    if (self->unit_ns > shared + shared / 2 || self->unit_ns < shared / 2)
        atomic_store_explicit(&self->flow->unit_ns, self->unit_ns, memory_order_relaxed);
}

static void *run_worker(void *argument) {
    worker *self = argument;
    for (uint32_t count; (count = take_units(self->flow, self)) != 0;) {
        const uint64_t begin = shoal_now_ns();
        step_units(self, count);
        mark_slow(self->flow, self->units, count, shoal_now_ns() - begin);
        deliver(self, count);
        learn_unit_ns(self, shoal_now_ns() - begin, count);
    }
    return NULL;
}

static int prepare(shoal_flow *flow, worker *self) {
    const shoal_fields *fields = &flow->description->observations;
    const uint64_t rows = flow->rows;
    self->flow = flow;
    self->units = calloc(flow->most, sizeof *self->units);
    self->envs = *shoal_engine_envs(flow->engine);
    self->observations = calloc(fields->count, sizeof *self->observations);
    self->scratch = calloc(fields->count, sizeof *self->scratch);
    self->rewards = calloc(rows, sizeof *self->rewards);
    self->flags = calloc(2, rows);
    if (self->units == NULL || self->observations == NULL || self->scratch == NULL || self->rewards == NULL ||
        self->flags == NULL)
        return -ENOMEM;
    for (uint64_t f = 0; f < fields->count; f++)
        if ((self->scratch[f] = calloc(rows, shoal_field_bytes(&fields->items[f]))) == NULL)
            return -ENOMEM;
    self->envs.observations = self->observations;
    return 0;
}

/* How many units a thread may take, so that their results have at most SCRATCH_BYTES. */
static uint64_t count_units_that_fit(const shoal_flow *flow) {
    uint64_t bytes = sizeof(double) + 2;
    for (uint64_t f = 0; f < flow->description->observations.count; f++)
        bytes += shoal_field_bytes(&flow->description->observations.items[f]);
    const uint64_t fit = SCRATCH_BYTES / (bytes * flow->unit * flow->agents);
    const uint64_t most = fit < 1 ? 1 : fit < MOST_TAKEN ? fit : MOST_TAKEN;
    return most < flow->num_units ? most : flow->num_units;
}

int shoal_flow_create(shoal_engine *engine, const shoal_description *description, uint32_t threads,
                      uint64_t units, uint64_t unit, uint64_t batch_envs, shoal_flow **out) {
    *out = NULL;
    void *memory = NULL;
    if (posix_memalign(&memory, _Alignof(shoal_flow), sizeof(shoal_flow)) != 0)
        return -ENOMEM;
    shoal_flow *flow = memset(memory, 0, sizeof *flow);
    flow->engine = engine;
    flow->description = description;
    flow->lanes = description->spec.lanes;
    flow->agents = description->spec.agents;
    flow->num_units = units;
    flow->unit = unit;
    flow->units_per_batch = batch_envs / unit;
    flow->num_batches = flow->num_units / flow->units_per_batch + 2;
    flow->most = count_units_that_fit(flow);
    flow->rows = (flow->most - 1) * unit * flow->agents + flow->lanes * flow->agents; /* unused lanes, too */
    shoal_grains_choose(&flow->grains, flow->units_per_batch, flow->most);
    flow->num_cpus = shoal_cpu_count();
    flow->most_spinners = threads < flow->num_cpus ? threads : flow->num_cpus - 1;
    shoal_rest_begin(&flow->rest, threads <= flow->num_cpus);
    flow->forks = shoal_fork_count();
    flow->num_cells = 2 * flow->num_units;
    flow->queue = calloc(flow->num_cells, sizeof *flow->queue);
    flow->done = calloc(flow->num_units, sizeof *flow->done);
    flow->is_slow = calloc(flow->num_units, sizeof *flow->is_slow);
    void *batches = NULL, *workers = NULL;
    int error = posix_memalign(&batches, 64, flow->num_batches * sizeof *flow->batches) |
                posix_memalign(&workers, 64, threads * sizeof *flow->workers);
    flow->batches = batches;
    flow->workers = workers;
    flow->num_places = workers == NULL ? 0 : threads;
    if (batches != NULL) /* before anything can fail, because destroy frees what is not NULL */
        memset(batches, 0, flow->num_batches * sizeof *flow->batches);
    if (workers != NULL)
        memset(workers, 0, threads * sizeof *flow->workers);
    if (error != 0 || flow->queue == NULL || flow->done == NULL || flow->is_slow == NULL) {
        shoal_flow_destroy(flow);
        return -ENOMEM;
    }
    for (uint64_t i = 0; i < flow->num_batches && error == 0; i++) {
        flow->batches[i].observations = calloc(description->observations.count, sizeof(void *));
        error = flow->batches[i].observations == NULL ? -ENOMEM : 0;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (uint32_t i = 0; i < threads && error == 0; i++) {
        error = prepare(flow, &flow->workers[i]);
        if (error == 0)
            error = -pthread_create(&flow->workers[i].thread, NULL, run_worker, &flow->workers[i]);
        flow->num_workers += error == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        shoal_flow_destroy(flow);
        return error;
    }
    *out = flow;
    return 0;
}

void shoal_flow_destroy(shoal_flow *flow) {
    if (flow == NULL)
        return;
    atomic_store(&flow->stop, 1);
    if (flow->forks == shoal_fork_count()) {
        shoal_rest_wake(&flow->rest, INT32_MAX);
        for (uint32_t i = 0; i < flow->num_workers; i++)
            pthread_join(flow->workers[i].thread, NULL);
    }
    for (uint32_t i = 0; i < flow->num_places; i++) {
        worker *self = &flow->workers[i];
        for (uint64_t f = 0; self->scratch != NULL && f < flow->description->observations.count; f++)
            free(self->scratch[f]);
        free(self->scratch);
        free(self->units);
        free(self->observations);
        free(self->rewards);
        free(self->flags);
    }
    for (uint64_t i = 0; flow->batches != NULL && i < flow->num_batches; i++)
        free(flow->batches[i].observations);
    free(flow->batches);
    free(flow->workers);
    free(flow->queue);
    free(flow->done);
    free(flow->is_slow);
    free(flow);
}

void shoal_flow_actions(shoal_flow *flow, const void *const *actions) {
    for (uint32_t i = 0; i < flow->num_workers; i++)
        flow->workers[i].envs.actions = actions;
}

uint64_t shoal_flow_batches_needed(const shoal_flow *flow, uint64_t units) {
    uint64_t needed = (flow->sent + units + flow->units_per_batch - 1) / flow->units_per_batch;
    return needed > flow->added ? needed - flow->added : 0;
}

void shoal_flow_add_batch(shoal_flow *flow, const shoal_targets *targets, int64_t *env_ids) {
    batch *next = &flow->batches[flow->added++ % flow->num_batches];
    next->targets = *targets;
    memcpy(next->observations, targets->observations, flow->description->observations.count * sizeof(void *));
    next->env_ids = env_ids;
    atomic_store_explicit(&next->count, 0, memory_order_relaxed); /* released by the next send */
}

static int compare_units(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int has_short_runs(const uint64_t *units, uint64_t count) {
    uint64_t runs = 1;
    for (uint64_t i = 1; i < count; i++)
        runs += units[i] != units[i - 1] + 1;
    return runs > count / SHORT_RUN;
}

/* Batches cut runs of adjacent units if single units come back late (grain.h), and nothing else joins them
 * again. The order within a send has no meaning, so it is made anew when runs have become short. If the user
 * sends units that are not adjacent, this is of no use, and is tried seldom. */
static void join_runs(shoal_flow *flow, uint64_t *units, uint64_t count) {
    if (flow->sends_without_joining != 0) {
        flow->sends_without_joining--;
        return;
    }
    if (count < FEW_UNITS || !has_short_runs(units, count))
        return;
    qsort(units, count, sizeof *units, compare_units);
    flow->sends_without_joining = has_short_runs(units, count) ? 1000 : 0;
}

void shoal_flow_send(shoal_flow *flow, uint64_t *units, uint64_t count) {
    join_runs(flow, units, count);
    if (flow->sent == flow->received * flow->units_per_batch) /* the threads have had no work */
        shoal_rest_learn(&flow->rest, shoal_now_ns() - flow->ended_ns);
    const uint64_t last = flow->sent + count - 1;
    /* Free, unless a thread was preempted while others took a lap of tickets. */
    while (count != 0 && last - atomic_load_explicit(&flow->head, memory_order_acquire) >= flow->num_cells)
        shoal_relax();
    for (uint64_t i = 0, cell = flow->sent % flow->num_cells; i < count; i++) {
        atomic_store_explicit(&flow->done[units[i]], 0, memory_order_relaxed);
        atomic_store_explicit(&flow->queue[cell], units[i], memory_order_relaxed);
        cell = cell + 1 == flow->num_cells ? 0 : cell + 1;
    }
    flow->sent += count;
    /* Releases the units, their actions and the added batches; partner: take_units. */
    atomic_store_explicit(&flow->tail, flow->sent, memory_order_release);
    wake_others(flow, flow->sent - atomic_load_explicit(&flow->head, memory_order_relaxed));
}

int shoal_flow_recv(shoal_flow *flow, uint64_t timeout_ns) {
    batch *oldest = &flow->batches[flow->received % flow->num_batches];
    const uint64_t spin_ns = count_awake(flow) < flow->num_cpus ? SPIN_NS : 0;
    uint64_t begin = shoal_now_ns(), now = begin;
    for (;;) {
        if (atomic_load_explicit(&oldest->count, memory_order_acquire) == flow->units_per_batch) {
            flow->received++;
            flow->ended_ns = now;
            return 1;
        }
        if (now - begin >= timeout_ns)
            return 0;
        const int is_long = now - begin >= PATIENCE_NS;
        if (is_long && has_work(flow))
            shoal_rest_wake(&flow->rest, INT32_MAX);
        if (now - begin >= spin_ns) {
            const uint64_t sleep_ns = is_long ? SLEEP_NS : PATIENCE_NS;
            uint32_t completed = atomic_load(&flow->completed);
            atomic_store(&flow->awaited, 1);
            if (atomic_load(&oldest->count) != flow->units_per_batch)
                shoal_futex_wait(&flow->completed, completed, timeout_ns < sleep_ns ? timeout_ns : sleep_ns);
            atomic_store(&flow->awaited, 0);
        }
        now = shoal_now_ns();
    }
}

int shoal_flow_is_done(const shoal_flow *flow, uint64_t unit) {
    return atomic_load_explicit(&flow->done[unit], memory_order_acquire) != 0;
}

void shoal_flow_await(const shoal_flow *flow, uint64_t unit, uint64_t timeout_ns) {
    for (const uint64_t begin = shoal_now_ns();
         !shoal_flow_is_done(flow, unit) && shoal_now_ns() - begin < timeout_ns;)
        shoal_futex_wait(&flow->done[unit], 0, 100000); /* polls, because no thread wakes this rare wait */
}

uint64_t shoal_flow_under_way(const shoal_flow *flow) {
    return flow->sent - flow->received * flow->units_per_batch;
}

void shoal_flow_statistics(const shoal_flow *flow, shoal_statistics *sum) {
    for (uint32_t i = 0; i < flow->num_workers; i++)
        shoal_statistics_add(sum, &flow->workers[i].statistics);
}
