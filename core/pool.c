/* The pool: persistent threads with one word in each direction; a waiter spins, then sleeps. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "pool.h"

#include "platform.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { SPIN_NS = 50000, SLEEP_NS = 50000000, STOP = 0 };

typedef struct shoal_pool_thread {
    _Alignas(64) shoal_word go;   /* writer: caller. STOP ends the thread */
    shoal_word asleep;            /* writer: the thread, before it sleeps on go */
    _Alignas(64) shoal_word done; /* writer: the thread */
    shoal_word awaited;           /* writer: caller, before it sleeps on done */
    _Alignas(64) pthread_t thread;
    shoal_pool *pool;
    uint32_t part;
} shoal_pool_thread;

struct shoal_pool {
    shoal_pool_thread *threads; /* parts 1 .. count - 1 */
    uint32_t count;
    uint32_t generation; /* never STOP */
    uint64_t spin_ns;
    uint64_t forks;
    shoal_pool_part part; /* written before go (release), read after it (acquire) */
    void *context;
};

/* Waits until *word differs from `old`. `sleeping` tells the writer of *word that a wake-up is needed: both
 * sides use sequentially consistent operations, so either the writer sees it or this side sees the new word.
 */
static uint32_t wait_change(shoal_word *word, uint32_t old, shoal_word *sleeping, uint64_t spin_ns) {
    uint32_t now;
    if (spin_ns != 0) {
        uint64_t begin = shoal_now_ns();
        do
            for (int i = 0; i < 32; i++) {
                now = atomic_load_explicit(word, memory_order_acquire);
                if (now != old)
                    return now;
                shoal_relax();
            }
        while (shoal_now_ns() - begin < spin_ns);
    }
    for (;;) {
        atomic_store(sleeping, 1);
        now = atomic_load(word);
        if (now == old)
            shoal_futex_wait(word, old, SLEEP_NS);
        atomic_store_explicit(sleeping, 0, memory_order_relaxed);
        now = atomic_load_explicit(word, memory_order_acquire);
        if (now != old)
            return now;
    }
}

static void change(shoal_word *word, uint32_t value, shoal_word *sleeping) {
    atomic_store(word, value); /* also releases what was written before; partner: wait_change */
    if (atomic_load(sleeping))
        shoal_futex_wake(word);
}

static void *run_thread(void *argument) {
    shoal_pool_thread *self = argument;
    shoal_pool *pool = self->pool;
    uint32_t seen = atomic_load_explicit(&self->done, memory_order_relaxed);
    for (;;) {
        seen = wait_change(&self->go, seen, &self->asleep, pool->spin_ns);
        if (seen == STOP)
            return NULL;
        pool->part(pool->context, self->part);
        change(&self->done, seen, &self->awaited);
    }
}

int shoal_pool_create(uint32_t count, shoal_pool **out) {
    *out = NULL;
    if (count == 0 || count > 4096)
        return -EINVAL;
    shoal_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return -ENOMEM;
    pool->count = 1;
    pool->generation = 1;
    pool->spin_ns = count <= shoal_cpu_count() ? SPIN_NS : 0;
    pool->forks = shoal_fork_count();
    void *memory = NULL;
    if (count > 1 && posix_memalign(&memory, 64, (count - 1) * sizeof *pool->threads) != 0) {
        free(pool);
        return -ENOMEM;
    }
    pool->threads = memory;
    /* Signals must reach the main thread: Python handles Ctrl-C there. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    for (uint32_t i = 0; i + 1 < count && error == 0; i++) {
        shoal_pool_thread *thread = &pool->threads[i];
        memset(thread, 0, sizeof *thread);
        atomic_store(&thread->go, pool->generation);
        atomic_store(&thread->done, pool->generation);
        thread->pool = pool;
        thread->part = i + 1;
        error = pthread_create(&thread->thread, NULL, run_thread, thread);
        if (error == 0)
            pool->count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        shoal_pool_destroy(pool);
        return -error;
    }
    *out = pool;
    return 0;
}

void shoal_pool_run(shoal_pool *pool, shoal_pool_part part, void *context) {
    pool->part = part;
    pool->context = context;
    uint32_t before = pool->generation;
    uint32_t now = before + 1 == STOP ? STOP + 1 : before + 1;
    pool->generation = now;
    for (uint32_t i = 0; i + 1 < pool->count; i++)
        change(&pool->threads[i].go, now, &pool->threads[i].asleep);
    part(context, 0);
    for (uint32_t i = 0; i + 1 < pool->count; i++)
        (void)wait_change(&pool->threads[i].done, before, &pool->threads[i].awaited, pool->spin_ns);
}

void shoal_pool_destroy(shoal_pool *pool) {
    if (pool == NULL)
        return;
    if (pool->forks == shoal_fork_count()) {
        for (uint32_t i = 0; i + 1 < pool->count; i++)
            change(&pool->threads[i].go, STOP, &pool->threads[i].asleep);
        for (uint32_t i = 0; i + 1 < pool->count; i++)
            pthread_join(pool->threads[i].thread, NULL);
    }
    free(pool->threads);
    free(pool);
}
