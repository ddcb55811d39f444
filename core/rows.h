/* Private to the core: helpers of gather.c and links.c to copy rows. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_ROWS_H
#define SHOAL_ROWS_H

#include "ring.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { SHOAL_ROWS_AHEAD = 64 }; /* most rows copied together */

/* Replaces a slot whose row cannot be read because it is being written, or because its writer died. */
#define SHOAL_ROWS_MISSING UINT64_MAX

/* Expands `copy(size)` with a constant size for the usual sizes of fields, so that the compiler can inline
 * it. */
#define SHOAL_BY_SIZE(bytes, copy)                                                                           \
    switch (bytes) {                                                                                         \
    case 1:                                                                                                  \
        copy(1);                                                                                             \
        break;                                                                                               \
    case 4:                                                                                                  \
        copy(4);                                                                                             \
        break;                                                                                               \
    case 8:                                                                                                  \
        copy(8);                                                                                             \
        break;                                                                                               \
    case 16:                                                                                                 \
        copy(16);                                                                                            \
        break;                                                                                               \
    case 32:                                                                                                 \
        copy(32);                                                                                            \
        break;                                                                                               \
    default:                                                                                                 \
        copy(bytes);                                                                                         \
    }

static inline uint64_t shoal_min(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Fields of at least this size are written by non-temporal stores, which bypass the cache: such a store does
 * not read the line first. A push writes rows that are not read soon; a large batch does not fit into the
 * nearer caches of the cores that write it. */
enum {
    SHOAL_ROWS_STREAM_MIN = 4096,
    SHOAL_ROWS_LARGE_BATCH = 4 << 20,
    SHOAL_ROWS_LARGE_PART = 2 << 20 /* of one thread */
};

static inline int shoal_rows_is_large(uint64_t batch_bytes, uint32_t threads) {
    return batch_bytes >= SHOAL_ROWS_LARGE_BATCH && batch_bytes >= threads * (uint64_t)SHOAL_ROWS_LARGE_PART;
}

#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
enum { SHOAL_ROWS_STREAM_AHEAD = 1024 }; /* bytes: the hardware's prefetcher stops at the end of a page */

static inline void shoal_rows_stream(char *to, const char *from, uint64_t bytes) {
    const uint64_t head = -(uintptr_t)to & 15;
    _mm_sfence(); /* non-temporal stores are weakly ordered: a push keeps them after its store of OPEN */
    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64) {
        __builtin_prefetch(from + SHOAL_ROWS_STREAM_AHEAD, 0, 0); /* past the end it is harmless */
        const __m128i a = _mm_loadu_si128((const __m128i *)from),
                      b = _mm_loadu_si128((const __m128i *)from + 1);
        const __m128i c = _mm_loadu_si128((const __m128i *)from + 2),
                      d = _mm_loadu_si128((const __m128i *)from + 3);
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)to + 1, b);
        _mm_stream_si128((__m128i *)to + 2, c);
        _mm_stream_si128((__m128i *)to + 3, d);
    }
    memcpy(to, from, bytes);
    _mm_sfence(); /* and before FULL; a batch is complete before another thread gets it */
}
#else
static inline void shoal_rows_stream(char *to, const char *from, uint64_t bytes) {
    shoal_racy_copy(to, from, bytes);
}
#endif

/* How many rows are copied together. Long rows are copied one at a time: the longer a copy takes, the
 * likelier a writer overwrites the row meanwhile. */
static inline uint64_t shoal_rows_block(const shoal_ring *ring) {
    return ring->stride < 1024 ? SHOAL_ROWS_AHEAD : 1;
}

/* How many rows to prefetch ahead: as many as fit in the first-level cache with room to spare. */
static inline uint64_t shoal_rows_reach(const shoal_ring *ring) {
    return shoal_rows_block(ring) == 1 ? 1 : shoal_min(256, 16384 / ring->stride);
}

/* Least rows of a chunk that one of several threads copies. */
static inline uint64_t shoal_rows_least_chunk(const shoal_ring *ring) {
    return shoal_min(32, shoal_rows_reach(ring));
}

static inline void shoal_rows_prefetch(const char *row, uint64_t stride) {
    const uint64_t bytes = stride < 512 ? stride : 512; /* the hardware prefetches the rest */
    __builtin_prefetch(row);
    for (uint64_t at = 64; at < bytes; at += 64)
        __builtin_prefetch(row + at);
}

#endif
