/* Gates and wake-up word in memory that forked processes share, for the tests of gates and tickets, and a
 * parent over them. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_TEST_GATE_WORLD_H
#define SHOAL_TEST_GATE_WORLD_H

#include "check.h"
#include "gates.h"

#include <signal.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 4, WORDS = 13, WORK = SHOAL_STEP, END = SHOAL_STOP };

/* What must be seen after go and done; nothing of it is atomic. */
typedef struct payload {
    uint64_t in[WORDS], out[WORDS];
    uint64_t posted_ns; /* before go */
    uint32_t late;      /* wake-ups that took nearly a slice */
} payload;

typedef struct world {
    shoal_gate gates[WORKERS];
    shoal_wakeup wakeup;
    payload payloads[WORKERS];
    int wakeup_fd, ring_fd;
    uint32_t first; /* number before the first hand-off */
    int by_word;    /* workers hold their liveness words, so the parent sleeps on words */
} world;

static inline world *open_world(uint32_t first) {
    world *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(w != MAP_FAILED);
    CHECK_EQUAL(shoal_wakeup_create(&w->wakeup_fd, &w->ring_fd), 0);
    w->first = first;
    for (int i = 0; i < WORKERS; i++) {
        atomic_store(&w->gates[i].go, first);
        atomic_store(&w->gates[i].done, first);
    }
    return w;
}

static inline void close_world(world *w) {
    close(w->wakeup_fd);
    if (w->ring_fd != w->wakeup_fd)
        close(w->ring_fd);
    CHECK_EQUAL(munmap(w, sizeof *w), 0);
}

/* The parent's side, over the first `count` gates. A worker without a descriptor of its own has one on which
 * nothing ever happens. */
typedef struct parent {
    world *w;
    shoal_gates all;
    int quiet[2];
    void *memory[64];
} parent;

static inline void open_parent(parent *p, world *w, uint32_t count, int crowded) {
    p->w = w;
    CHECK(shoal_gates_bytes(count) <= sizeof p->memory);
    shoal_gates_init(&p->all, p->memory, w->gates, &w->wakeup, count, w->wakeup_fd, crowded);
    CHECK_EQUAL(pipe(p->quiet), 0);
    for (uint32_t i = 0; i < count; i++)
        shoal_gates_watch(&p->all, i, p->quiet[0], 0);
}

static inline void close_parent(parent *p) {
    close(p->quiet[0]);
    close(p->quiet[1]);
    close_world(p->w);
}

static inline shoal_wait start_wait(uint64_t timeout_ns, int64_t only, int any_death) {
    return (shoal_wait){shoal_now_ns(), timeout_ns, only, any_death, 0};
}

/* A whole wait of the parent. */
static inline int wait_for(parent *p, uint64_t timeout_ns, int64_t only, int any_death) {
    shoal_wait wait = start_wait(timeout_ns, only, any_death);
    int status;
    while ((status = shoal_gates_wait(&p->all, &wait)) == SHOAL_WAIT_AGAIN)
        continue;
    return status;
}

static inline uint64_t draw(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static inline void spin(uint64_t ns) {
    const uint64_t begin = shoal_now_ns();
    while (shoal_now_ns() - begin < ns)
        shoal_relax();
}

/* Mostly nothing, often about as long as a waiter looks before it sleeps, now and then far longer. */
static inline void pause_randomly(uint64_t *state) {
    const uint64_t kind = draw(state) % 256;
    if (kind < 40)
        spin(draw(state) % 8000);
    else if (kind < 60)
        spin(90000 + draw(state) % 30000);
    else if (kind == 255)
        usleep(1000);
}

static inline int rung(const world *w) {
    struct pollfd one = {w->wakeup_fd, POLLIN, 0};
    return poll(&one, 1, 0) > 0;
}

static inline int idle(const world *w, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (!shoal_gate_idle(&w->gates[i]))
            return 0;
    return 1;
}

/* A process that ends with this one, even if a check fails. */
static inline pid_t fork_tied(void) {
    const pid_t pid = fork();
#ifdef __linux__
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    return pid;
}

static inline int pidfd_of(pid_t pid) {
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

/* Reaps a process that was killed. */
static inline void reap(pid_t pid) {
    int status;
    CHECK_EQUAL(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

#endif
