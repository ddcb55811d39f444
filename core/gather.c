/* Copies rows into the ring and out of it: see gather.h. */
// SPDX-License-Identifier: MIT
#include "gather.h"
#include "listed.h"
#include "rows.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS_PER_TAKE = 64 }; /* most tickets that a push takes at once */

/* Copies `count` rows, from row `first` of the caller's arrays on, into consecutive records. */
static void scatter(shoal_columns columns, char *records, uint64_t stride, uint64_t count,
                    const void *const *in, uint64_t first) {
    for (uint64_t c = 0; c < columns.count; c++) {
        const uint64_t bytes = columns.items[c].bytes;
        const char *from = (const char *)in[c] + first * bytes;
        char *to = records + columns.items[c].offset;
        if (bytes >= SHOAL_ROWS_STREAM_MIN) {
            for (uint64_t i = 0; i < count; i++)
                shoal_rows_stream(to + i * stride, from + i * bytes, bytes);
            continue;
        }
#define SCATTER(size)                                                                                        \
    _Pragma("GCC unroll 4") for (uint64_t i = 0; i < count; i++, to += stride, from += (size))               \
        shoal_racy_copy(to, from, (size))
        SHOAL_BY_SIZE(bytes, SCATTER)
    }
}

/* How a push waits while other living writers hold every slot: they are descheduled, or stopped for good. */
enum { ROOM_SLEEP_NS = 50000 };
#define ROOM_TIMEOUT_NS UINT64_C(2000000000)

int shoal_ring_wait_for_room(uint64_t *since) {
    const uint64_t now = shoal_now_ns();
    if (*since == 0)
        *since = now;
    if (now - *since > ROOM_TIMEOUT_NS)
        return 0;
    nanosleep(&(struct timespec){0, ROOM_SLEEP_NS}, NULL);
    return 1;
}

uint64_t shoal_ring_push(shoal_ring *ring, shoal_columns columns, const void *const *in, uint64_t count,
                         uint64_t *ids) {
    /* Never hold all slots: if this writer is stopped, the others need some. */
    const uint64_t block = shoal_rows_block(ring) == 1 ? 1 : ROWS_PER_TAKE;
    const uint64_t most = shoal_min(ring->capacity < 4 ? 1 : ring->capacity / 2, block);
    uint64_t done = 0, lost = 0;
    while (done < count && lost < ring->capacity) { /* give up after a whole lap without a free slot */
        const uint64_t before = done, taken = shoal_min(count - done, most);
        const uint64_t ticket = shoal_ring_take(ring, taken), end = ticket + taken;
        for (uint64_t at = ticket, now; at < end; at += now != 0 ? now : ring->blocked) {
            const shoal_turn turn = shoal_ring_turn(ring, at);
            now = shoal_ring_claim(ring, at, turn, end - at);
            scatter(columns, ring->rows + turn.slot * ring->stride, ring->stride, now, in, done);
            shoal_ring_commit(ring, turn, now);
            for (uint64_t i = 0; i < now; i++)
                ids[done + i] = at + i;
            done += now;
        }
        lost = done == before ? lost + taken : 0;
    }
    shoal_ring_release(ring); /* or others would skip slots that nobody writes */
    shoal_ring_count(ring, done);
    return done;
}

void shoal_ring_restore(shoal_ring *ring, shoal_columns columns, const void *const *in, const uint64_t *ids,
                        uint64_t count, uint64_t tail, uint64_t total) {
    for (uint64_t i = 0; i < count; i++) {
        const shoal_turn turn = shoal_ring_turn(ring, ids[i]);
        scatter(columns, ring->rows + turn.slot * ring->stride, ring->stride, 1, in, i);
        shoal_ring_commit(ring, turn, 1);
    }
    atomic_store(ring->tail, tail);
    ring->clear_end = 0;
    shoal_ring_count(ring, total);
}

static uint64_t batch_bytes(shoal_columns columns, uint64_t count) {
    uint64_t bytes = 0;
    for (uint64_t c = 0; c < columns.count; c++)
        bytes += count * columns.items[c].bytes;
    return bytes;
}

/* Copies the rows in `slots`, at most SHOAL_ROWS_AHEAD, to the columns' arrays from index `first` on. Sets
 * words[i] to the row's word, or to 0 if the copy is not valid. `is_large`: of a large batch. */
static void copy_rows(const shoal_ring *ring, shoal_columns columns, const uint64_t *slots, uint64_t first,
                      uint64_t count, void *const *out, uint64_t *words, int is_large) {
    shoal_word64 *records[SHOAL_ROWS_AHEAD];
    for (uint64_t i = 0; i < count; i++) {
        records[i] = shoal_ring_at(ring, slots[i]);
        words[i] = shoal_ring_load_full_at(records[i]);
    }
    for (uint64_t c = 0; c < columns.count; c++) {
        const uint64_t bytes = columns.items[c].bytes, offset = columns.items[c].offset;
        char *to = (char *)out[c] + first * bytes;
        if (bytes >= SHOAL_ROWS_STREAM_MIN && is_large) {
            for (uint64_t i = 0; i < count; i++)
                shoal_rows_stream(to + i * bytes, (const char *)records[i] + offset, bytes);
            continue;
        }
#define GATHER(size)                                                                                         \
    _Pragma("GCC unroll 4") for (uint64_t i = 0; i < count; i++)                                             \
        shoal_racy_copy(to + i * (size), (const char *)records[i] + offset, (size))
        SHOAL_BY_SIZE(bytes, GATHER)
    }
    shoal_ring_fence_copies();
    for (uint64_t i = 0; i < count; i++)
        words[i] = shoal_ring_has_word(records[i], words[i]) ? words[i] : 0;
}

static void prefetch(const shoal_ring *ring, const uint64_t *slots, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        shoal_rows_prefetch(ring->rows + slots[i] * ring->stride, ring->stride);
}

uint64_t shoal_ring_fetch(const shoal_ring *ring, shoal_columns columns, const uint64_t *ids, uint64_t count,
                          void *const *out, uint8_t *found) {
    const uint64_t block = shoal_rows_block(ring);
    const int is_large = shoal_rows_is_large(batch_bytes(columns, count), 1);
    uint64_t number = 0;
    for (uint64_t done = 0; done < count; done += block) {
        uint64_t slots[SHOAL_ROWS_AHEAD], words[SHOAL_ROWS_AHEAD];
        const uint64_t now = shoal_min(count - done, block);
        for (uint64_t i = 0; i < now; i++)
            slots[i] = ids[done + i] % ring->capacity;
        prefetch(ring, slots, now);
        copy_rows(ring, columns, slots, done, now, out, words, is_large);
        for (uint64_t i = 0; i < now; i++) {
            found[done + i] = words[i] != 0 && shoal_ring_id(ring, slots[i], words[i]) == ids[done + i];
            number += found[done + i];
        }
    }
    return number;
}

/* Draws slots below `range` uniformly and prefetches the first rows. A slot is the high half of a random
 * number times range; it is rejected if the low half is below a threshold, which removes the bias. If the
 * range fits in 32 bits, one random number gives two slots. */
static void draw(const shoal_ring *ring, shoal_rng *rng, uint64_t range, uint64_t *out, uint64_t count) {
    const char *rows = ring->rows;
    const uint64_t stride = ring->stride, reach = shoal_rows_reach(ring);
    shoal_rng own = *rng; /* a local copy cannot alias the output, so it stays in registers */
    uint64_t i = 0;
#define ACCEPT(slot, part, threshold)                                                                        \
    out[i] = (slot);                                                                                         \
    if (i < reach)                                                                                           \
        shoal_rows_prefetch(rows + out[i] * stride, stride);                                                 \
    i += (part) >= (threshold)
    if (range <= UINT32_MAX) {
        const uint32_t short_range = (uint32_t)range, threshold = -short_range % short_range;
        while (i < count) {
            const uint64_t drawn = shoal_random64(&own);
            const uint64_t high = (drawn >> 32) * range, low = (drawn & UINT32_MAX) * range;
            ACCEPT(high >> 32, (uint32_t)high, threshold);
            if (i < count) {
                ACCEPT(low >> 32, (uint32_t)low, threshold);
            }
        }
    } else {
        const uint64_t threshold = -range % range;
        while (i < count) {
            const shoal_u128 product = (shoal_u128)shoal_random64(&own) * range;
            ACCEPT((uint64_t)(product >> 64), (uint64_t)product, threshold);
        }
    }
    *rng = own;
}

/* Copies the rows in slots[begin .. end - 1] and stores their ids. Replaces a slot by SHOAL_ROWS_MISSING if
 * its row is being written, or its writer died. Returns how many are missing. */
static uint64_t gather(const shoal_ring *ring, shoal_columns columns, uint64_t begin, uint64_t end,
                       uint64_t *slots, void *const *out, uint64_t *ids, int is_large) {
    const uint64_t block = shoal_rows_block(ring);
    const uint64_t reach = shoal_rows_reach(ring);
    uint64_t missing = 0;
    if (begin != 0) /* the draw prefetched the first rows */
        prefetch(ring, slots + begin, shoal_min(reach, end - begin));
    for (uint64_t at = begin, now; at < end; at += now) {
        uint64_t words[SHOAL_ROWS_AHEAD];
        now = shoal_min(block, end - at);
        if (end - at > reach) /* these arrive while the rows below are copied */
            prefetch(ring, slots + at + reach, shoal_min(now, end - at - reach));
        copy_rows(ring, columns, slots + at, at, now, out, words, is_large);
        for (uint64_t i = at; i < at + now; i++) {
            const uint64_t word = words[i - at];
            ids[i] = shoal_ring_id(ring, slots[i], word);
            slots[i] = word == 0 ? SHOAL_ROWS_MISSING : slots[i];
            missing += word == 0;
        }
    }
    return missing;
}

typedef struct job {
    const shoal_ring *ring;
    shoal_columns columns;
    uint64_t count;
    void *const *out;
    uint64_t *slots, *ids;
    uint32_t chunks, threads;
    uint64_t bytes;
} job;

static uint64_t gather_chunk(void *context, uint32_t chunk) {
    job *j = context;
    const uint64_t begin = j->count * chunk / j->chunks, end = j->count * (chunk + 1) / j->chunks;
    return gather(j->ring, j->columns, begin, end, j->slots, j->out, j->ids,
                  shoal_rows_is_large(j->bytes, j->threads));
}

static uint64_t gather_all(void *context) {
    job *j = context;
    return gather(j->ring, j->columns, 0, j->count, j->slots, j->out, j->ids,
                  shoal_rows_is_large(j->bytes, 1));
}

uint64_t shoal_ring_gather(const shoal_ring *ring, shoal_columns columns, uint64_t count, uint64_t *slots,
                           void *const *out, uint64_t *ids, shoal_copy_threads threads) {
    const uint64_t bytes = batch_bytes(columns, count);
    job j = {ring,
             columns,
             count,
             out,
             slots,
             ids,
             shoal_copy_chunks(threads, count, shoal_rows_least_chunk(ring)),
             threads.count,
             bytes};
    if (threads.pool == NULL)
        return gather_all(&j);
    const shoal_pool_job all = {
        .run_chunk = gather_chunk, .run_all = gather_all, .context = &j, .chunks = j.chunks};
    return shoal_choice_run(threads.choice, threads.pool, &all, 1e6 / (double)(bytes + 1));
}

uint64_t shoal_ring_draw(const shoal_ring *ring, const shoal_tree *tree, shoal_rng *rng, uint64_t count,
                         uint64_t *slots, float *weights) {
    const uint64_t used = shoal_ring_length(ring);
    if (used == 0 || (tree != NULL && !(shoal_tree_total(tree) > 0)))
        return 0;
    if (tree == NULL) {
        draw(ring, rng, used, slots, count);
    } else {
        const uint64_t reach = shoal_rows_reach(ring);
        for (uint64_t at = 0, end; at < count; at = end) {
            end = shoal_min(count, at + SHOAL_TREE_AHEAD);
            shoal_tree_draw(tree, rng, count, at, end, slots + at, weights + at);
            if (at < reach) /* these arrive while the next are drawn */
                prefetch(ring, slots + at, shoal_min(reach, end) - at);
        }
    }
    return count;
}

int shoal_ring_redraw(const shoal_ring *ring, const shoal_tree *tree, shoal_rng *rng, shoal_columns columns,
                      uint64_t count, uint64_t *slots, void *const *out, uint64_t *ids, float *weights) {
    shoal_listed list = {NULL, NULL, 0};
    uint64_t misses = 0;
    int found = 1;
    for (uint64_t place = 0; place < count; place++)
        while (found && slots[place] == SHOAL_ROWS_MISSING) {
            if (++misses % SHOAL_LISTED_MISSES == 0) {
                found = shoal_listed_renew(&list, ring, tree, NULL, NULL);
            }
            if (list.count == 0) {
                found = found && shoal_ring_draw(ring, tree, rng, 1, &slots[place],
                                                 tree == NULL ? NULL : &weights[place]) != 0;
            } else {
                slots[place] = shoal_listed_draw(&list, rng);
                if (tree != NULL)
                    weights[place] = shoal_tree_get(tree, slots[place]);
            }
            if (found)
                (void)gather(ring, columns, place, place + 1, slots, out, ids, 0);
        }
    shoal_listed_free(&list);
    return found;
}

uint64_t shoal_ring_set_new_weights(const shoal_ring *ring, shoal_tree *tree, uint64_t seen, float weight) {
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

uint64_t shoal_ring_set_weights(const shoal_ring *ring, shoal_tree *tree, uint64_t seen, const uint64_t *ids,
                                const float *weights, uint64_t count, uint64_t *slots, float *kept) {
    uint64_t number = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t slot = ids[i] % ring->capacity, word = shoal_ring_load_full(ring, slot);
        if (word == 0 || shoal_ring_id(ring, slot, word) != ids[i] || ids[i] + ring->capacity < seen)
            continue; /* a newer row is in the slot or being written; the weight belongs to that row */
        slots[number] = slot;
        kept[number++] = weights[i];
    }
    shoal_tree_set(tree, slots, kept, number);
    return number;
}

void shoal_ring_ids(const shoal_ring *ring, const uint64_t *slots, uint64_t count, uint64_t *ids) {
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t word = shoal_ring_load_full(ring, slots[i] % ring->capacity);
        ids[i] = word == 0 ? SHOAL_ROWS_MISSING : shoal_ring_id(ring, slots[i] % ring->capacity, word);
    }
}

static int compare_ids(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Does the same by loading every word: rows can be more than a lap behind the tail if tickets were skipped.
 * Returns 0 and writes nothing if it cannot allocate memory. */
static uint64_t scan_for_latest(const shoal_ring *ring, uint64_t count, uint64_t *ids) {
    uint64_t *all = malloc(ring->capacity * sizeof *all), found = 0;
    for (uint64_t slot = 0; all != NULL && slot < ring->capacity; slot++) {
        const uint64_t word = shoal_ring_load_full(ring, slot);
        if (word != 0)
            all[found++] = shoal_ring_id(ring, slot, word);
    }
    const uint64_t done = shoal_min(found, count);
    if (done != 0) {
        qsort(all, found, sizeof *all, compare_ids);
        memcpy(ids, all + found - done, done * sizeof *ids);
    }
    free(all);
    return done;
}

uint64_t shoal_ring_latest(const shoal_ring *ring, uint64_t count, uint64_t *ids) {
    const uint64_t tail = atomic_load_explicit(ring->tail, memory_order_acquire);
    uint64_t done = 0;
    for (uint64_t back = 1; back <= tail && back <= ring->capacity && done < count; back++) {
        const uint64_t ticket = tail - back, slot = ticket % ring->capacity;
        const uint64_t word = shoal_ring_load_full(ring, slot);
        if (word != 0 && shoal_ring_id(ring, slot, word) == ticket)
            ids[done++] = ticket;
    }
    if (done < count && done < shoal_min(tail, ring->capacity)) {
        const uint64_t more = scan_for_latest(ring, count, ids);
        if (more != 0)
            return more;
    }
    for (uint64_t i = 0; i < done / 2; i++) {
        const uint64_t id = ids[i];
        ids[i] = ids[done - 1 - i];
        ids[done - 1 - i] = id;
    }
    return done;
}
