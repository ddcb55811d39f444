/* Rows into the ring and out of it: see gather.h. */
// SPDX-License-Identifier: MIT
#include "gather.h"

enum { AHEAD = 16, MISSES = 4096 };

/* Calls `copy(size)` with a size that the compiler knows where it is one that records are made of. */
#define BY_SIZE(bytes, copy)                                                                                 \
    switch (bytes) {                                                                                         \
    case 1:                                                                                                  \
        copy(1);                                                                                             \
        break;                                                                                               \
    case 4:                                                                                                  \
        copy(4);                                                                                             \
        break;                                                                                               \
    case 8:                                                                                                  \
        copy(8);                                                                                             \
        break;                                                                                               \
    case 16:                                                                                                 \
        copy(16);                                                                                            \
        break;                                                                                               \
    case 32:                                                                                                 \
        copy(32);                                                                                            \
        break;                                                                                               \
    default:                                                                                                 \
        copy(bytes);                                                                                         \
    }

/* Rows from the caller's arrays, from the `first` one on, into records at `records[i]`. */
static void scatter(shoal_columns columns, char *const *records, uint64_t count, const void *const *in,
                    uint64_t first) {
    for (uint64_t c = 0; c < columns.count; c++) {
        const uint64_t bytes = columns.items[c].bytes, offset = columns.items[c].offset;
        const char *from = (const char *)in[c] + first * bytes;
#define SCATTER(size)                                                                                        \
    for (uint64_t i = 0; i < count; i++)                                                                     \
    shoal_racy_copy(records[i] + offset, from + i * (size), (size))
        BY_SIZE(bytes, SCATTER)
    }
}

void shoal_ring_push(shoal_ring *ring, shoal_columns columns, const void *const *in, uint64_t count,
                     uint64_t *ids) {
    const uint64_t most = ring->capacity < AHEAD ? ring->capacity : AHEAD; /* no slot twice */
    for (uint64_t done = 0; done < count;) { /* more than once: some were lost */
        uint64_t left = count - done, ticket = shoal_ring_tickets(ring, left);
        shoal_turn turn = shoal_ring_turn(ring, ticket);
        while (left != 0) {
            char *records[AHEAD];
            shoal_turn turns[AHEAD];
            const uint64_t now = left < most ? left : most;
            uint64_t held = 0;
            for (uint64_t i = 0; i < now; i++, ticket++) {
                records[held] = shoal_ring_claim(ring, turn);
                turns[held] = turn;
                ids[done + held] = ticket;
                held += records[held] != NULL;
                if (++turn.slot == ring->capacity)
                    turn = (shoal_turn){0, turn.lap + 1};
            }
            scatter(columns, records, held, in, done);
            for (uint64_t i = 0; i < held; i++)
                shoal_ring_commit(ring, turns[i]);
            done += held;
            left -= now;
        }
    }
    shoal_ring_count(ring, count);
}

/* Copies rows, those in `slots`, to the places `places` (NULL: from `first` on) of the columns' arrays;
 * `words[i]` is the word a row was found with, or 0 if what was copied is not to be used. At most AHEAD. */
static void copy_rows(const shoal_ring *ring, shoal_columns columns, const uint64_t *slots,
                      const uint64_t *places, uint64_t first, uint64_t count, void *const *out,
                      uint64_t *words) {
    const char *records[AHEAD];
    for (uint64_t i = 0; i < count; i++) {
        words[i] = shoal_ring_look(ring, slots[i]);
        records[i] = ring->rows + slots[i] * ring->stride;
    }
    for (uint64_t c = 0; c < columns.count; c++) {
        const uint64_t bytes = columns.items[c].bytes, offset = columns.items[c].offset;
        char *to = (char *)out[c] + first * bytes;
#define IN_ORDER(size)                                                                                       \
    for (uint64_t i = 0; i < count; i++)                                                                     \
    shoal_racy_copy(to + i * (size), records[i] + offset, (size))
#define TO_PLACES(size)                                                                                      \
    for (uint64_t i = 0; i < count; i++)                                                                     \
    shoal_racy_copy(to + places[i] * (size), records[i] + offset, (size))
        if (places == NULL) {
            BY_SIZE(bytes, IN_ORDER)
        } else {
            BY_SIZE(bytes, TO_PLACES)
        }
    }
    for (uint64_t i = 0; i < count; i++)
        if (!shoal_ring_unchanged(ring, slots[i], words[i]))
            words[i] = 0;
}

static void prefetch(const shoal_ring *ring, const uint64_t *slots, uint64_t count) {
    const uint64_t bytes = ring->stride < 512 ? ring->stride : 512; /* then the hardware goes on */
    for (uint64_t i = 0; i < count; i++) {
        const char *row = ring->rows + slots[i] * ring->stride;
        __builtin_prefetch(row);
        for (uint64_t at = 64; at < bytes; at += 64)
            __builtin_prefetch(row + at);
    }
}

uint64_t shoal_ring_fetch(const shoal_ring *ring, shoal_columns columns, const uint64_t *ids, uint64_t count,
                          void *const *out, uint8_t *found) {
    uint64_t number = 0;
    for (uint64_t done = 0; done < count; done += AHEAD) {
        uint64_t slots[AHEAD], words[AHEAD];
        const uint64_t now = count - done < AHEAD ? count - done : AHEAD;
        for (uint64_t i = 0; i < now; i++)
            slots[i] = ids[done + i] % ring->capacity;
        prefetch(ring, slots, now);
        copy_rows(ring, columns, slots, NULL, done, now, out, words);
        for (uint64_t i = 0; i < now; i++) {
            found[done + i] = words[i] != 0 && shoal_ring_id(ring, slots[i], words[i]) == ids[done + i];
            number += found[done + i];
        }
    }
    return number;
}

/* Numbers below `range`, each with the same chance: the high part of a product, drawn again where its low
 * part says that this one would come too often. Short ranges have two numbers from one draw. */
static void draw(shoal_rng *rng, uint64_t range, uint64_t *out, uint64_t count) {
    uint64_t i = 0;
    if (range <= UINT32_MAX) {
        const uint32_t short_range = (uint32_t)range, threshold = -short_range % short_range;
        while (i < count) {
            const uint64_t drawn = shoal_random64(rng);
            const uint64_t high = (drawn >> 32) * range, low = (drawn & UINT32_MAX) * range;
            out[i] = high >> 32;
            i += (uint32_t)high >= threshold;
            if (i < count) {
                out[i] = low >> 32;
                i += (uint32_t)low >= threshold;
            }
        }
        return;
    }
    const uint64_t threshold = -range % range;
    while (i < count) {
        const shoal_u128 product = (shoal_u128)shoal_random64(rng) * range;
        out[i] = (uint64_t)(product >> 64);
        i += (uint64_t)product >= threshold;
    }
}

/* The ids of the rows that can be used, in their places; the places of the others into `missing`. */
static uint64_t note_ids(const shoal_ring *ring, const uint64_t *slots, const uint64_t *words,
                         const uint64_t *places, uint64_t first, uint64_t count, uint64_t *ids,
                         uint64_t *missing) {
    uint64_t number = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t place = places == NULL ? first + i : places[i];
        ids[place] = shoal_ring_id(ring, slots[i], words[i]);
        missing[number] = place;
        number += words[i] == 0;
    }
    return number;
}

static uint64_t draw_ahead(const shoal_ring *ring, shoal_rng *rng, uint64_t used, uint64_t count,
                           uint64_t *slots) {
    const uint64_t now = count < AHEAD ? count : AHEAD;
    draw(rng, used, slots, now);
    prefetch(ring, slots, now);
    return now;
}

uint64_t shoal_ring_sample(const shoal_ring *ring, shoal_rng *rng, shoal_columns columns, uint64_t count,
                           void *const *out, uint64_t *ids) {
    const uint64_t used = shoal_ring_length(ring);
    if (used == 0)
        return 0;
    uint64_t slots[2][AHEAD], again[AHEAD], words[AHEAD], places[AHEAD];
    uint64_t misses = 0, now = draw_ahead(ring, rng, used, count, slots[0]);
    for (uint64_t done = 0, turn = 0; done < count;
         turn ^= 1) { /* one block is on its way while one is copied */
        const uint64_t next = draw_ahead(ring, rng, used, count - done - now, slots[!turn]);
        copy_rows(ring, columns, slots[turn], NULL, done, now, out, words);
        uint64_t left = note_ids(ring, slots[turn], words, NULL, done, now, ids, places);
        while (left != 0) { /* being written, or left by a writer that died: another is drawn instead */
            misses += left;
            if (misses > MISSES && shoal_ring_readable(ring) == 0)
                return done;
            draw(rng, used, again, left);
            copy_rows(ring, columns, again, places, 0, left, out, words);
            left = note_ids(ring, again, words, places, 0, left, ids, places);
        }
        done += now;
        now = next;
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
        for (uint64_t i = 0; i < left; i++)
            slots[i] = ids[done + i];
        prefetch(ring, slots, left);
        copy_rows(ring, columns, slots, NULL, done, left, out, words);
        left = note_ids(ring, slots, words, NULL, done, left, ids, places);
        while (left != 0) {
            misses += left;
            if (misses > MISSES && shoal_ring_readable(ring) == 0)
                return 0;
            for (uint64_t i = 0; i < left; i++)
                shoal_tree_draw(tree, rng, &slots[i], &weights[places[i]], 1);
            copy_rows(ring, columns, slots, places, 0, left, out, words);
            left = note_ids(ring, slots, words, places, 0, left, ids, places);
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
