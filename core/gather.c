/* Rows into the ring and out of it: see gather.h. */
// SPDX-License-Identifier: MIT
#include "gather.h"

enum { AHEAD = 64, MISSES = 4096 };

/* Sizes that records are made of are copied by single instructions. */
static inline void copy_bytes(char *to, const char *from, uint64_t bytes) {
    switch (bytes) {
    case 1:
        shoal_racy_copy(to, from, 1);
        return;
    case 4:
        shoal_racy_copy(to, from, 4);
        return;
    case 8:
        shoal_racy_copy(to, from, 8);
        return;
    case 16:
        shoal_racy_copy(to, from, 16);
        return;
    case 32:
        shoal_racy_copy(to, from, 32);
        return;
    default:
        shoal_racy_copy(to, from, bytes);
    }
}

void shoal_ring_push(shoal_ring *ring, shoal_columns columns, const void *const *in, uint64_t count,
                     uint64_t *ids) {
    uint64_t ticket = 0, left = 0;
    for (uint64_t i = 0; i < count; i++) {
        char *row = NULL;
        while (row == NULL) {
            if (left == 0) {
                left = count - i;
                ticket = shoal_ring_tickets(ring, left);
            }
            left--;
            row = shoal_ring_claim(ring, ticket++);
        }
        for (uint64_t c = 0; c < columns.count; c++)
            copy_bytes(row + columns.items[c].offset, (const char *)in[c] + i * columns.items[c].bytes,
                       columns.items[c].bytes);
        ids[i] = ticket - 1;
        shoal_ring_commit(ring, ticket - 1);
    }
    shoal_ring_count(ring, count);
}

/* One column of several rows; the size is known to the compiler where it is a common one. */
#define COPY_COLUMN(size)                                                                                    \
    for (uint64_t i = 0; i < count; i++)                                                                     \
    shoal_racy_copy(to + places[i] * (size), from + slots[i] * ring->stride, (size))

static void copy_column(const shoal_ring *ring, shoal_column column, const uint64_t *slots,
                        const uint64_t *places, uint64_t count, char *to) {
    const char *from = ring->rows + column.offset;
    switch (column.bytes) {
    case 1:
        COPY_COLUMN(1);
        return;
    case 4:
        COPY_COLUMN(4);
        return;
    case 8:
        COPY_COLUMN(8);
        return;
    case 16:
        COPY_COLUMN(16);
        return;
    case 32:
        COPY_COLUMN(32);
        return;
    default:
        COPY_COLUMN(column.bytes);
    }
}

/* Copies rows, those in `slots` to the places `places` of the columns' arrays; `words[i]` is the word a row
 * was found with, or 0 if what was copied is not to be used. At most AHEAD. */
static void copy_rows(const shoal_ring *ring, shoal_columns columns, const uint64_t *slots,
                      const uint64_t *places, uint64_t count, void *const *out, uint64_t *words) {
    for (uint64_t i = 0; i < count; i++)
        words[i] = shoal_ring_look(ring, slots[i]);
    for (uint64_t c = 0; c < columns.count; c++)
        copy_column(ring, columns.items[c], slots, places, count, out[c]);
    for (uint64_t i = 0; i < count; i++)
        if (words[i] != 0 && !shoal_ring_unchanged(ring, slots[i], words[i]))
            words[i] = 0;
}

static void prefetch(const shoal_ring *ring, uint64_t slot) {
    __builtin_prefetch((const void *)&ring->words[slot]);
    const char *row = ring->rows + slot * ring->stride;
    const uint64_t bytes = ring->stride < 512 ? ring->stride : 512; /* then the hardware goes on */
    for (uint64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(row + at);
}

uint64_t shoal_ring_fetch(const shoal_ring *ring, shoal_columns columns, const uint64_t *ids, uint64_t count,
                          void *const *out, uint8_t *found) {
    uint64_t number = 0;
    for (uint64_t done = 0; done < count; done += AHEAD) {
        uint64_t slots[AHEAD], places[AHEAD], words[AHEAD];
        const uint64_t now = count - done < AHEAD ? count - done : AHEAD;
        for (uint64_t i = 0; i < now; i++) {
            slots[i] = ids[done + i] % ring->capacity;
            places[i] = done + i;
            prefetch(ring, slots[i]);
        }
        copy_rows(ring, columns, slots, places, now, out, words);
        for (uint64_t i = 0; i < now; i++) {
            found[done + i] = words[i] != 0 && shoal_ring_id(ring, slots[i], words[i]) == ids[done + i];
            number += found[done + i];
        }
    }
    return number;
}

/* A number below `range`, each with the same chance. */
static uint64_t below(shoal_rng *rng, uint64_t range) {
    shoal_u128 product = (shoal_u128)shoal_random64(rng) * range;
    if ((uint64_t)product < range) {
        const uint64_t threshold = -range % range;
        while ((uint64_t)product < threshold)
            product = (shoal_u128)shoal_random64(rng) * range;
    }
    return (uint64_t)(product >> 64);
}

/* The places whose rows cannot be used; the others get their ids. */
static uint64_t keep_missing(const shoal_ring *ring, const uint64_t *slots, const uint64_t *words,
                             uint64_t *places, uint64_t count, uint64_t *ids) {
    uint64_t missing = 0;
    for (uint64_t i = 0; i < count; i++)
        if (words[i] != 0)
            ids[places[i]] = shoal_ring_id(ring, slots[i], words[i]);
        else
            places[missing++] = places[i];
    return missing;
}

uint64_t shoal_ring_sample(const shoal_ring *ring, shoal_rng *rng, shoal_columns columns, uint64_t count,
                           void *const *out, uint64_t *ids) {
    const uint64_t used = shoal_ring_length(ring);
    if (used == 0)
        return 0;
    uint64_t misses = 0;
    for (uint64_t done = 0; done < count; done += AHEAD) {
        uint64_t slots[AHEAD], places[AHEAD], words[AHEAD];
        uint64_t left = count - done < AHEAD ? count - done : AHEAD;
        for (uint64_t i = 0; i < left; i++)
            places[i] = done + i;
        while (left != 0) { /* being written, or left by a writer that died: another is drawn instead */
            for (uint64_t i = 0; i < left; i++) {
                slots[i] = below(rng, used);
                prefetch(ring, slots[i]);
            }
            copy_rows(ring, columns, slots, places, left, out, words);
            left = keep_missing(ring, slots, words, places, left, ids);
            misses += left;
            if (misses > MISSES && shoal_ring_readable(ring) == 0)
                return done;
        }
    }
    return count;
}

uint64_t shoal_ring_sample_weighted(const shoal_ring *ring, const shoal_tree *tree, shoal_rng *rng,
                                    shoal_columns columns, uint64_t count, void *const *out, uint64_t *ids,
                                    float *weights) {
    if (!(shoal_tree_total(tree) > 0))
        return 0;
    shoal_tree_draw(tree, rng, ids, weights, count); /* slots, until they are ids */
    uint64_t misses = 0;
    for (uint64_t done = 0; done < count; done += AHEAD) {
        uint64_t slots[AHEAD], places[AHEAD], words[AHEAD];
        uint64_t left = count - done < AHEAD ? count - done : AHEAD;
        for (uint64_t i = 0; i < left; i++) {
            places[i] = done + i;
            slots[i] = ids[done + i];
            prefetch(ring, slots[i]);
        }
        for (;;) {
            copy_rows(ring, columns, slots, places, left, out, words);
            left = keep_missing(ring, slots, words, places, left, ids);
            if (left == 0)
                break;
            misses += left;
            if (misses > MISSES && shoal_ring_readable(ring) == 0)
                return 0;
            for (uint64_t i = 0; i < left; i++)
                shoal_tree_draw(tree, rng, &slots[i], &weights[places[i]], 1);
        }
    }
    return count;
}

uint64_t shoal_ring_weigh_new(const shoal_ring *ring, shoal_tree *tree, uint64_t seen, float weight) {
    const uint64_t tail = atomic_load_explicit(ring->tail, memory_order_acquire);
    if (tail - seen >= ring->capacity) {
        shoal_tree_fill(tree, 0, tail < ring->capacity ? tail : ring->capacity, weight);
    } else if (tail != seen) {
        const uint64_t begin = seen % ring->capacity, end = tail % ring->capacity;
        shoal_tree_fill(tree, begin, begin < end ? end : ring->capacity, weight);
        if (end <= begin)
            shoal_tree_fill(tree, 0, end, weight);
    }
    return tail;
}

uint64_t shoal_ring_weigh(const shoal_ring *ring, shoal_tree *tree, const uint64_t *ids, const float *weights,
                          uint64_t count, uint64_t *slots, float *kept) {
    uint64_t number = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t slot = ids[i] % ring->capacity, word = shoal_ring_look(ring, slot);
        if (word == 0 || shoal_ring_id(ring, slot, word) != ids[i])
            continue; /* another row lies there now */
        slots[number] = slot;
        kept[number++] = weights[i];
    }
    shoal_tree_set(tree, slots, kept, number);
    return number;
}

uint64_t shoal_ring_latest(const shoal_ring *ring, uint64_t count, uint64_t *ids) {
    const uint64_t tail = atomic_load_explicit(ring->tail, memory_order_acquire);
    uint64_t done = 0;
    for (uint64_t back = 1; back <= tail && back <= ring->capacity && done < count; back++) {
        const uint64_t ticket = tail - back, slot = ticket % ring->capacity;
        const uint64_t word = shoal_ring_look(ring, slot);
        if (word != 0 && shoal_ring_id(ring, slot, word) == ticket)
            ids[done++] = ticket;
    }
    for (uint64_t i = 0; i < done / 2; i++) {
        const uint64_t id = ids[i];
        ids[i] = ids[done - 1 - i];
        ids[done - 1 - i] = id;
    }
    return done;
}
