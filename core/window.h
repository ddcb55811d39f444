/* A window: the newest snapshot of one environment, for anybody who has the memory.
 *
 *   | sequence | bytes | stamps |  content ...  |
 *
 * 1. The writer, one process, makes the sequence odd, stores the content, makes it even: two more each time.
 * 2. A reader loads an even sequence (acquire), copies, and has a whole snapshot if the sequence is the same
 *    after an acquire fence. Else it copies again: writers never wait.
 * 3. Of a writer that died in between the sequence stays odd for ever: readers give up after a while. */
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

/* Writer: whoever steps the environment. Readers: everybody. */
typedef struct shoal_window {
    shoal_window_word sequence; /* 0: nothing was ever written */
    uint64_t bytes;             /* of content */
    int64_t stamps[SHOAL_WINDOW_STAMPS];
    uint64_t reserved;
} shoal_window; /* the content follows, up to the end of the memory */

void shoal_window_begin(shoal_window *window);
void shoal_window_put(shoal_window *window, uint64_t offset, const void *from, uint64_t bytes);
void shoal_window_end(shoal_window *window, uint64_t bytes, const int64_t stamps[SHOAL_WINDOW_STAMPS]);

/* The number of the newest snapshot that is whole, from 1 on; 0: none. */
uint64_t shoal_window_number(const shoal_window *window);

/* Copies the content to `out`, of `capacity` bytes, and gives its number; 0 if none could be had within
 * `patience_ns`. */
uint64_t shoal_window_read(const shoal_window *window, void *out, uint64_t capacity, uint64_t *bytes,
                           int64_t stamps[SHOAL_WINDOW_STAMPS], uint64_t patience_ns);

#ifdef __cplusplus
}
#endif
#endif
