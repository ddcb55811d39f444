/* Tests of liveness words (core/platform.c): the kernel clears them however a thread ends, and wakes
 * sleepers. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "check.h"
#include "platform.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 200, LONG_NS = 2000000000, HEAVY_BYTES = 256 << 20 };

typedef struct world {
    shoal_liveness liveness_words[MANY];
    shoal_word word, ready;
} world;

static world *open_world(void) {
    world *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(w != MAP_FAILED);
    return w;
}

static void close_world(world *w) { CHECK_EQUAL(munmap(w, sizeof *w), 0); }

/* A process that holds a liveness word and then, if it is not killed before, does `end`. */
static pid_t start_holder(world *w, shoal_liveness *liveness, void (*end)(void)) {
    const uint32_t before = atomic_load(&w->ready);
    const pid_t pid = fork();
    if (pid == 0) {
        CHECK_EQUAL(shoal_liveness_hold(liveness), 0);
        atomic_fetch_add(&w->ready, 1);
        shoal_futex_wake(&w->ready);
        end();
        _exit(0);
    }
    while (atomic_load(&w->ready) == before)
        shoal_futex_wait(&w->ready, before, 1000000);
    return pid;
}

static void stay(void) {
    for (;;)
        pause();
}

static void end_process(void) { _exit(3); }
static void end_thread(void) {
    usleep(1000);
    pthread_exit(NULL);
}
static void run_another_program(void) {
    usleep(1000);
    execl("/bin/sleep", "sleep", "100", (char *)NULL);
    _exit(4);
}
static void fault(void) { raise(SIGSEGV); }

static int watched_until_over(world *w, shoal_liveness *liveness) {
    shoal_liveness *const liveness_words[] = {liveness};
    const uint64_t begin = shoal_now_ns();
    while (!shoal_liveness_has_ended(liveness) && shoal_now_ns() - begin < LONG_NS) {
        CHECK(shoal_liveness_can_be_watched(liveness_words, 1));
        shoal_futex_wait_with_liveness(&w->word, 0, liveness_words, 1, LONG_NS);
    }
    return shoal_liveness_has_ended(liveness) && shoal_now_ns() - begin < LONG_NS;
}

static void reap(pid_t pid) {
    kill(pid, SIGKILL);
    CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
}

static void liveness_word_ends_with_its_thread(void) {
    void (*const ends[])(void) = {end_process, end_thread, run_another_program, fault};
    world *w = open_world();
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const pid_t pid = start_holder(w, &w->liveness_words[i], ends[i]);
        CHECK(watched_until_over(w, &w->liveness_words[i]));
        reap(pid);
        CHECK(shoal_liveness_has_ended(&w->liveness_words[i])); /* for ever */
    }
    const pid_t pid = start_holder(w, &w->liveness_words[9], stay);
    CHECK(!shoal_liveness_has_ended(&w->liveness_words[9]));
    kill(pid, SIGKILL);
    CHECK(watched_until_over(w, &w->liveness_words[9]));
    reap(pid);
    close_world(w);
}

/* Its children are not it: neither forked nor started ones take it away when they end. */
static void fork_child(void) {
    for (int i = 0; i < 2; i++) {
        const pid_t child = fork();
        if (child == 0 && i == 0)
            _exit(0);
        if (child == 0)
            execl("/bin/true", "true", (char *)NULL);
        waitpid(child, NULL, 0);
    }
    kill(getpid(), SIGSTOP);
    stay();
}

static void liveness_word_outlives_children(void) {
    world *w = open_world();
    int status;
    const pid_t pid = start_holder(w, &w->liveness_words[0], fork_child);
    CHECK_EQUAL(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    CHECK(!shoal_liveness_has_ended(&w->liveness_words[0]));
    reap(pid);
    CHECK(shoal_liveness_has_ended(&w->liveness_words[0]));
    close_world(w);
}

static void sleeper_with_liveness_words_is_also_woken_by_its_word(void) {
    world *w = open_world();
    shoal_liveness *const liveness_words[] = {&w->liveness_words[0]};
    const pid_t pid = start_holder(w, &w->liveness_words[0], stay);
    uint64_t begin = shoal_now_ns();
    shoal_futex_wait_with_liveness(&w->word, 1, liveness_words, 1, LONG_NS); /* it is not 1 */
    CHECK(shoal_now_ns() - begin < LONG_NS / 2);
    begin = shoal_now_ns();
    shoal_futex_wait_with_liveness(&w->word, 0, liveness_words, 1, 3000000);
    CHECK(shoal_now_ns() - begin >= 3000000);
    const pid_t waker = fork();
    if (waker == 0) {
        usleep(2000);
        atomic_store(&w->word, 1);
        shoal_futex_wake(&w->word);
        _exit(0);
    }
    begin = shoal_now_ns();
    while (atomic_load(&w->word) == 0)
        shoal_futex_wait_with_liveness(&w->word, 0, liveness_words, 1, LONG_NS);
    CHECK(shoal_now_ns() - begin < LONG_NS / 2);
    CHECK(!shoal_liveness_has_ended(&w->liveness_words[0]));
    CHECK_EQUAL(waitpid(waker, NULL, 0), waker);
    reap(pid);
    close_world(w);
}

static void liveness_word_without_holder_cannot_be_watched(void) {
    world *w = open_world();
    shoal_liveness *liveness_words[MANY];
    const pid_t pid = start_holder(w, &w->liveness_words[0], stay);
    liveness_words[0] = &w->liveness_words[0];
    liveness_words[1] = &w->liveness_words[1];
    CHECK(shoal_liveness_can_be_watched(liveness_words, 1));
    CHECK(!shoal_liveness_can_be_watched(liveness_words, 2));
    CHECK(!shoal_liveness_has_ended(liveness_words[1]));
    for (uint32_t at = 0; at < 200; at++) { /* whatever a process that runs wild writes there */
        memset(w->liveness_words[1].room, 0xff, sizeof w->liveness_words[1].room);
        atomic_store(&w->liveness_words[1].at, at < 100 ? at : UINT32_MAX - at);
        const int within = at > 0 && at <= sizeof w->liveness_words[1].room && at % 4 == 1;
        CHECK_EQUAL(shoal_liveness_has_ended(liveness_words[1]), within);
        CHECK_EQUAL(shoal_liveness_can_be_watched(liveness_words, 2), within);
    }
    for (int i = 0; i < MANY; i++)
        liveness_words[i] = &w->liveness_words[0];
    CHECK(shoal_liveness_can_be_watched(liveness_words, 127));
    CHECK(!shoal_liveness_can_be_watched(liveness_words,
                                         128)); /* more than the kernel takes: descriptors, then */
    shoal_futex_wait_with_liveness(&w->word, 0, liveness_words, MANY, 1000);
    reap(pid);
    CHECK(shoal_liveness_has_ended(liveness_words[0]));
    close_world(w);
}

static void released_liveness_word_has_not_ended_and_can_be_held_again(void) {
    world *w = open_world();
    CHECK_EQUAL(shoal_liveness_hold(&w->liveness_words[0]), 0);
    CHECK_EQUAL(shoal_liveness_hold(&w->liveness_words[1]), 0);
    const pid_t pid = fork();
    if (pid == 0) { /* a copy of who holds it is not who holds it */
        shoal_liveness_release(&w->liveness_words[0]);
        _exit(0);
    }
    CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
    shoal_liveness *const liveness_words[] = {&w->liveness_words[0], &w->liveness_words[1]};
    CHECK(shoal_liveness_can_be_watched(liveness_words, 2));
    shoal_liveness_release(&w->liveness_words[0]);
    CHECK(!shoal_liveness_has_ended(&w->liveness_words[0]) &&
          !shoal_liveness_can_be_watched(liveness_words, 1));
    shoal_liveness_release(&w->liveness_words[0]); /* and nothing more happens */
    CHECK(shoal_liveness_can_be_watched(liveness_words + 1, 1));
    shoal_liveness_release(&w->liveness_words[1]);
    close_world(w);
    w = open_world(); /* what is locked next must find nothing of the old memory */
    CHECK_EQUAL(shoal_liveness_hold(&w->liveness_words[2]), 0);
    shoal_liveness_release(&w->liveness_words[2]);
    close_world(w);
}

static void fill_memory(void) {
    char *memory = mmap(NULL, HEAVY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (size_t i = 0; i < HEAVY_BYTES; i += 4096)
        memory[i] = 1;
    kill(getpid(), SIGSTOP);
    stay();
}

static void death_is_reported_before_the_kernel_frees_memory(void) {
#ifdef SYS_pidfd_open
    world *w = open_world();
    int early = 0;
    for (int turn = 0; turn < 10 && !early; turn++) { /* a busy machine may run us too late */
        const pid_t pid = start_holder(w, &w->liveness_words[turn], fill_memory);
        CHECK_EQUAL(waitpid(pid, NULL, WUNTRACED), pid);
        struct pollfd pidfd = {(int)syscall(SYS_pidfd_open, pid, 0), POLLIN, 0};
        CHECK(pidfd.fd >= 0);
        kill(pid, SIGKILL);
        CHECK(watched_until_over(w, &w->liveness_words[turn]));
        early = poll(&pidfd, 1, 0) == 0;
        reap(pid);
        close(pidfd.fd);
    }
    CHECK(early);
    close_world(w);
#endif
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    alarm(120);
    world *w = open_world(); /* it stays: this thread holds one */
    if (shoal_liveness_hold(&w->liveness_words[0]) != 0 ||
        !shoal_liveness_can_be_watched(&(shoal_liveness *){&w->liveness_words[0]}, 1)) {
        printf("skipped: this system has no robust futexes, or cannot wait for several\n");
        return 0;
    }
    RUN(liveness_word_ends_with_its_thread);
    RUN(liveness_word_outlives_children);
    RUN(sleeper_with_liveness_words_is_also_woken_by_its_word);
    RUN(liveness_word_without_holder_cannot_be_watched);
    RUN(released_liveness_word_has_not_ended_and_can_be_held_again);
    RUN(death_is_reported_before_the_kernel_frees_memory);
    return 0;
}
