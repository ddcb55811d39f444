/* The ring: see ring.h for the drawing, the protocol and its argument. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "durable.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(shoal_ring_writer) == 64, "a cache line");

/* lap:50 | owner:12 | state:2. A word of zeros is an empty slot. */
enum { STATE_BITS = 2, OWNER_BITS = 12, LAP_SHIFT = STATE_BITS + OWNER_BITS };
enum { EMPTY = 0, OPEN = 1, FULL = 2 };
#define LOCK_BASE ((off_t)1 << 40) /* locks lie behind any data */

/* Named protocol steps, for tests that stop or kill a process in between. */
#ifdef SHOAL_RING_STEP
void SHOAL_RING_STEP(const char *name);
#else
#define SHOAL_RING_STEP(name) ((void)0)
#endif

/* Before any store into a record; partner: the fence of a read that the claim overtakes. The thread sanitizer
 * knows no fences: for it, both sides touch the word itself. */
static void fence_of_claim(shoal_word64 *word) {
#ifdef __SANITIZE_THREAD__
    (void)atomic_fetch_add_explicit(word, 0, memory_order_acq_rel);
#else
    (void)word;
    atomic_thread_fence(memory_order_release);
#endif
}

/* After the copy of a record; the word as it is then. */
static uint64_t word_after_copy(shoal_word64 *word) {
#ifdef __SANITIZE_THREAD__
    return atomic_fetch_add_explicit(word, 0, memory_order_acq_rel);
#else
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(word, memory_order_relaxed);
#endif
}

static uint64_t pack(uint64_t lap, uint64_t owner, uint64_t state) {
    return lap << LAP_SHIFT | owner << STATE_BITS | state;
}
static uint64_t lap_of(uint64_t word) { return word >> LAP_SHIFT; }
static uint32_t owner_of(uint64_t word) { return (uint32_t)(word >> STATE_BITS & ((1u << OWNER_BITS) - 1)); }
static unsigned state_of(uint64_t word) { return (unsigned)(word & ((1u << STATE_BITS) - 1)); }

#ifdef F_OFD_SETLK
enum { SET_LOCK = F_OFD_SETLK, GET_LOCK = F_OFD_GETLK };
#else /* macOS: locks of the process, so all handles of one process share a fate */
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
        return 0; /* one row at a time: what this handle left open, a predecessor of its number did */
    return lock_number(ring->lock_fd, writer, GET_LOCK, &lock) != 0 || lock.l_type != F_UNLCK;
}

int shoal_ring_register(shoal_ring *ring) {
    for (uint32_t writer = 0; writer < SHOAL_RING_WRITERS; writer++) {
        struct flock lock;
        if (lock_number(ring->lock_fd, writer, SET_LOCK, &lock) == 0) {
            ring->writer = writer;
            return 0;
        }
        if (errno != EAGAIN && errno != EACCES)
            return -errno;
    }
    return -EAGAIN;
}

uint64_t shoal_ring_tickets(shoal_ring *ring, uint64_t count) {
    return atomic_fetch_add_explicit(ring->tail, count, memory_order_relaxed);
}

char *shoal_ring_claim(shoal_ring *ring, uint64_t ticket) {
    const uint64_t slot = ticket % ring->capacity, lap = ticket / ring->capacity + 1;
    SHOAL_RING_STEP("ticket");
    uint64_t word = atomic_load_explicit(&ring->words[slot], memory_order_acquire);
    do {
        if (lap_of(word) >= lap)
            return NULL; /* we slept a whole lap */
        if (shoal_ring_is_held(ring, word))
            return NULL; /* never a living writer's */
    } while (!atomic_compare_exchange_weak_explicit(&ring->words[slot], &word, pack(lap, ring->writer, OPEN),
                                                    memory_order_acq_rel, memory_order_acquire));
    SHOAL_RING_STEP("claimed");
    fence_of_claim(&ring->words[slot]);
    return ring->rows + slot * ring->stride;
}

void shoal_ring_commit(shoal_ring *ring, uint64_t ticket) {
    const uint64_t slot = ticket % ring->capacity, lap = ticket / ring->capacity + 1;
    SHOAL_RING_STEP("written");
    if (ring->mark != NULL)
        shoal_ring_seal(ring, ticket);
    /* Nobody takes the slot of a living owner, so this is a plain store. Partner: shoal_ring_look. */
    atomic_store_explicit(&ring->words[slot], pack(lap, ring->writer, FULL), memory_order_release);
    SHOAL_RING_STEP("committed");
}

void shoal_ring_count(shoal_ring *ring, uint64_t rows) {
    shoal_word64 *own = &ring->writers[ring->writer].committed;
    atomic_store_explicit(own, atomic_load_explicit(own, memory_order_relaxed) + rows, memory_order_relaxed);
}

uint64_t shoal_ring_look(const shoal_ring *ring, uint64_t slot) {
    const uint64_t word = atomic_load_explicit(&ring->words[slot], memory_order_acquire);
    return state_of(word) == FULL ? word : 0;
}

uint64_t shoal_ring_id(const shoal_ring *ring, uint64_t slot, uint64_t word) {
    return (lap_of(word) - 1) * ring->capacity + slot;
}

int shoal_ring_unchanged(const shoal_ring *ring, uint64_t slot, uint64_t word) {
    return word_after_copy(&ring->words[slot]) == word;
}

uint64_t shoal_ring_length(const shoal_ring *ring) {
    const uint64_t tail = atomic_load_explicit(ring->tail, memory_order_relaxed);
    return tail < ring->capacity ? tail : ring->capacity;
}

uint64_t shoal_ring_readable(const shoal_ring *ring) {
    uint64_t rows = 0;
    for (uint64_t s = 0; s < ring->capacity; s++)
        rows += state_of(atomic_load_explicit(&ring->words[s], memory_order_relaxed)) == FULL;
    return rows;
}

uint64_t shoal_ring_total(const shoal_ring *ring) {
    uint64_t rows = ring->mark == NULL ? 0 : atomic_load(&ring->mark->uncounted);
    for (uint32_t w = 0; w < SHOAL_RING_WRITERS; w++)
        rows += atomic_load_explicit(&ring->writers[w].committed, memory_order_relaxed);
    return rows;
}

static uint64_t newest(const shoal_ring *ring) {
    uint64_t tail = 0;
    for (uint64_t s = 0; s < ring->capacity; s++) {
        const uint64_t word = atomic_load_explicit(&ring->words[s], memory_order_relaxed);
        if (lap_of(word) != 0 && shoal_ring_id(ring, s, word) >= tail)
            tail = shoal_ring_id(ring, s, word) + 1;
    }
    return tail;
}

void shoal_ring_recover(shoal_ring *ring) {
    const uint64_t rows = newest(ring), counted = shoal_ring_total(ring);
    const uint64_t found = rows > counted ? rows : counted; /* each had a ticket of its own */
    uint64_t tail = atomic_load(ring->tail);
    while (tail < found && !atomic_compare_exchange_weak(ring->tail, &tail, found))
        ;
}

int shoal_ring_is_full(uint64_t word) { return state_of(word) == FULL; }

int shoal_ring_is_held(const shoal_ring *ring, uint64_t word) {
    return state_of(word) == OPEN && shoal_ring_is_alive(ring, owner_of(word));
}

void shoal_ring_drop(shoal_ring *ring, uint64_t slot, uint64_t word) {
    (void)atomic_compare_exchange_strong(&ring->words[slot], &word, pack(lap_of(word), 0, EMPTY));
}

static uint64_t record_bytes(const shoal_ring *ring) {
    return ring->stride - (ring->mark == NULL ? 0 : sizeof(shoal_word64));
}

uint64_t shoal_ring_copy(const shoal_ring *ring, shoal_ring *to) {
    const uint64_t bytes = record_bytes(ring) < record_bytes(to) ? record_bytes(ring) : record_bytes(to);
    uint64_t rows = 0;
    if (to->mark != NULL)
        atomic_store(&to->mark->uncounted, shoal_ring_total(ring));
    for (uint64_t s = 0; s < ring->capacity; s++) {
        uint64_t word = 0;
        for (int tries = 0; tries < 8;
             tries++) { /* one that is overwritten each time has a successor elsewhere */
            word = shoal_ring_look(ring, s);
            if (word == 0)
                break;
            shoal_racy_copy(to->rows + s * to->stride, ring->rows + s * ring->stride, bytes);
            if (shoal_ring_unchanged(ring, s, word))
                break;
            word = 0;
        }
        if (word != 0 && to->mark != NULL)
            shoal_ring_seal(to, shoal_ring_id(to, s, word));
        atomic_store_explicit(&to->words[s], word, memory_order_relaxed);
        rows += word != 0;
    }
    atomic_store(to->tail, newest(to));
    return rows;
}
