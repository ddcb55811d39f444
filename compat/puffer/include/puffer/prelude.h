/* Included before every file of such an environment: what it takes from the C library belongs to the process,
 * and there are many environments in one. Random numbers become a stream of the environment's own; exit() and
 * a failed assert() while it is made become an error of the host, later an abort with a message; what it
 * prints goes to stderr; files are also looked for where its assets lie. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_PRELUDE_H
#define SHOAL_PUFFER_PRELUDE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PUFFER_UNUSED __attribute__((unused))

/* Whose numbers rand() draws. */
typedef struct puffer_random {
    uint64_t state;
} puffer_random;

/* Few bytes for each thread, so that a library loaded late has them at a fixed place and a step finds them at
 * once. */
#define PUFFER_THREAD static _Thread_local __attribute__((tls_model("initial-exec")))
PUFFER_THREAD puffer_random *puffer_drawing;
PUFFER_THREAD jmp_buf *puffer_escape;
PUFFER_THREAD const void *puffer_closing; /* what is being closed, which some then free themselves */
static char puffer_message[1024];         /* why the last one stopped */
static char puffer_missing[512];          /* the last file that was not there */
static char puffer_root[1024];            /* where its assets lie */

static inline uint64_t puffer_mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static PUFFER_UNUSED int puffer_rand(void) {
    static puffer_random puffer_nobody;
    puffer_random *random = puffer_drawing == NULL ? &puffer_nobody : puffer_drawing;
    return (int)(puffer_mixed(random->state += 0x9e3779b97f4a7c15u) >> 33);
}

/* A seed taken from the clock is none: seeds are the host's. */
static PUFFER_UNUSED void puffer_srand(const char *expression, unsigned seed) {
    if (puffer_drawing != NULL && strstr(expression, "time") == NULL && strstr(expression, "ts.") == NULL)
        puffer_drawing->state = seed;
}

__attribute__((format(printf, 1, 2), noreturn)) static PUFFER_UNUSED void puffer_stop(const char *format,
                                                                                      ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(puffer_message, sizeof puffer_message, format, arguments);
    va_end(arguments);
    if (puffer_missing[0] != '\0' && length > 0 && (size_t)length < sizeof puffer_message)
        snprintf(puffer_message + length, sizeof puffer_message - (size_t)length,
                 "; it could not open %s before", puffer_missing);
    if (puffer_escape != NULL)
        longjmp(*puffer_escape, 1);
    fprintf(stderr, "shoal: %s; the process ends here\n", puffer_message);
    abort();
}

__attribute__((noreturn)) static PUFFER_UNUSED void puffer_exit(int status) {
    puffer_stop("the environment called exit(%d)", status);
}

__attribute__((noreturn)) static PUFFER_UNUSED void puffer_abort(void) {
    puffer_stop("the environment called abort()");
}

static PUFFER_UNUSED void puffer_free(void *at) {
    if (at != puffer_closing)
        free(at);
}

/* A relative path as it is, else below the directory of its assets. */
static PUFFER_UNUSED FILE *puffer_fopen(const char *path, const char *mode) {
    FILE *file = fopen(path, mode);
    if (file != NULL || mode[0] != 'r')
        return file;
    char below[2048] = "";
    if (path[0] != '/' && puffer_root[0] != '\0') {
        snprintf(below, sizeof below, "%s/%s", puffer_root, path);
        file = fopen(below, mode);
    }
    if (file == NULL)
        snprintf(puffer_missing, sizeof puffer_missing, "%s", path);
#ifndef PUFFER_LOOKS_AT_FILES
    /* Few look at what fopen returned. What lies in resources/ they cannot do without. */
    if (file == NULL && puffer_escape != NULL && strstr(path, "resources/") != NULL) {
        puffer_missing[0] = '\0';
        puffer_stop("the asset %s is not there%s%s: get it from where the environment came from", path,
                    below[0] == '\0' ? "" : ", nor is ", below);
    }
#endif
    return file;
}

/* assert() calls one of these, by whichever name this system has for it; NDEBUG or not, they are ours. */
#if defined(__APPLE__)
__attribute__((noreturn)) void __assert_rtn(const char *function, const char *file, int line,
                                            const char *what) {
    puffer_stop("assertion failed in %s (%s:%d): %s", function, file, line, what);
}
#else
__attribute__((noreturn)) void __assert_fail(const char *what, const char *file, unsigned line,
                                             const char *function) {
    puffer_stop("assertion failed in %s (%s:%u): %s", function, file, line, what);
}
#endif

#define rand() puffer_rand()
#define srand(seed) puffer_srand(#seed, (unsigned)(seed))
#define random() ((long)puffer_rand())
#define srandom(seed) puffer_srand(#seed, (unsigned)(seed))
#define exit(status) puffer_exit(status)
#define abort() puffer_abort()
#define free(at) puffer_free((void *)(at))
#define fopen(path, mode) puffer_fopen(path, mode)
#define printf(...) fprintf(stderr, __VA_ARGS__)
#define vprintf(format, arguments) vfprintf(stderr, format, arguments)
#define puts(text) fprintf(stderr, "%s\n", text)
#define putchar(character) fputc(character, stderr)

#endif
