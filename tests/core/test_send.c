/* Tests of core/send.c: what is refused and why, that a refused send changes no stage, that actions reach
 * their rows, and that any threads may do the pieces. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "send.h"

#include "check.h"

#include <pthread.h>
#include <string.h>

enum { MOST_ENVS = 1 << 15, HELPERS = 3 };

static shoal_field fields[2] = {
    {.name = "move", .dtype = {SHOAL_CODE_INT, 64, 1}, .kind = SHOAL_DISCRETE, .high = 2},
    {.name = "force", .dtype = {SHOAL_CODE_FLOAT, 32, 1}, .kind = SHOAL_BOX, .ndim = 1, .shape = {2}},
};
static shoal_description description;
static int64_t ids[MOST_ENVS + 64], moves[MOST_ENVS + 64], move_rows[4 * MOST_ENVS];
static float forces[MOST_ENVS + 64][2], force_rows[4 * MOST_ENVS][2];
static const void *const actions[] = {moves, forces};
static void *const rows[] = {move_rows, force_rows};
static unsigned long long state = 1;

static void open_send(shoal_send *send, uint64_t num_units, uint64_t unit, uint32_t lanes, uint32_t threads) {
    description.actions = (shoal_fields){.items = fields, .count = 2};
    description.spec.lanes = lanes;
    description.spec.agents = 1;
    CHECK(num_units * unit <= MOST_ENVS && num_units * lanes <= 4 * MOST_ENVS);
    CHECK_EQUAL(shoal_send_open(send, &description, num_units, unit, threads), 0);
    send->rows = rows;
}

/* All environments, in runs of about `mean` units, in random order; and their actions. */
static void draw_ids(uint64_t num_units, uint64_t unit, uint64_t mean) {
    static uint64_t begins[MOST_ENVS + 1];
    uint64_t runs = 0, at = 0;
    for (uint64_t first = 0; first < num_units; first += 1 + draw_below(&state, 2 * mean))
        begins[runs++] = first;
    begins[runs] = num_units;
    static uint64_t order[MOST_ENVS];
    for (uint64_t i = 0; i < runs; i++)
        order[i] = i;
    for (uint64_t i = runs; i > 1; i--) {
        const uint64_t k = draw_below(&state, i), kept = order[k];
        order[k] = order[i - 1];
        order[i - 1] = kept;
    }
    for (uint64_t i = 0; i < runs; i++)
        for (uint64_t env = begins[order[i]] * unit; env < begins[order[i] + 1] * unit; env++)
            ids[at++] = (int64_t)env;
    for (uint64_t i = 0; i < num_units * unit; i++) {
        moves[i] = (int64_t)draw_below(&state, 3);
        forces[i][0] = (float)i;
        forces[i][1] = -(float)i;
    }
}

static shoal_sending all_of(uint64_t num_ids) { return (shoal_sending){ids, num_ids, actions, 1, 1}; }

static void check_stages(const shoal_send *send, uint64_t stage) {
    for (uint64_t i = 0; i < send->num_units; i++)
        CHECK_EQUAL(atomic_load(&send->stages[i]), stage);
}

static void check_rows(const shoal_send *send, uint64_t num_ids) {
    for (uint64_t i = 0; i < num_ids; i++) {
        const uint64_t env = (uint64_t)ids[i], row = env / send->unit * send->lanes + env % send->unit;
        CHECK_EQUAL(move_rows[row], moves[i]);
        CHECK(force_rows[row][0] == forces[i][0] && force_rows[row][1] == forces[i][1]);
    }
}

/* The runs of all pieces have each unit once. */
static void check_runs(const shoal_send *send) {
    static uint8_t is_there[MOST_ENVS];
    memset(is_there, 0, sizeof is_there);
    uint64_t units = 0;
    for (uint32_t p = 0; p < send->num_pieces; p++)
        for (uint64_t r = 0; r < send->pieces[p].num_runs; r++)
            for (uint64_t i = 0; i < send->pieces[p].runs[r].count; i++, units++)
                CHECK_EQUAL(is_there[send->pieces[p].runs[r].first + i]++, 0);
    CHECK_EQUAL(units, send->num_units);
}

static void expect(shoal_send *send, uint64_t num_ids, shoal_refusal wanted) {
    shoal_refusal found;
    const shoal_sending sending = all_of(num_ids);
    CHECK_EQUAL(shoal_send_run(send, &sending, 0, &found), wanted.reason == SHOAL_ACCEPTED);
    CHECK_EQUAL(found.reason, wanted.reason);
    CHECK_EQUAL(found.at, wanted.at);
    CHECK_EQUAL(found.field, wanted.field);
}

static void set_stages(shoal_send *send, uint64_t stage) {
    for (uint64_t i = 0; i < send->num_units; i++)
        atomic_store(&send->stages[i], stage);
}

/* Every kind of wrong send, at any place, with one piece and with several. */
static void faults_are_found_and_change_nothing(void) {
    for (int turn = 0; turn < 3000; turn++) {
        shoal_send send;
        const uint64_t unit = UINT64_C(1) << draw_below(&state, 6), mean = 1 + draw_below(&state, 100);
        const uint64_t num_units = 2 + draw_below(&state, (turn % 8 == 0 ? MOST_ENVS : 2000) / unit - 1);
        const uint64_t num_ids = num_units * unit, bad = draw_below(&state, num_ids),
                       begin = bad / unit * unit;
        open_send(&send, num_units, unit, (uint32_t)(unit << draw_below(&state, 2)),
                  1 + (uint32_t)draw_below(&state, 40));
        draw_ids(num_units, unit, mean);
        const int64_t id = ids[bad], move = moves[bad];
        ids[bad] = (int64_t)(turn % 3 == 0   ? num_ids + draw_below(&state, 5)
                             : turn % 3 == 1 ? -1 - draw_below(&state, 5)
                                             : num_ids << 40);
        expect(&send, num_ids, (shoal_refusal){SHOAL_BAD_ID, begin, 0});
        check_stages(&send, SHOAL_IDLE);
        ids[bad] = id;
        moves[bad] = 3 + (int64_t)draw_below(&state, 2) * -5;
        expect(&send, num_ids, (shoal_refusal){SHOAL_BAD_ACTION, bad, 0});
        moves[bad] = move;
        forces[bad][1] = __builtin_nanf("");
        expect(&send, num_ids, (shoal_refusal){SHOAL_BAD_ACTION, bad, 1});
        check_stages(&send, SHOAL_IDLE);
        forces[bad][1] = 0;
        const uint64_t other = (begin / unit + 1 + draw_below(&state, num_units - 1)) % num_units * unit;
        int64_t kept[64];
        memcpy(kept, ids + begin, unit * sizeof *ids); /* a unit that is there twice */
        memcpy(ids + begin, ids + other, unit * sizeof *ids);
        shoal_refusal found;
        const shoal_sending sending = all_of(num_ids);
        CHECK_EQUAL(shoal_send_run(&send, &sending, 0, &found), 0);
        CHECK_EQUAL(found.reason, SHOAL_SENT_TWICE);
        CHECK_EQUAL(ids[found.at], ids[begin]);
        check_stages(&send, SHOAL_IDLE);
        memcpy(ids + begin, kept, unit * sizeof *ids);
        const uint64_t busy = draw_below(&state, num_units);
        atomic_store(&send.stages[busy], SHOAL_UNDER_WAY);
        CHECK_EQUAL(shoal_send_run(&send, &sending, 0, &found), 0);
        CHECK_EQUAL(found.reason, SHOAL_SENT_TWICE);
        CHECK_EQUAL(ids[found.at], busy * unit);
        CHECK_EQUAL(atomic_load(&send.stages[busy]), SHOAL_UNDER_WAY);
        atomic_store(&send.stages[busy], SHOAL_IDLE);
        check_stages(&send, SHOAL_IDLE);
        expect(&send, num_ids, (shoal_refusal){SHOAL_ACCEPTED, 0, 0});
        check_stages(&send, SHOAL_UNDER_WAY);
        check_rows(&send, num_ids);
        check_runs(&send);
        shoal_send_close(&send);
    }
}

static void part_of_a_unit_is_refused(void) {
    shoal_send send;
    open_send(&send, 600, 8, 8, 4);
    draw_ids(600, 8, 600);
    for (uint64_t num_ids = 4100; num_ids < 4120; num_ids++) {
        expect(&send, num_ids,
               num_ids % 8 == 0 ? (shoal_refusal){SHOAL_ACCEPTED, 0, 0}
                                : (shoal_refusal){SHOAL_BAD_ID, num_ids / 8 * 8, 0});
        set_stages(&send, SHOAL_IDLE);
    }
    ids[20] = ids[21]; /* in the middle of a unit */
    expect(&send, 4800, (shoal_refusal){SHOAL_BAD_ID, 16, 0});
    shoal_send_close(&send);
}

static void more_ids_than_environments_are_refused(void) {
    for (uint64_t unit = 1; unit <= 16; unit *= 4) {
        shoal_send send;
        open_send(&send, 8192 / unit, unit, (uint32_t)unit, 4);
        draw_ids(8192 / unit, unit, 1); /* room for all runs must suffice */
        memcpy(ids + 8192, ids, 64 * sizeof *ids);
        shoal_refusal found;
        const shoal_sending sending = all_of(8192 + unit);
        CHECK_EQUAL(shoal_send_run(&send, &sending, 0, &found), 0);
        CHECK_EQUAL(found.reason, SHOAL_SENT_TWICE);
        check_stages(&send, SHOAL_IDLE);
        shoal_send_close(&send);
    }
}

static void a_unit_can_be_sent_when_its_batch_was_received(void) {
    shoal_send send;
    shoal_refusal found;
    open_send(&send, 8, 1, 1, 1);
    draw_ids(8, 1, 8);
    const shoal_sending sending = all_of(8);
    for (uint64_t received = 0; received < 5; received++)
        for (uint64_t batch = 0; batch < 5; batch++) {
            set_stages(&send, SHOAL_IDLE);
            atomic_store(&send.stages[3], SHOAL_IN_BATCH + batch);
            CHECK_EQUAL(shoal_send_run(&send, &sending, received, &found), batch < received);
            CHECK(batch < received || atomic_load(&send.stages[3]) == SHOAL_IN_BATCH + batch);
        }
    shoal_send_close(&send);
}

static void checks_can_be_left_out(void) {
    shoal_send send;
    shoal_refusal found;
    open_send(&send, 4, 1, 1, 1);
    draw_ids(4, 1, 4);
    moves[1] = 7;
    forces[2][0] = __builtin_nanf("");
    for (int ranges = 0; ranges < 2; ranges++)
        for (int nan = 0; nan < 2; nan++) {
            const shoal_sending sending = {ids, 4, actions, ranges, nan};
            const int is_accepted = shoal_send_run(&send, &sending, 0, &found);
            CHECK_EQUAL(is_accepted, !ranges && !nan);
            CHECK(is_accepted || found.field == !ranges); /* ranges: both kinds of fields are checked */
            set_stages(&send, SHOAL_IDLE);
        }
    shoal_send_close(&send);
}

static shoal_send shared;
static _Atomic int has_ended;
static _Atomic uint64_t helped;

static void *help(void *number) {
    while (!atomic_load(&has_ended))
        if (shoal_send_needs_help(&shared)) {
            shoal_send_help(&shared, *(const uint32_t *)number);
            atomic_fetch_add(&helped, 1);
        }
    return NULL;
}

static void helpers_do_pieces_of_the_current_send_only(void) {
    static const uint32_t numbers[HELPERS] = {0, 1, 2};
    pthread_t threads[HELPERS];
    const uint64_t units = MOST_ENVS / 4;
    open_send(&shared, units, 4, 4, HELPERS);
    for (int i = 0; i < HELPERS; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, help, (void *)&numbers[i]), 0);
    const int turns = UNDER_SANITIZERS ? 60 : 300;
    for (int turn = 0; turn < turns || (atomic_load(&helped) == 0 && turn < 100000); turn++) {
        draw_ids(units, 4, 1 + draw_below(&state, 300));
        const uint64_t twice = draw_below(&state, units);
        if (turn % 2 == 1) { /* in another piece, or in the same */
            memcpy(ids + twice * 4, ids + (twice + 1 + draw_below(&state, units - 1)) % units * 4,
                   4 * sizeof *ids);
            shoal_refusal found;
            const shoal_sending sending = all_of(MOST_ENVS);
            CHECK_EQUAL(shoal_send_run(&shared, &sending, 0, &found), 0);
            CHECK_EQUAL(found.reason, SHOAL_SENT_TWICE);
            check_stages(&shared, SHOAL_IDLE);
        } else {
            expect(&shared, MOST_ENVS, (shoal_refusal){SHOAL_ACCEPTED, 0, 0});
            check_stages(&shared, SHOAL_UNDER_WAY);
            check_rows(&shared, MOST_ENVS);
            check_runs(&shared);
            set_stages(&shared, SHOAL_IDLE);
        }
    }
    atomic_store(&has_ended, 1);
    for (int i = 0; i < HELPERS; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    CHECK(atomic_load(&helped) != 0);
    shoal_send_close(&shared);
}

int main(void) {
    RUN(faults_are_found_and_change_nothing);
    RUN(part_of_a_unit_is_refused);
    RUN(more_ids_than_environments_are_refused);
    RUN(a_unit_can_be_sent_when_its_batch_was_received);
    RUN(checks_can_be_left_out);
    RUN(helpers_do_pieces_of_the_current_send_only);
    return 0;
}
