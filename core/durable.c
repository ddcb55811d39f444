/* Rings in files: durable.h explains why this is correct. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "durable.h"

#include <shoal/env.h>

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { LANES = 4, LINE = 2 * LANES }; /* words of a line; four products go on at once */

static const uint64_t KEYS[LANES] = {0xa0761d6478bd642fu, 0xe7037ed1a0b428dbu, 0x8ebc6af09c88c6e3u,
                                     0x589965cc75374cc3u};

static uint64_t mix(uint64_t a, uint64_t b) {
    const shoal_u128 product = (shoal_u128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static void mix_line(uint64_t *hash, const uint64_t *line) {
    for (int i = 0; i < LANES; i++)
        hash[i] = mix(line[2 * i] ^ KEYS[i], line[2 * i + 1] ^ hash[i]);
}

static uint64_t mixed(const uint64_t *hash) {
    return mix(mix(hash[0] ^ KEYS[1], hash[1] ^ KEYS[2]),
               mix(hash[2] ^ KEYS[3], hash[3] ^ KEYS[0]) ^ KEYS[1]);
}

/* Returns the check of a row and its ticket. The ticket is hashed in the place of the check, and the word is
 * left out. Other processes may be writing the record. */
static uint64_t check_of(const shoal_ring *ring, uint64_t slot, uint64_t ticket) {
    const char *record = ring->rows + slot * ring->stride, *end = record + ring->stride;
    uint64_t hash[LANES], line[LINE];
    memcpy(hash, KEYS, sizeof hash);
    for (const char *at = record; at < end; at += sizeof line) {
        const uint64_t head = at == record ? sizeof *line : 0;
        const uint64_t tail = at + sizeof line == end ? sizeof *line : 0;
        line[0] = 0;
        line[LINE - 1] = ticket;
        shoal_racy_copy((char *)line + head, at + head, sizeof line - head - tail);
        mix_line(hash, line);
    }
    return mixed(hash);
}

uint64_t shoal_hash(const void *data, uint64_t bytes) {
    uint64_t hash[LANES], line[LINE];
    memcpy(hash, KEYS, sizeof hash);
    for (uint64_t at = 0; at < bytes; at += sizeof line) {
        memset(line, 0, sizeof line);
        memcpy(line, (const char *)data + at, bytes - at < sizeof line ? bytes - at : sizeof line);
        mix_line(hash, line);
    }
    return mix(mixed(hash) ^ KEYS[0], bytes ^ KEYS[1]);
}

static shoal_word64 *place_of_check(const shoal_ring *ring, uint64_t slot) {
    return (shoal_word64 *)(void *)(ring->rows + (slot + 1) * ring->stride - sizeof(shoal_word64));
}

void shoal_ring_seal(const shoal_ring *ring, shoal_turn turn) {
    const uint64_t ticket = (turn.lap - 1) * ring->capacity + turn.slot;
    atomic_store_explicit(place_of_check(ring, turn.slot), check_of(ring, turn.slot, ticket),
                          memory_order_relaxed);
}

/* Returns a number for this boot and this file; 0 if the system does not say. */
static uint64_t boot_and_file(int fd) {
    static const uint8_t unknown[16];
    uint64_t line[LINE] = {0}, hash[LANES];
    uint8_t boot[16];
    struct stat st;
    shoal_boot_id(boot);
    if (memcmp(boot, unknown, sizeof boot) == 0 || fstat(fd, &st) != 0)
        return 0;
    memcpy(line, boot, sizeof boot);
    line[2] = (uint64_t)st.st_dev;
    line[3] = (uint64_t)st.st_ino;
    memcpy(hash, KEYS, sizeof hash);
    mix_line(hash, line);
    return mixed(hash);
}

/* Empties a slot, unless it has a row that agrees with its check, or a living writer is writing it. */
static void look_at_slot(shoal_ring *ring, uint64_t slot) {
    shoal_word64 *check = place_of_check(ring, slot);
    const uint64_t word = atomic_load_explicit(shoal_ring_at(ring, slot), memory_order_acquire);
    uint64_t found = atomic_load_explicit(check, memory_order_relaxed);
    const int is_full = shoal_ring_state(word) == SHOAL_RING_FULL;
    if (is_full && found == check_of(ring, slot, shoal_ring_id(ring, slot, word)))
        return;
    if (shoal_ring_is_held(ring, word) || !shoal_ring_is_unchanged(ring, slot, word))
        return;     /* a living writer will store a correct check; or another process dropped the row */
    if (found != 0) /* fails if a writer has stored another check meanwhile */
        (void)atomic_compare_exchange_strong(check, &found, 0);
    if (is_full) /* last: a process that finds the row dropped finds the check cleared */
        shoal_ring_drop(ring, slot, word);
}

/* All rows in the file were pushed, even if the counts that reached the disk are older. */
static void count_rows(shoal_ring *ring) {
    uint64_t uncounted = atomic_load(&ring->mark->uncounted); /* first: only one of several openers adds */
    const uint64_t rows = shoal_ring_readable(ring), total = shoal_ring_total(ring);
    if (rows > total)
        (void)atomic_compare_exchange_strong(&ring->mark->uncounted, &uncounted, uncounted + rows - total);
}

static int sync_and_mark(shoal_ring *ring, uint64_t here, void *base, uint64_t bytes) {
    const int result = shoal_ring_sync(ring, base, bytes);
    if (result == 0)
        atomic_store(&ring->mark->checked_in, here);
    return result;
}

/* Whether counts are too large for any crash: the file is damaged or forged. Tickets would wrap around, and
 * ids would be used again. */
static int is_impossible(const shoal_ring *ring) {
    const uint64_t most = (uint64_t)1 << 48; /* a million rows a second for nine years */
    uint64_t rows = atomic_load(&ring->mark->uncounted);
    int impossible = atomic_load(ring->tail) > most || rows > most;
    for (uint32_t w = 0; w < SHOAL_RING_WRITERS && !impossible; w++) {
        const uint64_t committed = atomic_load_explicit(&ring->writers[w].committed, memory_order_relaxed);
        impossible = committed > most || (rows += committed) > most;
    }
    for (uint64_t slot = 0; slot < ring->capacity && !impossible; slot++)
        impossible = shoal_ring_lap(atomic_load_explicit(shoal_ring_at(ring, slot), memory_order_relaxed)) >
                     most / ring->capacity + 1;
    return impossible;
}

int shoal_ring_mend(shoal_ring *ring, void *base, uint64_t bytes) {
    if (ring->mark == NULL) {
        shoal_ring_recover(ring);
        return 0;
    }
    if (is_impossible(ring))
        return -EBADMSG;
    const uint64_t here = boot_and_file(ring->lock_fd);
    const int was_looked_at =
        here != 0 && atomic_load(&ring->mark->checked_in) == here && shoal_ring_has_writers(ring);
    for (uint64_t slot = 0; slot < ring->capacity && !was_looked_at; slot++)
        look_at_slot(ring, slot);
    shoal_ring_recover(ring);
    if (was_looked_at)
        return 0;
    count_rows(ring);
    return sync_and_mark(ring, here, base, bytes);
}

int shoal_ring_begin(shoal_ring *ring, void *base, uint64_t bytes) {
    return sync_and_mark(ring, boot_and_file(ring->lock_fd), base, bytes);
}

int shoal_ring_sync(const shoal_ring *ring, void *base, uint64_t bytes) {
    const int result = shoal_file_sync(ring->lock_fd, base, bytes);
    if (result != 0 && ring->mark != NULL)
        atomic_store(&ring->mark->checked_in, 0);
    return result;
}
