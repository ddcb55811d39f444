/* A worker's watch: see watch.h. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "watch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(shoal_tail) == 4096, "a whole page");

typedef struct watch {
    int parent_fd, socket_fd, stderr_fd, out_fd;
    shoal_tail *tail;
    shoal_liveness *liveness;
} watch;

void shoal_tail_add(shoal_tail *tail, const char *bytes, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        tail->bytes[(tail->written + i) % SHOAL_TAIL_BYTES] = bytes[i];
    tail->written += count;
}

uint64_t shoal_tail_read(const shoal_tail *tail, char *out) {
    const uint64_t written = tail->written;
    const uint64_t count = written < SHOAL_TAIL_BYTES ? written : SHOAL_TAIL_BYTES;
    for (uint64_t i = 0; i < count; i++)
        out[i] = tail->bytes[(written - count + i) % SHOAL_TAIL_BYTES];
    return count;
}

/* Passes on what is in the pipe; 0 once it can give no more. */
static int pass_on(const watch *w) {
    char bytes[4096];
    ssize_t count = read(w->stderr_fd, bytes, sizeof bytes);
    if (count <= 0)
        return count < 0 && (errno == EINTR || errno == EAGAIN);
    shoal_tail_add(w->tail, bytes, (uint64_t)count);
    for (ssize_t at = 0; at < count;) {
        ssize_t written = write(w->out_fd, bytes + at, (size_t)(count - at));
        if (written < 0 && errno == EAGAIN) /* somebody else made it so */
            poll(&(struct pollfd){.fd = w->out_fd, .events = POLLOUT}, 1, -1);
        else if (written < 0 && errno != EINTR)
            break; /* nobody hears it; the tail has it */
        at += written > 0 ? written : 0;
    }
    return 1;
}

static void *run_voice(void *argument) {
    const watch w = *(watch *)argument;
    shoal_wake_modestly();
    free(argument);
    do /* the pipe may be one that does not block */
        poll(&(struct pollfd){.fd = w.stderr_fd, .events = POLLIN}, 1, -1);
    while (pass_on(&w));
    return NULL;
}

static void *run_guard(void *argument) {
    const watch w = *(watch *)argument;
    shoal_wake_modestly();
    free(argument);
    if (w.liveness != NULL)
        (void)shoal_liveness_hold(w.liveness); /* without, the worker's own tells */
    for (;;) {
        struct pollfd polled[] = {{.fd = w.parent_fd, .events = POLLIN}, {.fd = w.socket_fd, .events = 0}};
        if (poll(polled, 2, -1) > 0)
            _exit(1);
    }
    return NULL; /* never */
}

static int start(void *(*run)(void *), const watch *what) {
    watch *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return -ENOMEM;
    *copy = *what;
    pthread_t thread;
    int error = pthread_create(&thread, NULL, run, copy);
    if (error == 0)
        pthread_detach(thread);
    else
        free(copy);
    return -error;
}

int shoal_watch_start(int parent_fd, int socket_fd, int stderr_fd, int out_fd, shoal_tail *tail,
                      shoal_liveness *liveness) {
    const watch what = {parent_fd, socket_fd, stderr_fd, out_fd, tail, liveness};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = start(run_guard, &what);
    if (error == 0 && stderr_fd >= 0)
        error = start(run_voice, &what);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
