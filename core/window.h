/* A window: the newest snapshot of one environment in shared memory, protected by a seqlock.
 *
 *   | sequence | bytes | stamps |  content ...  |
 *
 * 1. The only writer makes the sequence odd, stores the content, and makes the sequence even again.
 * 2. A reader loads an even sequence (acquire) and copies. The copy is a whole snapshot if the sequence is
 *    still the same after an acquire fence; otherwise it copies again. Writers never wait.
 * 3. If the writer dies while it writes, the sequence stays odd, and readers time out. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_WINDOW_H
#define SHOAL_WINDOW_H

#include "platform.h"

#ifdef __cplusplus
typedef std::atomic<uint64_t> shoal_window_word;
extern "C" {
#else
typedef _Atomic(uint64_t) shoal_window_word;
#endif

enum { SHOAL_WINDOW_STAMPS = 5, SHOAL_WINDOW_HEAD_BYTES = 64 };

/* Writer: the process that steps the environment. Readers: any process. */
typedef struct shoal_window {
    shoal_window_word sequence; /* 0 until the first snapshot */
    uint64_t bytes;             /* of content */
    int64_t stamps[SHOAL_WINDOW_STAMPS];
    uint64_t reserved;
} shoal_window; /* the content follows, up to the end of the memory */

void shoal_window_begin(shoal_window *window);
void shoal_window_put(shoal_window *window, uint64_t offset, const void *from, uint64_t bytes);
void shoal_window_end(shoal_window *window, uint64_t bytes, const int64_t stamps[SHOAL_WINDOW_STAMPS]);

/* The number of the newest whole snapshot, from 1 on; 0 if there is none. */
uint64_t shoal_window_number(const shoal_window *window);

/* Copies the content to `out`, of `capacity` bytes, and returns the snapshot's number; 0 if there is no whole
 * snapshot within `timeout_ns`. */
uint64_t shoal_window_read(const shoal_window *window, void *out, uint64_t capacity, uint64_t *bytes,
                           int64_t stamps[SHOAL_WINDOW_STAMPS], uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
