/* The ring: experience replay in shared memory, many writers, many readers, no lock on the data path.
 *
 *    tail, the next ticket        record s: word = { lap | owner | state }, then the row
 *    ticket t -> slot s = t % capacity, lap = t / capacity + 1             a row's id is its ticket
 *
 * 1. Write: say on one's own line which tickets come next, and take them by a compare-and-swap of the tail:
 * what a line says is its writer's until it says otherwise. A slot that a living writer's line still names,
 * by a ticket of an earlier lap, is passed by. Each word OPEN; a release fence; the records; each word FULL
 * (release); the line empty again.
 * 2. Read: load the word (acquire); if FULL, copy the record; acquire fence; load the word again: the copy
 * counts only if it is the same.
 * 3. Who reads never waits, and who writes only where others at work hold every slot, two seconds at most: a
 * slot held by a writer that sleeps is skipped (it holds at most half of them, or one), one held by a writer
 * that died is taken; a row is seen whole or not at all.
 *
 * Why no slot has two writers: two that meet in one have tickets of different laps. The earlier said so on
 * its line before the tail passed its ticket, the later took its own from the tail after that, so it sees the
 * line as it is then, or as it was left when all was committed. A line whose swap failed names tickets that
 * are another's: it costs somebody a turn at most.
 *
 * Why one look at the lines is good for a lap: who takes tickets later takes later ones, and looks itself.
 *
 * Why an accepted copy is what was committed: the first load saw the FULL of this lap, which follows the
 * record's stores. Later stores into the record follow the fence of a later claim; had the copy read one of
 * them, the two fences would make the second load see that claim's word. Laps of a slot only grow, so no word
 * comes twice. (Stores that pass the cache heed no such fence; who uses them, gather.c, fences them itself.)
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

/* Writer of a line: the process that holds the lock of its number. Readers: all, for the sum. */
typedef struct shoal_ring_writer {
    shoal_word64 committed; /* rows ever; a writer killed right after a commit may not have counted it */
    shoal_word64 held_from, held; /* how many tickets, from which on, are its own and not all committed */
    uint64_t pad[5];
} shoal_ring_writer;

typedef struct shoal_ring {
    shoal_word64 *tail;
    shoal_word64 *numbered;     /* writers' numbers that were ever given are below */
    shoal_ring_writer *writers; /* SHOAL_RING_WRITERS */
    char *rows;                 /* `capacity` records. Writers of one: who claims its slot. Readers: all */
    uint64_t capacity, stride;
    struct shoal_ring_mark *mark; /* of a ring in a file, whose records have checks: durable.h; else NULL */
    int lock_fd;     /* an open file description of this handle's own: holds its number, asks for others' */
    uint32_t writer; /* this handle's number; SHOAL_RING_WRITERS: it only reads */
    uint64_t clear;  /* up to which ticket slots are nobody else's */
    uint64_t others; /* how many from there on are, or one */
} shoal_ring;

/* Numbers a writer by a lock that the kernel drops with the process, and drops what the last of that number
 * left unfinished: 0, or -errno (-EAGAIN: all are taken). */
int shoal_ring_register(shoal_ring *ring);
/* Whether any writer, other than this handle, is alive. */
int shoal_ring_has_writers(const shoal_ring *ring);
int shoal_ring_is_alive(const shoal_ring *ring, uint32_t writer);

/* Copies bytes that another process may be writing: what is read of such a race is thrown away. */
static inline void shoal_racy_copy(char *to, const char *from, uint64_t bytes) {
#ifdef __SANITIZE_THREAD__ /* which must see that it is meant */
    for (uint64_t i = 0; i < bytes; i++)
        __atomic_store_n(to + i, __atomic_load_n(from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
#else
    __builtin_memcpy(to, from, bytes);
#endif
}

/* lap:50 | owner:12 | state:2. A word of zeros is an empty slot. */
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

/* The word of a slot, at the head of its record: one miss for both. */
static inline shoal_word64 *shoal_ring_at(const shoal_ring *ring, uint64_t slot) {
    return (shoal_word64 *)(void *)(ring->rows + slot * ring->stride);
}

/* A ticket as the slot and the lap it stands for. */
typedef struct shoal_turn {
    uint64_t slot, lap;
} shoal_turn;

static inline shoal_turn shoal_ring_turn(const shoal_ring *ring, uint64_t ticket) {
    shoal_turn turn = {ticket % ring->capacity, ticket / ring->capacity + 1};
    return turn;
}

/* Whether a word is a living writer's. */
int shoal_ring_is_held(const shoal_ring *ring, uint64_t word);
/* Stores the check of a record that is written (durable.h). */
void shoal_ring_seal(const shoal_ring *ring, shoal_turn turn);
void shoal_ring_count(shoal_ring *ring, uint64_t rows); /* so many were committed by this writer */

/* Looks at the other writers' lines: up to which ticket, from `ticket` on, which is this writer's, slots are
 * nobody else's; or if that one's is, how many are. */
void shoal_ring_look_around(shoal_ring *ring, uint64_t ticket);

#ifndef __cplusplus
/* Named protocol steps, for tests that stop or kill a process in between. */
#ifdef SHOAL_RING_STEP
void SHOAL_RING_STEP(const char *name);
#else
#define SHOAL_RING_STEP(name) ((void)0)
#endif

/* Says which tickets are this writer's, or that none are. The stores come after what was committed before;
 * partner: shoal_ring_look_around. */
static inline void shoal_ring_hold(shoal_ring *ring, uint64_t from, uint64_t count) {
    shoal_ring_writer *own = &ring->writers[ring->writer];
    atomic_store_explicit(&own->held_from, from, memory_order_release);
    atomic_store_explicit(&own->held, count, memory_order_release);
}
static inline void shoal_ring_release(shoal_ring *ring) {
    atomic_store_explicit(&ring->writers[ring->writer].held, 0, memory_order_release);
}

/* The first of `count` tickets in a row, at most half the capacity, or one; until shoal_ring_release, or
 * until others are taken, they are this writer's. Partner: itself in another writer, which then sees what
 * this one holds. */
static inline uint64_t shoal_ring_take(shoal_ring *ring, uint64_t count) {
    uint64_t tail = atomic_load_explicit(ring->tail, memory_order_relaxed);
    do {
        shoal_ring_hold(ring, tail, count);
        SHOAL_RING_STEP("said");
    } while (!atomic_compare_exchange_weak_explicit(ring->tail, &tail, tail + count, memory_order_acq_rel,
                                                    memory_order_relaxed));
    SHOAL_RING_STEP("taken");
    return tail;
}

/* How many of `count` records, from that of `ticket` on, which was taken, are this writer's to be filled
 * behind their words: up to the last slot, or to one that a living writer is at; 0: `others` are lost.
 * Partner: shoal_ring_copied of a read that is overtaken. */
static inline uint64_t shoal_ring_claim(shoal_ring *ring, uint64_t ticket, shoal_turn turn, uint64_t count) {
    if (ticket + count > ring->clear)
        shoal_ring_look_around(ring, ticket);
    if (count > ring->clear - ticket)
        count = ring->clear - ticket;
    if (count > ring->capacity - turn.slot)
        count = ring->capacity - turn.slot;
    const uint64_t open = shoal_ring_word(turn.lap, ring->writer, SHOAL_RING_OPEN);
    const uint64_t stride = ring->stride;
    char *record = ring->rows + turn.slot * stride;
    for (uint64_t i = 0; i < count; i++, record += stride) {
        atomic_store_explicit((shoal_word64 *)(void *)record, open, memory_order_relaxed);
#ifdef __SANITIZE_THREAD__ /* which knows no fences: for it, both sides touch the word itself */
        (void)atomic_fetch_add_explicit((shoal_word64 *)(void *)record, 0, memory_order_acq_rel);
#endif
        SHOAL_RING_STEP("claimed");
    }
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_release); /* before any store into a record */
#endif
    return count;
}

/* Makes `count` records visible that were claimed at once; partner: shoal_ring_look. */
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

/* The word of a record or slot, for shoal_ring_unchanged, if there is a row; else 0. Partner:
 * shoal_ring_commit. */
static inline uint64_t shoal_ring_look_at(const shoal_word64 *at) {
    const uint64_t word = atomic_load_explicit(at, memory_order_acquire);
    return shoal_ring_state(word) == SHOAL_RING_FULL ? word : 0;
}
static inline uint64_t shoal_ring_look(const shoal_ring *ring, uint64_t slot) {
    return shoal_ring_look_at(shoal_ring_at(ring, slot));
}

/* The id of the row that a word of shoal_ring_look stands for. */
static inline uint64_t shoal_ring_id(const shoal_ring *ring, uint64_t slot, uint64_t word) {
    return (shoal_ring_lap(word) - 1) * ring->capacity + slot;
}

/* Whether what was copied since shoal_ring_look gave `word` is that row. Partner: shoal_ring_claim. Of
 * many copies, one shoal_ring_copied comes after all of them, and then shoal_ring_is_still for each. */
static inline void shoal_ring_copied(void) {
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_acquire);
#endif
}
static inline int shoal_ring_is_still(shoal_word64 *at, uint64_t word) {
#ifdef __SANITIZE_THREAD__
    return atomic_fetch_add_explicit(at, 0, memory_order_acq_rel) == word;
#else
    return atomic_load_explicit(at, memory_order_relaxed) == word;
#endif
}
static inline int shoal_ring_unchanged(const shoal_ring *ring, uint64_t slot, uint64_t word) {
    shoal_ring_copied();
    return shoal_ring_is_still(shoal_ring_at(ring, slot), word);
}
#endif

uint64_t
shoal_ring_length(const shoal_ring *ring); /* rows there, or being written: never more than capacity */
uint64_t shoal_ring_readable(const shoal_ring *ring); /* rows that can be read: a look at every word */
uint64_t shoal_ring_total(const shoal_ring *ring);    /* rows ever committed */
/* After a crash: a tail behind the tickets that were used is moved up. Others may go on meanwhile. */
void shoal_ring_recover(shoal_ring *ring);
/* Empties the slot of a row that is not whole, unless its word is another by now; its id stays used. */
void shoal_ring_drop(shoal_ring *ring, uint64_t slot, uint64_t word);
/* Copies every row that can be read into an empty ring of the same capacity and fields, slot by slot, ids
 * included, and the total; writers may go on meanwhile. Returns how many. */
uint64_t shoal_ring_copy(const shoal_ring *ring, shoal_ring *to);

#ifdef __cplusplus
}
#endif
#endif
