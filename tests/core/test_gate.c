/* Tests of core/gate.c: hand-offs between a parent and its workers, threads or processes, lose no wake-up and
 * no value; a killed worker costs at most a slice. Run under the thread sanitizer. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "check.h"
#include "gate.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 4, ROUNDS = 26000, TURNS = 700000, WORDS = 13, WORK = 1, END = 2 };

/* What must be seen after go and done; nothing of it is atomic. */
typedef struct payload {
    uint64_t in[WORDS], out[WORDS];
    uint64_t posted_ns; /* before go */
    uint32_t late;      /* wake-ups that took nearly a slice */
} payload;

typedef struct world {
    shoal_gate gates[WORKERS];
    shoal_bell bell;
    payload payloads[WORKERS];
    int bell_fd, ring_fd;
    uint32_t first; /* number before the first hand-off */
    int by_word;    /* the parent sleeps on words, if workers hold their lives, else on descriptors */
} world;

typedef struct waits {
    uint64_t sleeps, by_word, lost; /* lost: slept a slice out although all had finished */
} waits;

static world *open_world(uint32_t first) {
    world *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(w != MAP_FAILED);
    CHECK_EQUAL(shoal_bell_create(&w->bell_fd, &w->ring_fd), 0);
    w->first = first;
    for (int i = 0; i < WORKERS; i++) {
        atomic_store(&w->gates[i].go, first);
        atomic_store(&w->gates[i].done, first);
    }
    return w;
}

static void close_world(world *w) {
    close(w->bell_fd);
    if (w->ring_fd != w->bell_fd)
        close(w->ring_fd);
    CHECK_EQUAL(munmap(w, sizeof *w), 0);
}

static uint64_t drawn(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static void spin(uint64_t ns) {
    const uint64_t begin = shoal_now_ns();
    while (shoal_now_ns() - begin < ns)
        shoal_relax();
}

/* Mostly nothing, often about as long as a waiter looks before it sleeps, now and then far longer. */
static void pause_randomly(uint64_t *state) {
    const uint64_t kind = drawn(state) % 256;
    if (kind < 40)
        spin(drawn(state) % 8000);
    else if (kind < 60)
        spin(90000 + drawn(state) % 30000);
    else if (kind == 255)
        usleep(1000);
}

static int rung(const world *w) {
    struct pollfd one = {w->bell_fd, POLLIN, 0};
    return poll(&one, 1, 0) > 0;
}

static int idle(const world *w, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (!shoal_gate_idle(&w->gates[i]))
            return 0;
    return 1;
}

/* All were idle for half a slice: whoever should have rung had the time to. */
static int long_idle(const world *w, uint32_t count) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < count; i++)
        last = w->gates[i].finished_ns > last ? w->gates[i].finished_ns : last;
    return idle(w, count) && shoal_now_ns() - last > SHOAL_GATE_SLICE_NS / 2;
}

/* The parent's wait, as core/gate.hpp has it; `others` are descriptors that tell of deaths. 1: all are idle.
 */
static int wait_all(world *w, uint32_t count, shoal_patience *patience, const int *others, waits *sum) {
    shoal_gate *gates[WORKERS];
    shoal_life *lives[WORKERS];
    struct pollfd polled[1 + WORKERS] = {{w->bell_fd, POLLIN, 0}};
    for (uint32_t i = 0; i < count; i++) {
        gates[i] = &w->gates[i];
        lives[i] = &w->gates[i].life;
        polled[1 + i] = (struct pollfd){others == NULL ? -1 : others[i], POLLIN, 0};
    }
    for (;;) {
        if (shoal_gates_look(gates, count, patience))
            return 1;
        const int by_word = w->by_word && shoal_lives_can_be_watched(lives, count);
        shoal_bell_arm(&w->bell, SHOAL_BELL_ALL | (by_word ? SHOAL_BELL_BY_WORD : 0));
        if (idle(w, count)) {
            shoal_bell_disarm(&w->bell);
            return 1;
        }
        const uint64_t begin = shoal_now_ns();
        sum->sleeps++;
        if (by_word) {
            const int over = shoal_bell_sleep_beside(&w->bell, lives, count, UINT64_MAX, patience);
            sum->lost += shoal_now_ns() - begin >= SHOAL_GATE_SLICE_NS && long_idle(w, count);
            sum->by_word++;
            for (uint32_t i = 0; over && i < count; i++)
                if (shoal_life_is_over(lives[i]) && !shoal_gate_idle(gates[i]))
                    return 0;
            continue;
        }
        const int heard = shoal_bell_sleep(&w->bell, polled, 1 + count, UINT64_MAX, patience);
        if (shoal_now_ns() - begin >= SHOAL_GATE_SLICE_NS && polled[0].revents == 0 && idle(w, count)) {
            usleep(2000); /* the ring may have been under way as the slice ended */
            sum->lost += !rung(w);
        }
        if (heard)
            return 0;
    }
}

static void work(world *w, uint32_t i, uint64_t round) {
    shoal_gate *gate = &w->gates[i];
    payload *p = &w->payloads[i];
    CHECK_EQUAL(gate->slot, (uint32_t)round);
    CHECK_EQUAL(gate->row, round * 3);
    CHECK_EQUAL(gate->mail_bytes, round + i);
    for (int k = 0; k < WORDS; k++) {
        CHECK_EQUAL(p->in[k], round * 31 + (uint64_t)k);
        p->out[k] = p->in[k] * 7 + i;
    }
    gate->replied = (uint32_t)round & 1;
    gate->reply_bytes = round;
    gate->busy_ns += 1;
}

/* A process that ends with this one, even if a check fails. */
static pid_t fork_tied(void) {
    const pid_t pid = fork();
#ifdef __linux__
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    return pid;
}

static void serve(world *w, uint32_t i) {
    shoal_patience patience = shoal_patience_new(i % 2, 0); /* both ways of looking */
    if (w->by_word)
        (void)shoal_life_hold(&w->gates[i].life);
    uint64_t state = 77 + i;
    uint32_t seen = w->first;
    for (uint64_t round = 1;; round++) {
        uint32_t now;
        while ((now = shoal_gate_wait(&w->gates[i], seen, &patience)) == seen)
            continue;
        w->payloads[i].late += shoal_now_ns() - w->payloads[i].posted_ns > SHOAL_GATE_SLICE_NS * 8 / 10;
        CHECK_EQUAL(now, seen + 1u); /* none is skipped */
        seen = now;
        if (w->gates[i].command == END) {
            shoal_gate_finish(w->gates, WORKERS, i, seen, &w->bell, w->ring_fd);
            return;
        }
        CHECK_EQUAL(w->gates[i].command, WORK);
        work(w, i, round);
        pause_randomly(&state);
        shoal_gate_finish(w->gates, WORKERS, i, seen, &w->bell, w->ring_fd);
    }
}

static void post(world *w, uint32_t i, uint64_t round, uint32_t command) {
    for (int k = 0; k < WORDS; k++)
        w->payloads[i].in[k] = round * 31 + (uint64_t)k;
    w->gates[i].slot = (uint32_t)round;
    w->gates[i].row = round * 3;
    w->gates[i].mail_bytes = round + i;
    w->payloads[i].posted_ns = shoal_now_ns();
    shoal_gate_post(&w->gates[i], command);
}

/* `rounds` hand-offs to each worker, checked value by value. */
static waits run_rounds(world *w, uint64_t rounds) {
    shoal_patience patience = shoal_patience_new(0, 0);
    uint64_t state = 99;
    waits sum = {0, 0, 0};
    for (uint64_t round = 1; round <= rounds; round++) {
        for (uint32_t i = 0; i < WORKERS; i++)
            post(w, i, round, WORK);
        CHECK(wait_all(w, WORKERS, &patience, NULL, &sum));
        for (uint32_t i = 0; i < WORKERS; i++) {
            for (int k = 0; k < WORDS; k++)
                CHECK_EQUAL(w->payloads[i].out[k], (round * 31 + (uint64_t)k) * 7 + i);
            CHECK_EQUAL(w->gates[i].replied, round & 1);
            CHECK_EQUAL(w->gates[i].reply_bytes, round);
            CHECK_EQUAL(w->gates[i].busy_ns, round);
        }
        pause_randomly(&state);
    }
    for (uint32_t i = 0; i < WORKERS; i++)
        shoal_gate_post(&w->gates[i], END);
    CHECK(wait_all(w, WORKERS, &patience, NULL, &sum));
    return sum;
}

static void check_waits(const world *w, waits sum, uint64_t rounds) {
    uint64_t late = 0;
    for (int i = 0; i < WORKERS; i++)
        late += w->payloads[i].late;
    printf(
        "   %llu hand-offs, %llu sleeps of the parent, %llu on words, %llu slept out; %llu late wake-ups\n",
        (unsigned long long)rounds * WORKERS, (unsigned long long)sum.sleeps, (unsigned long long)sum.by_word,
        (unsigned long long)sum.lost, (unsigned long long)late);
    CHECK(sum.sleeps > 0); /* else nothing of this was tested */
    if (w->by_word && shoal_lives_can_be_watched(NULL, 0))
        CHECK(sum.by_word > sum.sleeps / 2);
    CHECK_EQUAL(sum.lost, 0);          /* who rings, rings */
    CHECK(late <= rounds / 1000 + 10); /* a busy machine may be slow to run a worker that was woken */
}

typedef struct job {
    world *w;
    uint32_t i;
} job;

static void *serve_thread(void *argument) {
    const job *mine = argument;
    serve(mine->w, mine->i);
    return NULL;
}

static void run_threads(uint32_t first, uint64_t rounds, int by_word) {
    world *w = open_world(first);
    w->by_word = by_word;
    pthread_t threads[WORKERS];
    job jobs[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++) {
        jobs[i] = (job){w, i};
        CHECK_EQUAL(pthread_create(&threads[i], NULL, serve_thread, &jobs[i]), 0);
    }
    const waits sum = run_rounds(w, rounds);
    for (int i = 0; i < WORKERS; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    check_waits(w, sum, rounds);
    close_world(w);
}

static void threads_lose_no_wake_up_and_no_value_in_a_hundred_thousand_hand_offs(void) {
    run_threads(0, ROUNDS, 0);
    run_threads(0, ROUNDS, 1);
}

static void generation_numbers_wrap_around(void) {
    run_threads(UINT32_MAX - 500, 1000, 0); /* over 0 */
    run_threads(INT32_MAX - 500u, 1000, 1); /* over the sign, for whoever would compare */
}

static void run_processes(int by_word) {
    world *w = open_world(0);
    w->by_word = by_word;
    pid_t pids[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++)
        if ((pids[i] = fork_tied()) == 0) {
            serve(w, i);
            _exit(0);
        }
    const waits sum = run_rounds(w, ROUNDS);
    for (int i = 0; i < WORKERS; i++) {
        int status;
        CHECK_EQUAL(waitpid(pids[i], &status, 0), pids[i]);
        CHECK_EQUAL(status, 0);
    }
    check_waits(w, sum, ROUNDS);
    close_world(w);
}

static void processes_lose_no_wake_up_and_no_value_in_a_hundred_thousand_hand_offs(void) {
    run_processes(0);
    run_processes(1);
}

/* -- the bell, step by step ------------------------------------------------------------------------------ */

static void finish(world *w, uint32_t i) {
    shoal_gate_finish(w->gates, 2, i, atomic_load(&w->gates[i].go), &w->bell, w->ring_fd);
}

static void the_last_of_the_workers_rings_and_only_for_a_parent_that_sleeps(void) {
    world *w = open_world(5);
    for (int turn = 0; turn < 2; turn++) {
        shoal_gate_post(&w->gates[0], WORK);
        shoal_gate_post(&w->gates[1], WORK);
        if (turn == 1)
            shoal_bell_arm(&w->bell, SHOAL_BELL_ALL);
        finish(w, (uint32_t)turn);
        CHECK(!rung(w)); /* the other one is at work */
        CHECK(!idle(w, 2));
        finish(w, (uint32_t)!turn);
        CHECK(idle(w, 2));
        CHECK_EQUAL(rung(w), turn);
    }
    CHECK_EQUAL(atomic_load(&w->bell.asleep), SHOAL_BELL_ALL); /* another may ring: this one may be dying */
    uint64_t rings = 0;
    CHECK_EQUAL(read(w->bell_fd, &rings, sizeof rings), (int)sizeof rings);
    CHECK_EQUAL(rings, 1);
    shoal_bell_ring(&w->bell, w->ring_fd);
    shoal_bell_ring(&w->bell, w->ring_fd);
    struct pollfd one = {w->bell_fd, POLLIN, 0};
    shoal_patience patience = shoal_patience_new(0, 0);
    CHECK_EQUAL(shoal_bell_sleep(&w->bell, &one, 1, UINT64_MAX, &patience), 0);
    CHECK(!rung(w) && atomic_load(&w->bell.asleep) == 0); /* all of them are heard at once */
    shoal_bell_ring(&w->bell, w->ring_fd);
    CHECK(!rung(w));
    close_world(w);
}

static void *ring_all_the_time(void *argument) {
    world *w = argument;
    while (atomic_load(&w->gates[0].go) == 0)
        shoal_bell_ring(&w->bell, w->ring_fd);
    return NULL;
}

static void who_found_a_word_takes_no_bell_that_was_armed_for_the_descriptor_since(void) {
    world *w = open_world(0);
    pthread_t ringer;
    CHECK_EQUAL(pthread_create(&ringer, NULL, ring_all_the_time, w), 0);
    uint64_t taken = 0, heard = 0;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        shoal_bell_arm(&w->bell, SHOAL_BELL_ALL | SHOAL_BELL_BY_WORD);
        for (volatile uint32_t i = 0; i < turn % 40; i++)
            ;
        heard += atomic_load(&w->bell.asleep) == 0;
        shoal_bell_arm(&w->bell, SHOAL_BELL_ALL);
        for (volatile uint32_t i = 0; i < 300; i++)
            ;
        taken += atomic_load(&w->bell.asleep) == 0;
        shoal_bell_disarm(&w->bell);
    }
    atomic_store(&w->gates[0].go, 1);
    CHECK_EQUAL(pthread_join(ringer, NULL), 0);
    CHECK(heard > 0); /* else nothing of this was tested */
    CHECK_EQUAL(taken, 0);
    close_world(w);
}

static void a_parent_that_sleeps_for_one_worker_is_rung_by_that_one_alone(void) {
    world *w = open_world(0);
    for (uint32_t i = 0; i < 2; i++) {
        shoal_gate_post(&w->gates[0], WORK);
        shoal_gate_post(&w->gates[1], WORK);
        shoal_bell_arm(&w->bell, SHOAL_BELL_ONE + i);
        finish(w, !i);
        CHECK(!rung(w));
        shoal_gate_post(&w->gates[!i], WORK); /* busy again, which does not matter */
        finish(w, i);
        CHECK(rung(w));
        uint64_t rings;
        CHECK_EQUAL(read(w->bell_fd, &rings, sizeof rings), (int)sizeof rings);
        finish(w, !i);
        CHECK(!rung(w));
    }
    close_world(w);
}

static void a_ring_left_over_ends_the_next_sleep_and_no_other(void) {
    world *w = open_world(0);
    struct pollfd one = {w->bell_fd, POLLIN, 0};
    shoal_patience patience = shoal_patience_new(0, 0);
    shoal_bell_arm(&w->bell, SHOAL_BELL_ALL);
    shoal_bell_ring(&w->bell, w->ring_fd);
    uint64_t begin = shoal_now_ns();
    shoal_bell_arm(&w->bell, SHOAL_BELL_ALL);
    CHECK_EQUAL(shoal_bell_sleep(&w->bell, &one, 1, UINT64_MAX, &patience), 0);
    CHECK(shoal_now_ns() - begin < SHOAL_GATE_SLICE_NS);
    CHECK_EQUAL(atomic_load(&w->bell.asleep), 0);
    begin = shoal_now_ns();
    CHECK_EQUAL(shoal_bell_sleep(&w->bell, &one, 1, 3000000, &patience), 0);
    CHECK(shoal_now_ns() - begin >= 3000000);
    close_world(w);
}

static void a_parent_that_sleeps_on_the_word_is_woken_there_and_not_by_the_descriptor(void) {
    world *w = open_world(0);
    shoal_patience patience = shoal_patience_new(0, 0);
    shoal_gate_post(&w->gates[0], WORK);
    shoal_bell_arm(&w->bell, SHOAL_BELL_ALL | SHOAL_BELL_BY_WORD);
    finish(w, 0);
    CHECK(!rung(w) && atomic_load(&w->bell.asleep) == 0);
    uint64_t begin = shoal_now_ns();
    CHECK_EQUAL(shoal_bell_sleep_beside(&w->bell, NULL, 0, UINT64_MAX, &patience), 0); /* it has rung */
    CHECK(shoal_now_ns() - begin < SHOAL_GATE_SLICE_NS / 2);
    shoal_gate_post(&w->gates[1], WORK);
    shoal_bell_arm(&w->bell, (SHOAL_BELL_ONE + 1) | SHOAL_BELL_BY_WORD);
    finish(w, 0);
    CHECK_EQUAL(atomic_load(&w->bell.asleep), (SHOAL_BELL_ONE + 1) | SHOAL_BELL_BY_WORD); /* not for it */
    begin = shoal_now_ns();
    CHECK_EQUAL(shoal_bell_sleep_beside(&w->bell, NULL, 0, 3000000, &patience), 0);
    CHECK(shoal_now_ns() - begin >= (shoal_lives_can_be_watched(NULL, 0) ? 3000000 : 0));
    CHECK_EQUAL(atomic_load(&w->bell.asleep), 0);
    finish(w, 1);
    CHECK(!rung(w));
    close_world(w);
}

static void who_waits_without_being_woken_comes_back_after_a_slice(void) {
    world *w = open_world(8);
    shoal_patience patience = shoal_patience_new(0, 0);
    const uint64_t begin = shoal_now_ns();
    CHECK_EQUAL(shoal_gate_wait(&w->gates[0], 8, &patience), 8);
    CHECK(shoal_now_ns() - begin >= SHOAL_GATE_SLICE_NS * 9 / 10);
    CHECK_EQUAL(atomic_load(&w->gates[0].asleep), 0);
    close_world(w);
}

/* -- patience -------------------------------------------------------------------------------------------- */

static void a_look_that_ends_no_wait_and_a_yield_that_ends_it_late_rest_ever_longer(void) {
    world *w = open_world(0);
    shoal_gate *gate = &w->gates[0];
    shoal_patience patience = shoal_patience_new(0, 0);
    shoal_gate_post(gate, WORK);
    for (uint32_t wait = 0, rest = 1; wait < 3; wait++, rest = 2 * rest + 1) { /* nobody ever finishes */
        patience.look.rests = 0;
        CHECK(!shoal_gates_look(&gate, 1, &patience));
        CHECK_EQUAL(patience.look.rests, rest);
    }
    CHECK_EQUAL(patience.yield.rests, 0); /* it ended no wait at all, which is no fault of it */
    CHECK(patience.yielded_ns >= patience.limit_ns);

    for (int late = 1; late >= 0; late--) { /* it is seen a second after it finished, or in time */
        patience = shoal_patience_new(1, 0);
        patience.limit_ns = 10000000000ull;
        const pid_t pid = fork();
        if (pid == 0) {
            usleep(3000);
            gate->finished_ns = shoal_now_ns() + (late ? -1000000000ull : 1000000000ull);
            atomic_store(&gate->done, atomic_load(&gate->go));
            _exit(0);
        }
        CHECK(shoal_gates_look(&gate, 1, &patience));
        CHECK_EQUAL(patience.yield.rests, (uint32_t)late);
        CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
        shoal_gate_post(gate, WORK);
    }
    close_world(w);
}

static void who_waits_long_sleeps_without_yielding_and_forgets_it_soon(void) {
    world *w = open_world(0);
    shoal_gate *gate = &w->gates[0];
    struct pollfd one = {w->bell_fd, POLLIN, 0};
    shoal_patience patience = shoal_patience_new(1, 1);
    CHECK(patience.limit_ns < shoal_patience_new(0, 1).limit_ns && patience.look.rests > 0);
    shoal_gate_post(gate, WORK);
    for (int i = 0; i < 20; i++)
        CHECK_EQUAL(shoal_bell_sleep(&w->bell, &one, 1, 1000000, &patience), 0);
    CHECK(patience.average_ns > patience.limit_ns);
    CHECK(!shoal_gates_look(&gate, 1, &patience));
    CHECK_EQUAL(patience.yielded_ns, 0);
    for (int i = 0; i < 20; i++) { /* the bell has rung already: sleeps of no length */
        shoal_bell_arm(&w->bell, SHOAL_BELL_ALL);
        shoal_bell_ring(&w->bell, w->ring_fd);
        (void)shoal_bell_sleep(&w->bell, &one, 1, UINT64_MAX, &patience);
    }
    CHECK(patience.average_ns <= patience.limit_ns);
    close_world(w);
}

static void a_worker_beside_another_moves_to_the_core_the_parent_left(void) {
    world *w = open_world(0);
    const uint32_t mine = (uint32_t)shoal_cpu() + 1;
    uint32_t moved = 0, other = mine == 1 ? 2 : 1;
    if (shoal_cpu() < 0 || shoal_cpu_count() < 2) {
        printf("   skipped: one core, or nobody says which\n");
        close_world(w);
        return;
    }
    for (int turn = 0; turn < 50; turn++) { /* the kernel may move it back before we look */
        const uint32_t here = (uint32_t)shoal_cpu() + 1;
        other = here == 1 ? 2 : 1;
        atomic_store(&w->bell.core, other);
        atomic_store(&w->gates[0].core, here);
        shoal_gate_spread(w->gates, 2, 1, &w->bell);
        CHECK_EQUAL(atomic_load(&w->gates[1].core), here);
        moved += (uint32_t)shoal_cpu() + 1 == other;
    }
    CHECK(moved > 25);
    CHECK(shoal_cpu_count() >= 2); /* it may still run anywhere */
    uint32_t stayed = 0;
    for (int turn = 0; turn < 50; turn++) {
        const uint32_t here = (uint32_t)shoal_cpu() + 1;
        other = here == 1 ? 2 : 1;
        atomic_store(&w->bell.core, turn % 2 ? other : 0);        /* 0: the parent does not sleep */
        atomic_store(&w->gates[0].core, turn % 2 ? other : here); /* it is there already */
        shoal_gate_spread(w->gates, 2, 1, &w->bell);
        stayed += (uint32_t)shoal_cpu() + 1 == here;
    }
    CHECK(stayed > 25);
    close_world(w);
}

/* -- deaths ---------------------------------------------------------------------------------------------- */

static int pidfd_of(pid_t pid) {
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

static void bury(pid_t pid) {
    int status;
    CHECK_EQUAL(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void a_worker_killed_just_before_it_rings_costs_the_parent_a_slice(void) {
    world *w = open_world(0);
    for (int turn = 0; turn < 5; turn++) {
        shoal_gate_post(&w->gates[0], WORK);
        shoal_bell_arm(&w->bell, SHOAL_BELL_ALL);
        const pid_t pid = fork();
        if (pid == 0) {
            atomic_store(&w->gates[0].done, atomic_load(&w->gates[0].go));
            kill(getpid(), SIGKILL);
        }
        bury(pid);
        struct pollfd one = {w->bell_fd, POLLIN, 0};
        shoal_patience patience = shoal_patience_new(0, 0);
        const uint64_t begin = shoal_now_ns();
        CHECK_EQUAL(shoal_bell_sleep(&w->bell, &one, 1, UINT64_MAX, &patience), 0);
        const uint64_t slept = shoal_now_ns() - begin;
        CHECK(slept >= SHOAL_GATE_SLICE_NS && slept < 10ull * SHOAL_GATE_SLICE_NS);
        CHECK(idle(w, 1));
    }
    close_world(w);
}

static void a_worker_killed_at_any_moment_never_hangs_the_parent(void) {
    uint64_t state = 5, slowest = 0;
    int deaths = 0;
    for (int turn = 0; turn < 100; turn++) {
        world *w = open_world((uint32_t)turn);
        w->by_word = turn % 2;
        pid_t pids[2];
        int fds[2];
        for (uint32_t i = 0; i < 2; i++) {
            if ((pids[i] = fork_tied()) == 0) {
                serve(w, i);
                _exit(0);
            }
            if ((fds[i] = pidfd_of(pids[i])) < 0) {
                printf("   skipped: this system has no pidfd\n");
                kill(pids[i], SIGKILL);
                bury(pids[i]);
                return;
            }
        }
        const uint64_t moment = shoal_now_ns() + drawn(&state) % 3000000;
        const uint32_t victim = (uint32_t)drawn(&state) % 2;
        shoal_patience patience = shoal_patience_new(0, 0);
        waits sum = {0, 0, 0};
        uint64_t killed = 0;
        for (uint64_t round = 1;; round++) {
            for (uint32_t i = 0; i < 2; i++)
                post(w, i, round, WORK);
            if (killed == 0 && shoal_now_ns() >= moment) {
                kill(pids[victim], SIGKILL);
                killed = shoal_now_ns();
            }
            if (!wait_all(w, 2, &patience, fds, &sum))
                break;
        }
        CHECK(killed != 0);
        const uint64_t waited = shoal_now_ns() - killed;
        slowest = waited > slowest ? waited : slowest;
        bury(pids[victim]);
        kill(pids[!victim], SIGKILL);
        bury(pids[!victim]);
        close(fds[0]), close(fds[1]);
        close_world(w);
        deaths++;
    }
    printf("   %d deaths, known at most %.1f ms later\n", deaths, (double)slowest / 1e6);
    CHECK(slowest < 20ull * SHOAL_GATE_SLICE_NS);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0); /* children are forked */
    alarm(300);                       /* a lost hand-off hangs */
    RUN(the_last_of_the_workers_rings_and_only_for_a_parent_that_sleeps);
    RUN(who_found_a_word_takes_no_bell_that_was_armed_for_the_descriptor_since);
    RUN(a_parent_that_sleeps_for_one_worker_is_rung_by_that_one_alone);
    RUN(a_ring_left_over_ends_the_next_sleep_and_no_other);
    RUN(a_parent_that_sleeps_on_the_word_is_woken_there_and_not_by_the_descriptor);
    RUN(who_waits_without_being_woken_comes_back_after_a_slice);
    RUN(a_look_that_ends_no_wait_and_a_yield_that_ends_it_late_rest_ever_longer);
    RUN(who_waits_long_sleeps_without_yielding_and_forgets_it_soon);
    RUN(a_worker_beside_another_moves_to_the_core_the_parent_left);
    RUN(a_worker_killed_just_before_it_rings_costs_the_parent_a_slice);
    RUN(a_worker_killed_at_any_moment_never_hangs_the_parent);
    RUN(processes_lose_no_wake_up_and_no_value_in_a_hundred_thousand_hand_offs);
    RUN(threads_lose_no_wake_up_and_no_value_in_a_hundred_thousand_hand_offs);
    RUN(generation_numbers_wrap_around);
    return 0;
}
