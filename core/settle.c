/* Settling: dense loops that compilers vectorise, and lists of the few episodes that end. The build compiles
 * this file once for each instruction set (core/isa.c). */
// SPDX-License-Identifier: MIT
#include "settle.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* Packs up to 64 flags, each a byte of 0 or 1, into bits. Without SSE2, one multiplication packs eight. */
INLINE uint64_t flag_bits(const uint8_t *flags, uint64_t count) {
    uint64_t bits = 0, at = 0, word;
#ifdef __SSE2__
    for (; count >= 64 && at < 64; at += 16) {
        __m128i some = _mm_loadu_si128((const __m128i *)(flags + at));
        bits |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_slli_epi16(some, 7)) << at;
    }
#endif
    for (; at < 64 && at + 8 <= count; at += 8) {
        memcpy(&word, flags + at, sizeof word);
        bits |= (word * 0x0102040810204080u >> 56) << at;
    }
    for (; at < 64 && at < count; at++)
        bits |= (uint64_t)flags[at] << at;
    return bits;
}

/* Writes the positions of the set flags; returns how many. Few flags are set, at unpredictable positions. The
 * loop always writes four positions, so that its branch is nearly always predicted. */
INLINE uint64_t list_set(const uint8_t *flags, uint64_t count,
                         uint16_t list[SHOAL_SETTLED + SHOAL_LIST_SLACK]) {
    uint64_t listed = 0;
    for (uint64_t base = 0; base < count; base += 64) {
        uint64_t bits = flag_bits(flags + base, count - base), found = (uint64_t)__builtin_popcountll(bits);
        uint16_t *at = list + listed, *end = at + found;
        do {
            for (int i = 0; i < SHOAL_LIST_SLACK; i++) {
                *at++ = (uint16_t)(base + (uint64_t)__builtin_ctzll(bits | (uint64_t)1 << 63));
                bits &= bits - 1;
            }
        } while (at < end);
        listed += found;
    }
    return listed;
}

/* Adds one step to every episode: reward to its total, one to its length. Returns the greatest length. */
INLINE uint32_t count_steps(const double *restrict rewards, double *restrict total, uint32_t *restrict length,
                            uint64_t count) {
    uint32_t longest = 0;
    for (uint64_t i = 0; i < count; i++)
        total[i] += rewards[i];
    for (uint64_t i = 0; i < count; i++) {
        uint32_t grown = length[i] + 1;
        length[i] = grown;
        longest = grown > longest ? grown : longest;
    }
    return longest;
}

INLINE void truncate_late(const uint32_t *restrict length, uint8_t *restrict truncated, uint32_t limit,
                          uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        uint8_t late = length[i] >= limit;
        truncated[i] |= late;
    }
}

/* Clears the flags of environments that were reset, whatever the plug-in wrote; sets `reset` and its copy for
 * the next step. */
INLINE void merge_flags(uint8_t *restrict reset, uint8_t *restrict copy, uint8_t *restrict terminated,
                        uint8_t *restrict truncated, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        uint8_t keep = (uint8_t)(reset[i] - 1);
        terminated[i] &= keep;
        truncated[i] &= keep;
        reset[i] = copy[i] = (terminated[i] | truncated[i]) != 0;
    }
}

/* Makes the list again if other code has changed flags, or for another number of environments. */
INLINE void update(shoal_due *due, const uint8_t *reset, uint64_t count) {
    uint8_t differ = due->num_envs != count;
    for (uint64_t i = 0; i < count; i++)
        differ |= due->flags[i] ^ reset[i];
    if (differ) {
        memcpy(due->flags, reset, count);
        due->num_envs = (uint16_t)count;
        due->count = (uint16_t)list_set(reset, count, due->list);
    }
}

/* The episodes that ended in a call. Sums and ranges are computed in one loop: each waits for its own last
 * value, so the ranges take no more time. */
typedef struct ended_episodes {
    double return_sum, lowest, highest;
    uint64_t length_sum, odd_returns;
    uint32_t shortest, longest;
} ended_episodes;

INLINE ended_episodes add_up(const double *total, const uint32_t *length, const uint16_t *list,
                             uint64_t ended, double *last_return, uint32_t *last_length) {
    const double infinity = (double)INFINITY;
    ended_episodes all = {0, infinity, -infinity, 0, 0, UINT32_MAX, 0};
    for (uint64_t i = 0; i < ended; i++) {
        const uint64_t env = list[i];
        const double one = total[env];
        const uint32_t steps = length[env];
        const int is_counted = shoal_is_counted(one);
        const double low = is_counted ? one : infinity, high = is_counted ? one : -infinity;
        last_return[env] = one;
        last_length[env] = steps;
        all.return_sum += is_counted ? one : 0;
        all.odd_returns += !is_counted;
        all.length_sum += steps;
        all.lowest = low < all.lowest ? low : all.lowest;
        all.highest = high > all.highest ? high : all.highest;
        all.shortest = steps < all.shortest ? steps : all.shortest;
        all.longest = steps > all.longest ? steps : all.longest;
    }
    return all;
}

uint64_t shoal_settle(const shoal_engine_arrays *arrays, const shoal_envs *to, uint64_t begin, uint64_t count,
                      uint32_t time_limit, shoal_due *due, shoal_statistics *statistics) {
    double *rewards = to->rewards + begin, *total = arrays->total + begin;
    uint32_t *length = arrays->length + begin;
    uint8_t *terminated = to->terminated + begin, *truncated = to->truncated + begin;
    uint8_t *reset = arrays->reset + begin;
    uint32_t *episode = arrays->episode + begin;
    update(due, reset, count);
    uint32_t longest = count_steps(rewards, total, length, count);
    for (uint64_t i = 0; i < due->count; i++) { /* a reset is step 0 */
        uint64_t env = due->list[i];
        rewards[env] = total[env] = 0;
        length[env] = 0;
        episode[env]++;
    }
    statistics->steps += count - due->count;
    if (longest >= time_limit)
        truncate_late(length, truncated, time_limit, count);
    merge_flags(reset, due->flags, terminated, truncated, count);
    uint64_t ended = list_set(reset, count, due->list);
    const ended_episodes all =
        add_up(total, length, due->list, ended, arrays->last_return + begin, arrays->last_length + begin);
    if (ended != 0 && arrays->epoch != NULL)
        shoal_range_widen(statistics->ranges, atomic_load_explicit(arrays->epoch, memory_order_relaxed),
                          all.lowest, all.highest, all.shortest, all.longest);
    due->count = (uint16_t)ended;
    statistics->episodes += ended;
    statistics->length_sum += all.length_sum;
    statistics->odd_returns += all.odd_returns;
    statistics->return_sum += all.return_sum;
    return ended;
}
