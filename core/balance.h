/* How a pool divides the chunks of a job: a thread that takes longer for a chunk gets fewer of them.
 *
 *   pace[k]     mean time of a chunk on thread k; moments in which the thread lost its core count little
 *   bounds[k]   where part k begins, in units of 1 / SHOAL_BALANCE_WHOLE; part k ends at bounds[k + 1]
 *
 * The mean times of threads of one pool differed by ten percent for seconds. If parts were even, all threads
 * would wait for the slowest one, or take its chunks, which moves rows between caches in every run. Only jobs
 * that do the same work in every run are divided so, because paces of different jobs cannot be compared. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_BALANCE_H
#define SHOAL_BALANCE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SHOAL_BALANCE_WHOLE = 1 << 30,
    SHOAL_BALANCE_CHUNKS = 8, /* a job with fewer chunks for each thread is divided evenly */
    SHOAL_BALANCE_RUNS = 32   /* between two changes */
};

#define SHOAL_BALANCE_LEAST_CHANGE (1.0 / 64) /* a smaller change of a part is not worth moving rows */

typedef _Atomic(uint32_t) shoal_bound;
typedef _Atomic(uint32_t) shoal_pace;

/* Whether a job has enough chunks to be divided unevenly. */
static inline int shoal_balance_applies(uint32_t count, uint32_t chunks) {
    return chunks >= (uint64_t)SHOAL_BALANCE_CHUNKS * count;
}

static inline void shoal_balance_evenly(shoal_bound *bounds, uint32_t count) {
    for (uint32_t k = 0; k <= count; k++)
        atomic_store_explicit(&bounds[k], (uint32_t)((uint64_t)SHOAL_BALANCE_WHOLE * k / count),
                              memory_order_relaxed);
}

/* The first chunk of a part. bounds NULL: the parts are even. Else it is rounded to the nearest one, so that
 * bounds that are nearly even make even parts. */
static inline uint32_t shoal_balance_begin(const shoal_bound *bounds, uint32_t count, uint32_t chunks,
                                           uint32_t part) {
    if (bounds == NULL || !shoal_balance_applies(count, chunks))
        return (uint32_t)((uint64_t)chunks * part / count);
    const uint64_t bound = atomic_load_explicit(&bounds[part], memory_order_relaxed);
    return (uint32_t)((chunks * bound + SHOAL_BALANCE_WHOLE / 2) / SHOAL_BALANCE_WHOLE);
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

static inline double shoal_balance_size(const shoal_bound *bounds, uint32_t part) {
    const double end = atomic_load_explicit(&bounds[part + 1], memory_order_relaxed);
    return (end - atomic_load_explicit(&bounds[part], memory_order_relaxed)) / SHOAL_BALANCE_WHOLE;
}

/* Half of the way from the size of a part to `wanted`, because paces are noisy; and between half of an even
 * share and two of them. */
static inline double shoal_balance_approach(double size, double wanted, uint32_t count) {
    const double better = (size + wanted) / 2, least = 0.5 / count, most = 2.0 / count;
    return better < least ? least : better > most ? most : better;
}

/* Writes better bounds to `next`. Returns 0 if `bounds` are good enough, or if a pace is not known. A part
 * always has between a quarter of an even share and four times as much: the sizes are scaled to fit. */
static inline int shoal_balance_improve(const shoal_bound *bounds, const uint32_t *paces, uint32_t count,
                                        shoal_bound *next) {
    double speeds = 0, sum = 0, at = 0, largest = 0;
    for (uint32_t k = 0; k < count; k++) {
        if (paces[k] == 0)
            return 0;
        speeds += 1.0 / paces[k];
    }
    for (uint32_t k = 0; k < count; k++)
        sum += shoal_balance_approach(shoal_balance_size(bounds, k), 1.0 / paces[k] / speeds, count);
    for (uint32_t k = 0; k < count; k++) {
        const double size = shoal_balance_size(bounds, k);
        const double better = shoal_balance_approach(size, 1.0 / paces[k] / speeds, count) / sum;
        const double change = better > size ? better / size - 1 : 1 - better / size;
        largest = change > largest ? change : largest;
        atomic_store_explicit(&next[k], (uint32_t)(at * SHOAL_BALANCE_WHOLE), memory_order_relaxed);
        at += better;
    }
    atomic_store_explicit(&next[count], SHOAL_BALANCE_WHOLE, memory_order_relaxed);
    return largest >= SHOAL_BALANCE_LEAST_CHANGE;
}
#endif
