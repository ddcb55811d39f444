/* A sequence lock over one snapshot: see window.h. */
// SPDX-License-Identifier: MIT
#include "window.h"

#include "ring.h" /* shoal_racy_copy */

_Static_assert(sizeof(shoal_window) == SHOAL_WINDOW_HEAD_BYTES, "one cache line");

static char *content(const shoal_window *window) {
    return (char *)(uintptr_t)window + SHOAL_WINDOW_HEAD_BYTES;
}

void shoal_window_begin(shoal_window *window) {
    const uint64_t sequence = atomic_load_explicit(&window->sequence, memory_order_relaxed);
    /* The sequence is even, unless an earlier writer died while writing. */
    atomic_store_explicit(&window->sequence, (sequence + 1) | 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* before the stores below; partner: the reader's fence */
}

void shoal_window_put(shoal_window *window, uint64_t offset, const void *from, uint64_t bytes) {
    shoal_racy_copy(content(window) + offset, from, bytes);
}

void shoal_window_end(shoal_window *window, uint64_t bytes, const int64_t stamps[SHOAL_WINDOW_STAMPS]) {
    shoal_racy_copy((char *)&window->bytes, (const char *)&bytes, sizeof bytes);
    shoal_racy_copy((char *)window->stamps, (const char *)stamps, sizeof window->stamps);
    const uint64_t sequence = atomic_load_explicit(&window->sequence, memory_order_relaxed);
    atomic_store_explicit(&window->sequence, sequence + 1,
                          memory_order_release); /* partner: a reader's load */
}

uint64_t shoal_window_number(const shoal_window *window) {
    return atomic_load_explicit(&window->sequence, memory_order_acquire) / 2;
}

uint64_t shoal_window_read(const shoal_window *window, void *out, uint64_t capacity, uint64_t *bytes,
                           int64_t stamps[SHOAL_WINDOW_STAMPS], uint64_t timeout_ns) {
    uint64_t begin = 0;
    for (;;) {
        const uint64_t sequence = atomic_load_explicit(&window->sequence, memory_order_acquire);
        if (sequence == 0)
            return 0;
        if (sequence % 2 == 0) {
            shoal_racy_copy((char *)bytes, (const char *)&window->bytes, sizeof *bytes);
            shoal_racy_copy((char *)stamps, (const char *)window->stamps, sizeof window->stamps);
            if (*bytes <= capacity) /* the copy may be torn, but it is within bounds */
                shoal_racy_copy(out, content(window), *bytes);
            atomic_thread_fence(memory_order_acquire);
            if (atomic_load_explicit(&window->sequence, memory_order_relaxed) == sequence)
                return *bytes <= capacity ? sequence / 2 : 0;
        }
        const uint64_t now = shoal_now_ns();
        begin = begin == 0 ? now : begin;
        if (now - begin > timeout_ns)
            return 0;
        shoal_relax();
    }
}
