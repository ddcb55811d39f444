/* The ring under threads: rows are whole, ids are unique, nothing committed is lost; also under the thread
 * sanitizer. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "check.h"
#include "gather.h"
#include "platform.h"
#include "seed.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A row is its number in every word; long, so that copies are often overtaken. */
enum { WORDS = 512, STRIDE = 8 * WORDS + 64, WRITERS = 3, READERS = 2 };

typedef struct memory {
    shoal_word64 tail, numbers_used;
    shoal_ring_writer writers[SHOAL_RING_WRITERS];
    _Alignas(64) char rows[8 * STRIDE];
} memory;

static memory *shared;
static int shared_fd;
static const shoal_column column = {8, WORDS * 8};
static const shoal_columns columns = {&column, 1};
static shoal_word stop;

static shoal_ring handle(uint64_t capacity) {
    return (shoal_ring){.tail = &shared->tail,
                        .numbers_used = &shared->numbers_used,
                        .writers = shared->writers,
                        .rows = shared->rows,
                        .capacity = capacity,
                        .stride = STRIDE,
                        .lock_fd = shoal_reopen(shared_fd, 1),
                        .writer = SHOAL_RING_WRITERS};
}

static void begin(void) {
    free(shared);
    shared = aligned_alloc(64, sizeof *shared);
    memset(shared, 0, sizeof *shared);
    shared_fd = shoal_memory_create();
    CHECK(shared_fd >= 0);
    atomic_store(&stop, 0);
}

/* One row, waiting for room. */
static uint64_t push_row(shoal_ring *ring, const uint64_t *row) {
    const void *in[] = {row};
    uint64_t id, since = 0;
    while (shoal_ring_push(ring, columns, in, 1, &id) == 0)
        CHECK(shoal_ring_wait_for_room(&since));
    return id;
}

typedef struct writer {
    uint64_t capacity, name, rows;
    uint64_t *ids;
} writer;

static void *write_rows(void *argument) {
    writer *self = argument;
    shoal_ring ring = handle(self->capacity);
    CHECK(shoal_ring_register(&ring) == 0);
    for (uint64_t i = 0; i < self->rows; i++) {
        uint64_t row[WORDS];
        for (int w = 0; w < WORDS; w++)
            row[w] = self->name << 32 | i;
        self->ids[i] = push_row(&ring, row);
        if (i % 64 == 0)
            sched_yield();
    }
    close(ring.lock_fd);
    return NULL;
}

static void *read_rows(void *argument) {
    const uint64_t capacity = *(uint64_t *)argument;
    shoal_ring ring = handle(capacity);
    shoal_rng rng;
    shoal_rng_seed(&rng, capacity);
    uint64_t rows[16][WORDS], ids[16], read = 0;
    void *out[] = {rows};
    shoal_choice choice = {0};
    shoal_copy_threads threads = {.count = 2, .choice = &choice};
    CHECK(shoal_pool_create(threads.count, 1, &threads.pool) == 0);
    while (!atomic_load(&stop) || read == 0) {
        uint64_t slots[16], count = shoal_ring_draw(&ring, NULL, &rng, 16, slots, NULL);
        if (count != 0 && shoal_ring_gather(&ring, columns, count, slots, out, ids, threads) != 0 &&
            !shoal_ring_redraw(&ring, NULL, &rng, columns, count, slots, out, ids, NULL))
            count = 0;
        for (uint64_t i = 0; i < count; i++) {
            for (int w = 1; w < WORDS; w++)
                CHECK(rows[i][w] == rows[i][0]); /* whole */
            CHECK(ids[i] < atomic_load(&shared->tail));
        }
        read += count;
        sched_yield();
    }
    shoal_pool_destroy(threads.pool);
    close(ring.lock_fd);
    return NULL;
}

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void check_rows(uint64_t capacity, uint64_t rows) {
    begin();
    pthread_t threads[WRITERS + READERS];
    writer writers[WRITERS];
    uint64_t *ids = malloc(WRITERS * rows * sizeof *ids);
    for (int w = 0; w < WRITERS; w++) {
        writers[w] = (writer){capacity, (uint64_t)w + 1, rows, ids + (uint64_t)w * rows};
        pthread_create(&threads[w], NULL, write_rows, &writers[w]);
    }
    for (int r = 0; r < READERS; r++)
        pthread_create(&threads[WRITERS + r], NULL, read_rows, &capacity);
    for (int w = 0; w < WRITERS; w++)
        pthread_join(threads[w], NULL);
    atomic_store(&stop, 1);
    for (int r = 0; r < READERS; r++)
        pthread_join(threads[WRITERS + r], NULL);
    shoal_ring ring = handle(capacity);
    CHECK(shoal_ring_total(&ring) == WRITERS * rows);
    /* Each writer's last row is there, or something later has its slot. */
    for (int w = 0; w < WRITERS; w++) {
        const uint64_t id = writers[w].ids[rows - 1], word = shoal_ring_load_full(&ring, id % capacity);
        CHECK(word != 0 && shoal_ring_id(&ring, id % capacity, word) >= id);
    }
    qsort(ids, WRITERS * rows, sizeof *ids, by_value);
    for (uint64_t i = 1; i < WRITERS * rows; i++)
        CHECK(ids[i] != ids[i - 1]);
    close(ring.lock_fd);
    close(shared_fd);
    free(ids);
}

static void test_a_living_writers_slot_is_skipped_and_a_dead_ones_is_taken(void) {
    begin();
    shoal_ring slow = handle(2), quick = handle(2);
    CHECK(shoal_ring_register(&slow) == 0 && shoal_ring_register(&quick) == 0);
    CHECK(slow.writer != quick.writer);
    CHECK(shoal_ring_is_alive(&quick, slow.writer) && !shoal_ring_is_alive(&quick, 77));
    const uint64_t held = shoal_ring_take(&slow, 1);
    CHECK(shoal_ring_claim(&slow, held, shoal_ring_turn(&slow, held), 1) == 1); /* and stays there */
    uint64_t row[WORDS] = {0}, id;
    const void *in[] = {row};
    for (int i = 0; i < 6; i++) {
        row[0] = (uint64_t)i;
        shoal_ring_push(&quick, columns, in, 1, &id);
        CHECK(id % 2 != held % 2);
    }
    CHECK(shoal_ring_readable(&quick) == 1 && shoal_ring_length(&quick) == 2);
    close(slow.lock_fd); /* as the kernel does when it dies */
    CHECK(!shoal_ring_is_alive(&quick, slow.writer));
    for (int i = 0; i < 2; i++)
        shoal_ring_push(&quick, columns, in, 1, &id);
    CHECK(shoal_ring_readable(&quick) == 2);
    uint64_t latest[2];
    CHECK(shoal_ring_latest(&quick, 2, latest) == 2 && latest[0] < latest[1] && latest[1] == id);
    close(quick.lock_fd);
    close(shared_fd);
}

/* Pushes `count` rows, none of them into a slot from `first` to `last`. */
static void push_beside(shoal_ring *ring, int count, uint64_t first, uint64_t last) {
    uint64_t row[WORDS] = {0}, id;
    const void *in[] = {row};
    for (int i = 0; i < count; i++) {
        CHECK(shoal_ring_push(ring, columns, in, 1, &id) == 1);
        CHECK(id % ring->capacity < first || id % ring->capacity > last);
    }
}

static void test_tickets_slept_with_for_laps_are_still_their_owners(void) {
    begin();
    shoal_ring slow = handle(8), quick = handle(8);
    CHECK(shoal_ring_register(&slow) == 0 && shoal_ring_register(&quick) == 0);
    push_beside(&quick, 3, 8, 8); /* it has looked around, and found all clear */
    const uint64_t early = shoal_ring_take(&slow, 2);
    CHECK_EQUAL(early, 3);
    push_beside(&quick, 50, 3, 4);
    const shoal_turn turn = shoal_ring_turn(&slow, early);
    CHECK(shoal_ring_claim(&slow, early, turn, 2) == 2);
    for (uint64_t slot = 3; slot <= 4; slot++)
        memset((char *)shoal_ring_at(&slow, slot) + column.offset, 7, column.bytes);
    shoal_ring_commit(&slow, turn, 2);
    for (uint64_t slot = 3; slot <= 4; slot++)
        CHECK(shoal_ring_id(&slow, slot, shoal_ring_load_full(&slow, slot)) == slot);
    push_beside(&quick, 20, 3, 4); /* until it says that they are done with */
    shoal_ring_release(&slow);
    push_beside(&quick, 8, 8, 8);
    CHECK(shoal_ring_latest(&quick, 8, (uint64_t[8]){0}) == 8);
    close(slow.lock_fd);
    close(quick.lock_fd);
    close(shared_fd);
}

static void test_a_line_that_names_anothers_tickets_costs_turns_only(void) {
    begin();
    shoal_ring slow = handle(8), quick = handle(8);
    CHECK(shoal_ring_register(&slow) == 0 && shoal_ring_register(&quick) == 0);
    shoal_ring_hold(&slow, 2, 1); /* and sleeps before its swap, which will fail */
    push_beside(&quick, 8, 8, 8); /* these are its own, whatever others say */
    push_beside(&quick, 30, 2, 2);
    CHECK(shoal_ring_readable(&quick) == 8);
    const uint64_t later = shoal_ring_take(&slow, 1);
    CHECK(shoal_ring_claim(&slow, later, shoal_ring_turn(&slow, later), 1) == 1);
    close(slow.lock_fd);
    close(quick.lock_fd);
    close(shared_fd);
}

static void *push_one(void *ring) {
    (void)push_row(ring, (uint64_t[WORDS]){0});
    return NULL;
}

static void test_who_waits_for_room_holds_nothing(void) {
    begin();
    shoal_ring slow = handle(1), waiting = handle(1);
    CHECK(shoal_ring_register(&slow) == 0 && shoal_ring_register(&waiting) == 0);
    const uint64_t held = shoal_ring_take(&slow, 1);
    CHECK(shoal_ring_claim(&slow, held, shoal_ring_turn(&slow, held), 1) == 1);
    pthread_t thread;
    pthread_create(&thread, NULL, push_one, &waiting);
    while (atomic_load(&shared->tail) < 3) /* it has tried, in vain, and tries again */
        sched_yield();
    const shoal_word64 *line = &shared->writers[waiting.writer].held_count;
    const uint64_t begun = shoal_now_ns();
    while (atomic_load(line) != 0) /* or two that wait for each other do so for ever */
        CHECK(shoal_now_ns() - begun < 1000000000);
    shoal_ring_commit(&slow, shoal_ring_turn(&slow, held), 1);
    shoal_ring_release(&slow);
    pthread_join(thread, NULL);
    close(slow.lock_fd);
    close(waiting.lock_fd);
    close(shared_fd);
}

static void test_a_copy_has_the_rows_and_a_tail_behind_is_mended(void) {
    begin();
    shoal_ring ring = handle(4);
    CHECK(shoal_ring_register(&ring) == 0);
    uint64_t row[WORDS] = {0}, id;
    const void *in[] = {row};
    for (uint64_t i = 0; i < 7; i++) {
        row[0] = i;
        shoal_ring_push(&ring, columns, in, 1, &id);
    }
    memory *other = aligned_alloc(64, sizeof *other);
    memset(other, 0, sizeof *other);
    shoal_ring to = ring;
    to.tail = &other->tail, to.rows = other->rows, to.writers = other->writers;
    CHECK(shoal_ring_copy(&ring, &to) == 4 && atomic_load(to.tail) == 7);
    uint64_t out[WORDS], ids[4];
    void *outs[] = {out};
    uint8_t found;
    CHECK(shoal_ring_latest(&to, 4, ids) == 4);
    for (int i = 0; i < 4; i++) {
        CHECK(shoal_ring_fetch(&to, columns, &ids[i], 1, outs, &found) == 1 && out[0] == ids[i]);
    }
    atomic_store(to.tail, 2);
    shoal_ring_recover(&to);
    CHECK(atomic_load(to.tail) == 7);
    free(other);
    close(ring.lock_fd);
    close(shared_fd);
}

static void test_rows_are_whole_and_ids_unique_under_fire(void) {
#ifdef __SANITIZE_THREAD__
    const uint64_t rows = 1500; /* it copies byte by byte */
#else
    const uint64_t rows = 30000;
#endif
    check_rows(3, rows);
    check_rows(8, rows);
}

int main(void) {
    RUN(test_rows_are_whole_and_ids_unique_under_fire);
    RUN(test_a_living_writers_slot_is_skipped_and_a_dead_ones_is_taken);
    RUN(test_tickets_slept_with_for_laps_are_still_their_owners);
    RUN(test_a_line_that_names_anothers_tickets_costs_turns_only);
    RUN(test_who_waits_for_room_holds_nothing);
    RUN(test_a_copy_has_the_rows_and_a_tail_behind_is_mended);
    free(shared);
    return 0;
}
