/* Gates: how a vector environment's process hands steps to its worker processes, all in one shared mapping.
 *
 *    parent                                  worker w
 *    command, slot, row  ->  gate[w].go  ->  sees a new number, works, writes its rows
 *    sees done == go     <-  gate[w].done <- the same number back; the last worker wakes the parent
 *
 * 1. go and done are generation numbers: done == go means that the worker is idle and that all it wrote is
 *    visible (release by the store of done, acquire by the parent's load; the other way round for go).
 * 2. A waiter spins, then yields, then sets asleep (sequentially consistent) and checks once more before it
 *    sleeps: either the writer sees asleep, or the sleeper sees the new number. After spinning or yielding
 * has failed, the waiter skips it for some waits.
 * 3. No sleep lasts longer than SHOAL_GATE_SLICE_NS (50 ms). So if a process is killed before it sends a
 *    wake-up, the sleep is at most 50 ms too long, and nothing hangs. The kernel also reports the death. It
 *    marks the liveness words in the gate, if the system supports them and every worker that the parent waits
 *    for has locked its words. Otherwise the parent polls descriptors. */
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

/* Exponential backoff of something that usually helps and sometimes harms: after a failure it is skipped for
 * some waits, twice as many after each further failure, and then tried again. */
typedef struct shoal_backoff {
    uint32_t skips, length;
} shoal_backoff;

/* What a waiter does before it sleeps, learned from its recent waits. Private to one waiter. */
typedef struct shoal_wait_policy {
    uint64_t average_ns; /* moving average of waits */
    uint64_t limit_ns;   /* the longest time it yields; it rarely yields while waits average more */
    uint32_t slept;      /* waits that slept without yielding first */
    uint64_t yielded_ns; /* time yielded in vain before the sleep that follows */
    shoal_backoff spin;  /* fails when it does not end the wait: the other process may need this core */
    shoal_backoff yield; /* fails when it ends too late: another process took the core for a time slice */
} shoal_wait_policy;

/* `crowded`: this vector environment has more processes than there are cores, so a waiter does not spin at
 * first. One that waits for many also sleeps early: the last worker wakes it, and until then each worker
 * should have a core. (To the kernel a process that yields is runnable, so two busy workers may share a core
 * beside it.) */
shoal_wait_policy shoal_wait_policy_new(int crowded, int waits_for_many);

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
    shoal_word core; /* the core on which the worker ran lately, plus one; a hint for shoal_gate_spread */
    /* Writer: worker, before it sleeps. Reader: parent, after go. */
    SHOAL_ALIGN(64) shoal_word asleep;
    uint8_t pad[60];
    /* Writers: the worker's thread and its guard thread, once; the kernel, when these end. After a kill the
     * one that gets a core first reports it. The parent zeroes both before it starts the worker. */
    SHOAL_ALIGN(64) shoal_liveness liveness;
    SHOAL_ALIGN(64) shoal_liveness guard_liveness;
} shoal_gate;

#define SHOAL_WAKE_FOR_ALL 1u
#define SHOAL_WAKE_FOR_ONE 2u
#define SHOAL_WAKE_BY_FUTEX 0x80000000u

/* How workers wake the parent. */
typedef struct shoal_wakeup {
    /* SHOAL_WAKE_FOR_ALL: the parent sleeps until all workers are idle; SHOAL_WAKE_FOR_ONE + w: until worker
     * w is idle. With SHOAL_WAKE_BY_FUTEX it sleeps on this very word, else on the descriptor. 0: it is
     * awake. Writers: the parent, before and after it sleeps; with a futex also the worker that wakes it. */
    SHOAL_ALIGN(64) shoal_word asleep;
    shoal_word core; /* the core on which the parent waited lately, plus one; only the parent writes it */
    uint8_t pad[56];
} shoal_wakeup;

/* Parent: gives `command` to an idle worker. Set the gate's other words first. */
void shoal_gate_post(shoal_gate *gate, uint32_t command);
/* Parent: has the worker finished its command? */
int shoal_gate_idle(const shoal_gate *gate);
/* Parent: spins and yields as the policy says; returns 1 once all `count` gates are idle, 0 if the parent
 * should sleep now. */
int shoal_gates_wait_awake(shoal_gate *const *gates, uint32_t count, shoal_wait_policy *policy);
/* Parent: announces that it will sleep, for SHOAL_WAKE_FOR_ALL or SHOAL_WAKE_FOR_ONE + worker, and how. It
 * must check the gates once more after this, then sleep that way or disarm. */
void shoal_wakeup_arm(shoal_wakeup *wakeup, uint32_t whom);
void shoal_wakeup_disarm(shoal_wakeup *wakeup);
/* Parent: sleeps until a worker wakes it (polled[0] is the wake-up descriptor), another descriptor of
 * `polled` is ready, a signal comes, or `timeout_ns` or a slice have passed; then disarms. Returns whether
 * another descriptor was ready. */
int shoal_wakeup_sleep(shoal_wakeup *wakeup, struct pollfd *polled, uint32_t count, uint64_t timeout_ns,
                       shoal_wait_policy *policy);
/* The same with liveness words, where shoal_liveness_can_be_watched. Returns whether one of them has ended.
 */
int shoal_wakeup_sleep_on_words(shoal_wakeup *wakeup, shoal_liveness *const *liveness_words, uint32_t count,
                                uint64_t timeout_ns, shoal_wait_policy *policy);

/* Worker: waits for a number other than `seen`, at most one slice; returns the current number. */
uint32_t shoal_gate_wait(shoal_gate *gate, uint32_t seen, shoal_wait_policy *policy);
/* With one worker per core the parent shares a core with a worker, and leaves it to that worker while it
 * sleeps. Parent: publishes on which core it sleeps (`sleeps` 0: it does not sleep). Worker: publishes before
 * each wait on which core it runs; now and then, it moves to a core without a worker, first of all the
 * parent's, if an earlier worker shares its own core. The cores are those that workers published last; while
 * the parent is awake, nobody moves. */
void shoal_wakeup_publish_core(shoal_wakeup *wakeup, int sleeps);
void shoal_gate_publish_core(shoal_gate *gate);
void shoal_gate_spread(shoal_gate *gates, uint32_t count, uint32_t worker, const shoal_wakeup *wakeup);
/* Worker: returns the number. It wakes the parent if that sleeps for this worker alone, or for all `count`
 * workers and they are all idle. */
void shoal_gate_finish(shoal_gate *gates, uint32_t count, uint32_t worker, uint32_t seen,
                       shoal_wakeup *wakeup, int wakeup_fd);
/* Worker: wakes the parent if it sleeps. */
void shoal_wakeup_send(shoal_wakeup *wakeup, int wakeup_fd);

#ifdef __cplusplus
}
#endif
#endif
