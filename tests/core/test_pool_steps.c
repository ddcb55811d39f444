/* Tests of core/pool.c: what a thread does if the caller goes on between two of its instructions. The events
 * of the pool's timeline are the places where the caller's part is done, on the same thread. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#define SHOAL_POOL_TRACE
#define shoal_pool_create tested_pool_create
#define shoal_pool_run tested_pool_run
#define shoal_pool_sleeps tested_pool_sleeps
#define shoal_pool_destroy tested_pool_destroy
#include "../../core/pool.c"

#include "check.h"

#include <sched.h>
#include <unistd.h>

static void (*at_event)(int event);
static shoal_pool *tested;
static int reads, calls;

void shoal_pool_trace(uint32_t thread, int event) {
    (void)thread;
    if (at_event != NULL)
        at_event(event);
}

static uint64_t run_first(void *context, uint32_t chunk) {
    (void)context, (void)chunk;
    return 1;
}

static uint64_t run_second(void *context, uint32_t chunk) {
    (void)context, (void)chunk;
    calls++;
    return 1;
}

static const shoal_pool_job FIRST = {run_first, NULL, (void *)1, 3, 0, 0},
                            SECOND = {run_second, NULL, (void *)2, 7, 1, 1};

/* The thread has read the number of the first run when the caller posts the second one. */
static void post_the_second(int event) {
    if (event == TRACE_READ && ++reads == 1)
        (void)post(tested, &SECOND);
}

static void a_thread_never_runs_the_job_of_one_run_under_the_number_of_another(void) {
    task task;
    CHECK_EQUAL(tested_pool_create(1, 1, &tested), 0);
    (void)post(tested, &FIRST);
    at_event = post_the_second;
    wait_for_task(tested, &tested->members[0], 0, &task);
    at_event = NULL;
    CHECK_EQUAL(reads, 2);
    CHECK_EQUAL(task.run, tested->run);
    CHECK(task.job.run_chunk == run_second && task.job.context == (void *)2);
    CHECK_EQUAL(task.job.chunks, 7);
    CHECK_EQUAL(task.job.is_only_reading, 1);
    CHECK_EQUAL(task.job.is_steady, 1);
    tested_pool_destroy(tested);
}

/* While the job is being written, the number is odd: the thread reads nothing until it is even. If that takes
 * long, because the caller has lost its core, the thread sleeps. */
static void finish_writing(int event) { CHECK(event != TRACE_READ || atomic_load(&tested->posted) % 2 == 0); }

static uint64_t count_sleeps(void) { return atomic_load(&tested->members[0].rest.sleeps); }

static void *write_slowly(void *argument) {
    (void)argument;
    while (count_sleeps() == 0)
        sched_yield();
    atomic_store(&tested->run_chunk, (uintptr_t)run_second);
    atomic_store(&tested->chunks, 7);
    atomic_store(&tested->posted, 4);
    shoal_rest_wake(&tested->rest, SHOAL_REST_FAN_OUT);
    return NULL;
}

static void a_thread_waits_while_the_job_is_being_written(void) {
    task task;
    pthread_t writer;
    CHECK_EQUAL(tested_pool_create(1, 1, &tested), 0);
    (void)post(tested, &FIRST);
    atomic_store(&tested->posted, 3); /* the second run, half written */
    at_event = finish_writing;
    CHECK(pthread_create(&writer, NULL, write_slowly, NULL) == 0);
    wait_for_task(tested, &tested->members[0], 2, &task);
    at_event = NULL;
    pthread_join(writer, NULL);
    CHECK_EQUAL(task.run, 2);
    CHECK(task.job.run_chunk == run_second);
    tested_pool_destroy(tested);
}

/* The run ends, and a larger one begins, after the thread has read the job and before it takes a chunk. */
static void a_thread_that_was_stopped_before_its_first_chunk_takes_nothing(void) {
    CHECK_EQUAL(tested_pool_create(1, 1, &tested), 0);
    const task first = post(tested, &FIRST);
    uint32_t chunk;
    while (take(tested, &first, 0, 1, OWN_DIVISOR, &chunk) != 0)
        continue; /* others do all of it */
    (void)post(tested, &SECOND);
    CHECK_EQUAL(run_own_part(tested, &first, &tested->members[0]).count, 0);
    CHECK_EQUAL(calls, 0);
    tested_pool_destroy(tested);
}

static void chunks_that_only_read_are_taken_from_every_thread_at_once(void) {
    const task reading = {.job = {.is_only_reading = 1}}, writing = {.job = {.is_only_reading = 0}};
    CHECK_EQUAL(tested_pool_create(1, 1, &tested), 0);
    const uint64_t begin = shoal_now_ns() - 1000;
    const lateness of_reading = begin_help(tested, &reading, &tested->members[0], begin, 1);
    CHECK_EQUAL(of_reading.least, 1);
    CHECK_EQUAL(of_reading.patience_ns, 1);
    const lateness of_writing = begin_help(tested, &writing, &tested->members[0], begin, 1);
    CHECK(of_writing.least > 1);
    CHECK(of_writing.patience_ns >= LEAST_PATIENCE_NS);
    tested_pool_destroy(tested);
}

static uint32_t order[16], ran;

static uint64_t record(void *context, uint32_t chunk) {
    (void)context;
    order[ran++] = chunk;
    return 1;
}

/* Runs a steady job of ten chunks as the only thread. Returns how many chunks ran out of place. */
static int count_misplaced(int should_go_backward) {
    int misplaced = 0;
    const shoal_pool_job job = {.run_chunk = record, .chunks = 10, .is_steady = 1};
    const task task = post(tested, &job);
    ran = 0;
    CHECK_EQUAL(run_own_part(tested, &task, &tested->members[0]).count, 10);
    for (uint32_t i = 0; i < 10; i++)
        misplaced += order[i] != (should_go_backward ? 9 - i : i);
    return misplaced;
}

static void steady_jobs_run_forward_and_backward_in_turns_whatever_runs_between(void) {
    CHECK_EQUAL(tested_pool_create(1, 1, &tested), 0);
    for (int i = 0; i < 12; i++) {
        for (int others = 0; others < i % 4; others++)
            (void)post(tested, &FIRST);
        CHECK_EQUAL(count_misplaced(i % 2), 0);
    }
    tested_pool_destroy(tested);
}

/* The run is not posted, so the pool's own threads do nothing. Parts 0 to 2 have 10 chunks each: all of part
 * 0 are taken, 7 of part 1 and 4 of part 2. */
static void help_the_latest(uint64_t run, uint32_t of_part_2, uint32_t of_part_1) {
    share share = {0, 0};
    CHECK_EQUAL(tested_pool_create(3, 1, &tested), 0);
    const task task = {.job = {.run_chunk = record, .chunks = 30}, .run = run};
    const int32_t next = is_backward(&task) ? -1 : 1;
    member *members = tested->members;
    atomic_store(&members[0].taken, run << COUNT_BITS | 10);
    atomic_store(&members[1].taken, run << COUNT_BITS | 7);
    atomic_store(&members[2].taken, run << COUNT_BITS | 4);
    ran = 0;
    CHECK_EQUAL(help(tested, &task, &members[0], 7, &share), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(help(tested, &task, &members[0], 3, &share), 1);
    for (int32_t i = 0; i < 3; i++)
        CHECK_EQUAL(order[i], of_part_2 + (uint32_t)(next * i));
    CHECK_EQUAL(order[3], of_part_1); /* now both have three left: the next part */
    CHECK_EQUAL(help(tested, &task, &members[0], 4, &share), 0);
    for (int i = 0; i < 5; i++)
        CHECK_EQUAL(help(tested, &task, &members[0], 1, &share), 1);
    CHECK_EQUAL(help(tested, &task, &members[0], 1, &share), -1);
    CHECK_EQUAL(share.count, 9);
    tested_pool_destroy(tested);
}

static void a_thread_that_is_done_helps_the_one_that_is_latest(void) {
    help_the_latest(1, 24, 17);
    help_the_latest(2, 25, 12);
}

int main(void) {
    alarm(60);
    RUN(a_thread_never_runs_the_job_of_one_run_under_the_number_of_another);
    RUN(a_thread_waits_while_the_job_is_being_written);
    RUN(a_thread_that_was_stopped_before_its_first_chunk_takes_nothing);
    RUN(steady_jobs_run_forward_and_backward_in_turns_whatever_runs_between);
    RUN(a_thread_that_is_done_helps_the_one_that_is_latest);
    RUN(chunks_that_only_read_are_taken_from_every_thread_at_once);
    return 0;
}
