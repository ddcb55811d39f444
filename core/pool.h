/* A pool of threads that run the parts of one job together with the caller.
 *
 *   caller:  job, then go[k] = g ---.                       .--- sees done[k] == g for all k
 *            runs part 0            |                       |
 *   thread k:        sees go[k] == g, runs part k, done[k] = g
 *
 * 1. Each word is on a cache line of its own and has one writer: the caller writes go[k], thread k done[k].
 * 2. A waiter spins for some tens of microseconds, then sets a flag and sleeps on the futex; a writer wakes
 *    only a sleeper. With more threads than cores no thread spins.
 * 3. Thread k always runs part k, so the memory of a part stays in the cache of one core. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_POOL_H
#define SHOAL_POOL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_pool shoal_pool;
typedef void (*shoal_pool_part)(void *context, uint32_t part);

/* `threads` counts the caller; 1 starts none. 0 or -errno. */
int shoal_pool_create(uint32_t threads, shoal_pool **pool);

/* Runs parts 0 .. threads - 1 and returns when all are done. One caller at a time. */
void shoal_pool_run(shoal_pool *pool, shoal_pool_part part, void *context);

/* In a forked child, where the threads do not exist, it only frees memory. */
void shoal_pool_destroy(shoal_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
