/* Checks the ids and actions of a send, and copies the actions, in pieces. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_IDS = 2048, /* of a piece: less work is not worth moving to another core */
    BLOCK_IDS = 64,   /* ids that are compared without a branch */
    SPIN_NS = 20000,  /* the sender spins for this time for pieces of others, */
    SLEEP_NS = 50000, /* and then looks again after this time */
    WORD_UNITS = 64
};

int shoal_send_open(shoal_send *send, const shoal_description *description, uint64_t num_units, uint64_t unit,
                    uint32_t num_threads) {
    memset((void *)send, 0, sizeof *send);
    send->description = description;
    send->unit = unit;
    send->shift = (uint32_t)__builtin_ctzll(unit);
    send->num_units = num_units;
    send->agents = description->spec.agents;
    send->lanes = description->spec.lanes;
    send->num_threads = num_threads;
    send->stages = malloc(num_units * sizeof *send->stages);
    send->runs = malloc((num_units + 1) * sizeof *send->runs); /* one may be refused after all others */
    send->claimed = calloc(num_units / WORD_UNITS + 1, sizeof *send->claimed);
    if (send->stages == NULL || send->runs == NULL || send->claimed == NULL)
        return -ENOMEM;
    for (uint64_t i = 0; i < num_units; i++)
        atomic_init(&send->stages[i], SHOAL_IDLE);
    return 0;
}

void shoal_send_close(shoal_send *send) {
    free((void *)send->stages);
    free(send->runs);
    free((void *)send->claimed);
}

/* Whether `count` ids are `first`, `first` + 1 and so on. */
static int are_adjacent(const int64_t *ids, uint64_t first, uint64_t count) {
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; i++)
        wrong |= (uint64_t)ids[i] ^ (first + i);
    return wrong == 0;
}

/* How many of the ids, from `first` on, are a run of whole units; 0: not even one unit. */
static uint64_t count_adjacent(const shoal_send *send, uint64_t first, const int64_t *ids, uint64_t num_ids) {
    const uint64_t num_envs = send->num_units * send->unit;
    if (first >= num_envs || (first & (send->unit - 1)) != 0)
        return 0;
    const uint64_t most = num_ids < num_envs - first ? num_ids : num_envs - first;
    const uint64_t block = send->unit > BLOCK_IDS ? send->unit : BLOCK_IDS; /* both are powers of two */
    uint64_t count = 0;
    while (count + block <= most && are_adjacent(ids + count, first + count, block))
        count += block;
    while (count + send->unit <= most && are_adjacent(ids + count, first + count, send->unit))
        count += send->unit;
    return count;
}

/* The bits of a run's units from `at` on that are in one word; `next` is the first unit behind them. */
static uint64_t bits_from(const shoal_run *run, uint64_t at, uint64_t *next) {
    const uint64_t end = run->first + run->count, word_end = (at / WORD_UNITS + 1) * WORD_UNITS;
    *next = end < word_end ? end : word_end;
    const uint64_t count = *next - at;
    return ((count == WORD_UNITS ? 0 : UINT64_C(1) << count) - 1) << at % WORD_UNITS;
}

static void release_bits(shoal_send *send, const shoal_run *run) {
    for (uint64_t at = run->first, next; at < run->first + run->count; at = next) {
        const uint64_t bits = bits_from(run, at, &next);
        atomic_fetch_and_explicit(&send->claimed[at / WORD_UNITS], ~bits, memory_order_relaxed);
    }
}

/* Sets the bits of a run, or none. Returns the first unit that another run has claimed, or UINT64_MAX. */
static uint64_t claim_bits(shoal_send *send, const shoal_run *run) {
    for (uint64_t at = run->first, next; at < run->first + run->count; at = next) {
        const uint64_t bits = bits_from(run, at, &next);
        _Atomic(uint64_t) *word = &send->claimed[at / WORD_UNITS];
        const uint64_t both = atomic_fetch_or_explicit(word, bits, memory_order_relaxed) & bits;
        if (both != 0) {
            atomic_fetch_and_explicit(word, ~(bits & ~both), memory_order_relaxed);
            release_bits(send, &(shoal_run){run->first, at - run->first});
            return at / WORD_UNITS * WORD_UNITS + (uint64_t)__builtin_ctzll(both);
        }
    }
    return UINT64_MAX;
}

/* The first unit of a run that may not be sent, or UINT64_MAX. */
static uint64_t find_busy(const shoal_send *send, const shoal_run *run) {
    const uint64_t end = run->first + run->count, last = send->last_stage - SHOAL_IDLE;
    uint64_t wrong = 0;
    for (uint64_t i = run->first; i < end; i++) /* `under way` becomes a very large one */
        wrong |= atomic_load_explicit(&send->stages[i], memory_order_relaxed) - SHOAL_IDLE > last;
    for (uint64_t i = run->first; wrong && i < end; i++)
        if (atomic_load_explicit(&send->stages[i], memory_order_relaxed) - SHOAL_IDLE > last)
            return i;
    return UINT64_MAX;
}

static void set_stages(shoal_send *send, const shoal_run *run, uint64_t stage) {
    for (uint64_t i = run->first; i < run->first + run->count; i++)
        atomic_store_explicit(&send->stages[i], stage, memory_order_relaxed);
}

/* Claims the units of a run. Returns UINT64_MAX; or the first unit that may not be sent, and changes nothing.
 */
static uint64_t claim_run(shoal_send *send, const shoal_run *run) {
    const int has_bits = send->num_pieces > 1;
    uint64_t bad = has_bits ? claim_bits(send, run) : UINT64_MAX;
    if (bad != UINT64_MAX)
        return bad;
    bad = find_busy(send, run);
    if (bad == UINT64_MAX)
        set_stages(send, run, SHOAL_UNDER_WAY);
    else if (has_bits)
        release_bits(send, run);
    return bad;
}

static shoal_refusal claim_runs(shoal_send *send, shoal_piece *piece, uint64_t begin, uint64_t end) {
    for (uint64_t at = begin, count; at < end; at += count) {
        const uint64_t first = (uint64_t)send->now.ids[at]; /* a negative id becomes a very large one */
        count = count_adjacent(send, first, send->now.ids + at, end - at);
        if (count == 0)
            return (shoal_refusal){.reason = SHOAL_BAD_ID, .at = at};
        shoal_run *run = &piece->runs[piece->num_runs];
        *run = (shoal_run){first >> send->shift, count >> send->shift};
        const uint64_t bad = claim_run(send, run);
        if (bad != UINT64_MAX)
            return (shoal_refusal){.reason = SHOAL_SENT_TWICE,
                                   .at = at + ((bad - run->first) << send->shift)};
        piece->num_runs++;
    }
    return (shoal_refusal){.reason = SHOAL_ACCEPTED};
}

static int is_checked(const shoal_send *send, const shoal_field *field) {
    return send->now.checks_ranges || (send->now.checks_nan && field->dtype.code == SHOAL_CODE_FLOAT);
}

static shoal_refusal check_actions(const shoal_send *send, uint64_t begin, uint64_t end) {
    const shoal_fields *fields = &send->description->actions;
    for (uint64_t f = 0; f < fields->count; f++) {
        const shoal_field *field = &fields->items[f];
        if (!is_checked(send, field))
            continue;
        const char *rows =
            (const char *)send->now.actions[f] + begin * send->agents * shoal_field_bytes(field);
        const int64_t bad = shoal_engine_bad_action(field, rows, (end - begin) * send->agents, 1);
        if (bad >= 0)
            return (shoal_refusal){SHOAL_BAD_ACTION, begin * send->agents + (uint64_t)bad, f};
    }
    return (shoal_refusal){.reason = SHOAL_ACCEPTED};
}

/* Copies the actions of a piece, the first of which are those of id number `at`. If blocks have unused lanes,
 * the rows of two units are not adjacent. */
static void copy_actions(const shoal_send *send, const shoal_piece *piece, uint64_t at) {
    const shoal_fields *fields = &send->description->actions;
    for (uint64_t r = 0; r < piece->num_runs; r++) {
        const uint64_t parts = send->unit == send->lanes ? 1 : piece->runs[r].count;
        const uint64_t units = piece->runs[r].count / parts;
        for (uint64_t i = 0; i < parts; i++, at += units * send->unit)
            for (uint64_t f = 0; f < fields->count; f++) {
                const uint64_t bytes = shoal_field_bytes(&fields->items[f]) * send->agents;
                memcpy((char *)send->rows[f] + (piece->runs[r].first + i) * send->lanes * bytes,
                       (const char *)send->now.actions[f] + at * bytes, units * send->unit * bytes);
            }
    }
}

/* The first id of a piece. */
static uint64_t begin_of(const shoal_send *send, uint32_t piece) {
    if (piece == send->num_pieces)
        return send->now.num_ids;
    return piece == 0 ? 0 : (send->now.num_ids >> send->shift) * piece / send->num_pieces << send->shift;
}

static void do_piece(shoal_send *send, uint32_t number) {
    shoal_piece *piece = &send->pieces[number];
    const uint64_t begin = begin_of(send, number), end = begin_of(send, number + 1);
    piece->runs = send->runs + (begin >> send->shift);
    piece->num_runs = 0;
    piece->refusal = claim_runs(send, piece, begin, end);
    if (piece->refusal.reason == SHOAL_ACCEPTED)
        piece->refusal = check_actions(send, begin, end);
    if (piece->refusal.reason == SHOAL_ACCEPTED)
        copy_actions(send, piece, begin);
}

/* Takes a piece that nobody has taken, if there is one: the first from number `wanted` on. */
static int take_piece(shoal_send *send, uint32_t wanted, uint32_t *piece) {
    uint64_t open = atomic_load_explicit(&send->open, memory_order_relaxed);
    while ((uint32_t)open != 0) {
        const uint32_t left = (uint32_t)open, after = left >> wanted << wanted;
        *piece = (uint32_t)__builtin_ctz(after != 0 ? after : left);
        /* Acquire; partner: the sender, which has described the send. */
        if (atomic_compare_exchange_weak_explicit(&send->open, &open, open & ~(UINT64_C(1) << *piece),
                                                  memory_order_acquire, memory_order_relaxed))
            return 1;
    }
    return 0;
}

static void finish_piece(shoal_send *send, uint32_t piece) {
    do_piece(send, piece);
    atomic_fetch_add_explicit(&send->finished, 1, memory_order_release); /* partner: do_pieces */
}

void shoal_send_help(shoal_send *send, uint32_t thread) {
    const uint32_t most = send->num_threads < SHOAL_MOST_PIECES ? send->num_threads : SHOAL_MOST_PIECES;
    uint32_t piece;
    if (take_piece(send, (uint32_t)((uint64_t)thread * most / send->num_threads), &piece))
        finish_piece(send, piece);
}

static void do_pieces(shoal_send *send) {
    if (send->num_pieces == 1) {
        do_piece(send, 0);
        return;
    }
    atomic_store_explicit(&send->finished, 0, memory_order_relaxed);
    const uint64_t all = (UINT64_C(1) << send->num_pieces) - 1;
    atomic_store_explicit(&send->open, (uint64_t)++send->number << 32 | all, memory_order_release);
    for (uint32_t piece; take_piece(send, send->num_pieces - 1, &piece);)
        finish_piece(send, piece);
    const uint64_t begin = shoal_now_ns();
    for (uint32_t finished;
         (finished = atomic_load_explicit(&send->finished, memory_order_acquire)) != send->num_pieces;)
        if (shoal_now_ns() - begin < SPIN_NS)
            shoal_relax();
        else
            shoal_futex_wait(&send->finished, finished, SLEEP_NS);
}

/* The reason that the sender reports: a bad id before a bad action, and the first of its kind. */
static shoal_refusal first_refusal(const shoal_send *send) {
    shoal_refusal first = {.reason = SHOAL_ACCEPTED};
    for (uint32_t p = 0; p < send->num_pieces; p++) {
        const shoal_refusal *other = &send->pieces[p].refusal;
        if (other->reason == SHOAL_BAD_ID || other->reason == SHOAL_SENT_TWICE)
            return *other;
        if (other->reason == SHOAL_BAD_ACTION &&
            (first.reason == SHOAL_ACCEPTED || other->field < first.field))
            first = *other;
    }
    return first;
}

int shoal_send_run(shoal_send *send, const shoal_sending *sending, uint64_t received,
                   shoal_refusal *refusal) {
    const uint64_t pieces = sending->num_ids / LEAST_IDS;
    const uint32_t most = send->num_threads < SHOAL_MOST_PIECES ? send->num_threads : SHOAL_MOST_PIECES;
    send->now = *sending;
    send->last_stage = SHOAL_IN_BATCH + received - 1;
    send->num_pieces = pieces < 2 ? 1 : pieces < most ? (uint32_t)pieces : most;
    if (sending->num_ids > send->num_units * send->unit)
        send->num_pieces = 1; /* one is twice; a single piece stops there, so its runs have room */
    do_pieces(send);
    *refusal = first_refusal(send);
    for (uint32_t p = 0; p < send->num_pieces; p++)
        for (uint64_t r = 0; r < send->pieces[p].num_runs; r++) {
            if (send->num_pieces > 1)
                release_bits(send, &send->pieces[p].runs[r]);
            if (refusal->reason != SHOAL_ACCEPTED)
                set_stages(send, &send->pieces[p].runs[r], SHOAL_IDLE);
        }
    return refusal->reason == SHOAL_ACCEPTED;
}

void shoal_send_all(shoal_send *send) {
    send->num_pieces = 1;
    send->pieces[0] = (shoal_piece){.runs = send->runs, .num_runs = 1};
    send->runs[0] = (shoal_run){0, send->num_units};
    set_stages(send, send->runs, SHOAL_UNDER_WAY);
}
