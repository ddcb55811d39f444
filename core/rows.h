/* Inside the core: how rows are copied, by gather.c and links.c. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_ROWS_H
#define SHOAL_ROWS_H

#include "ring.h"

enum { SHOAL_ROWS_AHEAD = 64 }; /* rows copied at once, at most */

/* In place of a slot whose row cannot be read: it is being written, or its writer died. */
#define SHOAL_ROWS_MISSING UINT64_MAX

/* Calls `copy(size)` with a size that the compiler knows where it is one that records are made of. */
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

static inline uint64_t shoal_least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* How many rows are copied at once. Long ones singly: the longer it takes, the likelier one is overtaken. */
static inline uint64_t shoal_rows_block(const shoal_ring *ring) {
    return ring->stride < 1024 ? SHOAL_ROWS_AHEAD : 1;
}

/* How many rows are on their way from memory at once: as many as leave room in the nearest cache. */
static inline uint64_t shoal_rows_reach(const shoal_ring *ring) {
    return shoal_rows_block(ring) == 1 ? 1 : shoal_least(256, 16384 / ring->stride);
}

static inline void shoal_rows_prefetch(const char *row, uint64_t stride) {
    const uint64_t bytes = stride < 512 ? stride : 512; /* then the hardware goes on */
    __builtin_prefetch(row);
    for (uint64_t at = 64; at < bytes; at += 64)
        __builtin_prefetch(row + at);
}

#endif
