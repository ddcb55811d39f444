/* The division of chunks among threads of different speed. */
// SPDX-License-Identifier: MIT
#include "balance.h"
#include "check.h"

enum { THREADS = 16 };

static double size_of(const shoal_bound *bounds, uint32_t part) {
    return ((double)bounds[part + 1] - (double)bounds[part]) / SHOAL_BALANCE_WHOLE;
}

/* Improves until nothing changes any more; returns how often. */
static int improve(shoal_bound (*tables)[THREADS + 1], int *table, const uint32_t *paces) {
    for (int i = 0; i < 1000; i++) {
        if (!shoal_balance_improve(tables[*table], paces, THREADS, tables[!*table]))
            return i;
        *table = !*table;
    }
    return 1000;
}

static void check_that_parts_cover_all_chunks(const shoal_bound *bounds, uint32_t count) {
    for (uint32_t chunks = 0; chunks < 2000; chunks += 1 + chunks / 7) {
        CHECK_EQUAL(shoal_balance_begin(bounds, count, chunks, 0), 0);
        CHECK_EQUAL(shoal_balance_begin(bounds, count, chunks, count), chunks);
        for (uint32_t k = 0; k < count; k++) {
            const uint32_t begin = shoal_balance_begin(bounds, count, chunks, k),
                           end = shoal_balance_begin(bounds, count, chunks, k + 1);
            CHECK(begin <= end);
            CHECK(end > begin || chunks < SHOAL_BALANCE_CHUNKS * count); /* see `bounds` in pool.c */
        }
    }
}

static void parts_are_even_at_first(void) {
    shoal_bound bounds[THREADS + 1];
    for (uint32_t count = 1; count <= THREADS; count++) {
        shoal_balance_evenly(bounds, count);
        check_that_parts_cover_all_chunks(bounds, count);
        for (uint32_t chunks = SHOAL_BALANCE_CHUNKS * count, k = 0; k < count; k++)
            CHECK_EQUAL(shoal_balance_begin(bounds, count, chunks, k), chunks / count * k);
    }
}

static void few_chunks_are_divided_evenly_whatever_the_bounds_are(void) {
    shoal_bound bounds[] = {0, 1, SHOAL_BALANCE_WHOLE};
    CHECK_EQUAL(shoal_balance_begin(bounds, 2, 2 * SHOAL_BALANCE_CHUNKS - 2, 1), SHOAL_BALANCE_CHUNKS - 1);
    CHECK_EQUAL(shoal_balance_begin(bounds, 2, 2 * SHOAL_BALANCE_CHUNKS, 1), 0);
    CHECK_EQUAL(shoal_balance_begin(NULL, 2, 2 * SHOAL_BALANCE_CHUNKS, 1), SHOAL_BALANCE_CHUNKS);
}

static void bounds_that_are_nearly_even_make_even_parts(void) {
    shoal_bound bounds[THREADS + 1];
    for (int percent = -1; percent <= 1; percent++) {
        shoal_balance_evenly(bounds, THREADS);
        for (uint32_t k = 1; k < THREADS; k++)
            bounds[k] += (uint32_t)(percent * (SHOAL_BALANCE_WHOLE / THREADS / 100));
        for (uint32_t k = 0; k < THREADS; k++)
            CHECK_EQUAL(shoal_balance_begin(bounds, THREADS, THREADS * SHOAL_BALANCE_CHUNKS, k),
                        k * SHOAL_BALANCE_CHUNKS);
    }
}

static void parts_become_as_large_as_their_threads_are_fast_and_then_stay(void) {
    shoal_bound tables[2][THREADS + 1];
    uint32_t paces[THREADS];
    double speeds = 0;
    int table = 0;
    shoal_balance_evenly(tables[0], THREADS);
    for (uint32_t k = 0; k < THREADS; k++) {
        paces[k] = 1000 + 40 * (k * 7 % 11);
        speeds += 1.0 / paces[k];
    }
    const int changes = improve(tables, &table, paces);
    CHECK(changes > 0 && changes < 20);
    for (uint32_t k = 0; k < THREADS; k++) {
        const double wanted = 1.0 / paces[k] / speeds, size = size_of(tables[table], k);
        CHECK(size > 0.96 * wanted && size < 1.04 * wanted);
    }
    check_that_parts_cover_all_chunks(tables[table], THREADS);
}

static void threads_of_the_same_speed_keep_even_parts(void) {
    shoal_bound tables[2][THREADS + 1];
    uint32_t paces[THREADS];
    int table = 0;
    shoal_balance_evenly(tables[0], THREADS);
    for (uint32_t k = 0; k < THREADS; k++)
        paces[k] = 1000 + k % 2 * 20; /* two percent are noise */
    CHECK_EQUAL(improve(tables, &table, paces), 0);
}

static void no_part_has_less_than_a_quarter_of_an_even_share_or_four_times_as_much(void) {
    shoal_bound tables[2][THREADS + 1];
    uint32_t paces[THREADS];
    int table = 0;
    shoal_balance_evenly(tables[0], THREADS);
    for (uint32_t k = 0; k < THREADS; k++)
        paces[k] = k == 3 ? 1000000 : k == 5 ? 1 : 1000;
    CHECK(improve(tables, &table, paces) < 1000);
    for (uint32_t k = 0; k < THREADS; k++)
        CHECK(size_of(tables[table], k) * THREADS > 0.25 && size_of(tables[table], k) * THREADS < 4);
    check_that_parts_cover_all_chunks(tables[table], THREADS);
}

static void nothing_changes_while_a_pace_is_unknown(void) {
    shoal_bound bounds[3], next[3];
    shoal_balance_evenly(bounds, 2);
    CHECK_EQUAL(shoal_balance_improve(bounds, (uint32_t[]){1000, 0}, 2, next), 0);
    CHECK_EQUAL(shoal_balance_improve(bounds, (uint32_t[]){1000, 2000}, 2, next), 1);
}

static void a_pace_is_a_mean_in_which_a_lost_core_counts_little(void) {
    shoal_pace pace = 0;
    shoal_balance_learn(&pace, 500, 0);
    CHECK_EQUAL(pace, 0);
    for (int i = 0; i < 100; i++)
        shoal_balance_learn(&pace, 1000, 10);
    CHECK_EQUAL(pace, 1600);
    shoal_balance_learn(&pace, 10000, 10);
    CHECK_EQUAL(pace, 1700);
    for (int i = 0; i < 400; i++)
        shoal_balance_learn(&pace, 0, 10);
    CHECK(pace >= 1 && pace < 32);
    for (int i = 0; i < 400; i++)
        shoal_balance_learn(&pace, 1000, 10);
    CHECK(pace > 1500 && pace <= 1600);
    pace = 0;
    shoal_balance_learn(&pace, UINT64_C(10000000), 10); /* without a core in its first run */
    for (int i = 0; i < 60; i++)
        shoal_balance_learn(&pace, 1000, 10);
    CHECK(pace < 1800);
    pace = 0;
    shoal_balance_learn(&pace, UINT64_C(1) << 50, 1);
    shoal_balance_learn(&pace, UINT64_C(1) << 50, 1);
    CHECK_EQUAL(pace, UINT32_MAX / 2);
}

int main(void) {
    RUN(parts_are_even_at_first);
    RUN(few_chunks_are_divided_evenly_whatever_the_bounds_are);
    RUN(bounds_that_are_nearly_even_make_even_parts);
    RUN(parts_become_as_large_as_their_threads_are_fast_and_then_stay);
    RUN(threads_of_the_same_speed_keep_even_parts);
    RUN(no_part_has_less_than_a_quarter_of_an_even_share_or_four_times_as_much);
    RUN(nothing_changes_while_a_pace_is_unknown);
    RUN(a_pace_is_a_mean_in_which_a_lost_core_counts_little);
    return 0;
}
