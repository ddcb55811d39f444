/* Tests of core/pool.c: every part runs once per run, whatever the threads were doing before. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
/* The pool itself, under names of its own, so that a test can reach its count of runs. */
#define shoal_pool_create tested_pool_create
#define shoal_pool_run tested_pool_run
#define shoal_pool_destroy tested_pool_destroy
#include "../../core/pool.c"

#include "check.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#endif

enum { MOST = 64 };

typedef struct job {
    uint32_t threads;
    uint64_t round; /* writer: caller, between runs */
    long slow_ms;
    struct {
        _Alignas(64) uint64_t runs, round; /* writer: the thread of the part; reader: caller, between runs */
        pthread_t thread;
    } parts[MOST];
} job;

static void pause_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0)
        continue;
}

/* Nothing here is atomic: the pool alone orders caller and parts, and the thread sanitizer watches. */
static void count_part(void *context, uint32_t part) {
    job *job = context;
    CHECK(part < job->threads);
    if (job->slow_ms != 0 && part != 0)
        pause_ms(job->slow_ms);
    job->parts[part].runs++;
    job->parts[part].round = job->round;
    job->parts[part].thread = pthread_self();
}

static void run_once(shoal_pool *pool, job *job) {
    job->round++;
    shoal_pool_run(pool, count_part, job);
    for (uint32_t i = 0; i < job->threads; i++)
        if (job->parts[i].runs != job->round || job->parts[i].round != job->round) {
            CHECK_EQUAL(job->parts[i].runs, job->round);
            CHECK_EQUAL(job->parts[i].round, job->round);
        }
}

static shoal_pool *new_pool(job *job, uint32_t threads) {
    shoal_pool *pool;
    memset(job, 0, sizeof *job);
    job->threads = threads;
    CHECK_EQUAL(shoal_pool_create(threads, &pool), 0);
    CHECK(pool != NULL);
    return pool;
}

static int others; /* threads of a sanitizer */

/* Threads of this process; waits a little for those that are joined but not yet gone from the kernel. */
static int count_threads(int expected) {
    int count = expected; /* on a system that does not tell */
    for (int tries = 0; tries < 200; tries++) {
        DIR *dir = opendir("/proc/self/task");
        if (dir == NULL)
            break;
        count = -2 - others;
        while (readdir(dir) != NULL)
            count++;
        closedir(dir);
        if (count == expected)
            break;
        pause_ms(5);
    }
    return count;
}

static void count_others(void) {
    job job;
    shoal_pool_destroy(new_pool(&job, 2)); /* a sanitizer starts its own with the first thread */
    pause_ms(100);
    others = count_threads(1) - 1;
}

/* With as many threads as cores they spin; with more, every hand-off goes through the kernel, and a wake-up
 * that is lost costs 50 ms. */
static void every_part_runs_exactly_once_per_run_100000_times(void) {
    for (uint32_t threads = 1; threads <= 8; threads++) {
        job job;
        shoal_pool *pool = new_pool(&job, threads);
        uint64_t begin = shoal_now_ns(), runs = threads <= 2 ? 20000 : 10000;
        for (uint64_t i = 0; i < runs; i++)
            run_once(pool, &job);
        CHECK((shoal_now_ns() - begin) / runs < 10000000);
        shoal_pool_destroy(pool);
    }
}

static void a_part_always_runs_on_the_same_thread_and_the_first_on_the_caller(void) {
    job job;
    shoal_pool *pool = new_pool(&job, 5);
    pthread_t first[5];
    for (int round = 0; round < 200; round++) {
        run_once(pool, &job);
        for (int i = 0; i < 5; i++) {
            if (round == 0)
                first[i] = job.parts[i].thread;
            CHECK(pthread_equal(first[i], job.parts[i].thread));
            for (int k = 0; k < i; k++)
                CHECK(!pthread_equal(first[i], first[k]));
        }
    }
    CHECK(pthread_equal(first[0], pthread_self()));
    shoal_pool_destroy(pool);
}

static void threads_that_fell_asleep_run_again(void) {
    for (uint32_t threads = 2; threads <= 8; threads += 6) {
        job job;
        shoal_pool *pool = new_pool(&job, threads);
        for (int i = 0; i < 4; i++) {
            run_once(pool, &job);
            pause_ms(120);
            run_once(pool, &job);
        }
        shoal_pool_destroy(pool);
    }
}

static void more_threads_than_cores_all_run(void) {
    job job;
    shoal_pool *pool = new_pool(&job, MOST);
    CHECK_EQUAL(pool->spin_ns, MOST <= shoal_cpu_count() ? SPIN_NS : 0);
    for (int i = 0; i < 200; i++)
        run_once(pool, &job);
    CHECK_EQUAL(count_threads(MOST), MOST);
    shoal_pool_destroy(pool);
    CHECK_EQUAL(count_threads(1), 1);
}

static void a_slow_part_keeps_the_caller_waiting_awake_and_asleep(void) {
    job job;
    shoal_pool *pool = new_pool(&job, 2);
    for (int i = 0; i < 6; i++) {
        job.slow_ms = i % 2 == 0 ? 80 : 0; /* longer than one sleep in the kernel */
        run_once(pool, &job);
    }
    shoal_pool_destroy(pool);
}

static void generation_wraps_around_without_the_stop_value(void) {
    job job;
    shoal_pool *pool = new_pool(&job, 3);
    run_once(pool, &job); /* now every thread waits for another word than its last */
    pool->generation = UINT32_MAX - 2;
    for (uint32_t i = 0; i + 1 < pool->count; i++)
        atomic_store(&pool->threads[i].done, pool->generation);
    for (int i = 0; i < 8; i++) {
        run_once(pool, &job);
        CHECK(pool->generation != STOP);
    }
    CHECK(pool->generation < 16);
    shoal_pool_destroy(pool);
}

static void a_thousand_pools_leave_no_thread(void) {
    for (uint32_t i = 0; i < 1000; i++) {
        job job;
        shoal_pool *pool = new_pool(&job, 1 + i % 4);
        if (i % 3 == 0)
            run_once(pool, &job);
        shoal_pool_destroy(pool);
    }
    CHECK_EQUAL(count_threads(1), 1);
}

static void a_pool_ends_whether_its_threads_spin_or_sleep(void) {
    for (int rest = 0; rest < 2; rest++)
        for (uint32_t threads = 2; threads <= 8; threads += 3) {
            job job;
            shoal_pool *pool = new_pool(&job, threads);
            run_once(pool, &job);
            if (rest)
                pause_ms(120);
            shoal_pool_destroy(pool);
            CHECK_EQUAL(count_threads(1), 1);
        }
    shoal_pool_destroy(NULL);
}

static int exit_status(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void a_forked_child_frees_the_pool_and_the_parents_goes_on(void) {
    for (int rest = 0; rest < 2; rest++) {
        job job;
        shoal_pool *pool = new_pool(&job, 4);
        run_once(pool, &job);
        if (rest)
            pause_ms(120);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            shoal_pool_destroy(pool);
#ifndef SANITIZED /* the thread sanitizer allows no threads after fork */
            pool = new_pool(&job, 3);
            run_once(pool, &job);
            shoal_pool_destroy(pool);
#endif
            _exit(7);
        }
        CHECK_EQUAL(exit_status(child), 7);
        for (int i = 0; i < 100; i++)
            run_once(pool, &job);
        CHECK_EQUAL(count_threads(4), 4);
        shoal_pool_destroy(pool);
    }
}

static void no_thread_and_absurdly_many_are_refused(void) {
    static const uint32_t counts[] = {0, 4097, 5000, UINT32_MAX};
    for (int i = 0; i < 4; i++) {
        shoal_pool *pool = (shoal_pool *)&pool;
        CHECK_EQUAL(shoal_pool_create(counts[i], &pool), -EINVAL);
        CHECK(pool == NULL);
    }
}

static volatile sig_atomic_t handled;
static pthread_t handled_by;

static void handle(int number) {
    (void)number;
    handled++;
    handled_by = pthread_self();
}

static void a_signal_is_never_handled_by_a_thread_of_the_pool(void) {
    struct sigaction action = {.sa_handler = handle}, before;
    sigset_t usr1, mask;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    CHECK(sigaction(SIGUSR1, &action, &before) == 0);
    job job;
    shoal_pool *pool = new_pool(&job, 4);
    run_once(pool, &job);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int i = 1; i < 32; i++)
        CHECK_EQUAL(sigismember(&mask, i), 0); /* creating the pool left the caller's mask as it was */
    /* While this thread does not take it, nobody does. */
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    pause_ms(30);
    run_once(pool, &job);
    CHECK_EQUAL(handled, 0);
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
    CHECK_EQUAL(handled, 1);
    CHECK(pthread_equal(handled_by, pthread_self()));
    shoal_pool_destroy(pool);
    sigaction(SIGUSR1, &before, NULL);
}

static void pool_that_cannot_start_all_threads_ends_the_others(void) {
#if defined(__linux__) && !defined(SANITIZED) /* sanitizers take more addresses than any limit allows */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        unsigned long pages = 0;
        FILE *file = fopen("/proc/self/statm", "r");
        CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
        fclose(file);
        rlim_t bytes =
            pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)100 << 20); /* some stacks, not 1000 */
        CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes}) == 0);
        shoal_pool *pool = NULL;
        CHECK_EQUAL(shoal_pool_create(1000, &pool), -EAGAIN);
        CHECK(pool == NULL);
        CHECK_EQUAL(count_threads(1), 1);
        sigset_t mask;
        pthread_sigmask(SIG_SETMASK, NULL, &mask);
        CHECK_EQUAL(sigismember(&mask, SIGINT), 0);
        _exit(7);
    }
    CHECK_EQUAL(exit_status(child), 7);
#endif
}

int main(void) {
    alarm(100); /* a hand-off that is lost for ever */
    count_others();
    RUN(every_part_runs_exactly_once_per_run_100000_times);
    RUN(a_part_always_runs_on_the_same_thread_and_the_first_on_the_caller);
    RUN(threads_that_fell_asleep_run_again);
    RUN(more_threads_than_cores_all_run);
    RUN(a_slow_part_keeps_the_caller_waiting_awake_and_asleep);
    RUN(generation_wraps_around_without_the_stop_value);
    RUN(a_thousand_pools_leave_no_thread);
    RUN(a_pool_ends_whether_its_threads_spin_or_sleep);
    RUN(a_forked_child_frees_the_pool_and_the_parents_goes_on);
    RUN(no_thread_and_absurdly_many_are_refused);
    RUN(a_signal_is_never_handled_by_a_thread_of_the_pool);
    RUN(pool_that_cannot_start_all_threads_ends_the_others);
    return 0;
}
