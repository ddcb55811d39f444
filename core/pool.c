/* The pool: persistent threads. Each runs its own part and then helps late threads; see pool.h. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "pool.h"

#include "balance.h"
#include "rest.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
    WAIT_SPIN_NS = 50000,     /* of the caller, when all chunks are taken */
    POLLS_PER_LOOK = 8,       /* between two looks at the clock */
    OWN_DIVISOR = 4,          /* a thread takes this part of its remaining chunks at once */
    LOOK_NS = 700,            /* between two looks at the other parts */
    LEAST_PATIENCE_NS = 5000, /* see lateness */
    FIRST_MOVE_NS = 3000,     /* the time to move the rows of a chunk between caches, before it is measured */
    MOST_MOVE_NS = 100000,
    LEAST_LEARNED_NS = 1000, /* shorter chunks say nothing about it */
    LINES = 128,             /* two cache lines: some processors fetch them in pairs */
    COUNT_BITS = 24
};
#define ONLY_READING (UINT32_C(1) << 31) /* beside the number of chunks */
#define STEADY (UINT32_C(1) << 30)
#define SECOND_BOUNDS (UINT32_C(1) << 29) /* the run uses bounds[1] */
#define FLAGS (ONLY_READING | STEADY | SECOND_BOUNDS)
#define COUNT_MASK ((UINT64_C(1) << COUNT_BITS) - 1)
#define RUN_MASK (UINT64_MAX >> COUNT_BITS)
#define AWAIT_NS UINT64_C(50000000) /* the caller looks again after this time */

/* A program that measures or tests defines this function; see lab/benchmarks/threads.c. */
#ifdef SHOAL_POOL_TRACE
enum { TRACE_POST, TRACE_SEEN, TRACE_PART_DONE, TRACE_STOLE, TRACE_ALL_DONE, TRACE_READ };
void shoal_pool_trace(uint32_t thread, int event);
#define TRACE(thread, event) shoal_pool_trace(thread, event)
#else
#define TRACE(thread, event) (void)0
#endif

typedef _Atomic(uint64_t) word64;

typedef struct member {
    _Alignas(LINES) word64 taken; /* run, number of chunks of this part taken in it. Writers: all, by CAS */
    _Alignas(LINES) word64 done;  /* run, number of chunks that this thread ran in it. Writer: the thread */
    word64 sum;                   /* what they returned; written before `done` */
    _Alignas(LINES) pthread_t thread;
    shoal_pool *pool;
    uint64_t move_ns; /* mean time to move the rows of a chunk of another thread here */
    shoal_pace pace;  /* see balance.h. Writer of this and the next: the thread */
    word64 pace_run;  /* the last run in which it was measured */
    uint32_t index;
    shoal_rester rest;
} member;

struct shoal_pool {
    /* A run is posted by writing 2 * run here; while the job is being written, the word is odd. The job is on
     * the same line, so a thread that waits gets both with one transfer between caches. */
    _Alignas(LINES) word64 posted;
    _Atomic(uintptr_t) run_chunk, context; /* run_chunk 0: the threads end */
    _Atomic(uint32_t) chunks;              /* and FLAGS */
    shoal_rest rest;
    _Alignas(LINES) shoal_word awaited; /* the caller sleeps or is about to, on the next word */
    shoal_word completed;               /* writers: threads, while awaited */
    _Alignas(LINES) member *members;    /* member 0 is the caller. Read-only, like the next two */
    uint32_t count;
    /* Two tables in turns: the caller rewrites one only after SHOAL_BALANCE_RUNS runs with the other one, in
     * which every part was taken. So a thread that comes late to a run, and reads a changed table, finds the
     * number of a later run in the word of every part. */
    shoal_bound *bounds[2];
    _Alignas(LINES) uint64_t run; /* the number of the last one. This and the rest belong to the caller */
    uint64_t steady_run;          /* the last one of a steady job */
    uint64_t compared_run;        /* the last one when paces were compared */
    uint64_t ended_ns, forks;
    uint32_t table, table_runs; /* the table that is used, and runs since it was compared with the paces */
    uint32_t *paces;            /* a copy, for the comparison */
};

/* A copy of the job that belongs to one run. */
typedef struct task {
    shoal_pool_job job;
    uint64_t run;
    uint32_t table;
} task;

static uint32_t part_begin(const shoal_pool *pool, const task *task, uint32_t part) {
    const shoal_bound *bounds = task->job.is_steady ? pool->bounds[task->table] : NULL;
    return shoal_balance_begin(bounds, pool->count, task->job.chunks, part);
}

/* Runs with even numbers take the chunks of a part from the last to the first; the numbers of steady jobs are
 * odd and even in turns (next_run). At the end of a part, the processor fetches the first rows of the next
 * part ahead, which belong to another thread. If that thread began every run with these rows, it would have
 * to fetch them back in every run. Now it uses them last in one run and first in the next one, and fetches
 * them back once in two runs. */
static int is_backward(const task *task) { return task->run % 2 == 0; }

/* Chunks of a part that nobody has taken in this run; 0 also if this run is over. `seen` is the part's word.
 */
static uint32_t chunks_left(uint64_t seen, const task *task, uint32_t size) {
    const uint64_t behind = (task->run - (seen >> COUNT_BITS)) & RUN_MASK;
    if (behind > RUN_MASK / 2)
        return 0; /* a later run has begun */
    const uint64_t taken = behind == 0 ? seen & COUNT_MASK : 0;
    return size - (uint32_t)taken;
}

/* Takes some of at least `least` chunks of a part that are left: the lowest is *chunk. Returns how many. */
static uint32_t take(shoal_pool *pool, const task *task, uint32_t part, uint32_t least, uint32_t divisor,
                     uint32_t *chunk) {
    word64 *taken = &pool->members[part].taken;
    const uint32_t begin = part_begin(pool, task, part), size = part_begin(pool, task, part + 1) - begin;
    uint64_t seen = atomic_load_explicit(taken, memory_order_relaxed);
    for (;;) {
        const uint32_t left = chunks_left(seen, task, size);
        if (left < least || left == 0)
            return 0;
        const uint32_t some = left < 2 * divisor ? 1 : left / divisor;
        const uint64_t wanted = (task->run & RUN_MASK) << COUNT_BITS | (uint64_t)(size - left + some);
        /* Relaxed: `posted` and `done` order the memory of chunks between runs. */
        if (atomic_compare_exchange_weak_explicit(taken, &seen, wanted, memory_order_relaxed,
                                                  memory_order_relaxed)) {
            *chunk = is_backward(task) ? begin + left - some : begin + size - left;
            return some;
        }
    }
}

/* What one thread did in one run. */
typedef struct share {
    uint32_t count;
    uint64_t sum;
} share;

static void run_chunks(const task *task, uint32_t chunk, uint32_t count, share *share) {
    for (uint32_t i = 0; i < count; i++)
        share->sum +=
            task->job.run_chunk(task->job.context, is_backward(task) ? chunk + count - 1 - i : chunk + i);
    share->count += count;
}

static void publish(shoal_pool *pool, const task *task, member *self, const share *share) {
    if (self->index == 0)
        return; /* the caller adds its own share */
    atomic_store_explicit(&self->sum, share->sum, memory_order_relaxed);
    /* Sequentially consistent, as in sleep_until_done: the caller sees this word, or this thread sees
     * `awaited`. */
    atomic_store(&self->done, (task->run & RUN_MASK) << COUNT_BITS | share->count);
    if (atomic_load(&pool->awaited)) {
        atomic_fetch_add(&pool->completed, 1);
        shoal_futex_wake(&pool->completed);
    }
}

/* Runs a chunk of the part with the most chunks left, if it has at least `least`. Returns 1 if it ran one, 0
 * if no part has enough or other threads were faster, -1 if all chunks are taken. */
static int help(shoal_pool *pool, const task *task, member *self, uint32_t least, share *share) {
    uint32_t most = 0, latest = 0, chunk;
    for (uint32_t i = 1; i < pool->count; i++) {
        const uint32_t part = self->index + i < pool->count ? self->index + i : self->index + i - pool->count;
        const uint32_t size = part_begin(pool, task, part + 1) - part_begin(pool, task, part);
        const uint64_t seen = atomic_load_explicit(&pool->members[part].taken, memory_order_relaxed);
        const uint32_t left = chunks_left(seen, task, size);
        if (left > most) {
            most = left;
            latest = part;
        }
    }
    if (most == 0)
        return -1;
    if (most < least || take(pool, task, latest, least, COUNT_MASK, &chunk) == 0)
        return 0;
    run_chunks(task, chunk, 1, share);
    publish(pool, task, self, share);
    TRACE(self->index, TRACE_STOLE);
    return 1;
}

/* When a thread that has finished its part helps others.
 *
 * Another thread is late if the rest of its part takes longer than help costs. The rest is half of the chunk
 * that it is running, and the chunks that nobody has taken. Help costs the time of one chunk, and of moving
 * its rows to this core and back in the next run; this is measured, because it depends on the rows. A thread
 * that still has chunks after `patience_ns` makes no progress: then any of its chunks is taken. */
typedef struct lateness {
    uint64_t finished_ns, looked_ns, chunk_ns, patience_ns;
    uint32_t least;
} lateness;

static lateness begin_help(const shoal_pool *pool, const task *task, member *self, uint64_t begin,
                           uint32_t chunks) {
    lateness late = {.finished_ns = shoal_now_ns(), .least = 1};
    late.looked_ns = late.finished_ns;
    if (!pool->rest.may_spin)
        return late;
    if (task->job.is_only_reading) {
        late.patience_ns = 1; /* 0 would let it look without pauses of LOOK_NS */
        return late;
    }
    late.chunk_ns = chunks == 0 ? 0 : (late.finished_ns - begin) / chunks;
    if (task->job.is_steady && chunks != 0) {
        shoal_balance_learn(&self->pace, late.finished_ns - begin, chunks);
        atomic_store_explicit(&self->pace_run, task->run, memory_order_relaxed);
    }
    late.least = 2 + (uint32_t)(3 * self->move_ns / (2 * late.chunk_ns + 1));
    late.patience_ns = late.least * late.chunk_ns;
    if (late.patience_ns < LEAST_PATIENCE_NS)
        late.patience_ns = LEAST_PATIENCE_NS;
    return late;
}

/* Helps late threads, if it is time to look for them. Returns 1 if all chunks are taken. */
static int help_late(shoal_pool *pool, const task *task, member *self, lateness *late, share *share) {
    uint64_t now = shoal_now_ns();
    if (now - late->looked_ns < LOOK_NS && late->patience_ns != 0)
        return 0; /* looking disturbs the owners of the parts */
    for (;;) {
        const int is_long = now - late->finished_ns >= late->patience_ns;
        const int outcome = help(pool, task, self, is_long ? 1 : late->least, share);
        const uint64_t end = shoal_now_ns();
        late->looked_ns = end;
        if (outcome <= 0)
            return outcome < 0;
        if (late->chunk_ns > LEAST_LEARNED_NS) {
            const uint64_t took = end - now, more = took > late->chunk_ns ? took - late->chunk_ns : 0;
            self->move_ns = (7 * self->move_ns + (more < MOST_MOVE_NS ? more : MOST_MOVE_NS)) / 8;
        }
        now = end;
    }
}

static share run_own_part(shoal_pool *pool, const task *task, member *self) {
    share share = {0, 0};
    uint32_t chunk, count;
    while ((count = take(pool, task, self->index, 1, OWN_DIVISOR, &chunk)) != 0)
        run_chunks(task, chunk, count, &share);
    TRACE(self->index, TRACE_PART_DONE);
    if (share.count != 0)
        publish(pool, task, self, &share);
    return share;
}

static uint64_t load_posted(const shoal_pool *pool) {
    return atomic_load_explicit(&pool->posted, memory_order_acquire);
}

/* A thread's run: its own part, then help until all chunks are taken, or the next run is posted. */
static void work(shoal_pool *pool, const task *task, member *self) {
    const uint64_t begin = shoal_now_ns();
    share share = run_own_part(pool, task, self);
    lateness late = begin_help(pool, task, self, begin, share.count);
    while (!help_late(pool, task, self, &late, &share) && load_posted(pool) == 2 * task->run)
        for (int i = 0; i < POLLS_PER_LOOK && load_posted(pool) == 2 * task->run; i++)
            shoal_relax();
}

typedef struct awaited {
    const shoal_pool *pool;
    uint64_t seen;
} awaited;

/* While the word is odd, the caller is writing the job, or has lost its core while it did: threads that wait
 * spin and then sleep, as if nothing were posted. */
static int is_posted(const void *context) {
    const awaited *next = context;
    const uint64_t posted = load_posted(next->pool);
    return posted != next->seen && posted % 2 == 0;
}

/* Waits for a run after `seen` and copies its job. */
static void wait_for_task(shoal_pool *pool, member *self, uint64_t seen, task *task) {
    for (;;) {
        shoal_rest_wait(&pool->rest, &self->rest, is_posted, &(awaited){pool, seen});
        const uint64_t posted = load_posted(pool);
        if (posted % 2 != 0)
            continue; /* the caller has gone on, and is writing the next job */
        TRACE(self->index, TRACE_READ);
        const uint32_t chunks = atomic_load_explicit(&pool->chunks, memory_order_acquire);
        task->job.chunks = chunks & ~FLAGS;
        task->job.is_only_reading = (chunks & ONLY_READING) != 0;
        task->job.is_steady = (chunks & STEADY) != 0;
        task->table = (chunks & SECOND_BOUNDS) != 0;
        task->job.context = (void *)atomic_load_explicit(&pool->context, memory_order_acquire);
        const uintptr_t run_chunk = atomic_load_explicit(&pool->run_chunk, memory_order_acquire);
        task->job.run_chunk = (uint64_t (*)(void *, uint32_t))run_chunk;
        task->run = posted / 2;
        if (load_posted(pool) ==
            posted) /* else the caller has gone on, and these may belong to a later run */
            return;
    }
}

static void *run_thread(void *argument) {
    member *self = argument;
    shoal_pool *pool = self->pool;
    task task = {.run = 0};
    for (;;) {
        wait_for_task(pool, self, 2 * task.run, &task);
        TRACE(self->index, TRACE_SEEN);
        if (task.job.run_chunk == NULL)
            return NULL;
        work(pool, &task, self);
    }
}

/* The number of the next run. Numbers of steady jobs are odd and even in turns (see is_backward), so a number
 * may be skipped. */
static uint64_t next_run(shoal_pool *pool, const shoal_pool_job *job) {
    pool->run++;
    if (job->is_steady) {
        pool->run += pool->run % 2 == pool->steady_run % 2;
        pool->steady_run = pool->run;
    }
    return pool->run;
}

/* Posts the next run. */
static task post(shoal_pool *pool, const shoal_pool_job *job) {
    const task task = {*job, next_run(pool, job), pool->table};
    const uintptr_t run_chunk = (uintptr_t)job->run_chunk, context = (uintptr_t)job->context;
    const uint32_t chunks = job->chunks | (job->is_only_reading ? ONLY_READING : 0) |
                            (job->is_steady ? STEADY : 0) | (pool->table ? SECOND_BOUNDS : 0);
    if (atomic_load_explicit(&pool->run_chunk, memory_order_relaxed) != run_chunk ||
        atomic_load_explicit(&pool->context, memory_order_relaxed) != context ||
        atomic_load_explicit(&pool->chunks, memory_order_relaxed) != chunks) {
        atomic_store_explicit(&pool->posted, 2 * task.run - 1, memory_order_relaxed);
        /* Release: a thread that reads one of these and then `posted` again sees at least the odd number. */
        atomic_store_explicit(&pool->run_chunk, run_chunk, memory_order_release);
        atomic_store_explicit(&pool->context, context, memory_order_release);
        atomic_store_explicit(&pool->chunks, chunks, memory_order_release);
    }
    /* Releases what the caller wrote before. */
    atomic_store_explicit(&pool->posted, 2 * task.run, memory_order_release);
    TRACE(0, TRACE_POST);
    shoal_rest_wake(&pool->rest, SHOAL_REST_FAN_OUT);
    return task;
}

/* Adds what the other threads did in this run. */
static share add_shares(const shoal_pool *pool, const task *task, share sum) {
    for (uint32_t i = 1; i < pool->count; i++) {
        const uint64_t done = atomic_load(&pool->members[i].done);
        if (done >> COUNT_BITS != (task->run & RUN_MASK))
            continue;
        sum.count += (uint32_t)(done & COUNT_MASK);
        sum.sum += atomic_load_explicit(&pool->members[i].sum, memory_order_relaxed);
    }
    return sum;
}

static void sleep_until_done(shoal_pool *pool, const task *task, share own) {
    const uint32_t completed = atomic_load(&pool->completed);
    atomic_store(&pool->awaited, 1);
    if (add_shares(pool, task, own).count != task->job.chunks)
        shoal_futex_wait(&pool->completed, completed, AWAIT_NS);
    atomic_store_explicit(&pool->awaited, 0, memory_order_relaxed);
}

/* The caller's run: its own part, then help until all chunks are done. It sleeps only when all are taken. */
static uint64_t work_and_wait(shoal_pool *pool, const task *task) {
    member *self = &pool->members[0];
    uint64_t begin = shoal_now_ns();
    share own = run_own_part(pool, task, self);
    lateness late = begin_help(pool, task, self, begin, own.count);
    for (int all_taken = 0;;) {
        for (int i = 0; i < POLLS_PER_LOOK; i++) {
            const share all = add_shares(pool, task, own);
            if (all.count == task->job.chunks)
                return all.sum;
            shoal_relax();
        }
        if (!all_taken) {
            all_taken = help_late(pool, task, self, &late, &own);
            begin = shoal_now_ns();
        } else if (!pool->rest.may_spin || shoal_now_ns() - begin > WAIT_SPIN_NS) {
            sleep_until_done(pool, task, own);
        }
    }
}

/* Divides the next runs better, from time to time; not while a thread gets no core for its own part. */
static void balance(shoal_pool *pool, const shoal_pool_job *job) {
    if (!job->is_steady || !shoal_balance_applies(pool->count, job->chunks) || !pool->rest.may_spin ||
        ++pool->table_runs < SHOAL_BALANCE_RUNS)
        return;
    pool->table_runs = 0;
    for (uint32_t i = 0; i < pool->count; i++) {
        const member *one = &pool->members[i];
        const uint64_t run = atomic_load_explicit(&one->pace_run, memory_order_relaxed);
        const int is_known = run > pool->compared_run;
        pool->paces[i] = is_known ? atomic_load_explicit(&one->pace, memory_order_relaxed) : 0;
    }
    pool->compared_run = pool->run;
    shoal_bound *const *bounds = pool->bounds;
    if (shoal_balance_improve(bounds[pool->table], pool->paces, pool->count, bounds[!pool->table]))
        pool->table = !pool->table;
}

uint64_t shoal_pool_run(shoal_pool *pool, const shoal_pool_job *job) {
    if (pool->count == 1)
        return job->run_all(job->context);
    shoal_rest_learn(&pool->rest, shoal_now_ns() - pool->ended_ns);
    const task task = post(pool, job);
    const uint64_t sum = work_and_wait(pool, &task);
    TRACE(0, TRACE_ALL_DONE);
    balance(pool, job);
    pool->ended_ns = shoal_now_ns();
    return sum;
}

static void end_threads(shoal_pool *pool, uint32_t started) {
    (void)post(pool, &(shoal_pool_job){0});
    for (uint32_t i = 1; i < started; i++)
        pthread_join(pool->members[i].thread, NULL);
}

static void free_pool(shoal_pool *pool) {
    free(pool->bounds[0]);
    free(pool->paces);
    free(pool->members);
    free(pool);
}

int shoal_pool_create(uint32_t count, int may_spin, shoal_pool **out) {
    *out = NULL;
    if (count == 0 || count > 4096)
        return -EINVAL;
    void *memory = NULL, *members = NULL, *bounds = NULL;
    if (posix_memalign(&memory, LINES, sizeof(shoal_pool)) != 0)
        return -ENOMEM;
    shoal_pool *pool = memset(memory, 0, sizeof *pool);
    const size_t table = ((count + 1) * sizeof *pool->bounds[0] + LINES - 1) / LINES * LINES;
    pool->paces = calloc(count, sizeof *pool->paces);
    if (pool->paces == NULL || posix_memalign(&bounds, LINES, 2 * table) != 0) {
        free_pool(pool);
        return -ENOMEM;
    }
    pool->bounds[0] = memset(bounds, 0, 2 * table);
    pool->bounds[1] = pool->bounds[0] + table / sizeof *pool->bounds[0];
    if (posix_memalign(&members, LINES, count * sizeof *pool->members) != 0) {
        free_pool(pool);
        return -ENOMEM;
    }
    shoal_balance_evenly(pool->bounds[0], count);
    pool->members = memset(members, 0, count * sizeof *pool->members);
    shoal_rest_begin(&pool->rest, may_spin && count <= shoal_cpu_count());
    pool->forks = shoal_fork_count();
    /* Signals must reach the main thread: Python handles Ctrl-C there. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    for (uint32_t i = 0; i < count; i++) {
        pool->members[i].pool = pool;
        pool->members[i].index = i;
        pool->members[i].move_ns = FIRST_MOVE_NS;
    }
    uint32_t started = 1;
    pool->count = count; /* the threads read it */
    for (; started < count && error == 0; started += error == 0)
        error = pthread_create(&pool->members[started].thread, NULL, run_thread, &pool->members[started]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        end_threads(pool, started);
        free_pool(pool);
        return -error;
    }
    *out = pool;
    return 0;
}

uint64_t shoal_pool_sleeps(const shoal_pool *pool) {
    uint64_t sleeps = 0;
    for (uint32_t i = 1; i < pool->count; i++)
        sleeps += atomic_load_explicit(&pool->members[i].rest.sleeps, memory_order_relaxed);
    return sleeps;
}

void shoal_pool_destroy(shoal_pool *pool) {
    if (pool == NULL)
        return;
    if (pool->forks == shoal_fork_count())
        end_threads(pool, pool->count);
    free_pool(pool);
}
