/* The two watch threads of a worker: one ends the worker when its parent ends, one copies its stderr.
 *
 *    the parent ends          -> guard thread -> _exit, even while the worker is inside a C loop
 *    worker's stderr -> pipe  -> copy thread  -> the real stderr; the last bytes to the tail in shared memory
 *
 * There are two threads because the copy can block: other workers share the real stderr, so it can be full
 * even after poll reported room. Both run at low priority: a kill wakes them, and the last thread of a
 * process frees its memory, which would delay the parent that waits for the death report. After a crash the
 * parent reads the tail in the segment and what is left in the pipe. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_WATCH_H
#define SHOAL_WATCH_H

#include "platform.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_TAIL_BYTES 4088u

/* Writer: the copy thread of one worker; after its death, the parent. */
typedef struct shoal_tail {
    uint64_t written; /* total number of bytes; byte i is at i % SHOAL_TAIL_BYTES */
    char bytes[SHOAL_TAIL_BYTES];
} shoal_tail;

/* Starts both threads; returns 0 or -errno. `parent_fd` becomes readable when the parent ends (-1: none),
 * `socket_fd` hangs up then, `stderr_fd` is the reading end of the pipe, `out_fd` the real stderr. The caller
 * keeps all of them. The guard thread holds `liveness`, if it is not NULL. */
int shoal_watch_start(int parent_fd, int socket_fd, int stderr_fd, int out_fd, shoal_tail *tail,
                      shoal_liveness *liveness);

void shoal_tail_add(shoal_tail *tail, const char *bytes, uint64_t count);
/* Copies the last bytes in order; returns how many. `out` has SHOAL_TAIL_BYTES. */
uint64_t shoal_tail_read(const shoal_tail *tail, char *out);

#ifdef __cplusplus
}
#endif
#endif
