/* Crash reports: see crash.h. The signal handler allocates no memory. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "crash.h"

#include "platform.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { STACK_BYTES = 256 << 10, CALL_BYTES = 64, FRAMES = 48 };

static const int CRASHES[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static int report_fd = -1;
static char current_call[CALL_BYTES];

static void write_text(const char *text) { (void)!write(report_fd, text, strlen(text)); }

static void write_number(uintptr_t value, unsigned base) {
    char digits[24], *at = digits + sizeof digits;
    *--at = '\0';
    do {
        *--at = "0123456789abcdef"[value % base];
        value /= base;
    } while (value != 0);
    write_text(at);
}

/* `back` is 1 for a return address: the call itself ends one byte before it. */
static void write_frame(uintptr_t address, uintptr_t back) {
    Dl_info info;
    if (dladdr((void *)(address - back), &info) == 0 || info.dli_fname == NULL)
        return;
    write_text("frame ");
    write_number(address - back - (uintptr_t)info.dli_fbase, 16);
    write_text(" ");
    write_text(info.dli_fname);
    write_text("\n");
}

static void write_report(int number, void *context) {
    write_text("signal ");
    write_number((uintptr_t)number, 10);
    write_text("\ncall ");
    write_text(current_call);
    write_text("\n");
    uintptr_t at = shoal_interrupted_at(context), caller = 0;
    Dl_info info;
    /* A call through a bad pointer cannot be traced back further than to its caller. */
    if (dladdr((void *)at, &info) == 0)
        caller = shoal_interrupted_caller(context);
    if (caller != 0) {
        write_frame(caller, 1);
        return;
    }
    write_frame(at, 0);
    void *frames[FRAMES];
    int count = shoal_backtrace(frames, FRAMES), first = 0;
    while (first < count && (uintptr_t)frames[first] != at)
        first++;
    /* The frames before the interrupted address belong to this handler. */
    for (int i = first == count ? 0 : first + 1; i < count; i++)
        write_frame((uintptr_t)frames[i], 1);
}

static void handle(int number, siginfo_t *info, void *context) {
    (void)info;
    write_report(number, context);
    raise(number); /* SA_RESETHAND has restored the default action */
}

int shoal_crash_report_to(int fd, int crashes) {
    void *frames[2], *stack = malloc(STACK_BYTES);
    if (stack == NULL)
        return -ENOMEM;
    (void)shoal_backtrace(frames, 2); /* the first call loads a library, which a handler must not do */
    report_fd = fd;
    stack_t own = {.ss_sp = stack, .ss_size = STACK_BYTES};
    if (sigaltstack(&own, NULL) != 0)
        return -errno;
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGALRM, &action, NULL) != 0)
        return -errno;
    for (size_t i = 0; crashes && i < sizeof CRASHES / sizeof *CRASHES; i++)
        if (sigaction(CRASHES[i], &action, NULL) != 0)
            return -errno;
    return 0;
}

void shoal_crash_watch(const char *call, uint32_t seconds) {
    if (report_fd < 0)
        return;
    strncpy(current_call, call, CALL_BYTES - 1);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_sec = (time_t)seconds}, NULL);
}
