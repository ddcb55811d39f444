/* Rings in files after a crash of the machine: what is not whole is dropped, what is stays; also while others
 * write, and under the thread sanitizer. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "check.h"
#include "durable.h"
#include "gather.h"
#include "platform.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS = 22, STRIDE = 8 * (WORDS + 2), CAPACITY = 4, WRITERS = 2 };

typedef struct memory {
    shoal_word64 tail;
    shoal_ring_mark mark;
    shoal_word64 numbers_used;
    shoal_ring_writer writers[SHOAL_RING_WRITERS];
    _Alignas(64) char rows[CAPACITY * STRIDE];
} memory;

static memory *shared;
static int shared_fd;
static const shoal_column column = {8, WORDS * 8};
static const shoal_columns columns = {&column, 1};
static shoal_word stop;

static shoal_ring handle(memory *of) {
    return (shoal_ring){.tail = &of->tail,
                        .numbers_used = &of->numbers_used,
                        .writers = of->writers,
                        .rows = of->rows,
                        .capacity = CAPACITY,
                        .stride = STRIDE,
                        .mark = &of->mark,
                        .lock_fd = shoal_reopen(shared_fd, 1),
                        .writer = SHOAL_RING_WRITERS};
}

static shoal_ring begin(void) {
    free(shared);
    shared = aligned_alloc(64, sizeof *shared);
    memset(shared, 0, sizeof *shared);
    shared_fd = shoal_memory_create();
    CHECK(shared_fd >= 0);
    atomic_store(&stop, 0);
    shoal_ring ring = handle(shared);
    CHECK(shoal_ring_begin(&ring, shared, sizeof *shared) == 0);
    CHECK(atomic_load(&shared->mark.checked_in) != 0);
    CHECK(shoal_ring_register(&ring) == 0);
    return ring;
}

static void end(shoal_ring *ring) {
    close(ring->lock_fd);
    close(shared_fd);
}

static uint64_t push(shoal_ring *ring, uint64_t number) {
    uint64_t row[WORDS], id;
    for (int w = 0; w < WORDS; w++)
        row[w] = number + (uint64_t)w;
    const void *in[] = {row};
    shoal_ring_push(ring, columns, in, 1, &id);
    return id;
}

/* Opens it as after a boot. */
static void mend_after_boot(memory *of) {
    shoal_ring opener = handle(of);
    atomic_store(&of->mark.checked_in, 1);
    CHECK(shoal_ring_mend(&opener, of, sizeof *of) == 0);
    CHECK(atomic_load(&of->mark.checked_in) > 1);
    close(opener.lock_fd);
}

static shoal_word64 *word_at(uint64_t slot) { return (shoal_word64 *)(void *)(shared->rows + slot * STRIDE); }

static uint64_t check_at(uint64_t slot) {
    uint64_t check;
    memcpy(&check, shared->rows + (slot + 1) * STRIDE - 8, sizeof check);
    return check;
}

static void test_a_bit_that_changed_drops_its_row_and_no_other(void) {
    shoal_ring ring = begin();
    for (uint64_t i = 0; i < 7; i++)
        CHECK(push(&ring, 100 * i) == i);
    memory *saved = aligned_alloc(64, sizeof *saved);
    memcpy(saved, shared, sizeof *saved);
    for (uint64_t bit = 64; bit < 8 * STRIDE; bit += 5) { /* behind the word */
        memcpy(shared, saved, sizeof *shared);
        shared->rows[2 * STRIDE + bit / 8] ^= (char)(1 << bit % 8); /* of row 6 */
        mend_after_boot(shared);
        CHECK(shoal_ring_readable(&ring) == 3 && shoal_ring_load_full(&ring, 2) == 0 && check_at(2) == 0);
        CHECK(shoal_ring_total(&ring) == 7 && push(&ring, 0) == 7);
    }
    free(saved);
    end(&ring);
}

static void test_a_row_of_another_lap_is_dropped_and_the_tail_is_behind_its_word(void) {
    shoal_ring ring = begin();
    for (uint64_t i = 0; i < 6; i++)
        CHECK(push(&ring, 100 * i) == i);
    const uint64_t earlier = atomic_load(word_at(1)); /* of row 5 */
    CHECK(push(&ring, 0) == 6 && push(&ring, 0) == 7 && push(&ring, 0) == 8 && push(&ring, 0) == 9);
    const uint64_t later = atomic_load(word_at(1));
    atomic_store(word_at(1), earlier);
    mend_after_boot(shared);
    CHECK(shoal_ring_readable(&ring) == 3 && shoal_ring_load_full(&ring, 1) == 0);
    atomic_store(word_at(1), later + (later - earlier)); /* row 13: the word, and nothing else of it */
    mend_after_boot(shared);
    CHECK(shoal_ring_load_full(&ring, 1) == 0 && atomic_load(&shared->tail) == 14);
    mend_after_boot(shared); /* a dropped row's word is still one that was used */
    atomic_store(&shared->tail, 3);
    mend_after_boot(shared);
    CHECK(atomic_load(&shared->tail) == 14 && push(&ring, 0) == 14);
    end(&ring);
}

static void test_counts_and_the_tail_agree_with_the_rows(void) {
    shoal_ring ring = begin();
    for (uint64_t i = 0; i < 3; i++)
        CHECK(push(&ring, i) == i);
    atomic_store(&shared->writers[ring.writer].committed, 1); /* rows reached the disk, counts did not */
    mend_after_boot(shared);
    CHECK(shoal_ring_total(&ring) == 3 && push(&ring, 0) == 3 && shoal_ring_total(&ring) == 4);
    atomic_store(&shared->writers[ring.writer].committed, 50); /* counts did, rows did not */
    mend_after_boot(shared);
    CHECK(push(&ring, 0) == shoal_ring_total(&ring) - 1);
    end(&ring);
}

static void test_a_writer_at_work_is_left_alone_and_a_dead_ones_check_is_cleared(void) {
    shoal_ring ring = begin();
    CHECK(push(&ring, 0) == 0);
    for (uint64_t i = 1; i <= CAPACITY; i++) {
        const uint64_t ticket = shoal_ring_take(&ring, 1);
        const shoal_turn turn = shoal_ring_turn(&ring, ticket);
        CHECK(shoal_ring_claim(&ring, ticket, turn, 1) == 1);
        shoal_ring_seal(&ring, turn);
        mend_after_boot(shared);
        CHECK(check_at(ticket % CAPACITY) != 0);
        if (ticket == CAPACITY)
            break;
        shoal_ring_commit(&ring, turn, 1);
    }
    close(ring.lock_fd); /* as the kernel does when it dies */
    mend_after_boot(shared);
    CHECK(check_at(0) == 0 && check_at(1) != 0);
    close(shared_fd);
}

static void test_what_cannot_be_synced_is_said_and_looked_at_again(void) {
    shoal_ring ring = begin();
    CHECK(push(&ring, 0) == 0);
    shoal_ring opener = handle(shared);
    close(opener.lock_fd);
    opener.lock_fd = open("/dev/full", O_RDWR | O_CLOEXEC);
    CHECK(shoal_ring_sync(&opener, shared, sizeof *shared) == -EINVAL);
    CHECK(atomic_load(&shared->mark.checked_in) == 0);
    CHECK(shoal_ring_mend(&opener, shared, sizeof *shared) == -EINVAL);
    CHECK(atomic_load(&shared->mark.checked_in) == 0);
    close(opener.lock_fd);
    end(&ring);
}

static void test_a_copy_from_memory_has_checks(void) {
    shoal_ring ring = begin();
    memory *plain = aligned_alloc(64, sizeof *plain);
    memset(plain, 0, sizeof *plain);
    shoal_ring from = handle(plain);
    from.mark = NULL, from.stride = 8 * (WORDS + 1), from.writer = ring.writer;
    for (uint64_t i = 0; i < 9; i++)
        CHECK(push(&from, 100 * i) == i);
    CHECK(shoal_ring_copy(&from, &ring) == CAPACITY);
    mend_after_boot(shared);
    uint64_t row[WORDS], ids[CAPACITY];
    void *out[] = {row};
    uint8_t found;
    CHECK(shoal_ring_latest(&ring, CAPACITY, ids) == CAPACITY && shoal_ring_total(&ring) == 9);
    for (int i = 0; i < CAPACITY; i++)
        CHECK(shoal_ring_fetch(&ring, columns, &ids[i], 1, out, &found) == 1 && row[3] == 100 * ids[i] + 3);
    close(from.lock_fd);
    free(plain);
    end(&ring);
}

static void *write_rows(void *rows) {
    shoal_ring ring = handle(shared);
    CHECK(shoal_ring_register(&ring) == 0);
    for (uint64_t i = 0; i < *(uint64_t *)rows; i++) {
        const uint64_t id = push(&ring, i << 32), slot = id % CAPACITY;
        for (int looks = 0; looks < 20; looks++) {
            const uint64_t word = atomic_load(word_at(slot));
            const uint64_t check = atomic_load(word_at(slot + 1) - 1);
            if (atomic_load(word_at(slot)) != word || shoal_ring_id(&ring, slot, word) != id)
                break; /* overwritten */
            CHECK(shoal_ring_state(word) == SHOAL_RING_FULL && check != 0);
        }
    }
    close(ring.lock_fd);
    return NULL;
}

static void *mend_again_and_again(void *argument) {
    (void)argument;
    while (!atomic_load(&stop))
        mend_after_boot(shared);
    return NULL;
}

static void test_rows_written_while_others_look_are_kept(void) {
    shoal_ring ring = begin();
    uint64_t rows = 20000;
    pthread_t threads[WRITERS + 1];
    for (int w = 0; w < WRITERS; w++)
        pthread_create(&threads[w], NULL, write_rows, &rows);
    pthread_create(&threads[WRITERS], NULL, mend_again_and_again, NULL);
    for (int w = 0; w < WRITERS; w++)
        pthread_join(threads[w], NULL);
    atomic_store(&stop, 1);
    pthread_join(threads[WRITERS], NULL);
    const uint64_t there = shoal_ring_readable(&ring);
    mend_after_boot(shared);
    CHECK(there > 0 && shoal_ring_readable(&ring) == there);
    end(&ring);
}

int main(void) {
    RUN(test_a_bit_that_changed_drops_its_row_and_no_other);
    RUN(test_a_row_of_another_lap_is_dropped_and_the_tail_is_behind_its_word);
    RUN(test_counts_and_the_tail_agree_with_the_rows);
    RUN(test_a_writer_at_work_is_left_alone_and_a_dead_ones_check_is_cleared);
    RUN(test_what_cannot_be_synced_is_said_and_looked_at_again);
    RUN(test_a_copy_from_memory_has_checks);
    RUN(test_rows_written_while_others_look_are_kept);
    free(shared);
    return 0;
}
