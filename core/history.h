/* The history of a session: curves over the whole run, in memory of a fixed size.
 *
 *   newest  | level 0: 256 bins of one period | level 1: bins of two | level 2: bins of four | ...  oldest
 *
 * 1. A new bin goes into level 0. A level that is full merges its two oldest bins into one bin of the next
 *    level, so the resolution halves whenever the age doubles. The last level merges its own bins.
 * 2. The only writer is the host's thread. Readers copy under a sequence lock and never write.
 * 3. A thread that logs a value adds it to an accumulator of this name. Each name has two accumulators, for
 *    even and for odd epochs. The host increments `epoch`. A writer that finds a new epoch clears the other
 *    accumulator and uses it, so the host reads one that nobody writes, and puts it into the next bin. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_HISTORY_H
#define SHOAL_HISTORY_H

#include "platform.h"
#include "window.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SHOAL_HISTORY_LEVELS = 16,
    SHOAL_HISTORY_BINS = 256, /* per level; even */
    SHOAL_HISTORY_LOGGED = 24,
    SHOAL_HISTORY_CURVES = 3 + SHOAL_HISTORY_LOGGED,
    SHOAL_HISTORY_NAME_BYTES = 64,
    SHOAL_HISTORY_PERIOD_MS = 250
};

enum shoal_history_curve { SHOAL_CURVE_RETURN, SHOAL_CURVE_LENGTH, SHOAL_CURVE_RATE, SHOAL_CURVE_LOGGED };

/* `weight` is the number of values: episodes, or calls that logged; for the rate it is seconds. 0: no value.
 */
typedef struct shoal_curve {
    float mean, low, high, weight;
} shoal_curve;

typedef struct shoal_bin {
    double begin, end;        /* seconds since the history began */
    uint64_t steps, episodes; /* of the run so far, at the end of the bin */
    shoal_curve curves[SHOAL_HISTORY_CURVES];
} shoal_bin;

/* The lowest and the highest value of one epoch, for the returns and lengths of episodes. */
typedef struct shoal_range {
    uint64_t epoch;
    double return_low, return_high, length_low, length_high;
} shoal_range;

/* Writer: the thread that logs. Reader: the host. */
typedef struct shoal_accumulator {
    uint64_t epoch;
    double sum, low, high, count;
} shoal_accumulator;

typedef struct shoal_logged {
    shoal_accumulator turns[2]; /* by epoch % 2 */
    double last;
    uint64_t times;
    char name[SHOAL_HISTORY_NAME_BYTES]; /* UTF-8, ends with NUL */
} shoal_logged;

typedef struct shoal_history {
    shoal_window_word sequence; /* odd: the host is writing bins */
    shoal_word epoch;           /* writer: the host */
    shoal_word names;           /* used entries of `logged` */
    uint32_t first[SHOAL_HISTORY_LEVELS], count[SHOAL_HISTORY_LEVELS];
    shoal_logged logged[SHOAL_HISTORY_LOGGED];
    shoal_bin bins[SHOAL_HISTORY_LEVELS][SHOAL_HISTORY_BINS];
} shoal_history;

/* Adds `from`, the later bin, to `into`. */
void shoal_bin_merge(shoal_bin *into, const shoal_bin *from);

/* Takes episodes with returns from `low` to `high` and lengths from `shortest` to `longest` into the range of
 * this epoch. [stepping thread] */
static inline void shoal_range_widen(shoal_range ranges[2], uint32_t epoch, double low, double high,
                                     double shortest, double longest) {
    shoal_range *range = &ranges[epoch % 2];
    if (range->epoch != epoch) {
        range->return_low = low;
        range->return_high = high;
        range->length_low = shortest;
        range->length_high = longest;
        range->epoch = epoch;
        return;
    }
    if (low < range->return_low)
        range->return_low = low;
    if (high > range->return_high)
        range->return_high = high;
    if (shortest < range->length_low)
        range->length_low = shortest;
    if (longest > range->length_high)
        range->length_high = longest;
}

/* Whether a return is part of sums and ranges: it is not NaN and not infinite. */
static inline int shoal_is_counted(double episode_return) { return episode_return - episode_return == 0; }

static inline void shoal_range_add(shoal_range ranges[2], uint32_t epoch, double episode_return,
                                   double length) {
    const int is_counted = shoal_is_counted(episode_return);
    const double infinity = (double)INFINITY; /* an empty range */
    shoal_range_widen(ranges, epoch, is_counted ? episode_return : infinity,
                      is_counted ? episode_return : -infinity, length, length);
}

/* Takes the ranges of another part of the run into `into`: of two epochs the newer one stays. */
void shoal_ranges_merge(shoal_range into[2], const shoal_range from[2]);

void shoal_history_add(shoal_history *history, const shoal_bin *bin); /* [host] */

/* Fills the logged curves of a bin from the accumulators of this epoch. [host] */
void shoal_history_collect(const shoal_history *history, uint32_t epoch, shoal_bin *bin);

/* Adds a name of less than SHOAL_HISTORY_NAME_BYTES; returns its index, or -1 if there is no room. */
int32_t shoal_history_add_name(shoal_history *history, const char *name, uint64_t bytes); /* [log] */
void shoal_history_log(shoal_history *history, uint32_t index, double value);             /* [log] */

/* Copies the bins, oldest first, to `out`, which has room for all levels. Returns how many, or -1 if they
 * were not whole within `timeout_ns`: the memory is damaged, or its writer died while writing. */
int64_t shoal_history_read(const shoal_history *history, shoal_bin *out, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
