/* The ring: experience replay in shared memory, many writers, many readers, no lock on the data path.
 *
 *    tail, the next ticket        word[s] = { lap | owner | state }        row s, one record
 *    ticket t -> slot s = t % capacity, lap = t / capacity + 1             a row's id is its ticket
 *
 * 1. Write: take a ticket, then the slot by a compare-and-swap of its word to OPEN, never from a living
 * owner; a release fence; the record; the word again, FULL (release).
 * 2. Read: load the word (acquire); if FULL, copy the record; acquire fence; load the word again: the copy
 * counts only if it is the same.
 * 3. Who writes never waits, who reads never waits: a slot held by a writer that sleeps is skipped, one held
 * by a writer that died is taken; a row is seen whole or not at all.
 *
 * Why an accepted copy is what was committed: the first load saw the FULL of this lap, which follows the
 * record's stores. Later stores into the record follow the fence of a later claim; had the copy read one of
 * them, the two fences would make the second load see that claim's word. Laps of a slot only grow, so no word
 * comes twice. */
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
    uint64_t pad[7];
} shoal_ring_writer;

typedef struct shoal_ring {
    shoal_word64 *tail;
    shoal_ring_writer *writers; /* SHOAL_RING_WRITERS */
    shoal_word64 *words;        /* `capacity`. Writers of one: who claims its slot. Readers: all */
    char *rows;                 /* capacity * stride */
    uint64_t capacity, stride;
    struct shoal_ring_mark *mark; /* of a ring in a file, whose records have checks: durable.h; else NULL */
    int lock_fd;     /* an open file description of this handle's own: holds its number, asks for others' */
    uint32_t writer; /* this handle's number; SHOAL_RING_WRITERS: it only reads */
} shoal_ring;

/* Numbers a writer by a lock that the kernel drops with the process: 0, or -errno (-EAGAIN: all are taken).
 */
int shoal_ring_register(shoal_ring *ring);
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

/* `count` tickets in a row; each must then be claimed, and may be lost. */
uint64_t shoal_ring_tickets(shoal_ring *ring, uint64_t count);
/* The record of the ticket's slot, to be written; NULL if the ticket is lost: take another. */
char *shoal_ring_claim(shoal_ring *ring, uint64_t ticket);
/* Makes the record visible. */
void shoal_ring_commit(shoal_ring *ring, uint64_t ticket);
void shoal_ring_count(shoal_ring *ring, uint64_t rows); /* so many were committed by this writer */

/* The word of a slot, for shoal_ring_unchanged, if there is a row; else 0. */
uint64_t shoal_ring_look(const shoal_ring *ring, uint64_t slot);
/* The id of the row that a word of shoal_ring_look stands for. */
uint64_t shoal_ring_id(const shoal_ring *ring, uint64_t slot, uint64_t word);
/* Whether what was copied since shoal_ring_look gave `word` is that row. */
int shoal_ring_unchanged(const shoal_ring *ring, uint64_t slot, uint64_t word);

uint64_t
shoal_ring_length(const shoal_ring *ring); /* rows there, or being written: never more than capacity */
uint64_t shoal_ring_readable(const shoal_ring *ring); /* rows that can be read: a look at every word */
uint64_t shoal_ring_total(const shoal_ring *ring);    /* rows ever committed */
/* After a crash: a tail behind the tickets that were used is moved up. Others may go on meanwhile. */
void shoal_ring_recover(shoal_ring *ring);
/* Whether a word says that there is a row; whether it is a living writer's. */
int shoal_ring_is_full(uint64_t word);
int shoal_ring_is_held(const shoal_ring *ring, uint64_t word);
/* Empties the slot of a row that is not whole, unless its word is another by now; its id stays used. */
void shoal_ring_drop(shoal_ring *ring, uint64_t slot, uint64_t word);
/* Copies every row that can be read into an empty ring of the same capacity and fields, slot by slot, ids
 * included, and the total; writers may go on meanwhile. Returns how many. */
uint64_t shoal_ring_copy(const shoal_ring *ring, shoal_ring *to);

#ifdef __cplusplus
}
#endif
#endif
