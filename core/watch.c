/* The watch threads of a worker: see watch.h. */
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

/* Copies what is in the pipe; returns 0 when the pipe has ended. */
static int copy_stderr(const watch *w) {
    char bytes[4096];
    ssize_t count = read(w->stderr_fd, bytes, sizeof bytes);
    if (count <= 0)
        return count < 0 && (errno == EINTR || errno == EAGAIN);
    shoal_tail_add(w->tail, bytes, (uint64_t)count);
    for (ssize_t at = 0; at < count;) {
        ssize_t written = write(w->out_fd, bytes + at, (size_t)(count - at));
        if (written < 0 && errno == EAGAIN) /* another process may have made it non-blocking */
            poll(&(struct pollfd){.fd = w->out_fd, .events = POLLOUT}, 1, -1);
        else if (written < 0 && errno != EINTR)
            break; /* stderr is closed; the tail has the output */
        at += written > 0 ? written : 0;
    }
    return 1;
}

static void *run_stderr_copy(void *argument) {
    const watch w = *(watch *)argument;
    shoal_lower_priority();
    free(argument);
    do /* poll, because the pipe does not block */
        poll(&(struct pollfd){.fd = w.stderr_fd, .events = POLLIN}, 1, -1);
    while (copy_stderr(&w));
    return NULL;
}

static void *run_guard(void *argument) {
    const watch w = *(watch *)argument;
    shoal_lower_priority();
    free(argument);
    if (w.liveness != NULL)
        (void)shoal_liveness_hold(w.liveness); /* if it fails, the worker's own liveness word remains */
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
        error = start(run_stderr_copy, &what);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
