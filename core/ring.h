/* The ring: experience replay in shared memory, with many writers, many readers and no lock on the data path.
 *
 *    tail, the next ticket        record s: word = { lap | owner | state }, then the row
 *    ticket t -> slot s = t % capacity, lap = t / capacity + 1             a row's id is its ticket
 *
 * 1. Write: the writer announces on its own line (a cache line) which tickets it will take next, then takes
 * them by a compare-and-swap of the tail. It holds the announced tickets until it changes the line. It skips
 * a slot that a living writer still holds by a ticket of an earlier lap. Then it stores OPEN in each word,
 * runs a release fence, writes the records, stores FULL in each word (release; this commits the row), and
 * clears its line.
 * 2. Read: load the word (acquire). If it is FULL, copy the record, run an acquire fence and load the word
 * again. The copy is valid only if the word is unchanged.
 * 3. A reader never waits. A writer waits only while other living writers hold every slot, and at most two
 * seconds. A writer skips a slot held by a stopped writer (which holds at most half of the slots, or one),
 * and takes a slot held by a dead one. A reader gets a whole row or no row.
 *
 * Why two writers never share a slot: if two writers use the same slot, their tickets are of different laps.
 * The earlier writer announced its ticket before the tail passed it, and the later writer took its ticket
 * from the tail after that. So the later writer sees the announcement, or it sees that the line was cleared.
 * The line is cleared only after the words are FULL, so in that case the earlier writer has finished. If a
 * writer's compare-and-swap fails, its line announces, for a moment, tickets that another writer took. At
 * worst, a third writer then skips a free slot.
 *
 * Why one scan of the lines is valid for a whole lap: any ticket taken after the scan is later than ours, so
 * its writer reads our line and avoids our slots.
 *
 * Why a valid copy is the committed row: the first load saw the FULL of this lap, which follows the stores of
 * the record. A writer of a later lap stores OPEN, runs its release fence, and only then stores into the
 * record. If the copy had read a byte of that record, the two fences would make the second load see that
 * OPEN. The laps of a slot only grow, so a word never repeats. (These fences do not order non-temporal
 * stores; rows.h adds fences for them.)
 */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_RING_H
#define SHOAL_RING_H

#include "platform.h"

#ifdef __cplusplus
#include <atomic>
typedef std::atomic<uint64_t> shoal_word64;
extern "C" {
#else
#include <stdatomic.h>
typedef _Atomic(uint64_t) shoal_word64;
#endif

enum { SHOAL_RING_WRITERS = 1024 };

/* Writer of a line: the process that holds the lock of its number. Readers: all processes. */
typedef struct shoal_ring_writer {
    shoal_word64 committed; /* rows committed so far; the last commit of a killed writer may be missing */
    shoal_word64 held_first, held_count; /* the announced tickets; 0 tickets if all are committed */
    uint64_t pad[5];
} shoal_ring_writer;

typedef struct shoal_ring {
    shoal_word64 *tail;
    shoal_word64 *numbers_used; /* all writer numbers given out so far are below this */
    shoal_ring_writer *writers; /* SHOAL_RING_WRITERS */
    char *rows; /* `capacity` records. Writer of a record: the one that claimed its slot. Readers: all */
    uint64_t capacity, stride;
    struct shoal_ring_mark *mark; /* a ring in a file, whose records have checksums (durable.h); else NULL */
    int lock_fd;        /* this handle's own open file description: locks its number, queries the others */
    uint32_t writer;    /* this handle's number; SHOAL_RING_WRITERS if it only reads */
    uint64_t clear_end; /* no other writer holds the slots of this writer's tickets below this one */
    uint64_t blocked;   /* how many slots another writer holds from `clear_end` on; at least 1 */
} shoal_ring;

/* Gives this handle a writer number by locking it; the kernel releases the lock when the process dies. Drops
 * the rows that the previous writer of that number left unfinished. Returns 0 or -errno (-EAGAIN: every
 * number is taken). */
int shoal_ring_register(shoal_ring *ring);
/* Whether any writer other than this handle is alive. */
int shoal_ring_has_writers(const shoal_ring *ring);
int shoal_ring_is_alive(const shoal_ring *ring, uint32_t writer);

/* Copies bytes that another process may be writing. The caller discards the copy if that happened. */
static inline void shoal_racy_copy(char *to, const char *from, uint64_t bytes) {
#ifdef __SANITIZE_THREAD__ /* atomic accesses tell ThreadSanitizer that the race is intended */
    for (uint64_t i = 0; i < bytes; i++)
        __atomic_store_n(to + i, __atomic_load_n(from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
#else
    __builtin_memcpy(to, from, bytes);
#endif
}

/* lap:50 | owner:12 | state:2. An all-zero word is an empty slot. */
enum { SHOAL_RING_STATE_BITS = 2, SHOAL_RING_OWNER_BITS = 12, SHOAL_RING_LAP_SHIFT = 14 };
enum { SHOAL_RING_EMPTY = 0, SHOAL_RING_OPEN = 1, SHOAL_RING_FULL = 2 };

static inline uint64_t shoal_ring_word(uint64_t lap, uint64_t owner, uint64_t state) {
    return lap << SHOAL_RING_LAP_SHIFT | owner << SHOAL_RING_STATE_BITS | state;
}
static inline uint64_t shoal_ring_lap(uint64_t word) { return word >> SHOAL_RING_LAP_SHIFT; }
static inline unsigned shoal_ring_state(uint64_t word) { return (unsigned)(word & 3); }

static inline uint32_t shoal_ring_owner(uint64_t word) {
    return (uint32_t)(word >> SHOAL_RING_STATE_BITS & ((1u << SHOAL_RING_OWNER_BITS) - 1));
}

/* Compares two words but for their owners. */
static inline int shoal_ring_same_lap_and_state(uint64_t a, uint64_t b) {
    const uint64_t owner = (1u << SHOAL_RING_LAP_SHIFT) - (1u << SHOAL_RING_STATE_BITS);
    return ((a ^ b) & ~owner) == 0;
}

/* The word of a slot. It is the first word of the record, so that both cost one cache miss. */
static inline shoal_word64 *shoal_ring_at(const shoal_ring *ring, uint64_t slot) {
    return (shoal_word64 *)(void *)(ring->rows + slot * ring->stride);
}

/* The slot and the lap of a ticket. */
typedef struct shoal_turn {
    uint64_t slot, lap;
} shoal_turn;

static inline shoal_turn shoal_ring_turn(const shoal_ring *ring, uint64_t ticket) {
    shoal_turn turn = {ticket % ring->capacity, ticket / ring->capacity + 1};
    return turn;
}

/* Whether a living writer is writing the slot that has this word. */
int shoal_ring_is_held(const shoal_ring *ring, uint64_t word);
/* Stores the checksum of a written record (durable.h). */
void shoal_ring_seal(const shoal_ring *ring, shoal_turn turn);
void shoal_ring_count(shoal_ring *ring, uint64_t rows); /* adds to the rows this writer has committed */

/* Reads the other writers' lines and sets `clear_end`: from `ticket` (this writer's) up to there, no other
 * living writer holds the slots. If another holds the slot of `ticket` itself, `blocked` is how many to skip.
 */
void shoal_ring_scan_writers(shoal_ring *ring, uint64_t ticket);

#ifndef __cplusplus
/* Named protocol steps, for tests that stop or kill a process between two of them. */
#ifdef SHOAL_RING_STEP
void SHOAL_RING_STEP(const char *name);
#else
#define SHOAL_RING_STEP(name) ((void)0)
#endif

/* Announces which tickets this writer holds, or (release) that it holds none. The stores are ordered after
 * earlier commits; partner: shoal_ring_scan_writers. */
static inline void shoal_ring_hold(shoal_ring *ring, uint64_t from, uint64_t count) {
    shoal_ring_writer *own = &ring->writers[ring->writer];
    atomic_store_explicit(&own->held_first, from, memory_order_release);
    atomic_store_explicit(&own->held_count, count, memory_order_release);
}
static inline void shoal_ring_release(shoal_ring *ring) {
    atomic_store_explicit(&ring->writers[ring->writer].held_count, 0, memory_order_release);
}

/* Takes `count` consecutive tickets (at most half the capacity, or 1) and returns the first. This writer
 * holds them until shoal_ring_release or the next take. Partner: the same function in another writer, which
 * then sees the tickets this one holds. */
static inline uint64_t shoal_ring_take(shoal_ring *ring, uint64_t count) {
    uint64_t tail = atomic_load_explicit(ring->tail, memory_order_relaxed);
    do {
        shoal_ring_hold(ring, tail, count);
        SHOAL_RING_STEP("announced");
    } while (!atomic_compare_exchange_weak_explicit(ring->tail, &tail, tail + count, memory_order_acq_rel,
                                                    memory_order_relaxed));
    SHOAL_RING_STEP("taken");
    return tail;
}

/* Claims records for writing, from the one of `ticket` on, which was taken: stores OPEN in their words.
 * Returns how many, at most `count`: it stops at the last slot of the ring and at a slot that a living writer
 * holds. On 0, skip `blocked` tickets. Partner: shoal_ring_fence_copies of a reader that copies these
 * records. */
static inline uint64_t shoal_ring_claim(shoal_ring *ring, uint64_t ticket, shoal_turn turn, uint64_t count) {
    if (ticket + count > ring->clear_end)
        shoal_ring_scan_writers(ring, ticket);
    if (count > ring->clear_end - ticket)
        count = ring->clear_end - ticket;
    if (count > ring->capacity - turn.slot)
        count = ring->capacity - turn.slot;
    const uint64_t open = shoal_ring_word(turn.lap, ring->writer, SHOAL_RING_OPEN);
    const uint64_t stride = ring->stride;
    char *record = ring->rows + turn.slot * stride;
    for (uint64_t i = 0; i < count; i++, record += stride) {
        atomic_store_explicit((shoal_word64 *)(void *)record, open, memory_order_relaxed);
#ifdef __SANITIZE_THREAD__ /* it does not model fences, so both sides access the word itself */
        (void)atomic_fetch_add_explicit((shoal_word64 *)(void *)record, 0, memory_order_acq_rel);
#endif
        SHOAL_RING_STEP("claimed");
    }
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_release); /* before any store into a record */
#endif
    return count;
}

/* Makes `count` records visible, which were claimed in one call; partner: shoal_ring_load_full. */
static inline void shoal_ring_commit(shoal_ring *ring, shoal_turn turn, uint64_t count) {
    const uint64_t full = shoal_ring_word(turn.lap, ring->writer, SHOAL_RING_FULL);
    const uint64_t stride = ring->stride;
    const int has_checks = ring->mark != NULL;
    char *record = ring->rows + turn.slot * stride;
    for (uint64_t i = 0; i < count; i++, record += stride) {
        SHOAL_RING_STEP("written");
        if (has_checks)
            shoal_ring_seal(ring, (shoal_turn){turn.slot + i, turn.lap});
        atomic_store_explicit((shoal_word64 *)(void *)record, full, memory_order_release);
        SHOAL_RING_STEP("committed");
    }
}

/* Returns the word of a record, in any state. Partner: shoal_ring_commit. */
static inline uint64_t shoal_ring_load_at(const shoal_word64 *at) {
    return atomic_load_explicit(at, memory_order_acquire);
}
/* Returns the word of a record or slot if it is FULL, else 0; shoal_ring_is_unchanged needs it later. */
static inline uint64_t shoal_ring_load_full_at(const shoal_word64 *at) {
    const uint64_t word = shoal_ring_load_at(at);
    return shoal_ring_state(word) == SHOAL_RING_FULL ? word : 0;
}
static inline uint64_t shoal_ring_load_full(const shoal_ring *ring, uint64_t slot) {
    return shoal_ring_load_full_at(shoal_ring_at(ring, slot));
}

/* The id of the row whose word is `word`, which shoal_ring_load_full returned. */
static inline uint64_t shoal_ring_id(const shoal_ring *ring, uint64_t slot, uint64_t word) {
    return (shoal_ring_lap(word) - 1) * ring->capacity + slot;
}

/* shoal_ring_is_unchanged: whether the bytes copied since shoal_ring_load_full returned `word` are that row.
 * Partner: shoal_ring_claim. For many copies, call shoal_ring_fence_copies once after the last copy, then
 * shoal_ring_has_word for each. */
static inline void shoal_ring_fence_copies(void) {
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_acquire);
#endif
}
static inline int shoal_ring_has_word(shoal_word64 *at, uint64_t word) {
#ifdef __SANITIZE_THREAD__
    return atomic_fetch_add_explicit(at, 0, memory_order_acq_rel) == word;
#else
    return atomic_load_explicit(at, memory_order_relaxed) == word;
#endif
}
static inline int shoal_ring_is_unchanged(const shoal_ring *ring, uint64_t slot, uint64_t word) {
    shoal_ring_fence_copies();
    return shoal_ring_has_word(shoal_ring_at(ring, slot), word);
}
#endif

uint64_t shoal_ring_length(const shoal_ring *ring);   /* rows stored or being written, at most the capacity */
uint64_t shoal_ring_readable(const shoal_ring *ring); /* rows that can be read; loads every word */
uint64_t shoal_ring_total(const shoal_ring *ring);    /* rows ever committed */
/* After a crash: moves the tail past every ticket in use. Other processes may use the ring meanwhile. */
void shoal_ring_recover(shoal_ring *ring);
/* Empties the slot of an incomplete row, unless its word has changed since. The id is not used again. */
void shoal_ring_drop(shoal_ring *ring, uint64_t slot, uint64_t word);
/* Copies every readable row, its id, and the total into an empty ring of the same capacity and fields.
 * Writers may continue meanwhile. Returns the number of rows copied. */
uint64_t shoal_ring_copy(const shoal_ring *ring, shoal_ring *to);

#ifdef __cplusplus
}
#endif
#endif
