/* A session's host: one thread that answers whoever looks at a running vector environment.
 *
 *   watcher --- FACTS, COUNTERS, WATCH envs ---> host ---> `watched`, `due`: read by who steps
 *   watcher <-- facts' fd, counters, windows' fds -- host <--- PUBLISH env, window's fd --- who steps
 *
 * 1. What a watcher watches goes with its connection, so a killed one watches nothing.
 * 2. While anything is watched, `due` is set in every line, as often as the quickest watcher asks.
 * 3. The thread takes no lock, asks Python nothing and waits for nobody: whoever does not read is dropped.
 *
 * Only processes of this user are answered. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_HOST_H
#define SHOAL_HOST_H

#include "engine.h"
#include "platform.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHOAL_MAX_WATCHED = 16, SHOAL_DUE_BYTES = 64 };

/* What goes over the socket, both ways. A descriptor may go with it. */
typedef struct shoal_note {
    uint32_t kind;                     /* shoal_note_kind; an answer has the kind of its question */
    uint32_t count;                    /* WATCH: of values; the answer: how many are watched */
    int64_t number;                    /* WATCH: thousandths of a hertz; WINDOW, PUBLISH: the environment */
    int64_t values[SHOAL_MAX_WATCHED]; /* WATCH: environments; COUNTERS: time, steps, episodes, length sum,
                                          and the return sum's bits */
} shoal_note;

enum shoal_note_kind {
    SHOAL_FACTS = 1,
    SHOAL_COUNTERS = 2,
    SHOAL_WATCH = 3,
    SHOAL_WINDOW = 4,
    SHOAL_PUBLISH = 5
};

/* Writer: the host. Readers: those who step. A new generation means a new window, even for the same
 * environment. */
typedef struct shoal_watched {
    int64_t env; /* -1: none */
    uint64_t generation;
} shoal_watched;

typedef struct shoal_host_plan {
    int listen_fd, facts_fd; /* taken over; `listen_fd` does not block */
    uint64_t num_envs;
    shoal_watched *watched; /* SHOAL_MAX_WATCHED */
    char *due;              /* `lines` of SHOAL_DUE_BYTES, each begins with a shoal_word */
    uint32_t lines;
    void (*count)(void *context, shoal_statistics *sum); /* reads what others are writing */
    void *context;
} shoal_host_plan;

typedef struct shoal_host shoal_host;

int shoal_host_start(const shoal_host_plan *plan, shoal_host **host); /* 0 or -errno */
void shoal_host_stop(shoal_host *host);   /* ends the thread and every connection */
void shoal_host_forget(shoal_host *host); /* instead of stop, in a forked child, which has no such thread */

/* Sends a note on a stream socket, with a descriptor unless it is -1. 0 or -errno. */
int shoal_note_send(int fd, const shoal_note *note, int passed_fd);

#ifdef __cplusplus
}
#endif
#endif
