/* Gates: how a vector environment's process hands steps to its worker processes, all in one shared mapping.
 *
 *    parent                                  worker w
 *    command, slot, row  ->  gate[w].go  ->  sees a new number, works, writes its rows
 *    sees done == go     <-  gate[w].done <- the same number back; who is last rings the bell
 *
 * 1. go and done are generation numbers: done == go means the worker is idle, and all it wrote is visible
 *    (release by the store of done, acquire by the parent's load; the other way round for go).
 * 2. Who waits looks for a while, yields, then says so (asleep, sequentially consistent) and looks once more
 *    before it sleeps: either the writer sees asleep, or the sleeper sees the new number.
 * 3. A sleep is never longer than SHOAL_GATE_SLICE_NS: a wake-up lost to a killed process costs that, not a
 *    hang. Death itself is the kernel's to tell (a descriptor the parent polls). */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GATE_H
#define SHOAL_GATE_H

#include "platform.h"

#include <poll.h>

#ifdef __cplusplus
extern "C" {
#define SHOAL_ALIGN(n) alignas(n)
#else
#define SHOAL_ALIGN(n) _Alignas(n)
#endif

#define SHOAL_GATE_SLICE_NS 50000000u

enum shoal_command { SHOAL_STEP = 1, SHOAL_SENT = 2, SHOAL_MESSAGE = 3, SHOAL_STOP = 4 };

/* Adapts how long a waiter looks before it sleeps to what its recent waits took. Private to one waiter. */
typedef struct shoal_patience {
    uint64_t average_ns; /* moving average of waits */
    uint32_t yields;     /* more runnable processes than cores: yield at once */
} shoal_patience;

typedef struct shoal_gate {
    /* Writer: parent, before go. Reader: worker, after it. */
    SHOAL_ALIGN(64) shoal_word go;
    uint32_t command, slot;
    uint64_t row;
    uint64_t mail_bytes; /* of the message that goes with the command */
    /* Writer: worker, before done. Reader: parent, after it. */
    SHOAL_ALIGN(64) shoal_word done;
    uint32_t replied;     /* what kind of reply, 0: none */
    uint64_t reply_bytes; /* of the message that goes with it */
    uint64_t busy_ns;     /* between go and done of SHOAL_STEP, summed */
    uint64_t env_ns;      /* part of it spent inside environments, from samples */
    /* Writer: worker, before it sleeps. Reader: parent, after go. */
    SHOAL_ALIGN(64) shoal_word asleep;
    uint8_t pad[60];
} shoal_gate;

typedef struct shoal_bell {
    /* 1: the parent sleeps until all workers are idle; 2 + w: until worker w is. Writers: parent, before it
     * sleeps; the worker that wakes it. */
    SHOAL_ALIGN(64) shoal_word asleep;
    uint8_t pad[60];
} shoal_bell;

/* Parent: hands `command` to an idle worker. Set the gate's other words first. */
void shoal_gate_post(shoal_gate *gate, uint32_t command);
/* Parent: has the worker finished what it was given? */
int shoal_gate_idle(const shoal_gate *gate);
/* Parent: 1 once all `count` gates are idle, 0 if it would have to sleep now: after a while of looking. */
int shoal_gates_look(shoal_gate *const *gates, uint32_t count, shoal_patience *patience);
/* Parent: says that it will sleep. It must look once more after this, then sleep or disarm. */
void shoal_bell_arm(shoal_bell *bell);
void shoal_bell_arm_for(shoal_bell *bell, uint32_t worker);
void shoal_bell_disarm(shoal_bell *bell);
/* Parent: sleeps until the bell rings (polled[0] is its descriptor), something else in `polled` is heard, a
 * signal comes, or `timeout_ns` or a slice have passed; then disarms. Whether something else was heard. */
int shoal_bell_sleep(shoal_bell *bell, struct pollfd *polled, uint32_t count, uint64_t timeout_ns);

/* Worker: waits for a number other than `seen`, at most one slice; returns the number there is. */
uint32_t shoal_gate_wait(shoal_gate *gate, uint32_t seen, shoal_patience *patience);
/* Worker: gives the number back; rings the bell if the parent sleeps for this worker alone, or for all
 * `count` workers and they are idle. */
void shoal_gate_finish(shoal_gate *gates, uint32_t count, uint32_t worker, uint32_t seen, shoal_bell *bell,
                       int bell_fd);
/* Worker: wakes the parent if it sleeps. */
void shoal_bell_ring(shoal_bell *bell, int bell_fd);

#ifdef __cplusplus
}
#endif
#endif
