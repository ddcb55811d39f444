/* The parts of a flow that its threads and the caller share. Private to flow.c and flow_thread.c. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_FLOW_THREAD_H
#define SHOAL_FLOW_THREAD_H

#include "flow.h"
#include "pending.h"
#include "rest.h"

#include <pthread.h>

/* Places of a batch, for the results of one thread while there are some left. */
typedef struct shoal_flow_places {
    _Alignas(64) _Atomic(uint64_t) taken; /* may exceed `count`. Writers: threads */
    uint64_t first, count;
} shoal_flow_places;

typedef struct shoal_flow_batch {
    _Alignas(64) shoal_word count; /* of units in it. Writers: threads. Reader: recv */
    shoal_targets targets;         /* writer: add_batch */
    void **observations;
    int64_t *env_ids;
    shoal_flow_places *parts; /* one for each part of the units; NULL: not divided */
    uint32_t num_parts;
} shoal_flow_batch;

typedef struct shoal_flow_worker {
    _Alignas(64) shoal_statistics statistics; /* writer: the thread, like all below */
    pthread_t thread;
    shoal_flow *flow;
    shoal_rester rest;
    uint64_t unit_ns; /* mean time of a unit, 0 if it is not known, and the sums that it is made from */
    uint64_t sum_ns, sum_units;
    uint64_t *units;       /* that it steps */
    uint32_t number, next; /* its own; the part that it looks at next, to see whether it is late */
    int is_alone;          /* no other thread was spinning when it last waited */
    uint64_t now_ns;       /* about: when it began to look for units, or had stepped some */
    shoal_envs envs;       /* the engine's, with the arrays below */
    void **observations;
    char **scratch; /* the rows of each observation field, of `most` units */
    double *rewards;
    uint8_t *flags;
} shoal_flow_worker;

struct shoal_flow {
    shoal_engine *engine;
    const shoal_description *description;
    uint64_t lanes, unit, agents, num_units, units_per_batch, num_batches;
    uint64_t most, rows; /* units that a thread takes at once; rows of results that it has room for */
    uint64_t take_ns;
    shoal_pending pending[2]; /* with a part for each thread; and for all but the last one */
    shoal_send send;
    shoal_flow_batch *batches; /* a ring */
    shoal_flow_places *parts;  /* of all batches */
    uint64_t sent, added, received, ended_ns, forks;
    uint32_t num_workers, num_threads; /* threads that run; threads that there is memory for */
    uint32_t num_cpus, most_spinners;
    _Atomic(uint64_t) unit_ns; /* about the mean time of a unit; 0: not known. Writers: threads */
    shoal_flow_worker *workers;
    shoal_rest rest;
    /* Units that are pending. Below 0 for a moment if a thread takes units that send has not yet counted. */
    _Alignas(128) _Atomic(int64_t) waiting;
    _Atomic(uint64_t) began_ns;        /* when send found none waiting. Writer: send */
    _Alignas(128) shoal_word division; /* which element of `pending` send adds to. Writer: send */
    shoal_word reserve; /* the last thread sleeps on it if it has no part. Writers: send, recv */
    _Alignas(128) _Atomic(uint64_t) delivered; /* units. Writers: threads, fetch_add */
    _Alignas(128) shoal_word spinners;         /* writers: threads that wait */
    _Alignas(128) shoal_word completed;        /* writers: threads; recv sleeps on it */
    shoal_word awaited;                        /* writer: recv */
    _Alignas(128) shoal_word stop;             /* writer: destroy */
};

static inline int shoal_flow_has_units(const shoal_flow *flow) {
    return atomic_load_explicit(&flow->waiting, memory_order_relaxed) > 0;
}

static inline uint32_t shoal_flow_division(const shoal_flow *flow) {
    return atomic_load_explicit(&flow->division, memory_order_relaxed);
}

/* Threads that do not sleep. In division 1, the last one sleeps unless recv has woken it. */
static inline uint32_t shoal_flow_count_awake(const shoal_flow *flow) {
    const uint32_t asleep =
        atomic_load_explicit(&flow->rest.sleepers, memory_order_relaxed) + shoal_flow_division(flow);
    return asleep < flow->num_workers ? flow->num_workers - asleep : 0;
}

/* Wakes threads for `waiting` units, which the calling thread has made visible, or has left for others. */
void shoal_flow_wake_others(shoal_flow *flow, uint64_t waiting);

/* Wakes the last thread, if it has no part and sleeps. */
void shoal_flow_wake_reserve(shoal_flow *flow);

/* A thread of the flow; its argument is its worker. */
void *shoal_flow_run_thread(void *worker);

#endif
