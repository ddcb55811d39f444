/* Tests of core/settle.c against a simple implementation, with flags that other code writes between steps. */
// SPDX-License-Identifier: MIT
#include "settle.h"

#include "check.h"

#include <math.h>
#include <string.h>

enum { MOST = SHOAL_SETTLED, GUARD = 64, LIMIT = 40 };

typedef struct rows { /* one environment each; what lies behind them is nobody's */
    uint8_t reset[MOST + GUARD], terminated[MOST + GUARD], truncated[MOST + GUARD];
    double rewards[MOST + GUARD], total[MOST + GUARD], last_return[MOST + GUARD];
    uint32_t length[MOST + GUARD], last_length[MOST + GUARD], episode[MOST + GUARD];
} rows;

static rows found, expected;

static uint64_t settle_plainly(rows *at, uint64_t count, uint32_t limit, uint32_t epoch,
                               shoal_statistics *statistics) {
    uint64_t ended = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (at->reset[i]) {
            at->rewards[i] = at->total[i] = 0;
            at->terminated[i] = at->truncated[i] = at->reset[i] = 0;
            at->episode[i]++;
            at->length[i] = 0;
            continue;
        }
        statistics->steps++;
        at->total[i] += at->rewards[i];
        at->truncated[i] |= ++at->length[i] >= limit;
        at->reset[i] = at->terminated[i] | at->truncated[i];
        if (!at->reset[i])
            continue;
        at->last_return[i] = at->total[i];
        at->last_length[i] = at->length[i];
        statistics->episodes++;
        statistics->length_sum += at->length[i];
        if (isfinite(at->total[i]))
            statistics->return_sum += at->total[i];
        else
            statistics->odd_returns++;
        shoal_range_add(statistics->ranges, epoch, at->total[i], at->length[i]);
        ended++;
    }
    return ended;
}

static uint32_t draw(shoal_rng *rng, uint32_t below) { return (uint32_t)shoal_integers(rng, 0, below); }

/* What a plug-in writes; in the row of a reset anything at all. */
static void step(rows *at, uint64_t count, shoal_rng *rng, uint32_t rarity) {
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t odd = draw(rng, 900); /* the return of a few episodes is NaN or infinite */
        const double reward = odd == 1 ? INFINITY : odd == 2 ? -INFINITY : draw(rng, 100) * 0.25;
        at->rewards[i] = at->reset[i] || odd == 0 ? NAN : reward;
        at->terminated[i] = at->reset[i] || draw(rng, rarity) == 0;
        at->truncated[i] = !at->reset[i] && draw(rng, 4 * rarity) == 0;
    }
}

static void settles(uint64_t count, uint32_t rarity, shoal_rng *rng) {
    shoal_word epoch = 1;
    memset(&found, 0, sizeof found);
    memset(found.reset + count, 1, GUARD);
    shoal_engine_arrays arrays = {.reset = found.reset,
                                  .total = found.total,
                                  .length = found.length,
                                  .last_return = found.last_return,
                                  .last_length = found.last_length,
                                  .episode = found.episode,
                                  .epoch = &epoch};
    shoal_envs envs = {
        .rewards = found.rewards, .terminated = found.terminated, .truncated = found.truncated};
    shoal_due due = {.count = 0};
    shoal_statistics sum = {0}, plain = {0};
    for (int turn = 0; turn < 100; turn++) {
        if (turn % 7 == 3) /* a restored environment */
            found.reset[draw(rng, (uint32_t)count)] ^= 1;
        if (turn % 10 == 9)
            epoch++;
        step(&found, count, rng, rarity);
        expected = found;
        uint64_t ended = settle_plainly(&expected, count, LIMIT, epoch, &plain);
        CHECK_EQUAL(shoal_settle(&arrays, &envs, 0, count, LIMIT, &due, &sum), ended);
        CHECK(memcmp(&found, &expected, sizeof found) == 0);
        CHECK(memcmp(&sum, &plain, sizeof sum) == 0); /* quarters: sums are exact in any order */
        CHECK_EQUAL(due.count, ended);
        for (uint64_t i = 0; i < ended; i++)
            CHECK(found.reset[due.list[i]] && (i == 0 || due.list[i - 1] < due.list[i]));
    }
}

static void settling_equals_row_by_row_for_every_count(void) {
    shoal_rng rng = {.state_low = 1, .inc_low = 1};
    for (uint64_t count = 1; count <= 200; count++)
        settles(count, count % 3 ? 20 : 1 + (uint32_t)count % 5, &rng);
    const uint64_t more[] = {255, 256, 257, 511, 1000, 1023, 1024};
    for (uint64_t i = 0; i < sizeof more / sizeof more[0]; i++)
        for (uint32_t rarity = 1; rarity < 200; rarity *= 3)
            settles(more[i], rarity, &rng);
}

int main(void) {
    RUN(settling_equals_row_by_row_for_every_count);
    return 0;
}
