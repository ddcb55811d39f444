/* Rings in files: what a file contains after a crash of the machine, and how damaged rows are found.
 *
 *    line of the tail | tail | mark | numbers_used |       record | word | fields | zeros | check |
 *
 * After such a crash, each sector of the file has its content from some time since the last sync. These times
 * differ between sectors. Words of 8 bytes are not torn. A row *agrees* if its word, record and check match.
 *
 * 1. A check is a hash of the row's bytes and its ticket. It is stored before the word says FULL. So a row
 *    agrees only if word, record and check are of the same row and the record is whole, in whatever order
 *    pages reached the disk.
 * 2. A process that opens the file checks all rows, unless a writer uses the file and `mark` names this boot
 *    of the machine. It makes each FULL row that does not agree EMPTY, by compare-and-swap. Then it syncs the
 *    file and stores this boot in `mark`. Other processes may check or use the ring at the same time: the
 *    rows that they write agree. If a writer uses the file and `mark` names this boot, all rows were checked
 *    since the machine started. They need no other check, because memory and file are the same while the
 *    machine runs.
 * 3. No id that was on disk is used again. An EMPTY word keeps its lap, so the laps of a slot only grow. When
 *    a process opens the file, it raises the tail above the ticket of every word, and to at least the number
 *    of rows that were ever committed. With durability="sync", the word is on disk when push returns.
 * 4. Checks that belong to no row are cleared, and the file is synced, before a ticket is taken. Without
 *    this, two crashes could bring back a lost row under the id of another row. In the first crash, a record
 *    and its check reach the disk, but its word does not: the row is lost, and a new row gets its id. In the
 *    second crash, only the word of the new row reaches the disk, and it would match the old record.
 * 5. A row links only to ids smaller than its own. If the row is in the file, the tail is above its id, so
 *    none of these ids is used again. A link therefore leads to the intended row, or to none. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_DURABLE_H
#define SHOAL_DURABLE_H

#include "ring.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Beside the tail. Writers: a process that opens the file, or that fails to sync it. Readers: processes that
 * open the file. */
typedef struct shoal_ring_mark {
    shoal_word64 checked_in; /* the boot and the file for which all rows were checked; 0: check again */
    shoal_word64 uncounted;  /* rows that are in no writer's counter */
} shoal_ring_mark;

/* A hash of any bytes, to detect damage. It does not detect a change on purpose. */
uint64_t shoal_hash(const void *data, uint64_t bytes);

/* For the process that makes the file of a ring with checks, mapped at `base`. Returns 0 when the file is on
 * disk, or -errno. */
int shoal_ring_begin(shoal_ring *ring, void *base, uint64_t bytes);

/* For a process that opens the file of a ring, mapped at `base`. In a ring without checks, it only raises the
 * tail. Returns 0 or -errno; -EBADMSG: the counts in the file are impossible. */
int shoal_ring_mend(shoal_ring *ring, void *base, uint64_t bytes);

/* Waits until all that was stored into the file is on disk. Returns 0 or -errno. After an error, it is not
 * known what is on disk, and the next process that opens the file checks all rows. */
int shoal_ring_sync(const shoal_ring *ring, void *base, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
