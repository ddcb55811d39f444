/* The flow, as its caller sees it: create, send, recv. flow_thread.c has the threads. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "flow_thread.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPIN_NS = 20000,         /* recv spins for this time, */
    SLEEP_NS = 50000000,     /* and then sleeps for at most this time at once */
    PATIENCE_NS = 200000,    /* if recv has waited so long, it wakes all threads */
    TAKE_NS = 10000,         /* a thread takes units for at least this time, */
    THREAD_TAKE_NS = 1250,   /* for this time for each thread: all change the same words at each take, */
    MOST_TAKE_NS = 50000,    /* and at most for this time; */
    MOST_TAKEN = 1024,       /* at most so many units, */
    SCRATCH_BYTES = 1 << 16, /* and at most so many bytes of results, which stay in its core's cache */
    SENDER_NS = 8,           /* the caller needs about this time for each environment */
    LEAST_CPUS = 4,          /* with which one can be left to the caller */
    LEAST_UNITS = 16,        /* of a part; with fewer units, threads share parts */
    LEAST_PLACES = 512,      /* environments of a thread in a batch, */
    LEAST_PLACES_UNITS = 4   /* and units; if there are fewer, all threads share the places */
};

static int prepare(shoal_flow *flow, shoal_flow_worker *self) {
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
    if ((unit & (unit - 1)) != 0)
        return -EINVAL;
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
    flow->num_cpus = shoal_cpu_count();
    flow->most_spinners = threads < flow->num_cpus ? threads : flow->num_cpus - 1;
    const uint64_t take_ns = threads * (uint64_t)THREAD_TAKE_NS;
    flow->take_ns = take_ns < TAKE_NS ? TAKE_NS : take_ns < MOST_TAKE_NS ? take_ns : MOST_TAKE_NS;
    shoal_rest_begin(&flow->rest, threads <= flow->num_cpus);
    flow->forks = shoal_fork_count();
    void *batches = NULL, *workers = NULL, *parts = NULL;
    int error = shoal_send_open(&flow->send, description, units, unit, threads);
    const uint64_t parts_that_fit = units / LEAST_UNITS < 1 ? 1 : units / LEAST_UNITS;
    error |= shoal_pending_open(&flow->pending[0], units,
                                threads < parts_that_fit ? threads : (uint32_t)parts_that_fit);
    if (threads >= flow->num_cpus && flow->num_cpus >= LEAST_CPUS && threads - 1 <= parts_that_fit)
        error |= shoal_pending_open(&flow->pending[1], units, threads - 1);
    error |= posix_memalign(&batches, 64, flow->num_batches * sizeof *flow->batches);
    error |= posix_memalign(&workers, 64, threads * sizeof *flow->workers);
    const int is_divided = threads > 1 && batch_envs >= (uint64_t)LEAST_PLACES * threads &&
                           flow->units_per_batch >= (uint64_t)LEAST_PLACES_UNITS * threads;
    if (is_divided)
        error |= posix_memalign(&parts, 64, flow->num_batches * threads * sizeof *flow->parts);
    flow->batches = batches;
    flow->workers = workers;
    flow->parts = parts;
    flow->num_threads = workers == NULL ? 0 : threads;
    if (batches != NULL) /* before anything can fail, because destroy frees what is not NULL */
        memset(batches, 0, flow->num_batches * sizeof *flow->batches);
    if (workers != NULL)
        memset(workers, 0, threads * sizeof *flow->workers);
    if (error != 0) {
        shoal_flow_destroy(flow);
        return -ENOMEM;
    }
    for (uint64_t i = 0; i < flow->num_batches && error == 0; i++) {
        flow->batches[i].observations = calloc(description->observations.count, sizeof(void *));
        error = flow->batches[i].observations == NULL ? -ENOMEM : 0;
        flow->batches[i].parts = is_divided ? flow->parts + i * threads : NULL;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (uint32_t i = 0; i < threads && error == 0; i++) {
        flow->workers[i].number = i;
        error = prepare(flow, &flow->workers[i]);
        if (error == 0)
            error = -pthread_create(&flow->workers[i].thread, NULL, shoal_flow_run_thread, &flow->workers[i]);
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
        shoal_flow_wake_reserve(flow);
        for (uint32_t i = 0; i < flow->num_workers; i++)
            pthread_join(flow->workers[i].thread, NULL);
    }
    for (uint32_t i = 0; i < flow->num_threads; i++) {
        shoal_flow_worker *self = &flow->workers[i];
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
    free(flow->parts);
    shoal_pending_close(&flow->pending[0]);
    shoal_pending_close(&flow->pending[1]);
    shoal_send_close(&flow->send);
    free(flow);
}

void shoal_flow_actions(shoal_flow *flow, void *const *actions) {
    flow->send.rows = actions;
    for (uint32_t i = 0; i < flow->num_workers; i++)
        flow->workers[i].envs.actions = (const void *const *)actions;
}

uint64_t shoal_flow_batches_needed(const shoal_flow *flow, uint64_t units) {
    const uint64_t idle = flow->num_units - shoal_flow_under_way(flow);
    units = units < idle ? units : idle; /* a send of more is refused */
    uint64_t needed = (flow->sent + units + flow->units_per_batch - 1) / flow->units_per_batch;
    return needed > flow->added ? needed - flow->added : 0;
}

static void divide_places(const shoal_flow *flow, shoal_flow_batch *into) {
    const uint32_t parts = into->num_parts = flow->pending[shoal_flow_division(flow)].num_parts;
    for (uint32_t i = 0; i < parts; i++) {
        into->parts[i].first = flow->units_per_batch * i / parts;
        into->parts[i].count = flow->units_per_batch * (i + 1) / parts - into->parts[i].first;
        atomic_store_explicit(&into->parts[i].taken, 0, memory_order_relaxed);
    }
}

void shoal_flow_add_batch(shoal_flow *flow, const shoal_targets *targets, int64_t *env_ids) {
    shoal_flow_batch *next = &flow->batches[flow->added++ % flow->num_batches];
    next->targets = *targets;
    memcpy(next->observations, targets->observations, flow->description->observations.count * sizeof(void *));
    next->env_ids = env_ids;
    atomic_store_explicit(&next->count, 0, memory_order_relaxed); /* released by the next send */
    if (next->parts != NULL)
        divide_places(flow, next);
}

/* Leaves one core to the caller if it needs much of it: if a step takes little more time than the work of the
 * caller for it. Then the last thread has no part and sleeps; otherwise it and the caller would take the core
 * away from each other, and the units of its part would be late. */
static void choose_division(shoal_flow *flow) {
    const uint64_t env_ns = atomic_load_explicit(&flow->unit_ns, memory_order_relaxed) / flow->unit;
    const uint64_t limit_ns = (uint64_t)SENDER_NS * flow->num_cpus;
    const uint32_t now = shoal_flow_division(flow);
    if (flow->pending[1].num_parts == 0 || env_ns == 0)
        return;
    if (now == 0 ? env_ns < limit_ns : env_ns > 2 * limit_ns) {
        atomic_store_explicit(&flow->division, !now, memory_order_relaxed);
        shoal_flow_wake_reserve(flow);
    }
}

/* Makes the runs of a send visible to threads. */
static void add_runs(shoal_flow *flow, uint64_t units) {
    choose_division(flow);
    for (uint32_t p = 0; p < flow->send.num_pieces; p++)
        for (uint64_t r = 0; r < flow->send.pieces[p].num_runs; r++)
            shoal_pending_add(&flow->pending[shoal_flow_division(flow)], flow->send.pieces[p].runs[r].first,
                              flow->send.pieces[p].runs[r].count);
    const int64_t before = atomic_fetch_add(&flow->waiting, (int64_t)units);
    if (before <= 0) {
        const uint64_t now = shoal_now_ns();
        atomic_store_explicit(&flow->began_ns, now, memory_order_relaxed);
        if (flow->sent == flow->received * flow->units_per_batch) /* the threads have had no work */
            shoal_rest_learn(&flow->rest, now - flow->ended_ns);
    }
    flow->sent += units;
    shoal_flow_wake_others(flow, (uint64_t)(before < 0 ? 0 : before) + units);
}

int shoal_flow_send(shoal_flow *flow, const shoal_sending *sending, shoal_refusal *refusal) {
    if (!shoal_send_run(&flow->send, sending, flow->received, refusal))
        return 0;
    add_runs(flow, sending->num_ids / flow->unit);
    return 1;
}

void shoal_flow_send_all(shoal_flow *flow) {
    shoal_send_all(&flow->send);
    add_runs(flow, flow->num_units);
}

int shoal_flow_recv(shoal_flow *flow, uint64_t timeout_ns) {
    shoal_flow_batch *oldest = &flow->batches[flow->received % flow->num_batches];
    const uint64_t spin_ns = shoal_flow_count_awake(flow) < flow->num_cpus ? SPIN_NS : 0;
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
        if (is_long && shoal_flow_has_units(flow)) {
            shoal_rest_wake(&flow->rest, INT32_MAX);
            shoal_flow_wake_reserve(flow);
        }
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
    return atomic_load_explicit(&flow->send.stages[unit], memory_order_acquire) != SHOAL_UNDER_WAY;
}

void shoal_flow_await(const shoal_flow *flow, uint64_t unit, uint64_t timeout_ns) {
    shoal_word never = 0;
    for (const uint64_t begin = shoal_now_ns();
         !shoal_flow_is_done(flow, unit) && shoal_now_ns() - begin < timeout_ns;)
        shoal_futex_wait(&never, 0, 100000); /* polls, because no thread wakes this rare wait */
}

uint64_t shoal_flow_under_way(const shoal_flow *flow) {
    return flow->sent - flow->received * flow->units_per_batch;
}

void shoal_flow_statistics(const shoal_flow *flow, shoal_statistics *sum) {
    for (uint32_t i = 0; i < flow->num_workers; i++)
        shoal_statistics_add(sum, &flow->workers[i].statistics);
}
