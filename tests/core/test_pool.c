/* Tests of core/pool.c: every chunk runs once per run, whatever the threads were doing before; threads help
 * late ones; idle threads sleep. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
/* The pool itself, under names of its own, so that a test can reach its words. */
#define shoal_pool_create tested_pool_create
#define shoal_pool_run tested_pool_run
#define shoal_pool_sleeps tested_pool_sleeps
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

enum { MOST = 64, CHUNKS_PER_THREAD = 5 };

typedef struct job {
    uint32_t threads, chunks;
    uint64_t round; /* writer: caller, between runs */
    long slow_ms;
    struct {
        uint64_t runs, round; /* writer: the thread that runs the chunk; reader: caller, between runs */
        pthread_t thread;
    } all[MOST * CHUNKS_PER_THREAD];
    _Atomic uint32_t begun, ended;
    int may_move;             /* every second run only reads: any thread runs any chunk */
    _Atomic uint64_t blocked; /* the only thread that waits in a chunk */
} job;

static void pause_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0)
        continue;
}

/* `all` is not atomic: the pool alone orders caller and chunks, and the thread sanitizer watches. */
static uint64_t count_chunk(void *context, uint32_t chunk) {
    job *job = context;
    CHECK(chunk < job->chunks);
    if (job->slow_ms != 0 && chunk == job->chunks - 1)
        pause_ms(job->slow_ms);
    job->all[chunk].runs++;
    job->all[chunk].round = job->round;
    job->all[chunk].thread = pthread_self();
    return chunk + 1;
}

/* Waits until as many chunks as there are threads have begun, so that each thread must run one. */
static uint64_t meet_others(void *context, uint32_t chunk) {
    job *job = context;
    atomic_fetch_add(&job->begun, 1);
    while (atomic_load(&job->begun) < job->chunks)
        pause_ms(1);
    return count_chunk(context, chunk);
}

static uint64_t run_all(void *context) {
    job *job = context;
    uint64_t sum = 0;
    for (uint32_t chunk = 0; chunk < job->chunks; chunk++)
        sum += count_chunk(context, chunk);
    return sum;
}

static void run_with(shoal_pool *pool, job *job, uint64_t (*run_chunk)(void *, uint32_t)) {
    job->round++;
    atomic_store(&job->begun, 0);
    atomic_store(&job->ended, 0);
    const int only_reads = job->may_move && job->round % 2, is_steady = job->round % 3 != 0;
    const shoal_pool_job given = {run_chunk, run_all, job, job->chunks, only_reads, is_steady};
    CHECK_EQUAL(shoal_pool_run(pool, &given), (uint64_t)job->chunks * (job->chunks + 1) / 2);
    for (uint32_t i = 0; i < job->chunks; i++)
        if (job->all[i].runs != job->round || job->all[i].round != job->round) {
            CHECK_EQUAL(job->all[i].runs, job->round);
            CHECK_EQUAL(job->all[i].round, job->round);
        }
}

static void run_once(shoal_pool *pool, job *job) { run_with(pool, job, count_chunk); }

static shoal_pool *new_pool_with(job *job, uint32_t threads, int may_spin) {
    shoal_pool *pool;
    memset(job, 0, sizeof *job);
    job->threads = threads;
    job->chunks = threads * CHUNKS_PER_THREAD - threads / 2; /* parts of different sizes */
    CHECK_EQUAL(shoal_pool_create(threads, may_spin, &pool), 0);
    CHECK(pool != NULL);
    return pool;
}

static shoal_pool *new_pool(job *job, uint32_t threads) { return new_pool_with(job, threads, 1); }

/* Returns when all threads sleep in the kernel: none has begun to sleep for some time. */
static void wait_until_asleep(const shoal_pool *pool) {
    for (uint64_t sleeps = 0, before = 1;
         sleeps != before || atomic_load(&pool->rest.sleepers) != pool->count - 1;) {
        before = shoal_pool_sleeps(pool);
        pause_ms(20);
        sleeps = shoal_pool_sleeps(pool);
    }
}

static pthread_t main_thread;
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

static void every_chunk_runs_exactly_once_per_run_100000_times(void) {
    for (uint32_t threads = 1; threads <= 8; threads++) {
        job job;
        shoal_pool *pool = new_pool(&job, threads);
        job.may_move = 1;
        job.chunks = threads * 4 * CHUNKS_PER_THREAD - threads / 2; /* enough to balance */
        for (uint64_t i = 0, runs = threads <= 2 ? 20000 : 10000; i < runs; i++)
            run_once(pool, &job);
        shoal_pool_destroy(pool);
    }
}

static void any_number_of_chunks_is_run(void) {
    job job;
    shoal_pool *pool = new_pool(&job, 4);
    for (int round = 0; round < 50; round++)
        for (uint32_t chunks = 0; chunks <= 4 * CHUNKS_PER_THREAD; chunks++) {
            memset(&job, 0, sizeof job);
            job.chunks = chunks; /* the job changes in every run */
            run_once(pool, &job);
        }
    shoal_pool_destroy(pool);
}

/* While every thread is in a chunk, nobody helps: each has run the first chunk of its own part. */
static void a_part_belongs_to_one_thread_and_the_first_to_the_caller(void) {
    job job;
    shoal_pool *pool = new_pool(&job, 5);
    pthread_t first[5];
    job.chunks = 5;
    for (int round = 0; round < 100; round++) {
        run_with(pool, &job, meet_others);
        for (int i = 0; i < 5; i++) {
            if (round == 0)
                first[i] = job.all[i].thread;
            CHECK(pthread_equal(first[i], job.all[i].thread));
            for (int k = 0; k < i; k++)
                CHECK(!pthread_equal(first[i], first[k]));
        }
    }
    CHECK(pthread_equal(first[0], pthread_self()));
    shoal_pool_destroy(pool);
}

/* The caller takes twice as long for a chunk. */
static uint64_t be_slow_if_main(void *context, uint32_t chunk) {
    const uint64_t end = shoal_now_ns() + (pthread_equal(pthread_self(), main_thread) ? 4000 : 2000);
    while (shoal_now_ns() < end)
        continue;
    return count_chunk(context, chunk);
}

static void a_slow_thread_gets_a_smaller_part(void) {
    if (shoal_cpu_count() < 2)
        return; /* the threads of a pool with more threads than cores are not compared */
    main_thread = pthread_self();
    job job;
    shoal_pool *pool = new_pool(&job, 2);
    job.chunks = 2 * 4 * CHUNKS_PER_THREAD;
    do /* until the alarm */
        run_with(pool, &job, be_slow_if_main);
    while (atomic_load(&pool->bounds[pool->table][1]) > 0.42 * SHOAL_BALANCE_WHOLE);
    CHECK(job.round >= SHOAL_BALANCE_RUNS);
    shoal_pool_destroy(pool);
}

/* The first thread that is not the caller waits in its first chunk until all others are done. */
static uint64_t wait_for_the_rest(void *context, uint32_t chunk) {
    job *job = context;
    uint64_t nobody = 0, self = (uint64_t)pthread_self();
    if (!pthread_equal(pthread_self(), main_thread) &&
        atomic_compare_exchange_strong(&job->blocked, &nobody, self))
        while (atomic_load(&job->ended) != job->chunks - 1)
            pause_ms(1);
    else if (pthread_equal(pthread_self(), main_thread))
        while (atomic_load(&job->blocked) == 0) /* or the caller would help before a thread has come */
            pause_ms(1);
    const uint64_t result = count_chunk(context, chunk);
    atomic_fetch_add(&job->ended, 1);
    return result;
}

static void chunks_of_a_late_thread_are_run_by_others(void) {
    main_thread = pthread_self();
    for (uint32_t threads = 2; threads <= 6; threads++) {
        job job;
        shoal_pool *pool = new_pool(&job, threads);
        for (int i = 0; i < 10; i++) {
            atomic_store(&job.blocked, 0);
            run_with(pool, &job, wait_for_the_rest);
        }
        shoal_pool_destroy(pool);
    }
}

static void a_thread_that_comes_after_the_end_of_a_run_takes_nothing(void) {
    job job;
    shoal_pool *pool = new_pool(&job, 3);
    run_once(pool, &job);
    const task late = {{count_chunk, run_all, &job, job.chunks, 0, 1}, pool->run, 0};
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(run_own_part(pool, &late, &pool->members[0]).count, 0); /* would run chunks again */
        work(pool, &late, &pool->members[0]);
        run_once(pool, &job);
    }
    /* Also if its run had more chunks than the next one, so that the next one's parts look unfinished. */
    const task larger = {{count_chunk, run_all, &job, MOST * CHUNKS_PER_THREAD, 0, 1}, pool->run, 0};
    run_once(pool, &job);
    CHECK_EQUAL(run_own_part(pool, &larger, &pool->members[0]).count, 0);
    work(pool, &larger, &pool->members[0]);
    CHECK_EQUAL(job.all[0].runs, job.round);
    /* Also if the table of its run has been rewritten since, so that a later run has parts of other sizes. */
    memset(&job, 0, sizeof job);
    job.chunks = 3 * 4 * CHUNKS_PER_THREAD;
    run_once(pool, &job);
    const task old = {{count_chunk, run_all, &job, job.chunks, 0, 1}, pool->run, 1};
    for (uint32_t k = 0; k <= 3; k++)
        atomic_store(&pool->bounds[1][k], k * (SHOAL_BALANCE_WHOLE / 3));
    run_once(pool, &job);
    atomic_store(&pool->bounds[1][1], SHOAL_BALANCE_WHOLE / 2);
    CHECK(part_begin(pool, &old, 1) > job.chunks / 3);
    CHECK_EQUAL(run_own_part(pool, &old, &pool->members[0]).count, 0);
    work(pool, &old, &pool->members[0]);
    CHECK_EQUAL(job.all[0].runs, job.round);
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

/* Only a tree that reaches every thread ends this run: each thread is needed for one chunk. */
static void all_sleepers_are_woken(void) {
    for (uint32_t threads = 2; threads <= 16; threads *= 2) {
        job job;
        shoal_pool *pool = new_pool(&job, threads);
        job.chunks = threads;
        for (int i = 0; i < 5; i++) {
            wait_until_asleep(pool);
            run_with(pool, &job, meet_others);
        }
        shoal_pool_destroy(pool);
    }
}

static uint64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Once asleep, a thread stays asleep: it begins no second sleep, and uses no CPU. */
static void idle_threads_use_no_cpu(void) {
    job job;
    shoal_pool *pool = new_pool(&job, 4);
    for (int i = 0; i < 1000; i++)
        run_once(pool, &job);
    wait_until_asleep(pool);
    const uint64_t sleeps = shoal_pool_sleeps(pool), before = cpu_ns();
    CHECK(sleeps >= 3);
    pause_ms(400);
    CHECK_EQUAL(shoal_pool_sleeps(pool), sleeps);
    CHECK(cpu_ns() - before <
          20000000); /* of this thread and of a sanitizer's; three that spin use 1200 ms */
    shoal_pool_destroy(pool);
}

static uint32_t spin_after(shoal_pool *pool, uint64_t gap_ns, int runs) {
    for (int i = 0; i < runs; i++) {
        shoal_rest_learn(&pool->rest, gap_ns);
    }
    return atomic_load(&pool->rest.spin_ns);
}

static void threads_spin_for_long_only_while_runs_follow_each_other_closely(void) {
    job job;
    shoal_pool *pool = new_pool(&job, 2);
    CHECK(SHOAL_REST_SPIN_NS <= 2000000);
    CHECK_EQUAL(atomic_load(&pool->rest.spin_ns), SHOAL_REST_SHORT_SPIN_NS);
    CHECK_EQUAL(spin_after(pool, 50000000, 1), SHOAL_REST_SHORT_SPIN_NS);
    CHECK_EQUAL(spin_after(pool, 5000, 8), SHOAL_REST_SHORT_SPIN_NS); /* a trial of the pool is no reason */
    CHECK_EQUAL(spin_after(pool, 5000, 20), SHOAL_REST_SPIN_NS);
    CHECK_EQUAL(spin_after(pool, 300000, 1), SHOAL_REST_SPIN_NS); /* one gap is no change */
    CHECK_EQUAL(spin_after(pool, 300000, 20), SHOAL_REST_SHORT_SPIN_NS);
    CHECK_EQUAL(spin_after(pool, 5000, 40), SHOAL_REST_SPIN_NS);
    shoal_pool_destroy(pool);
}

static void a_thread_that_lost_its_core_sleeps_without_spinning_for_a_while(void) {
    job job;
    shoal_pool *pool = new_pool(&job, 2);
    shoal_rester self = {.waits_without_spin = 3};
    wait_until_asleep(pool);
    const awaited next = {pool, atomic_load(&pool->posted)}, last = {pool, next.seen - 2};
    atomic_store(&pool->rest.spin_ns, UINT32_MAX); /* spinning would take four seconds */
    pool->rest.may_spin = 1;
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(shoal_rest_spin(&pool->rest, &self, is_posted, &next), 0);
    CHECK_EQUAL(self.waits_without_spin, 0);
    pool->rest.may_spin = 0;
    CHECK_EQUAL(shoal_rest_spin(&pool->rest, &self, is_posted, &next), 0);
    CHECK_EQUAL(shoal_rest_spin(&pool->rest, &self, is_posted, &last), 1);
    shoal_pool_destroy(pool);
}

static void threads_that_may_not_spin_run_all_chunks(void) {
    job job;
    shoal_pool *pool = new_pool_with(&job, 2, 0);
    CHECK_EQUAL(pool->rest.may_spin, 0);
    for (int i = 0; i < 200; i++)
        run_once(pool, &job);
    shoal_pool_destroy(pool);
}

static void more_threads_than_cores_all_run(void) {
    job job;
    shoal_pool *pool = new_pool(&job, MOST);
    CHECK_EQUAL(pool->rest.may_spin, MOST <= shoal_cpu_count());
    for (int i = 0; i < 200; i++)
        run_once(pool, &job);
    CHECK_EQUAL(count_threads(MOST), MOST);
    shoal_pool_destroy(pool);
    CHECK_EQUAL(count_threads(1), 1);
}

static void a_slow_chunk_keeps_the_caller_waiting_awake_and_asleep(void) {
    job job;
    shoal_pool *pool = new_pool(&job, 2);
    for (int i = 0; i < 6; i++) {
        job.slow_ms = i % 2 == 0 ? 80 : 0; /* longer than one sleep in the kernel */
        run_once(pool, &job);
    }
    shoal_pool_destroy(pool);
}

static void the_number_of_a_run_wraps_around(void) {
    job job;
    shoal_pool *pool = new_pool(&job, 3);
    run_once(pool, &job);
    wait_until_asleep(pool);
    pool->run = RUN_MASK - 2;
    for (uint32_t i = 0; i < pool->count; i++)
        atomic_store(&pool->members[i].taken, pool->run << COUNT_BITS);
    for (int i = 0; i < 8; i++)
        run_once(pool, &job);
    CHECK(pool->run >= RUN_MASK + 6 && pool->run < 2 * RUN_MASK); /* some numbers are skipped */
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
        CHECK_EQUAL(shoal_pool_create(counts[i], 1, &pool), -EINVAL);
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
        struct rlimit limit = {bytes, bytes};
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0 && getrlimit(RLIMIT_AS, &limit) == 0);
        if (limit.rlim_cur != bytes)
            _exit(7); /* qemu ignores this limit */
        shoal_pool *pool = NULL;
        CHECK_EQUAL(shoal_pool_create(1000, 1, &pool), -EAGAIN);
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
    RUN(every_chunk_runs_exactly_once_per_run_100000_times);
    RUN(any_number_of_chunks_is_run);
    RUN(a_part_belongs_to_one_thread_and_the_first_to_the_caller);
    RUN(chunks_of_a_late_thread_are_run_by_others);
    RUN(a_slow_thread_gets_a_smaller_part);
    RUN(a_thread_that_comes_after_the_end_of_a_run_takes_nothing);
    RUN(threads_that_fell_asleep_run_again);
    RUN(all_sleepers_are_woken);
    RUN(idle_threads_use_no_cpu);
    RUN(threads_spin_for_long_only_while_runs_follow_each_other_closely);
    RUN(a_thread_that_lost_its_core_sleeps_without_spinning_for_a_while);
    RUN(threads_that_may_not_spin_run_all_chunks);
    RUN(more_threads_than_cores_all_run);
    RUN(a_slow_chunk_keeps_the_caller_waiting_awake_and_asleep);
    RUN(the_number_of_a_run_wraps_around);
    RUN(a_thousand_pools_leave_no_thread);
    RUN(a_pool_ends_whether_its_threads_spin_or_sleep);
    RUN(a_forked_child_frees_the_pool_and_the_parents_goes_on);
    RUN(no_thread_and_absurdly_many_are_refused);
    RUN(a_signal_is_never_handled_by_a_thread_of_the_pool);
    RUN(pool_that_cannot_start_all_threads_ends_the_others);
    return 0;
}
