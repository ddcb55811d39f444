/* Tests of core/window.c: a reader gets whole snapshots, however fast the writer is. */
// SPDX-License-Identifier: MIT
#include "window.h"

#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 500, CAPACITY = WORDS * 8 };

static struct {
    _Alignas(64) shoal_window window;
    uint64_t words[WORDS];
} memory;
static _Atomic int stop;

static void write_one(uint64_t value) {
    static uint64_t words[WORDS];
    const uint64_t count = 1 + value % WORDS;
    for (uint64_t i = 0; i < count; i++)
        words[i] = value;
    const int64_t stamps[SHOAL_WINDOW_STAMPS] = {(int64_t)value, 1, 2, 3, -(int64_t)value};
    shoal_window_begin(&memory.window);
    shoal_window_put(&memory.window, 0, words, count / 2 * 8); /* in two parts */
    shoal_window_put(&memory.window, count / 2 * 8, words + count / 2, (count - count / 2) * 8);
    shoal_window_end(&memory.window, count * 8, stamps);
}

static void nothing_is_read_before_something_is_written(void) {
    uint64_t out[WORDS], bytes;
    int64_t stamps[SHOAL_WINDOW_STAMPS];
    memset(&memory, 0, sizeof memory);
    CHECK_EQUAL(shoal_window_number(&memory.window), 0);
    CHECK_EQUAL(shoal_window_read(&memory.window, out, sizeof out, &bytes, stamps, 1000000), 0);
    write_one(7);
    CHECK_EQUAL(shoal_window_number(&memory.window), 1);
    CHECK_EQUAL(shoal_window_read(&memory.window, out, sizeof out, &bytes, stamps, 1000000), 1);
    CHECK_EQUAL(bytes, 8 * 8);
    CHECK(out[7] == 7 && stamps[0] == 7 && stamps[4] == -7);
}

static void reader_times_out_if_the_writer_died_while_writing(void) {
    uint64_t out[WORDS], bytes;
    int64_t stamps[SHOAL_WINDOW_STAMPS];
    memset(&memory, 0, sizeof memory);
    write_one(3);
    shoal_window_begin(&memory.window);
    const uint64_t begin = shoal_now_ns();
    CHECK_EQUAL(shoal_window_read(&memory.window, out, sizeof out, &bytes, stamps, 20000000), 0);
    CHECK(shoal_now_ns() - begin >= 20000000);
    write_one(5); /* the next writer of this memory */
    CHECK(shoal_window_read(&memory.window, out, sizeof out, &bytes, stamps, 20000000) != 0);
    CHECK(out[0] == 5 && bytes == 6 * 8);
}

static void snapshot_larger_than_the_buffer_is_not_read(void) {
    uint64_t out[2], bytes;
    int64_t stamps[SHOAL_WINDOW_STAMPS];
    memset(&memory, 0, sizeof memory);
    write_one(9);
    CHECK_EQUAL(shoal_window_read(&memory.window, out, sizeof out, &bytes, stamps, 1000000), 0);
}

static void *write_for_ever(void *argument) {
    (void)argument;
    for (uint64_t value = 1; !atomic_load(&stop); value++)
        write_one(value);
    return NULL;
}

static void *read_whole(void *argument) {
    uint64_t *reads = argument, last = 0;
    static _Thread_local uint64_t out[WORDS];
    while (!atomic_load(&stop)) {
        uint64_t bytes;
        int64_t stamps[SHOAL_WINDOW_STAMPS];
        const uint64_t number = shoal_window_read(&memory.window, out, CAPACITY, &bytes, stamps, 1000000000);
        if (number == 0)
            continue;
        const uint64_t value = (uint64_t)stamps[0];
        CHECK(number >= last && stamps[4] == -stamps[0] && bytes == 8 * (1 + value % WORDS));
        for (uint64_t i = 0; i < bytes / 8; i++)
            CHECK_EQUAL(out[i], value);
        last = number;
        ++*reads;
    }
    return NULL;
}

static void no_read_is_torn(void) {
    memset(&memory, 0, sizeof memory);
    atomic_store(&stop, 0);
    pthread_t writer, readers[2];
    uint64_t reads[2] = {0};
    CHECK_EQUAL(pthread_create(&writer, NULL, write_for_ever, NULL), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQUAL(pthread_create(&readers[i], NULL, read_whole, &reads[i]), 0);
    const shoal_word never_changes = 0;
    for (int i = 0; i < 50; i++)
        shoal_futex_wait(&never_changes, 0, 20000000);
    atomic_store(&stop, 1);
    pthread_join(writer, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    CHECK(reads[0] + reads[1] > 10);
}

int main(void) {
    RUN(nothing_is_read_before_something_is_written);
    RUN(reader_times_out_if_the_writer_died_while_writing);
    RUN(snapshot_larger_than_the_buffer_is_not_read);
    RUN(no_read_is_torn);
    return 0;
}
