/* Tests of core/watch.c: a worker's stderr is copied and its end kept; the worker ends with its parent, even
 * inside a loop. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "check.h"
#include "watch.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t read_all(const shoal_tail *tail, char *out) {
    memset(out, '?', SHOAL_TAIL_BYTES);
    return shoal_tail_read(tail, out);
}

static void the_tail_keeps_the_last_bytes_in_order(void) {
    static shoal_tail tail;
    static char out[SHOAL_TAIL_BYTES], text[3 * SHOAL_TAIL_BYTES];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * 31 + i / 251);
    CHECK_EQUAL(read_all(&tail, out), 0);
    shoal_tail_add(&tail, text, 0);
    CHECK_EQUAL(read_all(&tail, out), 0);
    uint64_t added = 0;
    static const uint64_t PARTS[] = {1, 2, 4000, 80, 5, 1, SHOAL_TAIL_BYTES - 1, 1, 3000};
    for (size_t i = 0; i < sizeof PARTS / sizeof PARTS[0]; i++) {
        shoal_tail_add(&tail, text + added, PARTS[i]);
        added += PARTS[i];
        const uint64_t expected = added < SHOAL_TAIL_BYTES ? added : SHOAL_TAIL_BYTES;
        CHECK_EQUAL(read_all(&tail, out), expected);
        CHECK(memcmp(out, text + added - expected, expected) == 0);
    }
}

static void write_larger_than_the_tail_leaves_its_end(void) {
    static shoal_tail tail;
    static char out[SHOAL_TAIL_BYTES], text[2 * SHOAL_TAIL_BYTES + 77];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i % 253);
    shoal_tail_add(&tail, text, sizeof text);
    CHECK_EQUAL(read_all(&tail, out), SHOAL_TAIL_BYTES);
    CHECK(memcmp(out, text + sizeof text - SHOAL_TAIL_BYTES, SHOAL_TAIL_BYTES) == 0);
}

/* -- a worker with a watch ------------------------------------------------------------------------------- */

typedef struct worker {
    pid_t pid;
    int parent_fd; /* write to it: the parent ends */
    int socket_fd; /* close it: the parent hangs up */
    int out_fd;    /* what reaches the user */
    shoal_tail *tail;
} worker;

/* Forks a worker that says `says` on its stderr, `out`, and then loops for ever without a system call. */
static worker start_worker_on(const int out[2], const char *says, int with_parent_fd) {
    worker w;
    int parent[2], pair[2];
    CHECK_EQUAL(pipe(parent), 0);
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    w.tail = mmap(NULL, sizeof *w.tail, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(w.tail != MAP_FAILED);
    w.parent_fd = parent[1], w.socket_fd = pair[0], w.out_fd = out[0];
    if ((w.pid = fork()) == 0) {
        int said[2];
        close(parent[1]), close(pair[0]), close(out[0]);
        signal(SIGTERM, SIG_IGN);
        CHECK_EQUAL(pipe(said), 0);
        CHECK_EQUAL(
            shoal_watch_start(with_parent_fd ? parent[0] : -1, pair[1], said[0], out[1], w.tail, NULL), 0);
        for (size_t at = 0; at < strlen(says);) {
            const ssize_t written = write(said[1], says + at, strlen(says) - at);
            CHECK(written > 0);
            at += (size_t)written;
        }
        close(said[1]);
        for (volatile uint64_t i = 0;; i++)
            continue;
    }
    close(parent[0]), close(pair[1]);
    return w;
}

static worker start_worker(const char *says, int with_parent_fd) {
    int out[2];
    CHECK_EQUAL(pipe(out), 0);
    const worker w = start_worker_on(out, says, with_parent_fd);
    close(out[1]);
    return w;
}

/* Waits at most five seconds for its end; its status, -1 if it lives. */
static int status_of(const worker *w) {
    for (int i = 0; i < 5000; i++) {
        int status;
        if (waitpid(w->pid, &status, WNOHANG) == w->pid)
            return status;
        usleep(1000);
    }
    return -1;
}

static void clear(worker *w) {
    close(w->parent_fd), close(w->out_fd);
    if (w->socket_fd >= 0)
        close(w->socket_fd);
    munmap(w->tail, sizeof *w->tail);
}

static void check_exits(worker *w) {
    const int status = status_of(w);
    if (status < 0)
        kill(w->pid, SIGKILL);
    CHECK(status >= 0 && WIFEXITED(status));
    CHECK_EQUAL(WEXITSTATUS(status), 1);
}

static size_t read_until(int fd, char *out, size_t count) {
    size_t found = 0;
    struct pollfd one = {fd, POLLIN, 0};
    while (found < count && poll(&one, 1, 5000) > 0) {
        const ssize_t got = read(fd, out + found, count - found);
        if (got <= 0)
            break;
        found += (size_t)got;
    }
    return found;
}

static void a_worker_in_an_endless_loop_ends_when_its_parent_does(void) {
    worker w = start_worker("", 1);
    CHECK_EQUAL(write(w.parent_fd, "x", 1), 1);
    check_exits(&w);
    clear(&w);
}

static void a_worker_in_an_endless_loop_ends_when_the_socket_hangs_up(void) {
    for (int with_parent_fd = 0; with_parent_fd < 2; with_parent_fd++) {
        worker w = start_worker("", with_parent_fd);
        close(w.socket_fd);
        w.socket_fd = -1;
        check_exits(&w);
        clear(&w);
    }
}

static void stderr_of_a_worker_reaches_the_user_and_the_tail(void) {
    static char text[3 * SHOAL_TAIL_BYTES + 1], heard[sizeof text], out[SHOAL_TAIL_BYTES];
    for (size_t i = 0; i < sizeof text - 1; i++)
        text[i] = (char)('a' + i % 23);
    worker w = start_worker(text, 1);
    CHECK_EQUAL(read_until(w.out_fd, heard, sizeof text - 1), sizeof text - 1);
    CHECK(memcmp(heard, text, sizeof text - 1) == 0);
    kill(w.pid, SIGKILL); /* the tail outlives the worker */
    CHECK(WIFSIGNALED(status_of(&w)));
    CHECK_EQUAL(read_all(w.tail, out), SHOAL_TAIL_BYTES);
    CHECK(memcmp(out, text + sizeof text - 1 - SHOAL_TAIL_BYTES, SHOAL_TAIL_BYTES) == 0);
    clear(&w);
}

static void closed_stderr_stops_neither_the_tail_nor_the_watch(void) {
    static char out[SHOAL_TAIL_BYTES];
    int ends[2], pair[2], said[2];
    CHECK_EQUAL(pipe(ends), 0);
    CHECK_EQUAL(pipe(said), 0);
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    shoal_tail *tail = mmap(NULL, sizeof *tail, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(tail != MAP_FAILED);
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]), close(pair[0]), close(said[1]);
        CHECK_EQUAL(shoal_watch_start(-1, pair[1], said[0], ends[1], tail, NULL), 0);
        for (;;)
            pause();
    }
    close(ends[0]), close(ends[1]), close(pair[1]),
        close(said[0]); /* its output is a pipe without a reader */
    CHECK_EQUAL(write(said[1], "first ", 6), 6);
    for (int i = 0; i < 5000 && read_all(tail, out) < 6; i++)
        usleep(1000);
    CHECK_EQUAL(write(said[1], "second", 6), 6);
    for (int i = 0; i < 5000 && read_all(tail, out) < 12; i++)
        usleep(1000);
    CHECK_EQUAL(read_all(tail, out), 12);
    CHECK(memcmp(out, "first second", 12) == 0);
    close(pair[0]);
    worker gone = {.pid = pid};
    check_exits(&gone);
    close(said[1]);
    munmap(tail, sizeof *tail);
}

static void wait_until_stuck(int out_fd) {
    int before = -1, waiting = 0;
    while (waiting == 0 || waiting != before) {
        before = waiting;
        usleep(20000);
        CHECK_EQUAL(ioctl(out_fd, FIONREAD, &waiting), 0);
    }
}

static void full_output_does_not_keep_a_worker_alive(void) {
    static char much[1 << 20];
    memset(much, 'm', sizeof much - 1);
    worker w = start_worker(much, 1); /* fills both pipes, and then waits to say more */
    wait_until_stuck(w.out_fd);
    CHECK_EQUAL(write(w.parent_fd, "x", 1), 1);
    check_exits(&w);
    clear(&w);
}

/* The last room in the pipe looks free to each of them, and one gets it. */
static void output_that_others_filled_does_not_keep_a_worker_alive(void) {
    static char much[1 << 18], page[4096];
    memset(much, 'm', sizeof much - 1);
    for (int round = 0; round < 10; round++) {
        int out[2];
        CHECK_EQUAL(pipe(out), 0);
        worker all[4];
        for (int i = 0; i < 4; i++)
            all[i] = start_worker_on(out, much, 1);
        wait_until_stuck(out[0]);
        for (int i = 0; i < 50; i++) {
            CHECK(read(out[0], page, sizeof page) > 0);
            usleep(200);
        }
        for (int i = 0; i < 4; i++) {
            CHECK_EQUAL(write(all[i].parent_fd, "x", 1), 1);
            check_exits(&all[i]);
            all[i].out_fd = -1;
            clear(&all[i]);
        }
        close(out[0]), close(out[1]);
    }
}

static void the_end_of_the_pipe_does_not_keep_the_watch_busy(void) {
    const pid_t pid = fork();
    if (pid == 0) {
        int said[2], pair[2];
        static shoal_tail tail;
        CHECK_EQUAL(pipe(said), 0);
        CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        CHECK_EQUAL(shoal_watch_start(-1, pair[1], said[0], 2, &tail, NULL), 0);
        close(said[1]);
        usleep(300000);
        struct rusage used;
        CHECK_EQUAL(getrusage(RUSAGE_SELF, &used), 0);
        _exit(used.ru_utime.tv_sec + used.ru_stime.tv_sec > 0 ||
              used.ru_utime.tv_usec + used.ru_stime.tv_usec > 100000);
    }
    worker idle = {.pid = pid};
    CHECK_EQUAL(status_of(&idle), 0);
}

static void guard_holds_its_liveness_word_until_the_worker_dies(void) {
#ifdef __linux__
    shoal_liveness own;
    if (shoal_liveness_hold(&own) != 0)
        return; /* no robust futexes: for example under qemu */
    shoal_liveness_release(&own);
    shoal_liveness *liveness = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(liveness != MAP_FAILED);
    const pid_t pid = fork();
    if (pid == 0) {
        int pair[2];
        static shoal_tail tail;
        CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        CHECK_EQUAL(shoal_watch_start(-1, pair[1], -1, 2, &tail, liveness), 0);
        for (;;)
            pause(); /* its own thread holds nothing */
    }
    for (int i = 0; i < 5000 && atomic_load(&liveness->at) == 0; i++)
        usleep(1000);
    CHECK(atomic_load(&liveness->at) != 0 && !shoal_liveness_has_ended(liveness));
    CHECK_EQUAL(kill(pid, SIGKILL), 0);
    worker w = {.pid = pid};
    CHECK(WIFSIGNALED(status_of(&w)));
    CHECK(shoal_liveness_has_ended(liveness));
    munmap(liveness, 4096);
#endif
}

static _Atomic int signals;
static pthread_t handled_by;
static void note_signal(int number) {
    (void)number;
    handled_by = pthread_self();
    atomic_fetch_add(&signals, 1);
}

static void signals_are_for_the_worker_not_for_its_watch(void) {
    const pid_t pid = fork();
    if (pid == 0) {
        int pair[2];
        static shoal_tail tail;
        CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        CHECK_EQUAL(shoal_watch_start(-1, pair[1], -1, 2, &tail, NULL), 0);
        signal(SIGUSR2, note_signal);
        sigset_t now;
        CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, NULL, &now), 0);
        CHECK(!sigismember(&now, SIGUSR2)); /* starting it left the caller's own mask alone */
        for (int i = 0; i < 100; i++) {
            kill(getpid(), SIGUSR2);
            while (atomic_load(&signals) <= i)
                usleep(10);
            CHECK(pthread_equal(handled_by, pthread_self()));
        }
        _exit(0);
    }
    worker w = {.pid = pid};
    CHECK_EQUAL(status_of(&w), 0);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0); /* children are forked */
    alarm(100);
    RUN(the_tail_keeps_the_last_bytes_in_order);
    RUN(write_larger_than_the_tail_leaves_its_end);
    RUN(a_worker_in_an_endless_loop_ends_when_its_parent_does);
    RUN(a_worker_in_an_endless_loop_ends_when_the_socket_hangs_up);
    RUN(stderr_of_a_worker_reaches_the_user_and_the_tail);
    RUN(closed_stderr_stops_neither_the_tail_nor_the_watch);
    RUN(full_output_does_not_keep_a_worker_alive);
    RUN(output_that_others_filled_does_not_keep_a_worker_alive);
    RUN(the_end_of_the_pipe_does_not_keep_the_watch_busy);
    RUN(guard_holds_its_liveness_word_until_the_worker_dies);
    RUN(signals_are_for_the_worker_not_for_its_watch);
    return 0;
}
