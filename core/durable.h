/* Rings in files: what a crash of the machine leaves of them, and how it is found out.
 *
 *    line of the tail | tail | mark | numbers_used |       record | word | fields | zeros | check |
 *
 * Such a crash leaves every sector of the file as it was at some time since the last sync, each at a time of
 * its own; words of 8 bytes are not torn.
 *
 * 1. A check is a hash of the row's bytes and its ticket, stored before the word says FULL. Word, record
 * and check agree only if they are of the same row and the record is whole, in whatever order pages reached
 * the disk.
 * 2. Who opens a file that nobody writes, or that was last opened under another boot of the machine, looks at
 * all rows and makes those that do not agree EMPTY, by compare-and-swap; then the mark says so. Others may do
 * the same or use the ring meanwhile: a row written now agrees. Who finds a writer, and its own boot in the
 * mark, finds rows that were looked at, for memory and file are the same while the machine runs.
 * 3. No id that was on disk comes again: an EMPTY word keeps its lap, so laps of a slot only grow, and the
 * tail goes behind the ticket of every word and behind the number of rows counted. With sync the word is on
 * disk when push returns.
 * 4. Checks that belong to no row are cleared, and that is on disk before a ticket is taken: else a lost row,
 * whole but for its word, could come back as the row that got its id. A row links only to ids below its own,
 * which are below the tail if it is there: so a link leads to the row that was meant, or nowhere. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_DURABLE_H
#define SHOAL_DURABLE_H

#include "ring.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Beside the tail. Writers: who opens the file; who fails to sync. Readers: who opens the file. */
typedef struct shoal_ring_mark {
    shoal_word64 checked_in; /* the boot, and the file, in which all rows were looked at; 0: look again */
    shoal_word64 uncounted;  /* rows that no writer's counter knows of */
} shoal_ring_mark;

/* A hash of any bytes: what damages them changes it. No protection from somebody who means to. */
uint64_t shoal_hash(const void *data, uint64_t bytes);

/* For whoever makes the file of a ring with checks, mapped at `base`: it is on disk when this returns 0, not
 * -errno. */
int shoal_ring_begin(shoal_ring *ring, void *base, uint64_t bytes);

/* For whoever opens the file of a ring, mapped at `base`; one without checks only has its tail mended. 0 or
 * -errno; -EBADMSG: its counts are impossible. */
int shoal_ring_mend(shoal_ring *ring, void *base, uint64_t bytes);

/* Waits until all that was stored into the file is on disk. 0, or -errno: then nobody knows what is, and the
 * next who opens it looks at all rows. */
int shoal_ring_sync(const shoal_ring *ring, void *base, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
