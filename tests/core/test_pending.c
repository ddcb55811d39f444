/* Tests of core/pending.h: every unit that is added is taken once, in order, by any thread; slow units are
 * taken alone; no unit waits for ever. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "pending.h"

#include "check.h"

#include <pthread.h>

enum { MOST_UNITS = 1000, TAKERS = 4, ROUNDS = 2000 };

static unsigned long long state = 1;

static uint32_t take(shoal_part *part, uint64_t *units, uint32_t most) {
    shoal_taken taken = {.units = units, .most = most, .now_ns = 1};
    shoal_pending_take(part, &taken);
    return taken.count;
}

static void parts_have_all_units_and_lines_of_their_own(void) {
    for (uint64_t units = 1; units <= 300; units++)
        for (uint32_t parts = 1; parts <= 17; parts++) {
            shoal_pending pending;
            CHECK_EQUAL(shoal_pending_open(&pending, units, parts), 0);
            uint64_t next = 0;
            for (uint32_t i = 0; i < parts; i++) {
                const shoal_part *part = &pending.parts[i];
                CHECK_EQUAL(part->first, next);
                CHECK(part->count >= units / parts && part->count <= units / parts + 1);
                CHECK_EQUAL((uintptr_t)part->bits % 128, 0);
                CHECK_EQUAL((uintptr_t)part % 128, 0);
                for (uint64_t unit = next; unit < next + part->count; unit++)
                    CHECK(shoal_pending_part_of(&pending, unit) == part);
                next += part->count;
            }
            CHECK_EQUAL(next, units);
            shoal_pending_close(&pending);
        }
}

/* Random runs and takes, against an array of flags. */
static void every_unit_is_taken_once(void) {
    for (int round = 0; round < ROUNDS; round++) {
        shoal_pending pending;
        const uint64_t units = 1 + draw_below(&state, MOST_UNITS);
        const uint32_t parts = 1 + (uint32_t)draw_below(&state, 5);
        uint8_t is_pending[MOST_UNITS] = {0};
        CHECK_EQUAL(shoal_pending_open(&pending, units, parts), 0);
        for (int turn = 0; turn < 30; turn++) {
            const uint64_t first = draw_below(&state, units);
            uint64_t count = 0;
            for (const uint64_t most = 1 + draw_below(&state, 200); count < most && first + count < units;
                 count++) {
                if (is_pending[first + count])
                    break; /* none may be added twice */
                is_pending[first + count] = 1;
            }
            shoal_pending_add(&pending, first, count);
            shoal_part *part = &pending.parts[draw_below(&state, parts)];
            uint64_t taken[MOST_UNITS];
            const uint32_t most = (uint32_t)draw_below(&state, 300);
            const uint32_t got = take(part, taken, most);
            uint64_t had = 0;
            for (uint64_t unit = part->first; unit < part->first + part->count; unit++)
                had += is_pending[unit];
            CHECK_EQUAL(got, had < most ? had : most);
            for (uint32_t i = 0; i < got; i++) {
                CHECK(taken[i] >= part->first && taken[i] < part->first + part->count);
                CHECK(is_pending[taken[i]]);
                is_pending[taken[i]] = 0;
            }
        }
        shoal_pending_close(&pending);
    }
}

static void takes_go_round(void) {
    shoal_pending pending;
    uint64_t taken[200];
    CHECK_EQUAL(shoal_pending_open(&pending, 200, 1), 0);
    shoal_pending_add(&pending, 0, 200);
    uint64_t wanted = 0;
    for (int i = 0; i < 1000; i++) { /* what was taken comes back at once, and is then the last one */
        const uint32_t count = take(pending.parts, taken, 7);
        CHECK_EQUAL(count, 7);
        for (uint32_t k = 0; k < count; k++, wanted = (wanted + 1) % 200)
            CHECK_EQUAL(taken[k], wanted);
        for (uint32_t k = 0; k < count; k++)
            shoal_pending_add(&pending, taken[k], 1);
    }
    shoal_pending_close(&pending);
}

static void a_slow_unit_is_taken_alone_and_in_its_turn(void) {
    shoal_pending pending;
    uint64_t taken[130];
    CHECK_EQUAL(shoal_pending_open(&pending, 130, 1), 0);
    const uint64_t slow[] = {0, 70};
    shoal_pending_mark(&pending, slow, 2, 1);
    shoal_pending_add(&pending, 0, 1);
    shoal_taken others = {.units = taken, .count = 1, .most = 130};
    shoal_pending_take(pending.parts, &others);
    CHECK_EQUAL(others.count, 1); /* not together with others */
    CHECK_EQUAL(take(pending.parts, taken, 130), 1);
    shoal_pending_add(&pending, 1, 129);
    CHECK_EQUAL(take(pending.parts, taken, 130), 6); /* 64 to 69: the next word */
    CHECK_EQUAL(take(pending.parts, taken, 130), 1);
    CHECK_EQUAL(taken[0], 70);
    CHECK_EQUAL(take(pending.parts, taken, 130), 122); /* 71 to 129, and 1 to 63 */
    for (int turn = 0; turn < 3; turn++) {
        atomic_store(&pending.parts->cursor, 0);
        shoal_pending_add(&pending, 0, 130);
        CHECK_EQUAL(take(pending.parts, taken, 130), 1);
        CHECK_EQUAL(taken[0], 0);
        CHECK_EQUAL(take(pending.parts, taken, 130), 69);
        CHECK(taken[0] == 1 && taken[68] == 69);
        CHECK_EQUAL(take(pending.parts, taken, 130), 1);
        CHECK_EQUAL(taken[0], 70);
        CHECK_EQUAL(take(pending.parts, taken, 130), 59);
        CHECK_EQUAL(take(pending.parts, taken, 130), 0);
    }
    atomic_store(&pending.parts->cursor, 0); /* it is the only one of its word that is pending */
    shoal_pending_add(&pending, 0, 1);
    shoal_pending_add(&pending, 64, 6);
    shoal_taken alone = {.units = taken, .most = 130};
    shoal_pending_take(pending.parts, &alone);
    shoal_pending_take(pending.parts, &alone);
    CHECK(alone.count == 1 && alone.is_slow && shoal_taken_is_full(&alone));
    CHECK_EQUAL(take(pending.parts, taken, 130), 6);
    const uint64_t fast = 70;
    shoal_pending_mark(&pending, &fast, 1, 0);
    shoal_pending_add(&pending, 60, 20);
    CHECK_EQUAL(take(pending.parts, taken, 130), 20);
    shoal_pending_close(&pending);
}

/* Several threads take the units of one part while they are added again. */
static shoal_pending shared;
static _Atomic(uint32_t) times[MOST_UNITS], left;

static void *take_all(void *unused) {
    (void)unused;
    uint64_t taken[64];
    while (atomic_load(&left) != 0) {
        const uint32_t count = take(shared.parts, taken, 64);
        for (uint32_t i = 0; i < count; i++)
            if (atomic_fetch_add(&times[taken[i]], 1) + 1 < 200)
                shoal_pending_add(&shared, taken[i], 1);
            else
                atomic_fetch_sub(&left, 1);
    }
    return NULL;
}

static void of_all_threads_that_try_one_gets_a_unit(void) {
    pthread_t threads[TAKERS];
    CHECK_EQUAL(shoal_pending_open(&shared, MOST_UNITS, 1), 0);
    atomic_store(&left, MOST_UNITS);
    shoal_pending_add(&shared, 0, MOST_UNITS);
    for (int i = 0; i < TAKERS; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, take_all, NULL), 0);
    for (int i = 0; i < TAKERS; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < MOST_UNITS; i++)
        CHECK_EQUAL(atomic_load(&times[i]), 200);
    shoal_pending_close(&shared);
}

int main(void) {
    RUN(parts_have_all_units_and_lines_of_their_own);
    RUN(every_unit_is_taken_once);
    RUN(takes_go_round);
    RUN(a_slow_unit_is_taken_alone_and_in_its_turn);
    RUN(of_all_threads_that_try_one_gets_a_unit);
    return 0;
}
