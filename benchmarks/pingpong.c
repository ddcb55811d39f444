/* Round trips between two processes over one mapping: Shoal's gate, bare spin-then-sleep, sleeping alone. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "gate.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GATE = 0, GATE_YIELDS = 1, SPIN = 2, SLEEP = 3 };
enum { SPINS = 4096 };

typedef struct line {
    _Alignas(64) shoal_word number;
    shoal_word asleep;
} line;

typedef struct table {
    shoal_gate gate;
    shoal_bell bell;
    line there, back;
} table;

typedef struct pingpong {
    table *shared;
    pid_t child;
    int kind, bell_fd, ring_fd;
    uint32_t turn;
    shoal_patience patience;
} pingpong;

/* -- bare: look `spins` times, then sleep ----------------------------------------------------------- */

static void put(line *to, uint32_t number) {
    atomic_store(&to->number, number);
    if (atomic_load(&to->asleep))
        shoal_futex_wake(&to->number);
}

/* May come back with what was seen already. */
static uint32_t get(line *from, uint32_t seen, int spins) {
    uint32_t now;
    for (int i = 0; i < spins; i++) {
        if ((now = atomic_load_explicit(&from->number, memory_order_acquire)) != seen)
            return now;
        shoal_relax();
    }
    atomic_store(&from->asleep, 1);
    if (atomic_load(&from->number) == seen)
        shoal_futex_wait(&from->number, seen, SHOAL_GATE_SLICE_NS);
    atomic_store_explicit(&from->asleep, 0, memory_order_relaxed);
    return atomic_load_explicit(&from->number, memory_order_acquire);
}

static int spins_of(const pingpong *p) { return p->kind == SPIN ? SPINS : 0; }

/* -- the gate: as Gates.wait and Gate.wait of the binding do it --------------------------------------- */

static void gate_round(pingpong *p) {
    shoal_gate *gate = &p->shared->gate;
    shoal_gate_post(gate, SHOAL_STEP);
    while (!shoal_gates_look(&gate, 1, &p->patience)) {
        struct pollfd polled = {p->bell_fd, POLLIN, 0};
        shoal_bell_arm(&p->shared->bell);
        if (shoal_gate_idle(gate)) {
            shoal_bell_disarm(&p->shared->bell);
            return;
        }
        shoal_bell_sleep(&p->shared->bell, &polled, 1, SHOAL_GATE_SLICE_NS, &p->patience);
    }
}

static void serve(pingpong *p, pid_t parent) {
    table *shared = p->shared;
    for (uint32_t seen = 0;;) {
        uint32_t now = seen;
        while (now == seen && getppid() == parent)
            now = p->kind <= GATE_YIELDS ? shoal_gate_wait(&shared->gate, seen, &p->patience)
                                         : get(&shared->there, seen, spins_of(p));
        if (now == seen)
            _exit(0);
        seen = now;
        if (p->kind <= GATE_YIELDS)
            shoal_gate_finish(&shared->gate, 1, 0, seen, &shared->bell, p->ring_fd);
        else
            put(&shared->back, seen);
    }
}

/* -- for Python --------------------------------------------------------------------------------------- */

void *pingpong_create(int kind) {
    pingpong *p = calloc(1, sizeof *p);
    void *shared = mmap(NULL, sizeof(table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == NULL || shared == MAP_FAILED || shoal_bell_create(&p->bell_fd, &p->ring_fd) < 0)
        return NULL;
    p->shared = shared;
    p->kind = kind;
    p->patience = shoal_patience_new(kind == GATE_YIELDS, 0);
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
        if (p->kind <= GATE_YIELDS) {
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
    close(p->bell_fd);
    if (p->ring_fd != p->bell_fd)
        close(p->ring_fd);
    free(p);
}
