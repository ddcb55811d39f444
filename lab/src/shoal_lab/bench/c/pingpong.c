/* Round trips between two processes over one mapping: bare spin-then-sleep, sleeping alone, and, if
 * SHOAL_GATE is defined and the core is compiled in, the gate. Linux only: the limit is a futex. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#ifdef SHOAL_GATE
#include "gate.h"
#endif
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GATE = 0, GATE_YIELDS = 1, SPIN = 2, SLEEP = 3 };
enum { SPINS = 4096 };

typedef struct line {
    _Alignas(64) _Atomic uint32_t number;
    _Atomic uint32_t asleep;
} line;

typedef struct table {
#ifdef SHOAL_GATE
    shoal_gate gate;
    shoal_wakeup wakeup;
#endif
    line there, back;
} table;

typedef struct pingpong {
    table *shared;
    pid_t child;
    int kind;
    uint32_t turn;
#ifdef SHOAL_GATE
    int wakeup_fd, ring_fd;
    shoal_wait_policy policy;
#endif
} pingpong;

/* -- bare: spin `spins` times, then sleep ----------------------------------------------------------- */

static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
    const struct timespec slice = {0, 50000000}; /* wakes up regularly, because a dead partner does not */
    syscall(SYS_futex, word, operation, value, operation == FUTEX_WAIT ? &slice : NULL, NULL, 0);
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void put(line *to, uint32_t number) {
    atomic_store(&to->number, number);
    if (atomic_load(&to->asleep))
        futex(&to->number, FUTEX_WAKE, 1);
}

/* May return without a change (spurious wake-up). */
static uint32_t get(line *from, uint32_t seen, int spins) {
    uint32_t now;
    for (int i = 0; i < spins; i++) {
        if ((now = atomic_load_explicit(&from->number, memory_order_acquire)) != seen)
            return now;
        relax();
    }
    atomic_store(&from->asleep, 1);
    if (atomic_load(&from->number) == seen)
        futex(&from->number, FUTEX_WAIT, seen);
    atomic_store_explicit(&from->asleep, 0, memory_order_relaxed);
    return atomic_load_explicit(&from->number, memory_order_acquire);
}

static int spins_of(const pingpong *p) { return p->kind == SPIN ? SPINS : 0; }

/* -- the gate: as core/gates.c uses it --------------------------------------- */

#ifdef SHOAL_GATE
static bool is_gate(const pingpong *p) { return p->kind <= GATE_YIELDS; }

static void gate_round(pingpong *p) {
    shoal_gate *gate = &p->shared->gate;
    shoal_gate_post(gate, SHOAL_STEP);
    while (!shoal_gates_wait_awake(&gate, 1, &p->policy)) {
        struct pollfd polled = {p->wakeup_fd, POLLIN, 0};
        shoal_wakeup_arm(&p->shared->wakeup, SHOAL_WAKE_FOR_ALL);
        if (shoal_gate_idle(gate)) {
            shoal_wakeup_disarm(&p->shared->wakeup);
            return;
        }
        shoal_wakeup_sleep(&p->shared->wakeup, &polled, 1, SHOAL_GATE_SLICE_NS, &p->policy);
    }
}

static uint32_t gate_wait(pingpong *p, uint32_t seen) {
    return shoal_gate_wait(&p->shared->gate, seen, &p->policy);
}

static void gate_finish(pingpong *p, uint32_t seen) {
    shoal_gate_finish(&p->shared->gate, 1, 0, seen, &p->shared->wakeup, p->ring_fd);
}

static int gate_open(pingpong *p) {
    p->policy = shoal_wait_policy_new(p->kind == GATE_YIELDS, 0);
    return shoal_wakeup_create(&p->wakeup_fd, &p->ring_fd);
}

static void gate_close(pingpong *p) {
    close(p->wakeup_fd);
    if (p->ring_fd != p->wakeup_fd)
        close(p->ring_fd);
}
#else
static bool is_gate(const pingpong *p) { return (void)p, false; }
static void gate_round(pingpong *p) { (void)p; }
static uint32_t gate_wait(pingpong *p, uint32_t seen) { return (void)p, seen; }
static void gate_finish(pingpong *p, uint32_t seen) { (void)p, (void)seen; }
static int gate_open(pingpong *p) { return p->kind <= GATE_YIELDS ? -1 : 0; }
static void gate_close(pingpong *p) { (void)p; }
#endif

static void serve(pingpong *p, pid_t parent) {
    for (uint32_t seen = 0;;) {
        uint32_t now = seen;
        while (now == seen && getppid() == parent)
            now = is_gate(p) ? gate_wait(p, seen) : get(&p->shared->there, seen, spins_of(p));
        if (now == seen)
            _exit(0);
        seen = now;
        if (is_gate(p))
            gate_finish(p, seen);
        else
            put(&p->shared->back, seen);
    }
}

/* -- for Python --------------------------------------------------------------------------------------- */

void *pingpong_create(int kind) {
    pingpong *p = calloc(1, sizeof *p);
    void *shared = mmap(NULL, sizeof(table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == NULL || shared == MAP_FAILED)
        return NULL;
    p->shared = shared;
    p->kind = kind;
    if (gate_open(p) < 0)
        return NULL;
    const pid_t parent = getpid();
    p->child = fork();
    if (p->child == 0)
        serve(p, parent);
    return p->child < 0 ? NULL : p;
}

int64_t pingpong_child(const void *made) { return ((const pingpong *)made)->child; }

void pingpong_run(void *made, uint64_t rounds) {
    pingpong *p = made;
    for (uint64_t i = 0; i < rounds; i++) {
        const uint32_t before = p->turn++;
        if (is_gate(p)) {
            gate_round(p);
        } else {
            put(&p->shared->there, p->turn);
            while (get(&p->shared->back, before, spins_of(p)) == before)
                ;
        }
    }
}

void pingpong_free(void *made) {
    pingpong *p = made;
    kill(p->child, SIGKILL);
    waitpid(p->child, NULL, 0);
    munmap(p->shared, sizeof(table));
    gate_close(p);
    free(p);
}
