/* The checks of the C tests: a condition that is false ends the program and prints its place. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_TEST_CHECK_H
#define SHOAL_TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>

/* Under sanitizers, programs do other amounts of work: they are slower there, and have more time. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { UNDER_SANITIZERS = 1 };
#else
enum { UNDER_SANITIZERS = 0 };
#endif

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition);                         \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* The same for two integers, showing both. */
#define CHECK_EQUAL(found, expected)                                                                         \
    do {                                                                                                     \
        long long found_ = (long long)(found), expected_ = (long long)(expected);                            \
        if (found_ != expected_) {                                                                           \
            fprintf(stderr, "%s:%d: expected %s to be %s (%lld), found %lld\n", __FILE__, __LINE__, #found,  \
                    #expected, expected_, found_);                                                           \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* The next number of a sequence (xorshift), below `below`; `state` is not 0. */
static inline unsigned long long draw_below(unsigned long long *state, unsigned long long below) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state % below;
}

#define RUN(test)                                                                                            \
    do {                                                                                                     \
        test();                                                                                              \
        printf("ok %s\n", #test);                                                                            \
    } while (0)

#endif
