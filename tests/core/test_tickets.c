/* Tests of core/tickets.c: every environment that is sent is stepped once and taken once, in every order of
 * the parent's and the workers' operations; a sleeping parent is woken. Run under the thread sanitizer. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "gate_world.h"
#include "tickets.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

enum { ENVS = 12, EACH = ENVS / WORKERS };
enum { RECEIVES = UNDER_SANITIZERS ? 20000 : 40000, MEETINGS = UNDER_SANITIZERS ? 10000 : 40000 };
#define SECONDS_NS(s) ((s) * 1000000000ull)

/* What parent and workers share beside the gates. Nothing of in and out is atomic. */
typedef struct board {
    shoal_word ticket[ENVS], finished[ENVS];
    uint64_t in[ENVS], out[ENVS];
} board;

typedef struct flow {
    parent p;
    board *b;
    uint8_t sent[ENVS];
    int64_t worker_of[ENVS];
    shoal_tickets tickets;
} flow;

static void open_flow(flow *f, uint32_t workers, uint32_t first) {
    open_parent(&f->p, open_world(0), workers, 0);
    f->b = mmap(NULL, sizeof *f->b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(f->b != MAP_FAILED);
    memset(f->sent, 0, sizeof f->sent);
    for (int e = 0; e < ENVS; e++) {
        f->worker_of[e] = e / EACH;
        atomic_store(&f->b->ticket[e], first);
        atomic_store(&f->b->finished[e], first);
    }
    f->tickets = (shoal_tickets){f->b->ticket, f->b->finished, f->sent, workers * EACH};
}

static void close_flow(flow *f) {
    CHECK_EQUAL(munmap(f->b, sizeof *f->b), 0);
    close_parent(&f->p);
}

static void open_worker(shoal_worker *worker, flow *f, uint32_t i) {
    world *w = f->p.w;
    shoal_worker_init(worker, w->gates, f->p.all.count, i, &w->wakeup, w->ring_fd, 0);
}

static shoal_serving start_serving(shoal_worker *worker, flow *f) {
    return (shoal_serving){.ticket = f->b->ticket,
                           .finished = f->b->finished,
                           .worker = worker,
                           .first = worker->number * EACH,
                           .count = EACH};
}

static int send_one(flow *f, int64_t env_id) {
    return shoal_tickets_send(&f->tickets, &f->p.all, &env_id, 1, f->worker_of);
}

static int wait_for_finished(flow *f, uint64_t timeout_ns, uint64_t most) {
    shoal_wait wait = start_wait(timeout_ns, -1, 1);
    int status;
    while ((status = shoal_tickets_wait(&f->tickets, &f->p.all, &wait, most)) == SHOAL_WAIT_AGAIN)
        continue;
    return status;
}

/* -- step by step ---------------------------------------------------------------------------------------- */

static void send_posts_to_each_idle_worker_once_and_to_no_busy_one(void) {
    flow f;
    open_flow(&f, 2, 0);
    const int64_t env_ids[] = {0, 1, EACH, EACH + 1};
    CHECK_EQUAL(shoal_tickets_send(&f.tickets, &f.p.all, env_ids, 4, f.worker_of), 0);
    for (int i = 0; i < 2; i++) {
        CHECK_EQUAL(atomic_load(&f.p.w->gates[i].go), 1);
        CHECK_EQUAL(f.p.w->gates[i].command, SHOAL_SENT);
    }
    CHECK_EQUAL(send_one(&f, 2), 0); /* the worker is busy and looks for tickets anyway */
    CHECK_EQUAL(atomic_load(&f.p.w->gates[0].go), 1);
    CHECK_EQUAL(f.sent[0] + f.sent[1] + f.sent[2] + f.sent[3] + f.sent[4] + f.sent[5], 5);
    shoal_gates_watch(&f.p.all, 1, -1, 0); /* nobody is there */
    CHECK_EQUAL(send_one(&f, EACH + 2), 0);
    CHECK_EQUAL(atomic_load(&f.p.w->gates[1].go), 1);
    close_flow(&f);
}

static void send_refuses_numbers_out_of_range_and_sends_nothing(void) {
    flow f;
    open_flow(&f, 2, 0);
    for (int turn = 0; turn < 4; turn++) {
        const int64_t env_ids[] = {0, turn == 0 ? -1 : turn == 1 ? 2 * EACH : 1};
        f.worker_of[1] = turn == 2 ? 2 : turn == 3 ? -1 : 0;
        CHECK_EQUAL(shoal_tickets_send(&f.tickets, &f.p.all, env_ids, 2, f.worker_of), -EINVAL);
        CHECK_EQUAL(f.sent[0] + atomic_load(&f.b->ticket[0]) + atomic_load(&f.p.w->gates[0].go), 0);
    }
    close_flow(&f);
}

static void take_wraps_around_from_the_start_and_takes_each_once(void) {
    flow f;
    open_flow(&f, 1, UINT32_MAX); /* tickets wrap around */
    uint64_t env_ids[ENVS];
    for (int64_t e = 0; e < EACH; e++)
        CHECK_EQUAL(send_one(&f, e), 0);
    CHECK_EQUAL(shoal_tickets_take(&f.tickets, 0, ENVS, env_ids), 0);
    atomic_store(&f.b->finished[0], 0);
    atomic_store(&f.b->finished[2], 0);
    CHECK_EQUAL(wait_for_finished(&f, 0, 3), SHOAL_WAIT_TIMEOUT);
    CHECK_EQUAL(wait_for_finished(&f, 0, 2), SHOAL_WAIT_IDLE);
    CHECK_EQUAL(shoal_tickets_take(&f.tickets, 1, 1, env_ids), 1);
    CHECK_EQUAL(env_ids[0], 2);
    CHECK_EQUAL(shoal_tickets_take(&f.tickets, 1, ENVS, env_ids), 1);
    CHECK_EQUAL(env_ids[0], 0);
    CHECK_EQUAL(shoal_tickets_take(&f.tickets, 1, ENVS, env_ids), 0);
    CHECK_EQUAL(f.sent[1], 1);
    close_flow(&f);
}

static void worker_checks_tickets_once_more_after_finishing_the_command(void) {
    flow f;
    open_flow(&f, 1, 0);
    shoal_worker worker;
    open_worker(&worker, &f, 0);
    CHECK_EQUAL(send_one(&f, 1), 0);
    CHECK(shoal_worker_wait(&worker));
    shoal_serving serving = start_serving(&worker, &f);
    CHECK(shoal_serving_next(&serving));
    CHECK_EQUAL(serving.env_id, 1);
    CHECK_EQUAL(send_one(&f, 0), 0); /* comes while the worker is at another */
    shoal_serving_finish(&serving);
    CHECK(shoal_serving_next(&serving));
    CHECK_EQUAL(serving.env_id, 0);
    CHECK(!shoal_gate_idle(worker.gate));
    shoal_serving_finish(&serving);
    CHECK_EQUAL(wait_for_finished(&f, 0, 2), SHOAL_WAIT_IDLE);
    /* A ticket that no command follows: its sender saw the worker busy. */
    f.sent[2] = 1;
    CHECK(!serving.is_idle);
    serving.quiet = EACH; /* the worker has just looked at all of them */
    atomic_fetch_add(&f.b->ticket[2], 1);
    CHECK(shoal_serving_next(&serving));
    CHECK(shoal_gate_idle(worker.gate));
    CHECK_EQUAL(serving.env_id, 2);
    shoal_serving_finish(&serving);
    CHECK(!shoal_serving_next(&serving));
    CHECK_EQUAL(wait_for_finished(&f, 0, 3), SHOAL_WAIT_IDLE);
    close_flow(&f);
}

static void *finish_later(void *argument) {
    shoal_serving *serving = argument;
    usleep(5000);
    shoal_serving_finish(serving);
    return NULL;
}

static void a_parent_that_sleeps_is_woken_by_each_finished_environment(void) {
    flow f;
    open_flow(&f, 1, 0);
    shoal_worker worker;
    open_worker(&worker, &f, 0);
    uint64_t fastest = UINT64_MAX, env_id;
    for (int turn = 0; turn < 6; turn++) {
        if (turn == 3)
            (void)shoal_liveness_hold(&worker.gate->liveness); /* the parent sleeps on words from now on */
        CHECK_EQUAL(send_one(&f, 0), 0);
        shoal_serving serving = start_serving(&worker, &f);
        CHECK(shoal_serving_next(&serving));
        pthread_t thread;
        CHECK_EQUAL(pthread_create(&thread, NULL, finish_later, &serving), 0);
        const uint64_t begin = shoal_now_ns();
        CHECK_EQUAL(wait_for_finished(&f, SECONDS_NS(10), 1), SHOAL_WAIT_IDLE);
        const uint64_t waited = shoal_now_ns() - begin;
        fastest = waited < fastest ? waited : fastest;
        if (turn % 3 == 2) {
            CHECK(fastest < SHOAL_GATE_SLICE_NS / 2);
            fastest = UINT64_MAX;
        }
        CHECK_EQUAL(pthread_join(thread, NULL), 0);
        CHECK_EQUAL(shoal_tickets_take(&f.tickets, 0, 1, &env_id), 1);
    }
    shoal_liveness_release(&worker.gate->liveness);
    close_flow(&f);
}

static void wait_ends_by_timeout_or_any_death(void) {
    flow f;
    open_flow(&f, 2, 0);
    CHECK_EQUAL(send_one(&f, 0), 0);
    const uint64_t begin = shoal_now_ns();
    CHECK_EQUAL(wait_for_finished(&f, 3000000, 1), SHOAL_WAIT_TIMEOUT);
    CHECK(shoal_now_ns() - begin >= 3000000);
    CHECK_EQUAL(atomic_load(&f.p.w->wakeup.asleep), 0);
    int ends[2];
    CHECK_EQUAL(pipe(ends), 0);
    shoal_gates_watch(&f.p.all, 1, ends[0], 0); /* of an idle worker */
    CHECK_EQUAL(write(ends[1], "", 1), 1);
    CHECK_EQUAL(wait_for_finished(&f, SECONDS_NS(10), 1), SHOAL_WAIT_DIED);
    close(ends[0]), close(ends[1]);
    close_flow(&f);
}

/* -- under contention ------------------------------------------------------------------------------------ */

typedef struct job {
    flow *f;
    uint32_t i;
} job;

static void *serve(void *argument) {
    const job *mine = argument;
    flow *f = mine->f;
    shoal_worker worker;
    open_worker(&worker, f, mine->i);
    worker.seen = 0;
    (void)shoal_liveness_hold(&worker.gate->liveness);
    uint64_t state = 5 + mine->i;
    for (;;) {
        while (!shoal_worker_wait(&worker))
            continue;
        if (worker.gate->command == END) {
            shoal_worker_finish(&worker, 0, 0);
            break;
        }
        shoal_serving serving = start_serving(&worker, f);
        while (shoal_serving_next(&serving)) {
            const uint64_t e = serving.env_id;
            CHECK_EQUAL(e / EACH, mine->i);
            f->b->out[e] = f->b->in[e] * 3 + e;
            pause_randomly(&state);
            shoal_serving_finish(&serving);
        }
    }
    shoal_liveness_release(&worker.gate->liveness);
    return NULL;
}

static void every_environment_that_is_sent_is_stepped_and_taken_once(void) {
    flow f;
    open_flow(&f, WORKERS, UINT32_MAX - 100);
    pthread_t threads[WORKERS];
    job jobs[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++) {
        jobs[i] = (job){&f, i};
        CHECK_EQUAL(pthread_create(&threads[i], NULL, serve, &jobs[i]), 0);
    }
    uint64_t state = 9, sent[ENVS] = {0}, taken[ENVS] = {0}, env_ids[ENVS], start = 0, total = 0;
    for (int e = 0; e < ENVS; e++)
        f.b->in[e] = ++sent[e] * 7;
    const int64_t all[ENVS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    CHECK_EQUAL(shoal_tickets_send(&f.tickets, &f.p.all, all, ENVS, f.worker_of), 0);
    for (int turn = 0; turn < RECEIVES; turn++) {
        const uint64_t most = 1 + draw(&state) % 3;
        CHECK_EQUAL(wait_for_finished(&f, SECONDS_NS(20), most), SHOAL_WAIT_IDLE); /* else one is lost */
        const uint64_t count = shoal_tickets_take(&f.tickets, start, most, env_ids);
        CHECK_EQUAL(count, most);
        for (uint64_t i = 0; i < count; i++) {
            const uint64_t e = env_ids[i];
            CHECK_EQUAL(++taken[e], sent[e]);
            CHECK_EQUAL(f.b->out[e], sent[e] * 21 + e);
            f.b->in[e] = ++sent[e] * 7;
            CHECK_EQUAL(send_one(&f, (int64_t)e), 0);
        }
        start = (start + most) % ENVS;
        total += count;
        pause_randomly(&state);
    }
    CHECK_EQUAL(wait_for_finished(&f, SECONDS_NS(20), ENVS), SHOAL_WAIT_IDLE);
    CHECK_EQUAL(wait_for(&f.p, SECONDS_NS(20), -1, 0), SHOAL_WAIT_IDLE);
    for (uint32_t i = 0; i < WORKERS; i++)
        shoal_gates_post(&f.p.all, i, END, 0, 0, 0);
    for (int i = 0; i < WORKERS; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    printf("   %llu steps\n", (unsigned long long)total);
    close_flow(&f);
}

/* The two meet at the moment when the parent goes to sleep. Each may miss the other's store only if the other
 * sees its own. */
typedef struct meeting {
    shoal_serving serving;
    _Atomic uint32_t turn, finished; /* how far the parent is, and the worker */
    uint64_t finished_ns;
} meeting;

static void *finish_again_and_again(void *argument) {
    meeting *m = argument;
    uint64_t state = 3;
    for (uint32_t turn = 1; turn <= MEETINGS; turn++) {
        while (atomic_load(&m->turn) != turn)
            sched_yield();
        for (volatile uint64_t i = draw(&state) % 400; i > 0; i--)
            continue;
        m->finished_ns = shoal_now_ns();
        shoal_serving_finish(&m->serving);
        atomic_store(&m->finished, turn);
    }
    return NULL;
}

static void a_parent_that_goes_to_sleep_sees_the_environment_finished_or_is_woken(void) {
    flow f;
    open_flow(&f, 1, 0);
    shoal_worker worker;
    open_worker(&worker, &f, 0);
    meeting m = {.serving = start_serving(&worker, &f)};
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, finish_again_and_again, &m), 0);
    uint64_t env_id, lost = 0;
    for (uint32_t turn = 1; turn <= MEETINGS && lost < 20; turn++) {
        CHECK_EQUAL(send_one(&f, 0), 0);
        CHECK(shoal_serving_next(&m.serving));
        shoal_wait wait = {shoal_now_ns() - SECONDS_NS(1), UINT64_MAX, -1, 1, 0}; /* it sleeps at once */
        atomic_store(&m.turn, turn);
        while (shoal_tickets_wait(&f.tickets, &f.p.all, &wait, 1) != SHOAL_WAIT_IDLE)
            continue;
        const uint64_t now = shoal_now_ns();
        while (atomic_load(&m.finished) != turn)
            sched_yield();
        lost += now > m.finished_ns + SHOAL_GATE_SLICE_NS / 2;
        CHECK_EQUAL(shoal_tickets_take(&f.tickets, 0, 1, &env_id), 1);
    }
    printf("   %llu of %d lost\n", (unsigned long long)lost, (int)MEETINGS);
    CHECK(lost <= 5); /* a busy machine may be slow to run a process that was woken */
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    close_flow(&f);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    alarm(200);
    RUN(send_posts_to_each_idle_worker_once_and_to_no_busy_one);
    RUN(send_refuses_numbers_out_of_range_and_sends_nothing);
    RUN(take_wraps_around_from_the_start_and_takes_each_once);
    RUN(worker_checks_tickets_once_more_after_finishing_the_command);
    RUN(a_parent_that_sleeps_is_woken_by_each_finished_environment);
    RUN(wait_ends_by_timeout_or_any_death);
    RUN(a_parent_that_goes_to_sleep_sees_the_environment_finished_or_is_woken);
    RUN(every_environment_that_is_sent_is_stepped_and_taken_once);
    return 0;
}
