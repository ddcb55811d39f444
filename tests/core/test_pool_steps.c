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
    CHECK_EQUAL(tested_pool_create(1, &tested), 0);
    (void)post(tested, &FIRST);
    at_event = post_the_second;
    wait_for_task(tested, &tested->members[0], 0, &task);
    at_event = NULL;
    CHECK_EQUAL(reads, 2);
    CHECK_EQUAL(task.run, 2);
    CHECK(task.job.run_chunk == run_second && task.job.context == (void *)2);
    CHECK_EQUAL(task.job.chunks, 7);
    CHECK_EQUAL(task.job.is_only_reading, 1);
    CHECK_EQUAL(task.job.is_steady, 1);
    tested_pool_destroy(tested);
}

/* While the job is being written, the number is odd: the thread reads nothing until it is even. */
static int looks;
static void finish_writing(int event) { CHECK(event != TRACE_READ || atomic_load(&tested->posted) % 2 == 0); }

static void *write_slowly(void *argument) {
    (void)argument;
    for (looks = 0; looks < 1000; looks++)
        sched_yield();
    atomic_store(&tested->run_chunk, (uintptr_t)run_second);
    atomic_store(&tested->chunks, 7);
    atomic_store(&tested->posted, 4);
    return NULL;
}

static void a_thread_waits_while_the_job_is_being_written(void) {
    task task;
    pthread_t writer;
    CHECK_EQUAL(tested_pool_create(1, &tested), 0);
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
    CHECK_EQUAL(tested_pool_create(1, &tested), 0);
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
    CHECK_EQUAL(tested_pool_create(1, &tested), 0);
    const uint64_t begin = shoal_now_ns() - 1000;
    const lateness of_reading = begin_help(tested, &reading, &tested->members[0], begin, 1);
    CHECK_EQUAL(of_reading.least, 1);
    CHECK_EQUAL(of_reading.patience_ns, 1);
    const lateness of_writing = begin_help(tested, &writing, &tested->members[0], begin, 1);
    CHECK(of_writing.least > 1);
    CHECK(of_writing.patience_ns >= LEAST_PATIENCE_NS);
    tested_pool_destroy(tested);
}

int main(void) {
    alarm(60);
    RUN(a_thread_never_runs_the_job_of_one_run_under_the_number_of_another);
    RUN(a_thread_waits_while_the_job_is_being_written);
    RUN(a_thread_that_was_stopped_before_its_first_chunk_takes_nothing);
    RUN(chunks_that_only_read_are_taken_from_every_thread_at_once);
    return 0;
}
