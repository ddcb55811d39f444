/* How a pool divides the chunks of a job: a thread that takes longer for a chunk gets fewer of them.
 *
 *   pace[k]     mean time of a chunk on thread k, without those moments in which it lost its core
 *   bounds[k]   where part k begins, of SHOAL_BALANCE_WHOLE; part k ends at bounds[k + 1]
 *
 * Threads of one pool differ by ten percent for seconds, because of what else runs on their cores, and of the
 * pages that their rows have. Without this, all would wait for the slowest one, or take its chunks, which
 * moves their rows between caches in every run. Only jobs that are the same in every run are divided so. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_BALANCE_H
#define SHOAL_BALANCE_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    SHOAL_BALANCE_WHOLE = 1 << 30,
    SHOAL_BALANCE_CHUNKS = 8,     /* a job with fewer chunks for each thread is divided evenly */
    SHOAL_BALANCE_RUNS = 32,      /* between two changes */
    SHOAL_BALANCE_LEAST_GAIN = 64 /* smaller changes than one part in 64 are not worth moving rows */
};

typedef _Atomic(uint32_t) shoal_bound;
typedef _Atomic(uint32_t) shoal_pace;

static inline void shoal_balance_evenly(shoal_bound *bounds, uint32_t count) {
    for (uint32_t k = 0; k <= count; k++)
        atomic_store_explicit(&bounds[k], (uint32_t)((uint64_t)SHOAL_BALANCE_WHOLE * k / count),
                              memory_order_relaxed);
}

/* The first chunk of a part. It is rounded to the nearest one, so that bounds that are nearly even make even
 * parts. */
static inline uint32_t shoal_balance_begin(const shoal_bound *bounds, uint32_t count, uint32_t chunks,
                                           uint32_t part) {
    if (chunks < (uint64_t)SHOAL_BALANCE_CHUNKS * count)
        return (uint32_t)((uint64_t)chunks * part / count);
    const uint64_t bound = atomic_load_explicit(&bounds[part], memory_order_relaxed);
    return (uint32_t)((chunks * bound + SHOAL_BALANCE_WHOLE / 2) / SHOAL_BALANCE_WHOLE);
}

/* The chunks of the largest part, or more. */
static inline uint32_t shoal_balance_most(uint32_t count, uint32_t chunks) {
    return chunks < (uint64_t)SHOAL_BALANCE_CHUNKS * count ? chunks / count + 1 : chunks;
}

/* Adds what a thread measured in a run: `ns` for `chunks` of its own part. */
static inline void shoal_balance_learn(shoal_pace *pace, uint64_t ns, uint32_t chunks) {
    if (chunks == 0)
        return;
    uint64_t before = atomic_load_explicit(pace, memory_order_relaxed);
    const uint64_t most = UINT32_MAX / 2;
    uint64_t now = ns * 16 / chunks; /* in sixteenths, for chunks of some nanoseconds */
    now = now < 1 ? 1 : now > most ? most : now;
    if (before != 0 && now > 2 * before)
        now = 2 * before; /* it lost its core for a moment */
    if (before == 0)
        before = now;
    else if (before > 4 * now)
        before = 4 * now; /* it lost its core in its first run */
    const uint64_t up = now > before ? 15 : 0;
    atomic_store_explicit(pace, (uint32_t)((15 * before + now + up) / 16), memory_order_relaxed);
}

/* Writes better bounds to `next`. Returns 0 if `bounds` are good enough, or if a pace is not known. A part
 * always has between a quarter of an even share and four times as much. */
static inline int shoal_balance_improve(const shoal_bound *bounds, const uint32_t *paces, uint32_t count,
                                        shoal_bound *next) {
    const double even = 1.0 / count;
    double speeds = 0, sum = 0, at = 0, gain = 0;
    for (uint32_t k = 0; k < count; k++) {
        if (paces[k] == 0)
            return 0;
        speeds += 1.0 / paces[k];
    }
    for (int is_second = 0; is_second < 2; is_second++) /* first the sum of the sizes, then the bounds */
        for (uint32_t k = 0; k < count; k++) {
            const double size = ((double)atomic_load_explicit(&bounds[k + 1], memory_order_relaxed) -
                                 (double)atomic_load_explicit(&bounds[k], memory_order_relaxed)) /
                                SHOAL_BALANCE_WHOLE;
            double better = (size + 1.0 / paces[k] / speeds) / 2; /* half of the way: paces are noisy */
            better = better < even / 2 ? even / 2 : better > even * 2 ? even * 2 : better;
            if (!is_second) {
                sum += better;
                continue;
            }
            const double change = better / sum / size;
            gain = change - 1 > gain ? change - 1 : 1 - change > gain ? 1 - change : gain;
            atomic_store_explicit(&next[k], (uint32_t)(at * SHOAL_BALANCE_WHOLE), memory_order_relaxed);
            at += better / sum;
        }
    atomic_store_explicit(&next[count], SHOAL_BALANCE_WHOLE, memory_order_relaxed);
    return gain * SHOAL_BALANCE_LEAST_GAIN >= 1;
}
#endif
