/* Gates: how a vector environment's process hands steps to its worker processes, all in one shared mapping.
 *
 *    parent                                  worker w
 *    command, slot, row  ->  gate[w].go  ->  sees a new number, works, writes its rows
 *    sees done == go     <-  gate[w].done <- the same number back; who is last rings the bell
 *
 * 1. go and done are generation numbers: done == go means the worker is idle, and all it wrote is visible
 *    (release by the store of done, acquire by the parent's load; the other way round for go).
 * 2. Who waits looks for a while, yields, then says so (asleep, sequentially consistent) and looks once more
 *    before it sleeps: either the writer sees asleep, or the sleeper sees the new number. Looking and
 *    yielding are dropped for a while where they did not pay.
 * 3. A sleep is never longer than SHOAL_GATE_SLICE_NS: a wake-up lost to a killed process costs that, not a
 *    hang. Death itself is the kernel's to tell: by the signs of life in the gate, where the system has any
 *    and all whom the parent waits for hold theirs, else by descriptors that the parent polls. */
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

/* Something that usually helps and sometimes harms: after a disappointment it rests for some waits, twice
 * as many after each further one, and is then tried again. */
typedef struct shoal_habit {
    uint32_t rests, backoff;
} shoal_habit;

/* What a waiter does before it sleeps, learned from its recent waits. Private to one waiter. */
typedef struct shoal_patience {
    uint64_t average_ns; /* moving average of waits */
    uint64_t limit_ns;   /* how long it yields at most; only now and then while waits average more */
    uint32_t slept;      /* without yielding first, for that */
    uint64_t yielded_ns; /* in vain, before the sleep that follows */
    shoal_habit look;    /* disappoints when it does not end the wait: the other one may need this core */
    shoal_habit yield;   /* disappoints when it ends too late: somebody else took the core for a time slice */
} shoal_patience;

/* `crowded`: there are more processes of ours than cores, so at first one yields at once. Who then waits for
 * many sleeps early: it is told by the last of them, and each of them should have a core until then. (To the
 * kernel a process that yields has work to do: two that work may share a core beside it.) */
shoal_patience shoal_patience_new(int crowded, int waits_for_many);

typedef struct shoal_gate {
    /* Writer: parent, before go. Reader: worker, after it. */
    SHOAL_ALIGN(64) shoal_word go;
    uint32_t command, slot;
    uint64_t row;
    uint64_t mail_bytes; /* of the message that goes with the command */
    uint64_t posted_ns;
    /* Writer: worker, before done. Reader: parent, after it. */
    SHOAL_ALIGN(64) shoal_word done;
    uint32_t replied;     /* what kind of reply, 0: none */
    uint64_t reply_bytes; /* of the message that goes with it */
    uint64_t busy_ns;     /* between go and done of SHOAL_STEP, summed */
    uint64_t env_ns;      /* part of it spent inside environments, from samples */
    uint64_t finished_ns;
    shoal_word core; /* where the worker ran lately, plus one; hints alone, for shoal_gate_spread */
    /* Writer: worker, before it sleeps. Reader: parent, after go. */
    SHOAL_ALIGN(64) shoal_word asleep;
    uint8_t pad[60];
    /* Writers: the worker's thread and its guard's, once; the kernel, when these end. Whichever is first to
     * get a core after a kill tells. Zeroed by the parent before there is a worker. */
    SHOAL_ALIGN(64) shoal_life life;
    SHOAL_ALIGN(64) shoal_life guard_life;
} shoal_gate;

#define SHOAL_BELL_ALL 1u
#define SHOAL_BELL_ONE 2u
#define SHOAL_BELL_BY_WORD 0x80000000u

typedef struct shoal_bell {
    /* SHOAL_BELL_ALL: the parent sleeps until all workers are idle; SHOAL_BELL_ONE + w: until worker w is;
     * and SHOAL_BELL_BY_WORD: on this very word, else on its descriptor. 0: it is awake. Writers: parent,
     * before it sleeps and after; of a word, the worker that wakes it. */
    SHOAL_ALIGN(64) shoal_word asleep;
    shoal_word core; /* where the parent waited lately, plus one; written by the parent alone */
    uint8_t pad[56];
} shoal_bell;

/* Parent: hands `command` to an idle worker. Set the gate's other words first. */
void shoal_gate_post(shoal_gate *gate, uint32_t command);
/* Parent: has the worker finished what it was given? */
int shoal_gate_idle(const shoal_gate *gate);
/* Parent: 1 once all `count` gates are idle, 0 if it would have to sleep now: after a while of looking. */
int shoal_gates_look(shoal_gate *const *gates, uint32_t count, shoal_patience *patience);
/* Parent: says that it will sleep, for SHOAL_BELL_ALL or SHOAL_BELL_ONE + worker, and how. It must look once
 * more after this, then sleep that way or disarm. */
void shoal_bell_arm(shoal_bell *bell, uint32_t whom);
void shoal_bell_disarm(shoal_bell *bell);
/* Parent: sleeps until the bell rings (polled[0] is its descriptor), something else in `polled` is heard, a
 * signal comes, or `timeout_ns` or a slice have passed; then disarms. Whether something else was heard. */
int shoal_bell_sleep(shoal_bell *bell, struct pollfd *polled, uint32_t count, uint64_t timeout_ns,
                     shoal_patience *patience);
/* The same by words, where shoal_lives_can_be_watched: whether one of these lives is over. */
int shoal_bell_sleep_beside(shoal_bell *bell, shoal_life *const *lives, uint32_t count, uint64_t timeout_ns,
                            shoal_patience *patience);

/* Worker: waits for a number other than `seen`, at most one slice; returns the number there is. */
uint32_t shoal_gate_wait(shoal_gate *gate, uint32_t seen, shoal_patience *patience);
/* With a worker for every core, the parent needs one of those too, and one that sleeps leaves it to a worker.
 * Parent: says where it sleeps (0: it does not). Worker, now and then: if it shares its core with a worker
 * before it and none is at the parent's, moves there. */
void shoal_bell_here(shoal_bell *bell, int sleeps);
void shoal_gate_spread(shoal_gate *gates, uint32_t count, uint32_t worker, const shoal_bell *bell);
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
