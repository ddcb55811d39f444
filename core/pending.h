/* The units of a flow that were sent and wait for a thread: one bit each. Private to flow.c and
 * flow_thread.c.
 *
 *   part 0: thread 0      part 1: thread 1        a part has adjacent units, and its own cache lines
 *   | 1 1 1 0 0 0 1 1 |   | 0 0 1 1 1 1 0 0 |     send sets bits; a thread that takes units clears them
 *         ^ cursor                  ^ cursor      the next take begins here, and goes round
 *
 * 1. Each thread takes the units of its own part, so their rows stay in its core's cache. flow_thread.c says
 *    when others take them.
 * 2. To take units is to clear their bits by fetch_and: of all threads that try, one finds a bit set.
 * 3. The cursor is a hint. All that take from a part move it on, so every unit is reached within one round,
 *    also while others are sent again and again.
 * 4. A unit whose last step took long is marked, and is taken alone. Otherwise an environment whose steps
 *    always take long would delay, step after step, those that are sent together with it. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PENDING_H
#define SHOAL_PENDING_H

#include "platform.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SHOAL_WORD_UNITS = 64, SHOAL_LINE_WORDS = 16 }; /* 16 words of 8 bytes: two cache lines */

typedef struct shoal_part {
    _Alignas(128) _Atomic(uint64_t) cursor; /* a unit of the part. Writers: threads that take */
    _Atomic(uint64_t) taken_ns;             /* when one last took from it. Writers: the same */
    shoal_word is_asleep;                   /* a thread of this part. Writers: its threads */
    uint64_t first, count;                  /* its units */
    _Atomic(uint64_t) *bits;                /* writers: send, and threads that take */
    _Atomic(uint64_t) *slow;                /* writers: threads that have stepped the units */
} shoal_part;

typedef struct shoal_pending {
    shoal_part *parts;
    uint64_t num_units;
    uint32_t num_parts;
    _Atomic(uint64_t) *words; /* of all parts */
} shoal_pending;

static inline uint64_t shoal_pending_words(uint64_t units) {
    const uint64_t words = (units + SHOAL_WORD_UNITS - 1) / SHOAL_WORD_UNITS;
    return (words + SHOAL_LINE_WORDS - 1) / SHOAL_LINE_WORDS * SHOAL_LINE_WORDS;
}

static inline void shoal_pending_close(shoal_pending *pending) {
    free(pending->parts);
    free((void *)pending->words);
}

/* Returns 0 or -ENOMEM; `pending` can be closed in both cases. */
static inline int shoal_pending_open(shoal_pending *pending, uint64_t units, uint32_t parts) {
    const uint64_t most = shoal_pending_words(units / parts + 1); /* for each part: no part has more units */
    const uint64_t bytes = 2 * parts * most * sizeof *pending->words;
    void *memory = NULL, *words = NULL;
    *pending = (shoal_pending){.num_units = units, .num_parts = parts};
    if (posix_memalign(&memory, _Alignof(shoal_part), parts * sizeof *pending->parts) != 0)
        return -ENOMEM;
    pending->parts = memset(memory, 0, parts * sizeof *pending->parts);
    if (posix_memalign(&words, 128, bytes) != 0)
        return -ENOMEM;
    pending->words = memset(words, 0, bytes);
    for (uint32_t i = 0; i < parts; i++) {
        shoal_part *part = &pending->parts[i];
        part->first = units * i / parts;
        part->count = units * (i + 1) / parts - part->first;
        part->bits = pending->words + 2 * i * most;
        part->slow = part->bits + most;
    }
    return 0;
}

static inline shoal_part *shoal_pending_part_of(const shoal_pending *pending, uint64_t unit) {
    return pending->num_parts == 1
               ? pending->parts
               : &pending->parts[((unit + 1) * pending->num_parts - 1) / pending->num_units];
}

/* Bits `begin` .. `end` of a word. */
static inline uint64_t shoal_bits(uint64_t begin, uint64_t end) {
    return (end == SHOAL_WORD_UNITS ? 0 : UINT64_C(1) << end) - (UINT64_C(1) << begin);
}

/* Sender: the units, with all that their steps read, become visible to threads (release; partner: take). */
static inline void shoal_pending_add(shoal_pending *pending, uint64_t first, uint64_t count) {
    for (const uint64_t end = first + count; first < end;) {
        const shoal_part *part = shoal_pending_part_of(pending, first);
        const uint64_t part_end = part->first + part->count, until = end < part_end ? end : part_end;
        for (uint64_t at = first - part->first, stop = until - part->first; at < stop;) {
            const uint64_t word = at / SHOAL_WORD_UNITS, next = (word + 1) * SHOAL_WORD_UNITS;
            const uint64_t to = stop < next ? stop : next;
            atomic_fetch_or_explicit(&part->bits[word],
                                     shoal_bits(at % SHOAL_WORD_UNITS, to - word * SHOAL_WORD_UNITS),
                                     memory_order_release);
            at = to;
        }
        first = until;
    }
}

/* The units that a thread takes, of one part or of several. */
typedef struct shoal_taken {
    uint64_t *units;
    uint32_t count, most;
    int is_slow; /* it is one slow unit, and no other is added */
    uint64_t now_ns;
} shoal_taken;

static inline int shoal_taken_is_full(const shoal_taken *taken) {
    return taken->count >= taken->most || taken->is_slow;
}

/* Of the units in `bits`, those to take at once: the first `most`, but only those before a slow one. Returns
 * 0 if the first one is slow, unless `is_first`: then this one alone. */
static inline uint64_t shoal_pending_choose(uint64_t bits, uint64_t slow, uint32_t most, int is_first) {
    const uint64_t first_slow = (bits & slow) & (~(bits & slow) + 1); /* 0: none */
    if (first_slow != 0 && (bits & (first_slow - 1)) == 0)
        return is_first ? first_slow : 0;
    if (first_slow != 0)
        bits &= first_slow - 1;
    if ((uint32_t)__builtin_popcountll(bits) <= most)
        return bits;
    uint64_t left = bits;
    for (uint32_t i = 0; i < most; i++)
        left &= left - 1;
    return bits ^ left;
}

/* Adds units of a part to those that a thread has taken. */
static inline void shoal_pending_take(shoal_part *part, shoal_taken *taken) {
    const uint64_t words = (part->count + SHOAL_WORD_UNITS - 1) / SHOAL_WORD_UNITS;
    const uint32_t count = taken->count;
    uint64_t at = atomic_load_explicit(&part->cursor, memory_order_relaxed);
    /* One more look than there are words: the last one finds the units of the first word before the cursor.
     */
    for (uint64_t look = 0; look <= words && !shoal_taken_is_full(taken); look++) {
        if (at >= part->count)
            at = 0;
        const uint64_t word = at / SHOAL_WORD_UNITS, base = word * SHOAL_WORD_UNITS;
        const uint64_t here = atomic_load_explicit(&part->bits[word], memory_order_relaxed) &
                              shoal_bits(at - base, SHOAL_WORD_UNITS);
        at = base + SHOAL_WORD_UNITS;
        if (here == 0)
            continue;
        const uint64_t slow = atomic_load_explicit(&part->slow[word], memory_order_relaxed);
        const uint64_t chosen =
            shoal_pending_choose(here, slow, taken->most - taken->count, taken->count == 0);
        if (chosen != 0) {
            const uint64_t before =
                atomic_fetch_and_explicit(&part->bits[word], ~chosen, memory_order_acquire);
            for (uint64_t left = before & chosen; left != 0; left &= left - 1)
                taken->units[taken->count++] = part->first + base + (uint64_t)__builtin_ctzll(left);
            taken->is_slow = (before & chosen & slow) != 0;
        }
        if (taken->count != count && chosen != here) { /* the next take begins with the first that is left */
            at = base + (uint64_t)__builtin_ctzll(here & ~chosen);
            break;
        }
    }
    if (taken->count != count) {
        atomic_store_explicit(&part->cursor, at, memory_order_relaxed);
        atomic_store_explicit(&part->taken_ns, taken->now_ns, memory_order_relaxed);
    }
}

/* Remembers whether units that were taken together took long. If they did, all are marked, because nobody
 * knows which one it was; they are taken alone the next time, and those that are fast then lose their mark.
 */
static inline void shoal_pending_mark(shoal_pending *pending, const uint64_t *units, uint32_t count,
                                      int is_slow) {
    if (!is_slow && count > 1)
        return; /* none of them is marked */
    for (uint32_t i = 0; i < count; i++) {
        const shoal_part *part = shoal_pending_part_of(pending, units[i]);
        const uint64_t at = units[i] - part->first, bit = UINT64_C(1) << at % SHOAL_WORD_UNITS;
        _Atomic(uint64_t) *word = &part->slow[at / SHOAL_WORD_UNITS];
        const int was_slow = (atomic_load_explicit(word, memory_order_relaxed) & bit) != 0;
        if (is_slow && !was_slow)
            atomic_fetch_or_explicit(word, bit, memory_order_relaxed);
        else if (!is_slow && was_slow)
            atomic_fetch_and_explicit(word, ~bit, memory_order_relaxed);
    }
}

#endif
