/* A session's host: one thread that answers processes that watch a running vector environment.
 *
 *   watcher --- FACTS, COUNTERS, WATCH envs ---> host --- `watched`, `due`, epoch ---> stepping thread
 *   watcher <-- fds of facts, history, windows - host <-- PUBLISH env, fd ------------ stepping thread
 *
 * 1. A watcher's environments are forgotten when its connection closes, so a killed watcher leaves nothing.
 * 2. Each stepping process has a line of `due`: a cache line with a word and the epoch. While anything is
 *    watched, the host sets the word in every line, at the rate of the fastest watcher.
 * 3. Four times a second the host reads the counters and adds a bin to the history, watched or not. Watchers
 *    map the history read-only, so it costs the run nothing to read it.
 * 4. One watcher at a time can ask for a recording of a whole episode (RECORD). The request is the entry
 *    after the watched environments. The publisher answers it once (RECORDED), with the recording or without.
 * 5. The thread takes no lock, does not call Python and never blocks: a client that does not read is dropped.
 *
 * It answers only processes of the same user. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_HOST_H
#define SHOAL_HOST_H

#include "engine.h"
#include "platform.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHOAL_MAX_WATCHED = 16, SHOAL_DUE_BYTES = 64 };
/* The entry of the environment that is to be recorded, and the number of entries. */
enum { SHOAL_RECORD_ENTRY = SHOAL_MAX_WATCHED, SHOAL_WATCHED_ENTRIES };

/* A message over the socket, in both directions. It may carry a descriptor. */
typedef struct shoal_note {
    uint32_t kind;                     /* shoal_note_kind; an answer has the kind of its request */
    uint32_t count;                    /* WATCH: number of values; its answer: how many are watched */
    int64_t number;                    /* WATCH: thousandths of a hertz; WINDOW, PUBLISH, RECORD, RECORDED:
                                          the environment */
    int64_t values[SHOAL_MAX_WATCHED]; /* WATCH: environments; COUNTERS: time, steps, episodes, length sum,
                                          the return sum's bits, odd returns */
} shoal_note;

enum shoal_note_kind {
    SHOAL_FACTS = 1,
    SHOAL_COUNTERS = 2,
    SHOAL_WATCH = 3,
    SHOAL_WINDOW = 4,
    SHOAL_PUBLISH = 5,
    SHOAL_HISTORY = 6, /* the answer carries the descriptor of the history */
    SHOAL_RETURNS = 7, /* the returns of the last episode of each row: see SHOAL_RETURN_BINS */
    SHOAL_RECORD = 8,  /* `number`: the environment, -1 to cancel; the answer's count is 0 if others record */
    SHOAL_RECORDED = 9 /* from the publisher, and on to the watcher; without a descriptor: there is none */
};

/* RETURNS: the values are the number of rows that have finished an episode, the bits of the lowest and of the
 * highest return, and then the number of returns in each of these bins of equal width. */
enum { SHOAL_RETURN_BINS = 12 };

/* Writer: the host. Readers: threads and workers that step. A new generation means a new window, even for the
 * same environment. */
typedef struct shoal_watched {
    int64_t env; /* -1: none */
    uint64_t generation;
} shoal_watched;

typedef struct shoal_host_plan {
    int listen_fd, facts_fd; /* the host owns both; `listen_fd` does not block */
    uint64_t num_envs;
    shoal_watched *watched; /* SHOAL_WATCHED_ENTRIES */
    char *due;              /* `lines` of SHOAL_DUE_BYTES: a shoal_word, and the epoch of the history */
    uint32_t lines;
    void (*count)(void *context, shoal_statistics *sum); /* reads counters while threads write them */
    void *context;
    shoal_history *history; /* NULL: none is kept */
    int history_fd;         /* the host owns it; read-only */
    const double *last_return;
    const uint32_t *last_length; /* of `rows`; 0: no episode has ended */
    uint64_t rows;
} shoal_host_plan;

typedef struct shoal_host shoal_host;

int shoal_host_start(const shoal_host_plan *plan, shoal_host **host); /* 0 or -errno */
void shoal_host_stop(shoal_host *host); /* ends the thread and every connection */
void shoal_host_forget(
    shoal_host *host); /* in place of stop in a forked child, where the thread is missing */

/* Sends a note on a stream socket, with a descriptor unless it is -1. 0 or -errno. */
int shoal_note_send(int fd, const shoal_note *note, int passed_fd);

#ifdef __cplusplus
}
#endif
#endif
