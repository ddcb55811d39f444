/* Test of shoal_futex_wake: a wake-up that was interrupted is repeated. This program replaces syscall(). */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "platform.h"

#include "check.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>

static _Atomic int interruptions; /* of the next calls of FUTEX_WAKE */

long syscall(long number, ...) {
    long (*call)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    if (number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAKE && atomic_load(&interruptions) > 0) {
        atomic_fetch_sub(&interruptions, 1);
        errno = EINTR;
        return -1;
    }
    return call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static shoal_word word, sleeping;

static void *sleep_on_word(void *argument) {
    (void)argument;
    atomic_store(&sleeping, 1);
    shoal_futex_wait(&word, 0, UINT64_C(60000000000));
    return NULL;
}

static void a_wake_up_that_is_interrupted_is_repeated(void) {
    pthread_t sleeper;
    CHECK_EQUAL(pthread_create(&sleeper, NULL, sleep_on_word, NULL), 0);
    while (!atomic_load(&sleeping))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    nanosleep(&(struct timespec){0, 100000000}, NULL); /* now it sleeps */
    atomic_store(&word, 1);
    atomic_store(&interruptions, 3);
    shoal_futex_wake(&word);
    CHECK_EQUAL(atomic_load(&interruptions), 0);
    pthread_join(sleeper, NULL);
}
#endif

int main(void) {
    alarm(30);
#ifdef __linux__
    RUN(a_wake_up_that_is_interrupted_is_repeated);
#endif
    return 0;
}
