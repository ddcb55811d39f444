/* The flow: a queue of units, threads that step them, and batches that are filled as units finish. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "flow.h"

#include "rest.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { SPIN_NS = 20000, SLEEP_NS = 50000000, MOST_TAKEN = 8 }; /* the first two are recv's */

typedef struct batch {
    _Alignas(64) shoal_word count; /* writers: threads, one per unit placed. Reader: recv */
    shoal_targets targets;         /* writer: add_batch */
    void **observations;
    int64_t *env_ids;
} batch;

typedef struct worker {
    _Alignas(64) shoal_statistics statistics; /* writer: the thread */
    pthread_t thread;
    shoal_flow *flow;
    shoal_rester rest;
    shoal_envs envs; /* the engine's, with the arrays below */
    void **observations;
    char **scratch; /* one unit's rows of each observation field */
    double *rewards;
    uint8_t *flags;
} worker;

struct shoal_flow {
    shoal_engine *engine;
    const shoal_description *description;
    uint64_t lanes, unit, agents, num_units, units_per_batch, num_batches;
    _Atomic(uint64_t) *queue; /* a ring of units; the unit of ticket t is in cell t % num_cells */
    uint64_t num_cells;
    shoal_word *done; /* per unit: it was stepped. Writers: send clears it, the thread that stepped sets it */
    batch *batches;   /* a ring */
    uint64_t sent, added, received, ended_ns, forks;
    uint32_t num_workers, num_places, spin_ns; /* workers that run; workers that there is memory for */
    worker *workers;
    shoal_rest rest;
    _Alignas(64) _Atomic(uint64_t) tail;   /* tickets sent. Writer: send, after filling cells */
    _Alignas(64) _Atomic(uint64_t) head;   /* tickets taken. Writers: threads, compare-and-swap */
    _Alignas(64) _Atomic(uint64_t) places; /* writers: threads, fetch_add */
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

/* Waits for units and takes some: one, or several if many wait, because all threads change the same word.
 * Returns how many; 0: the flow ends. */
static uint32_t take_units(shoal_flow *flow, shoal_rester *rest, uint64_t units[MOST_TAKEN]) {
    uint64_t first = atomic_load_explicit(&flow->head, memory_order_relaxed);
    for (;;) {
        if (atomic_load_explicit(&flow->stop, memory_order_relaxed))
            return 0;
        /* Acquire: partner is send, which filled the cells. A thread may load `first` before the others took
         * later tickets, and `tail` after: then the compare-and-swap fails. */
        const uint64_t waiting = atomic_load_explicit(&flow->tail, memory_order_acquire) - first;
        if (waiting == 0 || waiting > flow->num_cells) {
            shoal_rest_wait(&flow->rest, rest, has_work, flow);
            first = atomic_load_explicit(&flow->head, memory_order_relaxed);
            continue;
        }
        const uint64_t fair = waiting / (4 * (uint64_t)flow->num_places);
        const uint32_t count = fair < 1 ? 1 : fair < MOST_TAKEN ? (uint32_t)fair : MOST_TAKEN;
        for (uint32_t i = 0; i < count; i++)
            units[i] =
                atomic_load_explicit(&flow->queue[(first + i) % flow->num_cells], memory_order_relaxed);
        /* Release: send overwrites these cells only after it has seen this. If it had done so before, then
         * another thread had taken these tickets, and this fails. */
        if (atomic_compare_exchange_weak_explicit(&flow->head, &first, first + count, memory_order_acq_rel,
                                                  memory_order_relaxed))
            return count;
    }
}

/* Sets the worker's array pointers so that environment `first` is at the start of its own memory. */
static void point_at(worker *self, uint64_t first) {
    const shoal_flow *flow = self->flow;
    uint64_t row = first * flow->agents;
    for (uint64_t f = 0; f < flow->description->observations.count; f++)
        self->observations[f] = (void *)((uintptr_t)self->scratch[f] - row * self->envs.observation_bytes[f]);
    self->envs.rewards = (double *)((uintptr_t)self->rewards - row * sizeof(double));
    self->envs.terminated = (uint8_t *)((uintptr_t)self->flags - row);
    self->envs.truncated = (uint8_t *)((uintptr_t)self->flags + flow->lanes * flow->agents - row);
}

static void deliver(worker *self, uint64_t unit) {
    shoal_flow *flow = self->flow;
    /* Acquire and release; partner: the other threads here. A batch is added before the send that needs it,
     * and among the units that took a place up to this one, at least one was sent after that, so its thread
     * has seen the batch. The chain of these operations makes it visible to this thread, too, even if its own
     * unit was sent earlier. */
    uint64_t place = atomic_fetch_add_explicit(&flow->places, 1, memory_order_acq_rel);
    batch *into = &flow->batches[place / flow->units_per_batch % flow->num_batches];
    uint64_t env = place % flow->units_per_batch * flow->unit;
    uint64_t row = env * flow->agents, rows = flow->unit * flow->agents;
    for (uint64_t f = 0; f < flow->description->observations.count; f++) {
        uint64_t bytes = self->envs.observation_bytes[f];
        memcpy((char *)into->observations[f] + row * bytes, self->scratch[f], rows * bytes);
    }
    memcpy(into->targets.rewards + row, self->rewards, rows * sizeof(double));
    memcpy(into->targets.terminated + row, self->flags, rows);
    memcpy(into->targets.truncated + row, self->flags + flow->lanes * flow->agents, rows);
    for (uint64_t i = 0; i < flow->unit; i++)
        into->env_ids[env + i] = (int64_t)(unit * flow->unit + i);
    uint32_t count = atomic_fetch_add_explicit(&into->count, 1, memory_order_acq_rel) + 1;
    if (count == flow->units_per_batch) {
        atomic_fetch_add(&flow->completed, 1);
        if (atomic_load(&flow->awaited))
            shoal_futex_wake(&flow->completed);
    }
}

static void *run_worker(void *argument) {
    worker *self = argument;
    shoal_flow *flow = self->flow;
    uint64_t units[MOST_TAKEN];
    for (uint32_t count; (count = take_units(flow, &self->rest, units)) != 0;)
        for (uint32_t i = 0; i < count; i++) {
            const uint64_t unit = units[i], first = unit * flow->lanes;
            point_at(self, first);
            shoal_engine_step_range(flow->engine, &self->envs, first, first + flow->unit, &self->statistics);
            deliver(self, unit);
            atomic_store_explicit(&flow->done[unit], 1, memory_order_release); /* partner: is_done */
        }
    return NULL;
}

static int prepare(shoal_flow *flow, worker *self) {
    const shoal_fields *fields = &flow->description->observations;
    uint64_t rows = flow->lanes * flow->agents;
    self->flow = flow;
    self->envs = *shoal_engine_envs(flow->engine);
    self->observations = calloc(fields->count, sizeof *self->observations);
    self->scratch = calloc(fields->count, sizeof *self->scratch);
    self->rewards = calloc(rows, sizeof *self->rewards);
    self->flags = calloc(2, rows);
    if (self->observations == NULL || self->scratch == NULL || self->rewards == NULL || self->flags == NULL)
        return -ENOMEM;
    for (uint64_t f = 0; f < fields->count; f++)
        if ((self->scratch[f] = calloc(rows, shoal_field_bytes(&fields->items[f]))) == NULL)
            return -ENOMEM;
    self->envs.observations = self->observations;
    return 0;
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
    flow->spin_ns = threads < shoal_cpu_count() ? SPIN_NS : 0;
    shoal_rest_begin(&flow->rest, threads <= shoal_cpu_count());
    flow->forks = shoal_fork_count();
    flow->num_cells = 2 * flow->num_units;
    flow->queue = calloc(flow->num_cells, sizeof *flow->queue);
    flow->done = calloc(flow->num_units, sizeof *flow->done);
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
    if (error != 0 || flow->queue == NULL || flow->done == NULL) {
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
        shoal_rest_wake(&flow->rest);
        for (uint32_t i = 0; i < flow->num_workers; i++)
            pthread_join(flow->workers[i].thread, NULL);
    }
    for (uint32_t i = 0; i < flow->num_places; i++) {
        worker *self = &flow->workers[i];
        for (uint64_t f = 0; self->scratch != NULL && f < flow->description->observations.count; f++)
            free(self->scratch[f]);
        free(self->scratch);
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

void shoal_flow_send(shoal_flow *flow, const uint64_t *units, uint64_t count) {
    if (flow->sent == flow->received * flow->units_per_batch) /* the threads have had no work */
        shoal_rest_learn(&flow->rest, shoal_now_ns() - flow->ended_ns);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t ticket = flow->sent++;
        /* Free, unless a thread was preempted while others took a lap of tickets. */
        while (ticket - atomic_load_explicit(&flow->head, memory_order_acquire) >= flow->num_cells)
            shoal_relax();
        atomic_store_explicit(&flow->done[units[i]], 0, memory_order_relaxed);
        atomic_store_explicit(&flow->queue[ticket % flow->num_cells], units[i], memory_order_relaxed);
    }
    /* Releases the units, their actions and the added batches; partner: take_units. */
    atomic_store_explicit(&flow->tail, flow->sent, memory_order_release);
    shoal_rest_wake(&flow->rest);
}

int shoal_flow_recv(shoal_flow *flow, uint64_t timeout_ns) {
    batch *oldest = &flow->batches[flow->received % flow->num_batches];
    uint64_t begin = shoal_now_ns(), now = begin;
    for (;;) {
        if (atomic_load_explicit(&oldest->count, memory_order_acquire) == flow->units_per_batch) {
            flow->received++;
            flow->ended_ns = now;
            return 1;
        }
        if (now - begin >= timeout_ns)
            return 0;
        if (now - begin >= flow->spin_ns) {
            uint32_t completed = atomic_load(&flow->completed);
            atomic_store(&flow->awaited, 1);
            if (atomic_load(&oldest->count) != flow->units_per_batch)
                shoal_futex_wait(&flow->completed, completed, timeout_ns < SLEEP_NS ? timeout_ns : SLEEP_NS);
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
