/* Tests of core/gates.c, the wait loops that ship: hand-offs between a parent and its workers, threads or
 * processes, lose no wake-up and no value; a wait ends with the death of a worker that it waits for. Run
 * under the thread sanitizer. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "gate_world.h"

#include <pthread.h>

enum { ROUNDS = UNDER_SANITIZERS ? 26000 : 10000 };
#define FOREVER_NS UINT64_MAX

/* -- hand-offs ------------------------------------------------------------------------------------------- */

typedef struct waits {
    uint64_t sleeps, by_word;
    uint64_t lost;    /* on descriptors: slept for a whole slice, all had finished, and nobody wrote to the
                         wake-up descriptor */
    uint64_t unheard; /* on words: slept for a whole slice, and all had finished long before */
} waits;

/* All have been idle for half a slice, so the worker that must wake the parent has had the time to. */
static int long_idle(const world *w) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < WORKERS; i++)
        last = w->gates[i].finished_ns > last ? w->gates[i].finished_ns : last;
    return idle(w, WORKERS) && shoal_now_ns() - last > SHOAL_GATE_SLICE_NS / 2;
}

/* The wake-up may be on its way as a slice ends: its writer can be slow on a busy machine. */
static int rings_soon(const world *w) {
    for (int tries = 0; tries < 500 && !rung(w); tries++)
        usleep(2000);
    return rung(w);
}

static int wait_and_count(parent *p, waits *sum) {
    shoal_wait wait = start_wait(FOREVER_NS, -1, 0);
    for (;;) {
        const uint64_t begin = shoal_now_ns();
        const int status = shoal_gates_wait(&p->all, &wait);
        if (status != SHOAL_WAIT_AGAIN)
            return status;
        const int is_by_word = p->all.num_polled == 0;
        sum->sleeps++;
        sum->by_word += (uint64_t)is_by_word;
        if (shoal_now_ns() - begin < SHOAL_GATE_SLICE_NS)
            continue;
        if (is_by_word)
            sum->unheard += (uint64_t)long_idle(p->w);
        else if (p->all.polled[0].revents == 0 && idle(p->w, WORKERS))
            sum->lost += (uint64_t)!rings_soon(p->w);
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
}

static void serve(world *w, uint32_t i) {
    shoal_worker worker;
    shoal_worker_init(&worker, w->gates, WORKERS, i, &w->wakeup, w->ring_fd,
                      i % 2); /* both ways of looking */
    if (w->by_word)
        (void)shoal_liveness_hold(&w->gates[i].liveness);
    uint64_t state = 77 + i;
    worker.seen = w->first; /* a thread may start after the first command */
    for (uint64_t round = 1;; round++) {
        const uint32_t before = worker.seen;
        while (!shoal_worker_wait(&worker))
            continue;
        w->payloads[i].late += shoal_now_ns() - w->payloads[i].posted_ns > SHOAL_GATE_SLICE_NS * 8 / 10;
        CHECK_EQUAL(worker.seen, before + 1u); /* none is skipped */
        if (w->gates[i].command == END) {
            shoal_worker_finish(&worker, 0, 0);
            return;
        }
        CHECK_EQUAL(w->gates[i].command, WORK);
        work(w, i, round);
        pause_randomly(&state);
        shoal_worker_finish(&worker, (uint32_t)round & 1, round);
    }
}

static void post(parent *p, uint32_t i, uint64_t round) {
    payload *to = &p->w->payloads[i];
    for (int k = 0; k < WORDS; k++)
        to->in[k] = round * 31 + (uint64_t)k;
    to->posted_ns = shoal_now_ns();
    shoal_gates_post(&p->all, i, WORK, (uint32_t)round, round * 3, round + i);
}

/* `rounds` hand-offs to each worker, checked value by value. */
static waits run_rounds(parent *p, uint64_t rounds) {
    uint64_t state = 99;
    waits sum = {0, 0, 0, 0};
    for (uint64_t round = 1; round <= rounds; round++) {
        for (uint32_t i = 0; i < WORKERS; i++)
            post(p, i, round);
        CHECK_EQUAL(wait_and_count(p, &sum), SHOAL_WAIT_IDLE);
        for (uint32_t i = 0; i < WORKERS; i++) {
            for (int k = 0; k < WORDS; k++)
                CHECK_EQUAL(p->w->payloads[i].out[k], (round * 31 + (uint64_t)k) * 7 + i);
            CHECK_EQUAL(p->w->gates[i].replied, round & 1);
            CHECK_EQUAL(p->w->gates[i].reply_bytes, round);
        }
        pause_randomly(&state);
    }
    for (uint32_t i = 0; i < WORKERS; i++)
        shoal_gates_post(&p->all, i, END, 0, 0, 0);
    CHECK_EQUAL(wait_and_count(p, &sum), SHOAL_WAIT_IDLE);
    return sum;
}

static void check_waits(const world *w, waits sum, uint64_t rounds) {
    uint64_t late = 0;
    for (int i = 0; i < WORKERS; i++)
        late += w->payloads[i].late;
    printf("   %llu hand-offs, %llu sleeps of the parent, %llu on words; %llu + %llu lost, %llu late\n",
           (unsigned long long)rounds * WORKERS, (unsigned long long)sum.sleeps,
           (unsigned long long)sum.by_word, (unsigned long long)sum.lost, (unsigned long long)sum.unheard,
           (unsigned long long)late);
    CHECK(sum.sleeps > 0); /* else nothing of this was tested */
    if (w->by_word && shoal_liveness_can_be_watched(NULL, 0))
        CHECK(sum.by_word > sum.sleeps / 2);
    CHECK_EQUAL(sum.lost, 0);
    CHECK(sum.unheard <= 3);           /* a busy machine may be slow to run a process that was woken */
    CHECK(late <= rounds / 1000 + 10); /* likewise */
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
    parent p;
    open_parent(&p, open_world(first), WORKERS, 0);
    p.w->by_word = by_word;
    pthread_t threads[WORKERS];
    job jobs[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++) {
        jobs[i] = (job){p.w, i};
        CHECK_EQUAL(pthread_create(&threads[i], NULL, serve_thread, &jobs[i]), 0);
    }
    const waits sum = run_rounds(&p, rounds);
    for (int i = 0; i < WORKERS; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    check_waits(p.w, sum, rounds);
    close_parent(&p);
}

static void threads_lose_no_wakeup_and_no_value_in_100000_steps(void) {
    run_threads(0, ROUNDS, 0);
    run_threads(0, ROUNDS, 1);
}

static void generation_numbers_wrap_around(void) {
    run_threads(UINT32_MAX - 500, 1000, 0); /* over 0 */
    run_threads(INT32_MAX - 500u, 1000, 1); /* over the sign */
}

static void run_processes(int by_word) {
    parent p;
    open_parent(&p, open_world(0), WORKERS, 0);
    p.w->by_word = by_word;
    pid_t pids[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++)
        if ((pids[i] = fork_tied()) == 0) {
            serve(p.w, i);
            _exit(0);
        }
    const waits sum = run_rounds(&p, ROUNDS);
    for (int i = 0; i < WORKERS; i++) {
        int status;
        CHECK_EQUAL(waitpid(pids[i], &status, 0), pids[i]);
        CHECK_EQUAL(status, 0);
    }
    check_waits(p.w, sum, ROUNDS);
    close_parent(&p);
}

static void processes_lose_no_wakeup_and_no_value_in_100000_steps(void) {
    run_processes(0);
    run_processes(1);
}

/* -- one wait at a time ---------------------------------------------------------------------------------- */

static void finish(parent *p, uint32_t i) {
    shoal_worker worker;
    shoal_worker_init(&worker, p->w->gates, p->all.count, i, &p->w->wakeup, p->w->ring_fd, 0);
    worker.seen = atomic_load(&p->w->gates[i].go);
    shoal_worker_finish(&worker, 0, 0);
}

static void a_wait_for_one_worker_ignores_the_others_and_times_out(void) {
    parent p;
    open_parent(&p, open_world(3), 2, 0);
    shoal_gates_post(&p.all, 0, WORK, 0, 0, 0);
    shoal_gates_post(&p.all, 1, WORK, 0, 0, 0);
    finish(&p, 1);
    CHECK(!shoal_gates_are_idle(&p.all, -1) && !shoal_gates_are_idle(&p.all, 0));
    CHECK(shoal_gates_are_idle(&p.all, 1));
    shoal_wait wait = start_wait(FOREVER_NS, 1, 0);
    CHECK_EQUAL(shoal_gates_wait(&p.all, &wait), SHOAL_WAIT_IDLE);
    CHECK(!wait.has_slept);
    const uint64_t begin = shoal_now_ns();
    CHECK_EQUAL(wait_for(&p, 3000000, -1, 0), SHOAL_WAIT_TIMEOUT);
    CHECK_EQUAL(wait_for(&p, 3000000, 0, 0), SHOAL_WAIT_TIMEOUT);
    CHECK(shoal_now_ns() - begin >= 6000000);
    CHECK_EQUAL(atomic_load(&p.w->wakeup.asleep), 0);
    close_parent(&p);
}

static void a_wait_returns_after_every_slice_so_that_its_caller_can_be_interrupted(void) {
    parent p;
    open_parent(&p, open_world(0), 1, 0);
    shoal_gates_post(&p.all, 0, WORK, 0, 0, 0);
    for (int turn = 0; turn < 3; turn++) {
        shoal_wait wait = start_wait(FOREVER_NS, -1, 0);
        const uint64_t begin = shoal_now_ns();
        CHECK_EQUAL(shoal_gates_wait(&p.all, &wait), SHOAL_WAIT_AGAIN);
        const uint64_t waited = shoal_now_ns() - begin;
        CHECK(waited >= SHOAL_GATE_SLICE_NS * 9ull / 10 && waited < SHOAL_GATE_SLICE_NS * 10ull);
    }
    close_parent(&p);
}

static void a_worker_that_is_absent_counts_as_idle_and_gets_no_command(void) {
    parent p;
    open_parent(&p, open_world(0), 2, 0);
    CHECK(shoal_gates_all_live(&p.all));
    shoal_gates_post(&p.all, 1, WORK, 0, 0, 0);
    atomic_store(&p.w->gates[1].liveness.at, 1); /* what a worker before left there */
    atomic_store(&p.w->gates[1].guard_liveness.at, 1);
    shoal_gates_watch(&p.all, 1, -1, 0);
    CHECK_EQUAL(atomic_load(&p.w->gates[1].liveness.at) + atomic_load(&p.w->gates[1].guard_liveness.at), 0);
    CHECK(!shoal_gates_all_live(&p.all) && !shoal_gates_is_dead(&p.all, 1));
    CHECK_EQUAL(atomic_load(&p.w->gates[1].done), 1); /* what it was posted counts as finished */
    shoal_gates_post(&p.all, 1, WORK, 0, 0, 0);
    CHECK_EQUAL(atomic_load(&p.w->gates[1].go), 1);
    atomic_store(&p.w->gates[1].done, 0); /* a late write of a process that is ending */
    CHECK_EQUAL(wait_for(&p, SHOAL_GATE_SLICE_NS, -1, 1), SHOAL_WAIT_IDLE);
    close_parent(&p);
}

static void worker_finds_earlier_commands_and_measures_steps(void) {
    parent p;
    open_parent(&p, open_world(7), 1, 0);
    for (uint32_t turn = 0; turn < 2; turn++) {
        shoal_gates_post(&p.all, 0, turn == 0 ? SHOAL_STEP : SHOAL_MESSAGE, 0, 0, 0);
        shoal_worker worker;
        shoal_worker_init(&worker, p.w->gates, 1, 0, &p.w->wakeup, p.w->ring_fd, 0);
        CHECK(shoal_worker_wait(&worker));
        usleep(2000);
        const uint64_t before = p.w->gates[0].busy_ns;
        shoal_worker_finish(&worker, 0, 0);
        CHECK_EQUAL(p.w->gates[0].busy_ns - before >= 2000000, turn == 0);
        CHECK(!shoal_worker_wait(&worker));
    }
    close_parent(&p);
}

static void crowded_parent_publishes_its_core_only_while_it_sleeps(void) {
    parent p;
    open_parent(&p, open_world(0), 2, 1);
    CHECK(p.all.policy.limit_ns < shoal_wait_policy_new(0, 1).limit_ns);
    shoal_gates_post(&p.all, 0, WORK, 0, 0, 0);
    /* On a busy machine its yields may take the whole timeout, and then it does not sleep. */
    uint64_t timeout_ns = 2000000;
    do
        CHECK_EQUAL(wait_for(&p, timeout_ns, -1, 0), SHOAL_WAIT_TIMEOUT);
    while (atomic_load(&p.w->wakeup.core) == 0 && shoal_cpu() >= 0 && (timeout_ns *= 4) < 10000000000u);
    CHECK(shoal_cpu() < 0 || atomic_load(&p.w->wakeup.core) != 0);
    finish(&p, 0);
    CHECK_EQUAL(wait_for(&p, FOREVER_NS, -1, 0), SHOAL_WAIT_IDLE);
    CHECK_EQUAL(atomic_load(&p.w->wakeup.core), 0);
    close_parent(&p);
}

/* Returns in how many of 50 turns worker `late` is posted to after the other one, while it is on the parent's
 * core; each gets the command once. */
static int count_posted_last(int crowded, uint32_t late) {
    parent p;
    open_parent(&p, open_world(0), 2, crowded);
    int last = 0;
    for (uint32_t turn = 1; turn <= 50; turn++) { /* the kernel may move this thread meanwhile */
        atomic_store(&p.w->gates[late].core, (uint32_t)(shoal_cpu() + 1));
        atomic_store(&p.w->gates[!late].core, 1000);
        shoal_gates_post_all(&p.all, WORK, 3, 7);
        for (uint32_t w = 0; w < 2; w++) {
            CHECK_EQUAL(atomic_load(&p.w->gates[w].go), turn);
            CHECK(p.w->gates[w].command == WORK && p.w->gates[w].slot == 3 && p.w->gates[w].row == 7);
            finish(&p, w);
        }
        last += p.w->gates[late].posted_ns > p.w->gates[!late].posted_ns;
    }
    close_parent(&p);
    return last;
}

static void worker_on_the_parents_core_is_woken_last(void) {
    if (shoal_cpu() < 0) {
        printf("   skipped: nobody says on which core a thread is\n");
        return;
    }
    CHECK(count_posted_last(1, 0) > 25);
    CHECK(count_posted_last(1, 1) > 25);
    CHECK_EQUAL(count_posted_last(0, 0), 0); /* not crowded: in order */
}

/* -- deaths, see test_gate_deaths.c too
 * ---------------------------------------------------------------------- */

static void a_worker_killed_at_any_moment_never_hangs_the_parent(void) {
    uint64_t state = 5, slowest = 0;
    for (int turn = 0; turn < 100; turn++) {
        parent p;
        open_parent(&p, open_world((uint32_t)turn), 2, 0);
        p.w->by_word = turn % 2;
        pid_t pids[2];
        int fds[2];
        for (uint32_t i = 0; i < 2; i++) {
            if ((pids[i] = fork_tied()) == 0) {
                serve(p.w, i);
                _exit(0);
            }
            if ((fds[i] = pidfd_of(pids[i])) < 0) {
                printf("   skipped: this system has no pidfd\n");
                kill(pids[i], SIGKILL);
                reap(pids[i]);
                return;
            }
            shoal_gates_watch(&p.all, i, fds[i], 0);
        }
        const uint64_t moment = shoal_now_ns() + draw(&state) % 3000000;
        const uint32_t victim = (uint32_t)draw(&state) % 2;
        uint64_t killed = 0;
        for (uint64_t round = 1;; round++) {
            for (uint32_t i = 0; i < 2; i++)
                post(&p, i, round);
            if (killed == 0 && shoal_now_ns() >= moment) {
                kill(pids[victim], SIGKILL);
                killed = shoal_now_ns();
            }
            if (wait_for(&p, FOREVER_NS, -1, 0) == SHOAL_WAIT_DIED)
                break;
        }
        CHECK(killed != 0);
        const uint64_t waited = shoal_now_ns() - killed;
        slowest = waited > slowest ? waited : slowest;
        reap(pids[victim]);
        kill(pids[!victim], SIGKILL);
        reap(pids[!victim]);
        close(fds[0]), close(fds[1]);
        close_parent(&p);
    }
    printf("   100 deaths, known at most %.1f ms later\n", (double)slowest / 1e6);
    CHECK(slowest < 20ull * SHOAL_GATE_SLICE_NS);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0); /* children are forked */
    alarm(300);                       /* a lost hand-off hangs */
    RUN(a_wait_for_one_worker_ignores_the_others_and_times_out);
    RUN(a_wait_returns_after_every_slice_so_that_its_caller_can_be_interrupted);
    RUN(a_worker_that_is_absent_counts_as_idle_and_gets_no_command);
    RUN(worker_finds_earlier_commands_and_measures_steps);
    RUN(crowded_parent_publishes_its_core_only_while_it_sleeps);
    RUN(worker_on_the_parents_core_is_woken_last);
    RUN(a_worker_killed_at_any_moment_never_hangs_the_parent);
    RUN(processes_lose_no_wakeup_and_no_value_in_100000_steps);
    RUN(threads_lose_no_wakeup_and_no_value_in_100000_steps);
    RUN(generation_numbers_wrap_around);
    return 0;
}
