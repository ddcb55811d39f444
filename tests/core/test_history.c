/* Tests of core/history.c: the bins of a run of any length, and readers beside the writer. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "history.h"

#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = SHOAL_HISTORY_LEVELS * SHOAL_HISTORY_BINS };

static shoal_history *make(void) { return aligned_alloc(64, (sizeof(shoal_history) + 63) / 64 * 64); }

static shoal_history *empty(void) {
    shoal_history *history = make();
    memset((void *)history, 0, sizeof *history);
    return history;
}

/* Bin i lasts from i to i + 1 and has one episode, whose return is i. */
static shoal_bin bin_of(uint64_t i) {
    shoal_bin bin = {.begin = (double)i, .end = (double)(i + 1), .steps = i + 1, .episodes = i + 1};
    bin.curves[SHOAL_CURVE_RETURN] = (shoal_curve){(float)i, (float)i, (float)i, 1};
    return bin;
}

/* The bins follow each other without a gap, cover everything, and none is longer than one that is older. */
static void check_bins(const shoal_bin *bins, int64_t count, uint64_t added) {
    double episodes = 0;
    for (int64_t i = 0; i < count; i++) {
        const shoal_curve *one = &bins[i].curves[SHOAL_CURVE_RETURN];
        CHECK(bins[i].begin == (i == 0 ? 0 : bins[i - 1].end));
        CHECK((double)bins[i].steps == bins[i].end);
        CHECK(i == 0 || bins[i].end - bins[i].begin <= bins[i - 1].end - bins[i - 1].begin);
        CHECK(one->low == (float)bins[i].begin && one->high == (float)(bins[i].end - 1));
        const double mean = (bins[i].begin + bins[i].end - 1) / 2;
        CHECK(one->mean - mean <= mean * 1e-5 + 1e-3 && mean - one->mean <= mean * 1e-5 + 1e-3);
        episodes += one->weight;
    }
    CHECK(count > 0 && bins[count - 1].end == (double)added && episodes == (double)added);
}

static void bins_cover_the_run_and_older_ones_are_longer(void) {
    shoal_history *history = empty();
    shoal_bin *out = malloc(MOST * sizeof *out);
    CHECK_EQUAL(shoal_history_read(history, out, 0), 0);
    for (uint64_t i = 0; i < 200000; i++) {
        shoal_bin bin = bin_of(i);
        shoal_history_add(history, &bin);
        if (i < 2000 || i % 9973 == 0)
            check_bins(out, shoal_history_read(history, out, 0), i + 1);
    }
    const int64_t count = shoal_history_read(history, out, 0);
    check_bins(out, count, 200000);
    CHECK(count < 11 * SHOAL_HISTORY_BINS);
    CHECK(out[count - 1].end - out[count - 1].begin == 1 && out[0].end - out[0].begin >= 256);
    free(out);
    free(history);
}

/* Every level is full, as after months. */
static void the_last_level_halves_itself(void) {
    shoal_history *history = empty();
    shoal_bin *out = malloc(MOST * sizeof *out);
    double at = 0;
    for (int level = SHOAL_HISTORY_LEVELS - 1; level >= 0; level--) {
        history->first[level] = 255;
        history->count[level] = SHOAL_HISTORY_BINS;
        for (uint32_t i = 0; i < SHOAL_HISTORY_BINS; i++) {
            shoal_bin bin = {.begin = at, .end = at + (double)(1 << level)};
            at = bin.end;
            bin.steps = (uint64_t)at;
            history->bins[level][(255 + i) % SHOAL_HISTORY_BINS] = bin;
        }
    }
    shoal_bin bin = {.begin = at, .end = at + 1, .steps = (uint64_t)at + 1};
    shoal_history_add(history, &bin);
    const int64_t count = shoal_history_read(history, out, 0);
    CHECK_EQUAL(count, MOST - SHOAL_HISTORY_BINS / 2 + 1 - (SHOAL_HISTORY_LEVELS - 1));
    for (int64_t i = 1; i < count; i++)
        CHECK(out[i].begin == out[i - 1].end);
    CHECK(out[0].begin == 0 && out[count - 1].end == at + 1);
    free(out);
    free(history);
}

static void damaged_levels_are_not_read(void) {
    shoal_history *history = empty();
    shoal_bin *out = malloc(MOST * sizeof *out);
    history->count[3] = SHOAL_HISTORY_BINS + 1;
    CHECK_EQUAL(shoal_history_read(history, out, 1000000), -1);
    history->count[3] = 1;
    history->first[3] = SHOAL_HISTORY_BINS;
    CHECK_EQUAL(shoal_history_read(history, out, 1000000), -1);
    history->first[3] = 0;
    atomic_store(&history->sequence, 7); /* its writer died */
    CHECK_EQUAL(shoal_history_read(history, out, 1000000), -1);
    shoal_bin bin = bin_of(0);
    history->count[3] = 0;
    shoal_history_add(history, &bin); /* another writer repairs it */
    CHECK_EQUAL(shoal_history_read(history, out, 1000000), 1);
    free(out);
    free(history);
}

static void logged_values_of_an_epoch_are_summarised(void) {
    shoal_history *history = empty();
    atomic_store(&history->epoch, 5);
    CHECK_EQUAL(shoal_history_add_name(history, "loss", 4), 0);
    CHECK_EQUAL(shoal_history_add_name(history, "entropy", 7), 1);
    const double values[] = {3, -1, 4, 2, 0.0 / 0.0, 1e300 * 1e300}; /* neither extreme is first or last */
    for (int i = 0; i < 6; i++)
        shoal_history_log(history, 0, values[i]);
    shoal_history_log(history, 1, 0.5);
    atomic_store(&history->epoch, 6);
    shoal_history_log(history, 0, 100);
    shoal_bin bin = {0};
    shoal_history_collect(history, 5, &bin);
    const shoal_curve *loss = &bin.curves[SHOAL_CURVE_LOGGED];
    CHECK(loss->mean == 2 && loss->low == -1 && loss->high == 4 && loss->weight == 4);
    CHECK(loss[1].weight == 1 && loss[1].mean == 0.5f); /* each name has its own curve */
    CHECK(loss[2].weight == 0 && history->logged[0].last == 100 && history->logged[0].times == 7);
    atomic_store(&history->epoch, 7);
    shoal_history_log(history, 1, 9); /* where the values of epoch 5 were */
    shoal_bin later = {0};
    shoal_history_collect(history, 7, &later);
    CHECK(later.curves[SHOAL_CURVE_LOGGED + 1].weight == 1 && later.curves[SHOAL_CURVE_LOGGED + 1].low == 9);
    shoal_bin next = {0};
    shoal_history_collect(history, 6, &next);
    CHECK(next.curves[SHOAL_CURVE_LOGGED].mean == 100 && next.curves[SHOAL_CURVE_LOGGED].weight == 1);
    shoal_bin none = {0};
    shoal_history_collect(history, 7, &none);
    CHECK(none.curves[SHOAL_CURVE_LOGGED].weight == 0);
    atomic_store(&history->epoch, 8);
    shoal_history_log(history, 0, 0.0 / 0.0); /* nothing but NaN */
    shoal_history_collect(history, 8, &none);
    CHECK(none.curves[SHOAL_CURVE_LOGGED].weight == 0 && none.curves[SHOAL_CURVE_LOGGED].mean == 0);
    char name[SHOAL_HISTORY_NAME_BYTES] = {0};
    CHECK_EQUAL(shoal_history_add_name(history, name, sizeof name), -1);
    for (int i = 2; i < SHOAL_HISTORY_LOGGED; i++)
        CHECK_EQUAL(shoal_history_add_name(history, "x", 1), i);
    CHECK_EQUAL(shoal_history_add_name(history, "x", 1), -1);
    free(history);
}

static void a_number_of_names_that_is_damaged_is_not_trusted(void) {
    shoal_history *history = empty();
    shoal_logged behind = {.turns[1] = {.epoch = 5, .sum = 1, .low = 1, .high = 1, .count = 1}};
    memcpy((char *)history->logged + SHOAL_HISTORY_LOGGED * sizeof behind, &behind, sizeof behind);
    atomic_store(&history->names, SHOAL_HISTORY_LOGGED + 1);
    struct {
        shoal_bin bin;
        shoal_curve behind;
    } room = {0};
    shoal_history_collect(history, 5, &room.bin);
    CHECK(room.behind.weight == 0);
    free(history);
}

static void bins_are_merged_by_the_number_of_their_values(void) {
    shoal_bin older = {.begin = 1, .end = 2, .steps = 10, .episodes = 1};
    shoal_bin newer = {.begin = 2, .end = 5, .steps = 30, .episodes = 7};
    enum { LAST = SHOAL_HISTORY_CURVES - 1 };
    older.curves[0] = (shoal_curve){10, 9, 11, 1};
    newer.curves[0] = (shoal_curve){2, -1, 4, 3};
    older.curves[1] = (shoal_curve){5, 5, 5, 2}; /* the newer bin has no value, or the older one */
    newer.curves[2] = (shoal_curve){6, 6, 6, 2};
    older.curves[LAST] = (shoal_curve){1, 1, 1, 1};
    newer.curves[LAST] = (shoal_curve){3, 3, 3, 1};
    shoal_bin_merge(&older, &newer);
    CHECK(older.begin == 1 && older.end == 5 && older.steps == 30 && older.episodes == 7);
    const shoal_curve *all = older.curves;
    CHECK(all[0].mean == 4 && all[0].low == -1 && all[0].high == 11 && all[0].weight == 4);
    CHECK(all[1].mean == 5 && all[1].low == 5 && all[1].high == 5 && all[1].weight == 2);
    CHECK(all[2].mean == 6 && all[2].low == 6 && all[2].high == 6 && all[2].weight == 2);
    CHECK(all[LAST].mean == 2 && all[LAST].high == 3 && all[LAST].weight == 2);
}

static void ranges_are_those_of_their_epoch(void) {
    shoal_range one[2] = {0}, other[2] = {0}, sum[2] = {0};
    shoal_range_add(one, 4, 10, 3);
    shoal_range_add(one, 4, -2, 9);
    shoal_range_add(other, 4, 11, 2);
    shoal_range_add(other, 5, 1, 1);
    shoal_range_add(other, 7, 50, 5); /* takes the place of epoch 5 */
    shoal_ranges_merge(sum, one);
    shoal_ranges_merge(sum, other);
    CHECK(sum[0].epoch == 4 && sum[0].return_low == -2 && sum[0].return_high == 11);
    CHECK(sum[0].length_low == 2 && sum[0].length_high == 9);
    CHECK(sum[1].epoch == 7 && sum[1].return_low == 50 && sum[1].length_high == 5);
}

static shoal_history *shared;
static shoal_word stop;

static void *add_bins(void *unused) {
    (void)unused;
    for (uint64_t i = 0; !atomic_load(&stop); i++) {
        shoal_bin bin = bin_of(i);
        shoal_history_add(shared, &bin);
        usleep(5000); /* a host rests between two bins */
    }
    return NULL;
}

static void readers_see_whole_histories_beside_the_writer(void) {
    shared = empty();
    pthread_t writer;
    CHECK_EQUAL(pthread_create(&writer, NULL, add_bins, NULL), 0);
    shoal_bin *out = malloc(MOST * sizeof *out);
    int whole = 0;
    for (const uint64_t begin = shoal_now_ns(); whole < 50 && shoal_now_ns() - begin < 20000000000;) {
        const int64_t count = shoal_history_read(shared, out, 1000000);
        if (count <= 0)
            continue; /* the writer has not started, or never rests */
        whole++;
        check_bins(out, count, out[count - 1].steps);
    }
    CHECK(whole == 50);
    atomic_store(&stop, 1);
    pthread_join(writer, NULL);
    const int64_t count = shoal_history_read(shared, out, 0);
    check_bins(out, count, out[count - 1].steps);
    free(out);
    free(shared);
}

enum { BURST = 32 };

static void *add_bins_in_bursts(void *first) {
    for (uint64_t i = *(uint64_t *)first; !atomic_load(&stop); i++) {
        shoal_bin bin = bin_of(i);
        shoal_history_add(shared, &bin);
        if (i % BURST == 0)
            usleep(20000); /* long enough for a reader */
    }
    return NULL;
}

/* A history takes longer to copy than a bin takes to add, so some copies overlap with each burst. */
static void no_copy_that_overlaps_with_a_change_is_returned(void) {
    shared = empty();
    uint64_t added = 0;
    for (; added < 600; added++) {
        shoal_bin bin = bin_of(added);
        shoal_history_add(shared, &bin);
    }
    atomic_store(&stop, 0);
    pthread_t writer;
    CHECK_EQUAL(pthread_create(&writer, NULL, add_bins_in_bursts, &added), 0);
    shoal_bin *out = malloc(MOST * sizeof *out);
    uint64_t odd = 0, whole = 0, bursts = 0;
    for (const uint64_t begin = shoal_now_ns();
         shoal_now_ns() - begin < 20000000000 && (whole < 20 || bursts < 50 || odd == 0);) {
        const int64_t count = shoal_history_read(shared, out, 100000000);
        if (count > 0)
            check_bins(out, count, out[count - 1].steps);
        whole += count > 0;
        for (int i = 0; i < 100; i++)
            odd += atomic_load(&shared->sequence) % 2; /* while a bin is added */
        bursts = (atomic_load(&shared->sequence) / 2 - added) / BURST;
    }
    atomic_store(&stop, 1);
    pthread_join(writer, NULL);
    CHECK(whole >= 20 && odd > 0);
    free(out);
    free(shared);
}

int main(void) {
    RUN(bins_cover_the_run_and_older_ones_are_longer);
    RUN(the_last_level_halves_itself);
    RUN(damaged_levels_are_not_read);
    RUN(logged_values_of_an_epoch_are_summarised);
    RUN(a_number_of_names_that_is_damaged_is_not_trusted);
    RUN(bins_are_merged_by_the_number_of_their_values);
    RUN(ranges_are_those_of_their_epoch);
    RUN(readers_see_whole_histories_beside_the_writer);
    RUN(no_copy_that_overlaps_with_a_change_is_returned);
    return 0;
}
