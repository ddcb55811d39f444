/* A worker's watch: a thread that ends the worker with its parent, and one that passes on what it says.
 *
 *    the parent ends          -> guard -> _exit, even while the worker is inside a C loop
 *    worker's stderr -> pipe  -> voice -> the real stderr, and the last bytes into the tail in shared memory
 *
 * Two, since the voice may be held up: the real stderr is shared with other workers, so that it can be full
 * by the time of the write whatever a poll said before.
 * Both leave a core to others who want it: a kill wakes them, and the last thread of a process takes its
 * memory apart, which would hold up the parent that is to hear of it.
 * After a crash the parent finds the tail in the segment, and what was still in the pipe. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_WATCH_H
#define SHOAL_WATCH_H

#include "platform.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_TAIL_BYTES 4088u

/* Writer: the watch of one worker; after its death, the parent. */
typedef struct shoal_tail {
    uint64_t written; /* bytes ever; byte i is at i % SHOAL_TAIL_BYTES */
    char bytes[SHOAL_TAIL_BYTES];
} shoal_tail;

/* Starts both threads; 0 or -errno. `parent_fd` becomes readable when the parent ends (-1: none), `socket_fd`
 * hangs up with it, `stderr_fd` is the pipe's reading end, `out_fd` where it goes. All stay the caller's. The
 * guard holds `liveness`, if it is not NULL. */
int shoal_watch_start(int parent_fd, int socket_fd, int stderr_fd, int out_fd, shoal_tail *tail,
                      shoal_liveness *liveness);

void shoal_tail_add(shoal_tail *tail, const char *bytes, uint64_t count);
/* Copies the last bytes in order; returns how many. `out` has SHOAL_TAIL_BYTES. */
uint64_t shoal_tail_read(const shoal_tail *tail, char *out);

#ifdef __cplusplus
}
#endif
#endif
