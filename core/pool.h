/* A pool of threads that run the chunks of one job together with the caller.
 *
 *   caller:     job, run = g ------.                                       .--- done[k] of run g add up to
 *               (one word for all)  \      takes the chunks of part 0      |    all chunks: returns
 *   thread k:    sees run == g ------`---> takes the chunks of part k, ----'
 *                                          then those of late threads; done[k] = run g, count of its chunks
 *
 * 1. Thread k owns part k, a contiguous range of the chunks, so the memory of a part stays in the cache of
 *    one core. Chunks are taken by compare-and-swap on a word of the part, which holds the number of the run:
 *    a thread that wakes up after the end of a run finds nothing to take.
 * 2. A thread that has finished its part takes chunks only from late threads. A thread is late if the rest of
 *    its part takes longer than help costs: the time of one chunk, and of moving its rows to another core and
 *    back (measured). It is also late if it makes no progress. If chunks only read, nothing moves, and every
 *    thread with chunks left is late. The caller waits for chunks, not for threads: a thread that gets no
 *    core delays at most the chunks that it has taken.
 * 3. A thread waits for the next run by spinning while runs follow each other closely, else it sleeps; a run
 *    wakes the sleepers in a tree (rest.h). */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_POOL_H
#define SHOAL_POOL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHOAL_POOL_MOST_CHUNKS = (1 << 24) - 1 };

typedef struct shoal_pool shoal_pool;

/* `chunks` calls of run_chunk, in any order and on any thread. Each call returns a number; a run returns
 * their sum. `run_all` does the work of all chunks in one call. */
typedef struct shoal_pool_job {
    uint64_t (*run_chunk)(void *context, uint32_t chunk);
    uint64_t (*run_all)(void *context);
    void *context;
    uint32_t chunks;     /* at most SHOAL_POOL_MOST_CHUNKS */
    int is_only_reading; /* the chunks write no rows */
    int is_steady; /* it does the same work in every run. Then slow threads get fewer chunks (balance.h),
                    * and runs go through the chunks forward and backward in turns */
} shoal_pool_job;

/* `threads` counts the caller; 1 starts none. Without `may_spin`, and with more threads than cores, nobody
 * spins: the threads sleep as soon as a run is over, and the caller while others finish it. This is for a
 * caller whose other processes need the cores. 0 or -errno. */
int shoal_pool_create(uint32_t threads, int may_spin, shoal_pool **pool);

/* Runs chunks 0 .. chunks - 1 and returns the sum of what they returned. One caller at a time. */
uint64_t shoal_pool_run(shoal_pool *pool, const shoal_pool_job *job);

/* How often threads have begun to sleep so far. */
uint64_t shoal_pool_sleeps(const shoal_pool *pool);

/* In a forked child, where the threads do not exist, it only frees memory. */
void shoal_pool_destroy(shoal_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
