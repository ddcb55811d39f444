/* Linked rows: see links.h. */
// SPDX-License-Identifier: MIT
#include "links.h"

#include "rows.h"

#include <string.h>

enum { AHEAD = 16 /* entries read together */, TERMINATED = 1, TRUNCATED = 2 };
enum { ROUNDS = 64, MAX_ROUNDS = 10000 }; /* draws before building a list, and before giving up */
#define MISSING SHOAL_ROWS_MISSING

void shoal_links_set(const shoal_links *links, uint64_t *last, const uint64_t *ids, uint64_t count) {
    const uint64_t capacity = links->ring->capacity;
    uint64_t *next = links->next;
    if (count == 0)
        return;
    const uint64_t first = ids[0], before = last[0], slot = (before - 1) % capacity;
    uint64_t other = before == 0 || slot + count > capacity || ids[count - 1] - first != count - 1;
    for (uint64_t i = 0; i < count; i++)
        other |= last[i] ^ (before + i);
    for (uint64_t i = 0; i < count; i++) {
        if (other == 0) /* consecutive rows after consecutive rows */
            __atomic_store_n(&next[slot + i], first + i + 1, __ATOMIC_RELAXED);
        else if (last[i] != 0)
            __atomic_store_n(&next[(last[i] - 1) % capacity], ids[i] + 1, __ATOMIC_RELAXED);
    }
    for (uint64_t i = 0; i < count; i++)
        last[i] = ids[i] + 1;
}

/* Rows that are read together, and the result of reading them. */
typedef struct row_set {
    uint64_t count;
    uint64_t slot[AHEAD], id[AHEAD];
    uint64_t place[AHEAD];  /* its index in the output arrays */
    uint64_t origin[AHEAD]; /* the index in walk->slots where it started */
    uint64_t word[AHEAD];   /* 0 if the copy is not valid */
    uint64_t previous[AHEAD];
    uint8_t first[AHEAD];
} row_set;

/* Copies columns of records: out[c] + to[i] * bytes. The caller checks afterwards whether they were whole.
 * `is_large`: of a large batch. */
static inline void copy_columns(shoal_columns columns, shoal_word64 *const *records, const uint64_t *to,
                                uint64_t count, void *const *outs, int is_large) {
    for (uint64_t c = 0; c < columns.count; c++) {
        const uint64_t bytes = columns.items[c].bytes, offset = columns.items[c].offset;
        char *out = outs[c];
        if (bytes >= SHOAL_ROWS_STREAM_MIN && is_large) {
            for (uint64_t i = 0; i < count; i++)
                shoal_rows_stream(out + to[i] * bytes, (const char *)records[i] + offset, bytes);
            continue;
        }
#define COPY(size)                                                                                           \
    _Pragma("GCC unroll 4") for (uint64_t i = 0; i < count; i++)                                             \
        shoal_racy_copy(out + to[i] * (size), (const char *)records[i] + offset, (size))
        SHOAL_BY_SIZE(bytes, COPY)
    }
}

/* Where the columns of a row are copied: out[c] + (place * frames + frame) * bytes. */
typedef struct target {
    shoal_columns columns;
    void *const *out;
    uint64_t frames, frame;
} target;

static void read_rows(const shoal_walk *walk, row_set *rows, const target *targets, int number) {
    const shoal_links *links = walk->links;
    const shoal_ring *ring = links->ring;
    const uint64_t count = rows->count, first = links->first.offset, previous = links->previous.offset;
    shoal_word64 *records[AHEAD];
    uint64_t to[AHEAD];
    for (uint64_t i = 0; i < count; i++) {
        records[i] = shoal_ring_at(ring, rows->slot[i]);
        rows->word[i] = shoal_ring_load_full_at(records[i]);
        shoal_racy_copy((char *)&rows->previous[i], (const char *)records[i] + previous, 8);
        shoal_racy_copy((char *)&rows->first[i], (const char *)records[i] + first, 1);
    }
    for (const target *t = targets; t < targets + number; t++) {
        for (uint64_t i = 0; i < count; i++)
            to[i] = rows->place[i] * t->frames + t->frame;
        copy_columns(t->columns, records, to, count, t->out, walk->is_large);
    }
    shoal_ring_fence_copies();
    for (uint64_t i = 0; i < count; i++)
        rows->word[i] = shoal_ring_has_word(records[i], rows->word[i]) ? rows->word[i] : 0;
}

/* Whether row i was read whole and has the wanted id. */
static inline int is_there(const shoal_ring *ring, const row_set *rows, uint64_t i) {
    return rows->word[i] != 0 && shoal_ring_id(ring, rows->slot[i], rows->word[i]) == rows->id[i];
}

/* The slot of row `wanted`, computed from a row that is usually near it, because a division costs more. */
static inline uint64_t slot_from(const shoal_ring *ring, uint64_t slot, uint64_t id, uint64_t wanted) {
    const uint64_t back = id - wanted, ahead = wanted - id, capacity = ring->capacity;
    if (back < capacity)
        return slot >= back ? slot - back : slot + capacity - back;
    if (ahead < capacity)
        return slot + ahead < capacity ? slot + ahead : slot + ahead - capacity;
    return wanted % capacity;
}

/* Appends row i of `rows` to `kept`, which can be the same set, with `id` as the row to read. */
static inline void append_row(const shoal_ring *ring, row_set *kept, const row_set *rows, uint64_t i,
                              uint64_t id) {
    const uint64_t slot = slot_from(ring, rows->slot[i], rows->id[i], id), at = kept->count++;
    kept->place[at] = rows->place[i];
    kept->origin[at] = rows->origin[i];
    kept->slot[at] = slot;
    kept->id[at] = id;
}

/* Repeats a frame, the first of its episode, in the earlier places of its stack. */
static void repeat_frame(const shoal_walk *walk, void *const *out, uint64_t place, uint64_t frame) {
    for (uint64_t c = 0; c < walk->obs.count; c++) {
        const uint64_t bytes = walk->obs.items[c].bytes;
        char *begin = (char *)out[c] + place * walk->stack * bytes;
        for (uint64_t k = 0; k < frame; k++)
            memcpy(begin + k * bytes, begin + frame * bytes, bytes);
    }
}

/* Reads the stack of each row: the row and the ones before it. Copies them to `out` and, one place earlier,
 * to `next_out`; both may be NULL. Marks entries as MISSING if a row cannot be read. */
static void read_stacks(const shoal_walk *walk, row_set *rows, void *const *out, void *const *next_out) {
    const shoal_ring *ring = walk->links->ring;
    for (uint64_t frame = walk->stack - 1;; frame--) {
        const target frames[] = {{walk->obs, out, walk->stack, frame},
                                 {walk->obs, next_out, walk->stack, frame - 1}};
        const int has_next = next_out != NULL && frame != 0;
        const uint64_t count = rows->count;
        read_rows(walk, rows, frames, out == NULL ? 0 : 1 + has_next);
        rows->count = 0;
        for (uint64_t i = 0; i < count; i++) {
            if (!is_there(ring, rows, i)) {
                walk->slots[rows->origin[i]] = MISSING;
            } else if (frame != 0 && rows->first[i]) {
                if (out != NULL)
                    repeat_frame(walk, out, rows->place[i], frame);
                if (has_next)
                    repeat_frame(walk, next_out, rows->place[i], frame - 1);
            } else if (frame != 0 && rows->previous[i] == 0) {
                walk->slots[rows->origin[i]] = MISSING;
            } else if (frame != 0) {
                append_row(ring, rows, rows, i, rows->previous[i] - 1);
            }
        }
        if (rows->count == 0)
            return;
    }
}

/* A row's word, its links, and the step that led to it. */
typedef struct step {
    uint64_t id, slot, word, previous;
    float reward;
    uint8_t first, terminated, truncated;
} step;

/* Loads the row in a slot. It is valid if its word is FULL, which is not checked here, and has not changed
 * after the fence. */
static inline void load_step(const shoal_links *links, uint64_t slot, step *found) {
    shoal_word64 *record = shoal_ring_at(links->ring, slot);
    const char *row = (const char *)record;
    found->slot = slot;
    found->word = shoal_ring_load_at(record);
    shoal_racy_copy((char *)&found->previous, row + links->previous.offset, 8);
    shoal_racy_copy((char *)&found->reward, row + links->step[0].offset, 4);
    shoal_racy_copy((char *)&found->first, row + links->first.offset, 1);
    shoal_racy_copy((char *)&found->terminated, row + links->step[TERMINATED].offset, 1);
    shoal_racy_copy((char *)&found->truncated, row + links->step[TRUNCATED].offset, 1);
}

/* Reads the row `id` in its slot. Returns whether it is whole and follows the row `before`. */
static inline int read_step(const shoal_links *links, uint64_t slot, uint64_t id, uint64_t before,
                            step *found) {
    const shoal_ring *ring = links->ring;
    load_step(links, slot, found);
    found->id = id;
    shoal_ring_fence_copies();
    return shoal_ring_state(found->word) == SHOAL_RING_FULL && found->previous == before + 1 &&
           shoal_ring_id(ring, slot, found->word) == id &&
           shoal_ring_has_word(shoal_ring_at(ring, slot), found->word);
}

/* Counts how often the next row was at the guessed slot, and how often not. */
typedef struct guesses {
    uint64_t right, wrong;
    int are_useful; /* guess in this block */
} guesses;

static inline void judge_guesses(guesses *guesses, const shoal_links *links) {
    guesses->are_useful = links->apart < links->ring->capacity && guesses->wrong <= guesses->right + AHEAD;
}

/* Reads the step after a row by its forward link. Its word is 0 if there is none. This function is not
 * inlined, and takes and returns values, so that the caller keeps its own in registers. */
static __attribute__((noinline)) step follow_link(const shoal_links *links, uint64_t slot, uint64_t id) {
    const uint64_t link = __atomic_load_n(&links->next[slot], __ATOMIC_RELAXED);
    step found;
    if (link == 0 || !read_step(links, slot_from(links->ring, slot, id, link - 1), link - 1, id, &found))
        found.word = 0;
    return found;
}

/* Reads the step after `last`. Its word is 0 if there is none. It is usually `apart` ids later, in the same
 * lap: that guess is right if the row there links back. Only if it is wrong is the forward link loaded, which
 * is another cache miss. `links` is a private copy of `shared`, or `shared` itself. */
static inline step read_next(const shoal_links *links, const shoal_links *shared, step last,
                             guesses *guesses) {
    const uint64_t slot = last.slot + links->apart;
    if (guesses->are_useful && slot < links->ring->capacity) {
        step next;
        load_step(links, slot, &next);
        next.id = last.id + links->apart;
        shoal_ring_fence_copies();
        if (shoal_ring_same_lap_and_state(next.word, last.word) && next.previous == last.id + 1 &&
            shoal_ring_has_word(shoal_ring_at(links->ring, slot), next.word)) {
            guesses->right++;
            return next;
        }
        guesses->wrong++;
    }
    return follow_link(shared, last.slot, last.id);
}

/* Writes the sum of the discounted rewards of a transition and its flags. Returns its last step. */
static inline step sum_rewards(const shoal_walk *walk, const shoal_links *shared, step last, uint64_t place,
                               guesses *guesses) {
    double total = last.reward, discount = walk->gamma;
    for (uint64_t taken = 1; taken < walk->steps && (last.terminated | last.truncated) == 0; taken++) {
        const step next = read_next(walk->links, shared, last, guesses);
        if (next.word == 0 || next.first)
            break;
        total += discount * (double)next.reward;
        discount *= walk->gamma;
        last = next;
    }
    const float sum = (float)total, factor = (float)discount;
    memcpy((char *)walk->step_out[0] + place * sizeof sum, &sum, sizeof sum); /* arrays of the caller may */
    if (walk->discount != NULL)                                               /* be misaligned */
        memcpy((char *)walk->discount + place * sizeof factor, &factor, sizeof factor);
    ((uint8_t *)walk->step_out[TERMINATED])[place] = last.terminated;
    ((uint8_t *)walk->step_out[TRUNCATED])[place] = last.truncated;
    return last;
}

/* Reads the drawn rows. Keeps the ones that can be read and sets their ids. */
static void read_drawn(const shoal_walk *walk, row_set *rows, const target *targets, int number) {
    const shoal_ring *ring = walk->links->ring;
    const uint64_t count = rows->count;
    read_rows(walk, rows, targets, number);
    rows->count = 0;
    for (uint64_t i = 0; i < count; i++) {
        const int is_step = walk->length != 0 || (!rows->first[i] && rows->previous[i] != 0);
        if (rows->word[i] == 0 || !is_step) {
            walk->slots[rows->origin[i]] = MISSING;
            continue;
        }
        const uint64_t at = rows->count, previous = rows->previous[i], word = rows->word[i];
        rows->id[i] = shoal_ring_id(ring, rows->slot[i], rows->word[i]);
        if (walk->ids != NULL)
            walk->ids[rows->place[i]] = rows->id[i];
        append_row(ring, rows, rows, i, rows->id[i]);
        rows->previous[at] = previous;
        rows->word[at] = word;
    }
}

/* Which rows to prefetch for a drawn row: those it most likely links to. */
typedef struct reach {
    const char *rows;
    uint64_t capacity, stride, apart;
    uint64_t back, ahead; /* how many rows before it, and after it */
} reach;

static inline reach find_reach(const shoal_walk *walk) {
    const shoal_links *links = walk->links;
    const uint64_t steps = walk->length != 0 ? walk->length : walk->steps;
    return (reach){.rows = links->ring->rows,
                   .capacity = links->ring->capacity,
                   .stride = links->ring->stride,
                   .apart = links->apart % links->ring->capacity,
                   .back = walk->length != 0 ? 0 : shoal_min(walk->stack, 8),
                   .ahead = shoal_min(steps - 1, 8)};
}

/* Prefetches a drawn row and the rows it most likely links to. */
static inline void prefetch(const reach *reach, uint64_t drawn) {
    const uint64_t capacity = reach->capacity, apart = reach->apart;
    uint64_t slot = drawn;
    shoal_rows_prefetch(reach->rows + slot * reach->stride, reach->stride);
    for (uint64_t k = 0; k < reach->back; k++) {
        slot = slot >= apart ? slot - apart : slot + capacity - apart;
        shoal_rows_prefetch(reach->rows + slot * reach->stride, reach->stride);
    }
    slot = drawn;
    for (uint64_t k = 0; k < reach->ahead; k++) {
        slot = slot + apart < capacity ? slot + apart : slot + apart - capacity;
        shoal_rows_prefetch(reach->rows + slot * reach->stride, reach->stride);
    }
}

/* Gathers transitions without stacks, the usual case. Each has three rows: the one before the drawn row, the
 * drawn row, and the last of its steps. All their words are loaded before the copies and again after them. */
static void gather_transitions(const shoal_walk *shared, const row_set *rows, guesses *all_guesses,
                               const uint64_t *coming, uint64_t coming_count) {
    /* Private copies: no store to an output can change them, so the compiler keeps them in registers. */
    shoal_walk walk = *shared;
    shoal_links links = *walk.links;
    /* Only what does not change: another thread may push through this handle meanwhile. */
    const shoal_ring ring = {
        .rows = links.ring->rows, .capacity = links.ring->capacity, .stride = links.ring->stride};
    guesses guesses = *all_guesses;
    walk.links = &links;
    links.ring = &ring;
    const uint64_t count = rows->count;
    shoal_word64 *before[AHEAD], *drawn[AHEAD], *last[AHEAD];
    uint64_t word_before[AHEAD], word_drawn[AHEAD], word_last[AHEAD];
    const reach reach = find_reach(&walk);
    for (uint64_t i = 0; i < count; i++) {
        step found;
        if (i < coming_count)
            prefetch(&reach, coming[i]);
        load_step(&links, rows->slot[i], &found);
        found.id = shoal_ring_id(&ring, found.slot, found.word);
        const uint64_t id = found.previous - 1, slot = slot_from(&ring, found.slot, found.id, id);
        drawn[i] = shoal_ring_at(&ring, found.slot);
        before[i] = shoal_ring_at(&ring, slot);
        word_before[i] = shoal_ring_load_full_at(before[i]);
        const int is_step = (shoal_ring_state(found.word) == SHOAL_RING_FULL) & (found.first == 0) &
                            (found.previous != 0) & (word_before[i] != 0) &
                            (shoal_ring_id(&ring, slot, word_before[i]) == id);
        word_drawn[i] = is_step ? found.word : 0;
        if (walk.ids != NULL)
            walk.ids[rows->place[i]] = found.id;
        if (is_step)
            found = sum_rewards(&walk, shared->links, found, rows->place[i], &guesses);
        last[i] = shoal_ring_at(&ring, found.slot);
        word_last[i] = found.word;
    }
    copy_columns(walk.rest, drawn, rows->place, count, walk.rest_out, walk.is_large);
    copy_columns(walk.obs, before, rows->place, count, walk.obs_out, walk.is_large);
    copy_columns(walk.obs, last, rows->place, count, walk.next_out, walk.is_large);
    shoal_ring_fence_copies();
    for (uint64_t i = 0; i < count; i++) {
        const int is_whole = (word_drawn[i] != 0) & shoal_ring_has_word(drawn[i], word_drawn[i]) &
                             shoal_ring_has_word(before[i], word_before[i]) &
                             shoal_ring_has_word(last[i], word_last[i]);
        walk.slots[rows->origin[i]] = is_whole ? rows->slot[i] : MISSING;
    }
    *all_guesses = guesses;
}

/* Gathers transitions with stacks of observations. */
static void gather_stacks(const shoal_walk *walk, row_set *rows, guesses *guesses) {
    const shoal_ring *ring = walk->links->ring;
    const target targets[] = {{walk->rest, walk->rest_out, 1, 0},
                              {{walk->links->step, 3}, walk->step_out, 1, 0},
                              {walk->obs, walk->next_out, walk->stack, walk->stack - 1}};
    read_drawn(walk, rows, targets, walk->steps == 1 ? 3 : 2);
    row_set before;
    before.count = 0;
    for (uint64_t i = 0; i < rows->count; i++)
        append_row(ring, &before, rows, i, rows->previous[i] - 1);
    /* For one step, the next stack is this stack, one place earlier, and the drawn row. */
    read_stacks(walk, &before, walk->obs_out, walk->steps == 1 ? walk->next_out : NULL);
    const uint64_t count = rows->count;
    rows->count = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t place = rows->place[i];
        if (walk->slots[rows->origin[i]] == MISSING)
            continue;
        step drawn = {.id = rows->id[i],
                      .slot = rows->slot[i],
                      .word = rows->word[i],
                      .terminated = ((uint8_t *)walk->step_out[TERMINATED])[place],
                      .truncated = ((uint8_t *)walk->step_out[TRUNCATED])[place]};
        memcpy(&drawn.reward, (char *)walk->step_out[0] + place * sizeof drawn.reward, sizeof drawn.reward);
        append_row(ring, rows, rows, i, sum_rewards(walk, walk->links, drawn, place, guesses).id);
    }
    if (walk->steps > 1)
        read_stacks(walk, rows, walk->next_out, NULL);
}

/* Fills a sequence with zeros from row t on. */
static void clear_from(const shoal_walk *walk, uint64_t place, uint64_t t) {
    const uint64_t at = place * walk->length + t, left = walk->length - t;
    for (uint64_t c = 0; c < walk->rest.count; c++) {
        const uint64_t bytes = walk->rest.items[c].bytes;
        memset((char *)walk->rest_out[c] + at * bytes, 0, left * bytes);
    }
    memset(walk->mask + at, 0, left);
}

static void gather_sequences(const shoal_walk *walk, row_set *rows, guesses *guesses) {
    const shoal_links *links = walk->links;
    target all = {walk->rest, walk->rest_out, walk->length, 0};
    uint64_t length[AHEAD], places[AHEAD];
    read_drawn(walk, rows, &all, 1);
    const uint64_t drawn = rows->count;
    for (uint64_t i = 0; i < drawn; i++) {
        places[i] = rows->place[i];
        length[i] = 1;
        rows->origin[i] = i;
    }
    for (all.frame = 1; all.frame < walk->length && rows->count != 0; all.frame++) {
        uint64_t count = rows->count;
        rows->count = 0;
        for (uint64_t i = 0; i < count; i++) {
            const step last = {.id = rows->id[i], .slot = rows->slot[i], .word = rows->word[i]};
            const step next = read_next(links, links, last, guesses);
            if (next.word != 0 && (walk->across_episodes || !next.first))
                append_row(links->ring, rows, rows, i, next.id);
        }
        count = rows->count;
        read_rows(walk, rows, &all, 1);
        rows->count = 0;
        for (uint64_t i = 0; i < count; i++)
            if (is_there(links->ring, rows, i)) { /* it was not overwritten since */
                const uint64_t at = rows->count, word = rows->word[i];
                length[rows->origin[i]]++;
                append_row(links->ring, rows, rows, i, rows->id[i]);
                rows->word[at] = word;
            }
    }
    for (uint64_t i = 0; i < drawn; i++) {
        memset(walk->mask + places[i] * walk->length, 1, length[i]);
        clear_from(walk, places[i], length[i]);
    }
}

static void gather_range(const shoal_walk *walk, uint64_t begin, uint64_t end) {
    const uint64_t block = shoal_min(shoal_rows_block(walk->links->ring), AHEAD);
    const reach reach = find_reach(walk);
    guesses guesses = {0, 0, 0};
    for (uint64_t i = begin; i < end && i < begin + block; i++)
        prefetch(&reach, walk->slots[i]);
    for (uint64_t at = begin, now; at < end; at += now) {
        row_set rows;
        rows.count = now = shoal_min(block, end - at);
        judge_guesses(&guesses, walk->links);
        const uint64_t *coming = walk->slots + at + now; /* they arrive while the rows below are copied */
        const uint64_t coming_count = shoal_min(block, end - at - now);
        for (uint64_t i = 0; i < now; i++) {
            rows.slot[i] = walk->slots[at + i];
            rows.place[i] = walk->places[at + i];
            rows.origin[i] = at + i;
        }
        const int is_plain = walk->length == 0 && walk->stack == 1;
        for (uint64_t i = 0; !is_plain && i < coming_count; i++)
            prefetch(&reach, coming[i]);
        if (is_plain)
            gather_transitions(walk, &rows, &guesses, coming, coming_count);
        else if (walk->length != 0)
            gather_sequences(walk, &rows, &guesses);
        else
            gather_stacks(walk, &rows, &guesses);
    }
}

static uint64_t count_entry_bytes(const shoal_walk *walk) {
    uint64_t bytes = 0;
    for (uint64_t c = 0; c < walk->rest.count; c++)
        bytes += walk->rest.items[c].bytes * (walk->length != 0 ? walk->length : 1);
    for (uint64_t c = 0; c < walk->obs.count; c++)
        bytes += 2 * walk->obs.items[c].bytes * walk->stack;
    return bytes;
}

typedef struct job {
    shoal_walk *walk;
    uint32_t chunks;
} job;

static void set_is_large(shoal_walk *walk, uint32_t threads) {
    walk->is_large = shoal_rows_is_large(walk->count * count_entry_bytes(walk), threads);
}

static uint64_t gather_chunk(void *context, uint32_t chunk) {
    const job *j = context;
    const uint64_t count = j->walk->missing;
    gather_range(j->walk, count * chunk / j->chunks, count * (chunk + 1) / j->chunks);
    return 0;
}

static uint64_t gather_all(void *context) {
    const job *j = context;
    set_is_large(j->walk, 1);
    gather_range(j->walk, 0, j->walk->missing);
    return 0;
}

uint64_t shoal_walk_gather(shoal_walk *walk, shoal_copy_threads threads) {
    const uint64_t count = walk->missing;
    job j = {walk, shoal_copy_chunks(threads, count, shoal_rows_least_chunk(walk->links->ring))};
    const uint64_t bytes = count * count_entry_bytes(walk);
    if (threads.pool != NULL && bytes >= SHOAL_COPY_LEAST_BYTES) {
        set_is_large(walk, threads.count);
        const shoal_pool_job all = {
            .run_chunk = gather_chunk, .run_all = gather_all, .context = &j, .chunks = j.chunks};
        (void)shoal_choice_run(threads.choice, threads.pool, &all, 1e6 / (double)bytes);
    } else {
        gather_all(&j);
    }
    walk->missing = 0;
    for (uint64_t i = 0; i < count; i++)
        if (walk->slots[i] == MISSING)
            walk->places[walk->missing++] = walk->places[i];
    walk->misses += walk->missing;
    return walk->missing;
}

/* Whether the row in a slot ends a complete transition, or starts a sequence. */
static int is_whole(const void *context, uint64_t slot) {
    shoal_walk probe = *(const shoal_walk *)context;
    uint64_t found = slot;
    row_set rows = {.count = 1, .slot = {slot}, .place = {0}, .origin = {0}};
    probe.slots = &found;
    probe.ids = NULL;
    read_drawn(&probe, &rows, NULL, 0);
    if (rows.count != 0 && probe.length == 0) {
        rows.slot[0] = slot_from(probe.links->ring, rows.slot[0], rows.id[0], rows.previous[0] - 1);
        rows.id[0] = rows.previous[0] - 1;
        read_stacks(&probe, &rows, NULL, NULL);
    }
    return found != MISSING;
}

void shoal_walk_begin(shoal_walk *walk) {
    walk->missing = walk->count;
    walk->rounds = walk->misses = 0;
    walk->list = (shoal_listed){NULL, NULL, 0};
    for (uint64_t i = 0; i < walk->count; i++)
        walk->places[i] = i;
}

void shoal_walk_end(shoal_walk *walk) { shoal_listed_free(&walk->list); }

int shoal_walk_draw(shoal_walk *walk, const shoal_tree *tree, shoal_rng *rng) {
    const shoal_ring *ring = walk->links->ring;
    float *weights = tree == NULL ? NULL : walk->drawn;
    if (++walk->rounds % ROUNDS == 0 || (walk->list.count == 0 && walk->misses >= SHOAL_LISTED_MISSES)) {
        walk->misses = 0;
        if (walk->rounds > MAX_ROUNDS || !shoal_listed_renew(&walk->list, ring, tree, is_whole, walk))
            return 0;
    }
    for (uint64_t i = 0; walk->list.count != 0 && i < walk->missing; i++) {
        walk->slots[i] = shoal_listed_draw(&walk->list, rng);
        if (tree != NULL)
            weights[i] = shoal_tree_get(tree, walk->slots[i]);
    }
    if (walk->list.count == 0 && shoal_ring_draw(ring, tree, rng, walk->missing, walk->slots, weights) == 0)
        return 0;
    for (uint64_t i = 0; tree != NULL && i < walk->missing; i++)
        walk->weights[walk->places[i]] = weights[i];
    return 1;
}
