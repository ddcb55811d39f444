/* <string.h> on a GPU: by words where addresses allow it. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GRID_STRING_H
#define SHOAL_GRID_STRING_H

#include <stddef.h>
#include <stdint.h>

#define GRID_LIBC static inline __attribute__((unused))
typedef uint32_t grid_word __attribute__((may_alias)); /* memory of any type is written through these */
typedef uint32_t grid_four_words __attribute__((vector_size(16), may_alias));

GRID_LIBC void *grid_memset(void *to, int value, size_t bytes) {
    unsigned char *at = (unsigned char *)to, *end = at + bytes;
    const uint32_t word = (unsigned char)value * 0x01010101u;
    for (; at < end && (uintptr_t)at % 4; at++)
        *at = (unsigned char)value;
    for (; end - at >= 4; at += 4)
        *(grid_word *)at = word;
    for (; at < end; at++)
        *at = (unsigned char)value;
    return to;
}

/* Copies forwards. Words of 16 or 4 bytes, if both addresses are as far from a multiple. */
GRID_LIBC void *grid_copy(void *to, const void *from, size_t bytes) {
    unsigned char *out = (unsigned char *)to, *end = out + bytes;
    const unsigned char *in = (const unsigned char *)from;
    const uintptr_t apart = (uintptr_t)out - (uintptr_t)in;
    if (apart % 4 == 0) {
        for (; out < end && (uintptr_t)out % 4; out++, in++)
            *out = *in;
        if (apart % 16 == 0) {
            for (; end - out >= 4 && (uintptr_t)out % 16; out += 4, in += 4)
                *(grid_word *)out = *(const grid_word *)in;
            for (; end - out >= 16; out += 16, in += 16)
                *(grid_four_words *)out = *(const grid_four_words *)in;
        }
        for (; end - out >= 4; out += 4, in += 4)
            *(grid_word *)out = *(const grid_word *)in;
    }
    for (; out < end; out++, in++)
        *out = *in;
    return to;
}

GRID_LIBC void *grid_memmove(void *to, const void *from, size_t bytes) {
    unsigned char *out = (unsigned char *)to;
    const unsigned char *in = (const unsigned char *)from;
    if ((uintptr_t)out - (uintptr_t)in >= bytes)
        return grid_copy(to, from, bytes); /* it begins before `from`, or they do not overlap */
    while (bytes-- > 0)
        out[bytes] = in[bytes];
    return to;
}

GRID_LIBC int grid_memcmp(const void *a, const void *b, size_t bytes) {
    const unsigned char *x = (const unsigned char *)a, *y = (const unsigned char *)b;
    for (size_t i = 0; i < bytes; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

GRID_LIBC size_t grid_strlen(const char *text) {
    size_t length = 0;
    while (text[length])
        length++;
    return length;
}

/* Inlined, so that the compiler evaluates get_extension and leaves out extensions that no kernel uses. */
static inline __attribute__((always_inline, unused)) int grid_strcmp(const char *a, const char *b) {
    for (size_t i = 0;; i++)
        if (a[i] != b[i] || !a[i])
            return (unsigned char)a[i] - (unsigned char)b[i];
}

GRID_LIBC int grid_strncmp(const char *a, const char *b, size_t most) {
    for (size_t i = 0; i < most; i++)
        if (a[i] != b[i] || !a[i])
            return (unsigned char)a[i] - (unsigned char)b[i];
    return 0;
}

GRID_LIBC char *grid_strchr(const char *text, int letter) {
    for (;; text++) {
        if (*text == (char)letter)
            return (char *)text;
        if (!*text)
            return 0;
    }
}

/* A few bytes, of a constant number, become plain loads and stores. */
#define GRID_IS_SMALL(bytes) (__builtin_constant_p(bytes) && (bytes) <= 32)
#define memset(to, value, bytes)                                                                             \
    (GRID_IS_SMALL(bytes) ? __builtin_memset(to, value, bytes) : grid_memset(to, value, bytes))
#define memcpy(to, from, bytes)                                                                              \
    (GRID_IS_SMALL(bytes) ? __builtin_memcpy(to, from, bytes) : grid_copy(to, from, bytes))
#define memmove grid_memmove
#define memcmp grid_memcmp
#define strlen grid_strlen
#define strcmp grid_strcmp
#define strncmp grid_strncmp
#define strchr grid_strchr

#endif
