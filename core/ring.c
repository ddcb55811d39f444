/* The ring: ring.h has the drawing, the protocol and the argument for it. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "durable.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(shoal_ring_writer) == 64, "a cache line");
_Static_assert(SHOAL_RING_STATE_BITS + SHOAL_RING_OWNER_BITS == SHOAL_RING_LAP_SHIFT, "a word's three parts");

#define LOCK_BASE ((off_t)1 << 40) /* locks are at offsets after any data */

#ifdef F_OFD_SETLK
enum { SET_LOCK = F_OFD_SETLK, GET_LOCK = F_OFD_GETLK };
#else /* macOS: a lock belongs to the process, so closing one handle releases the locks of all of them */
enum { SET_LOCK = F_SETLK, GET_LOCK = F_GETLK };
#endif

static int lock_number(int fd, uint32_t writer, int command, struct flock *lock) {
    *lock =
        (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE + writer, .l_len = 1};
    return fcntl(fd, command, lock);
}

int shoal_ring_is_alive(const shoal_ring *ring, uint32_t writer) {
    struct flock lock;
    if (writer == ring->writer)
        return 0; /* this writer never claims a slot twice: an open slot of its number is from a dead writer
                   */
    return lock_number(ring->lock_fd, writer, GET_LOCK, &lock) != 0 || lock.l_type != F_UNLCK;
}

int shoal_ring_has_writers(const shoal_ring *ring) {
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE, .l_len = SHOAL_RING_WRITERS};
    return fcntl(ring->lock_fd, GET_LOCK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static void raise_to(shoal_word64 *word, uint64_t least) {
    uint64_t value = atomic_load(word);
    while (value < least && !atomic_compare_exchange_weak(word, &value, least))
        ;
}

/* Drops the unfinished rows of the dead writer that had this number before. */
static void drop_held(shoal_ring *ring) {
    const shoal_ring_writer *last = &ring->writers[ring->writer];
    const uint64_t from = atomic_load(&last->held_first), count = atomic_load(&last->held_count);
    for (uint64_t i = 0; i < count && i < ring->capacity; i++) {
        const shoal_turn turn = shoal_ring_turn(ring, from + i);
        shoal_ring_drop(ring, turn.slot, shoal_ring_word(turn.lap, ring->writer, SHOAL_RING_OPEN));
    }
    shoal_ring_release(ring);
}

int shoal_ring_register(shoal_ring *ring) {
    for (uint32_t writer = 0; writer < SHOAL_RING_WRITERS; writer++) {
        struct flock lock;
        if (lock_number(ring->lock_fd, writer, SET_LOCK, &lock) == 0) {
            ring->writer = writer;
            ring->clear_end = 0;
            raise_to(ring->numbers_used, writer + 1); /* before it announces tickets */
            drop_held(ring);
            return 0;
        }
        if (errno != EAGAIN && errno != EACCES)
            return -errno;
    }
    return -EAGAIN;
}

void shoal_ring_scan_writers(shoal_ring *ring, uint64_t ticket) {
    const uint64_t numbers_used = atomic_load_explicit(ring->numbers_used, memory_order_relaxed);
    uint64_t clear = ring->capacity, blocked = 1; /* relative to `ticket` */
    for (uint32_t w = 0; w < numbers_used && w < SHOAL_RING_WRITERS; w++) {
        const shoal_ring_writer *other = &ring->writers[w];
        const uint64_t held = atomic_load_explicit(&other->held_count, memory_order_acquire);
        const uint64_t from = atomic_load_explicit(&other->held_first, memory_order_acquire);
        if (w == ring->writer || held == 0 || from >= ticket)
            continue; /* a writer with later tickets checks for ours */
        const uint64_t behind = (ticket - from) % ring->capacity;
        const uint64_t until = behind < held ? 0 : ring->capacity - behind; /* tickets until its slots */
        if (until >= clear || (until == 0 && !shoal_ring_is_alive(ring, w)))
            continue;
        clear = until;
        if (until == 0) /* a damaged line can hold any number */
            blocked = held - behind < ring->capacity ? held - behind : ring->capacity;
    }
    ring->blocked = blocked;
    ring->clear_end = ticket + clear;
}

void shoal_ring_count(shoal_ring *ring, uint64_t rows) {
    shoal_word64 *own = &ring->writers[ring->writer].committed;
    atomic_store_explicit(own, atomic_load_explicit(own, memory_order_relaxed) + rows, memory_order_relaxed);
}

uint64_t shoal_ring_length(const shoal_ring *ring) {
    const uint64_t tail = atomic_load_explicit(ring->tail, memory_order_relaxed);
    return tail < ring->capacity ? tail : ring->capacity;
}

uint64_t shoal_ring_readable(const shoal_ring *ring) {
    uint64_t rows = 0;
    for (uint64_t s = 0; s < ring->capacity; s++)
        rows += shoal_ring_load_full(ring, s) != 0;
    return rows;
}

uint64_t shoal_ring_total(const shoal_ring *ring) {
    uint64_t rows = ring->mark == NULL ? 0 : atomic_load(&ring->mark->uncounted);
    for (uint32_t w = 0; w < SHOAL_RING_WRITERS; w++)
        rows += atomic_load_explicit(&ring->writers[w].committed, memory_order_relaxed);
    return rows;
}

/* The ticket after the newest row. */
static uint64_t find_tail(const shoal_ring *ring) {
    uint64_t tail = 0;
    for (uint64_t s = 0; s < ring->capacity; s++) {
        const uint64_t word = atomic_load_explicit(shoal_ring_at(ring, s), memory_order_relaxed);
        if (shoal_ring_lap(word) != 0 && shoal_ring_id(ring, s, word) >= tail)
            tail = shoal_ring_id(ring, s, word) + 1;
    }
    return tail;
}

void shoal_ring_recover(shoal_ring *ring) {
    const uint64_t after_newest = find_tail(ring), counted = shoal_ring_total(ring);
    raise_to(ring->tail, after_newest > counted ? after_newest : counted); /* each row had its own ticket */
}

int shoal_ring_is_held(const shoal_ring *ring, uint64_t word) {
    return shoal_ring_state(word) == SHOAL_RING_OPEN && shoal_ring_is_alive(ring, shoal_ring_owner(word));
}

void shoal_ring_drop(shoal_ring *ring, uint64_t slot, uint64_t word) {
    const uint64_t empty = shoal_ring_word(shoal_ring_lap(word), 0, SHOAL_RING_EMPTY);
    shoal_word64 *at = shoal_ring_at(ring, slot);
    if (atomic_load_explicit(at, memory_order_relaxed) == word) /* even a failed swap dirties the page */
        (void)atomic_compare_exchange_strong(at, &word, empty);
}

static uint64_t record_end(const shoal_ring *ring) {
    return ring->stride - (ring->mark == NULL ? 0 : sizeof(shoal_word64));
}

uint64_t shoal_ring_copy(const shoal_ring *ring, shoal_ring *to) {
    const uint64_t head = sizeof(shoal_word64); /* the word */
    const uint64_t end = record_end(ring) < record_end(to) ? record_end(ring) : record_end(to);
    uint64_t rows = 0;
    if (to->mark != NULL)
        atomic_store(&to->mark->uncounted, shoal_ring_total(ring));
    for (uint64_t s = 0; s < ring->capacity; s++) {
        uint64_t word = 0;
        for (int tries = 0; tries < 8; tries++) { /* then give up: writers overwrite the slot too fast */
            word = shoal_ring_load_full(ring, s);
            if (word == 0)
                break;
            shoal_racy_copy(to->rows + s * to->stride + head, ring->rows + s * ring->stride + head,
                            end - head);
            if (shoal_ring_is_unchanged(ring, s, word))
                break;
            word = 0;
        }
        if (word != 0 && to->mark != NULL)
            shoal_ring_seal(to, (shoal_turn){s, shoal_ring_lap(word)});
        atomic_store_explicit(shoal_ring_at(to, s), word, memory_order_relaxed);
        rows += word != 0;
    }
    atomic_store(to->tail, find_tail(to));
    return rows;
}
