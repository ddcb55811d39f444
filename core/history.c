/* The bins of a history: see history.h. */
// SPDX-License-Identifier: MIT
#include "history.h"

#include "ring.h" /* shoal_racy_copy */

#include <math.h>
#include <string.h>

_Static_assert(SHOAL_HISTORY_BINS % 2 == 0, "levels merge pairs");
_Static_assert(sizeof(shoal_bin) == 32 + 16 * SHOAL_HISTORY_CURVES, "readers in Python know this layout");

/* Copies while another thread may read or write the same bytes. */
static void copy_racy(void *to, const void *from, uint64_t bytes) { shoal_racy_copy(to, from, bytes); }

static void merge_curve(shoal_curve *into, const shoal_curve *from) {
    if (!(from->weight > 0))
        return;
    if (!(into->weight > 0)) {
        *into = *from;
        return;
    }
    const double weight = (double)into->weight + from->weight;
    into->mean = (float)(into->mean * (into->weight / weight) + from->mean * ((double)from->weight / weight));
    into->low = from->low < into->low ? from->low : into->low;
    into->high = from->high > into->high ? from->high : into->high;
    into->weight = (float)weight;
}

void shoal_bin_merge(shoal_bin *into, const shoal_bin *from) {
    into->end = from->end;
    into->steps = from->steps;
    into->episodes = from->episodes;
    for (int i = 0; i < SHOAL_HISTORY_CURVES; i++)
        merge_curve(&into->curves[i], &from->curves[i]);
}

void shoal_ranges_merge(shoal_range into[2], const shoal_range from[2]) {
    for (int i = 0; i < 2; i++) {
        if (from[i].epoch > into[i].epoch) {
            into[i] = from[i];
        } else if (from[i].epoch == into[i].epoch && from[i].epoch != 0) {
            into[i].return_low = fmin(into[i].return_low, from[i].return_low);
            into[i].return_high = fmax(into[i].return_high, from[i].return_high);
            into[i].length_low = fmin(into[i].length_low, from[i].length_low);
            into[i].length_high = fmax(into[i].length_high, from[i].length_high);
        }
    }
}

static void put(shoal_history *history, uint32_t level, uint32_t place, const shoal_bin *bin) {
    const uint32_t at = (history->first[level] + place) % SHOAL_HISTORY_BINS;
    copy_racy(&history->bins[level][at], bin, sizeof *bin);
}

static shoal_bin get(const shoal_history *history, uint32_t level, uint32_t place) {
    return history->bins[level][(history->first[level] + place) % SHOAL_HISTORY_BINS];
}

static void set_level(shoal_history *history, uint32_t level, uint32_t first, uint32_t count) {
    copy_racy(&history->first[level], &first, sizeof first);
    copy_racy(&history->count[level], &count, sizeof count);
}

/* Merges all bins of the last level in pairs, once in months. */
static void halve(shoal_history *history, uint32_t level) {
    const uint32_t half = SHOAL_HISTORY_BINS / 2;
    for (uint32_t i = 0; i < half; i++) {
        shoal_bin older = get(history, level, 2 * i), newer = get(history, level, 2 * i + 1);
        shoal_bin_merge(&older, &newer);
        put(history, level, i, &older);
    }
    set_level(history, level, history->first[level], half);
}

void shoal_history_add(shoal_history *history, const shoal_bin *bin) {
    const uint64_t sequence = atomic_load_explicit(&history->sequence, memory_order_relaxed);
    atomic_store_explicit(&history->sequence, (sequence + 1) | 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* partner: the reader's fence */
    shoal_bin moving = *bin;
    for (uint32_t level = 0; level < SHOAL_HISTORY_LEVELS; level++) {
        uint32_t first = history->first[level], count = history->count[level];
        const int is_full = count == SHOAL_HISTORY_BINS;
        if (is_full && level == SHOAL_HISTORY_LEVELS - 1) {
            halve(history, level);
            count = history->count[level];
        } else if (is_full) {
            shoal_bin oldest = get(history, level, 0), second = get(history, level, 1);
            shoal_bin_merge(&oldest, &second);
            first = (first + 2) % SHOAL_HISTORY_BINS;
            count -= 2;
            set_level(history, level, first, count);
            put(history, level, count, &moving);
            set_level(history, level, first, count + 1);
            moving = oldest;
            continue;
        }
        put(history, level, count, &moving);
        set_level(history, level, history->first[level], count + 1);
        break;
    }
    atomic_store_explicit(&history->sequence, ((sequence + 1) | 1) + 1, memory_order_release);
}

void shoal_history_collect(const shoal_history *history, uint32_t epoch, shoal_bin *bin) {
    uint32_t names = atomic_load_explicit(&history->names, memory_order_acquire);
    names = names > SHOAL_HISTORY_LOGGED ? SHOAL_HISTORY_LOGGED : names;
    for (uint32_t i = 0; i < names; i++) {
        shoal_accumulator turn;
        copy_racy(&turn, &history->logged[i].turns[epoch % 2], sizeof turn);
        if (turn.epoch == epoch && turn.count > 0)
            bin->curves[SHOAL_CURVE_LOGGED + i] = (shoal_curve){
                (float)(turn.sum / turn.count), (float)turn.low, (float)turn.high, (float)turn.count};
    }
}

int32_t shoal_history_add_name(shoal_history *history, const char *name, uint64_t bytes) {
    const uint32_t index = atomic_load_explicit(&history->names, memory_order_relaxed);
    if (index >= SHOAL_HISTORY_LOGGED || bytes >= SHOAL_HISTORY_NAME_BYTES)
        return -1;
    memcpy(history->logged[index].name, name, bytes);
    atomic_store_explicit(&history->names, index + 1, memory_order_release); /* partner: readers of names */
    return (int32_t)index;
}

void shoal_history_log(shoal_history *history, uint32_t index, double value) {
    shoal_logged *logged = &history->logged[index];
    const uint32_t epoch = atomic_load_explicit(&history->epoch, memory_order_relaxed);
    shoal_accumulator turn = logged->turns[epoch % 2];
    if (turn.epoch != epoch)
        turn = (shoal_accumulator){.epoch = epoch};
    if (isfinite(value)) { /* a gap in the curve shows the other values */
        turn.low = turn.count > 0 && turn.low < value ? turn.low : value;
        turn.high = turn.count > 0 && turn.high > value ? turn.high : value;
        turn.sum += value;
        turn.count += 1;
    }
    const uint64_t times = logged->times + 1;
    copy_racy(&logged->turns[epoch % 2], &turn, sizeof turn);
    copy_racy(&logged->last, &value, sizeof value);
    copy_racy(&logged->times, &times, sizeof times);
}

static int64_t copy_bins(const shoal_history *history, shoal_bin *out) {
    int64_t copied = 0;
    for (uint32_t level = SHOAL_HISTORY_LEVELS; level-- > 0;) {
        uint32_t first, count;
        copy_racy(&first, &history->first[level], sizeof first);
        copy_racy(&count, &history->count[level], sizeof count);
        if (first >= SHOAL_HISTORY_BINS || count > SHOAL_HISTORY_BINS)
            return -1; /* damaged, or torn */
        const uint32_t straight = SHOAL_HISTORY_BINS - first < count ? SHOAL_HISTORY_BINS - first : count;
        copy_racy(out + copied, &history->bins[level][first], straight * sizeof *out);
        copy_racy(out + copied + straight, &history->bins[level][0], (count - straight) * sizeof *out);
        copied += count;
    }
    return copied;
}

int64_t shoal_history_read(const shoal_history *history, shoal_bin *out, uint64_t timeout_ns) {
    const uint64_t begin = shoal_now_ns();
    do {
        const uint64_t sequence = atomic_load_explicit(&history->sequence, memory_order_acquire);
        if (sequence % 2 == 0) {
            const int64_t copied = copy_bins(history, out);
            atomic_thread_fence(memory_order_acquire);
            if (copied >= 0 && atomic_load_explicit(&history->sequence, memory_order_relaxed) == sequence)
                return copied;
        }
        shoal_relax();
    } while (shoal_now_ns() - begin < timeout_ns);
    return -1;
}
