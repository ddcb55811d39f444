/* Tests of core/seed.c and of the draws in shoal/env.h: a seed gives the same numbers as in NumPy. */
// SPDX-License-Identifier: MIT
#include "seed.h"

#include "check.h"

/* clang-format off */
/* What numpy.random.Generator(PCG64(seed)) draws, in this order:
 *
 *   import numpy as np
 *   for s in (0, 1, 42, 2**32 - 1, 2**32, 12345678901234567, 2**63, 2**64 - 1):
 *       g = np.random.default_rng(s); raw = g.bit_generator.random_raw; i = lambda *a: int(g.integers(*a))
 *       first = [hex(raw()), hex(raw()), g.random().hex(), g.uniform(-3, 5).hex()]
 *       whole = [i(1), i(2), i(-1, 2), i(2**31), i(2**32 - 1), i(2**32), i(-7, -2)]
 *       again = g.random().hex(); total = sum(i(2**31 + 1) for _ in range(1000))
 *       print(s, first, whole, again, total, hex(raw()))
 *
 * The last range rejects every second draw; random() between integers leaves the kept half alone. */
/* clang-format on */
typedef struct draws {
    uint64_t seed, raw[2];
    double random, uniform;
    int64_t integers[7];
    double again;
    uint64_t total, end;
} draws;

static const int64_t RANGES[][2] = {
    {0, 1},   {0, 2}, {-1, 2}, {0, (int64_t)1 << 31}, {0, ((int64_t)1 << 32) - 1}, {0, (int64_t)1 << 32},
    {-7, -2},
};

/* clang-format off */
static const draws EXPECTED[] = {
    {0u, {0xa30febcfd9c2825fu, 0x4510bdf882d9d721u}, 0x1.4fa7b529d9bd0p-5, -0x1.6f136127b2f44p+1,
     {0, 0, 1, 1394609703, 3920255352, 2163061375, -4}, 0x1.758092bff1053p-1, 1092540966206u, 0x6b03f2e5d74dac26u},
    {1u, {0x8306bdf37922e4ffu, 0xf35196bbc152a866u}, 0x1.273d27b04760cp-3, 0x1.25b5615da558dp+2,
     {0, 0, -1, 1866217508, 1818173252, 1173253412, -3}, 0x1.a30519310728ep-2, 1125635306134u, 0xf0dc50d013f06240u},
    {42u, {0xc621fbcd16d92688u, 0x705a5661a791ffc1u}, 0x1.b79a2584ddb42p-1, 0x1.4a1ad83858022p+1,
     {0, 0, -1, 1130604998, 4190266092, 3160032369, -4}, 0x1.927705476f592p-1, 1087041337355u, 0x32a3aa88ce14e2e5u},
    {4294967295u, {0x407f5fa930d8fd9fu, 0x3814b22eb9684802u}, 0x1.262df73ba3636p-2, 0x1.f3ac7819b4f40p+0,
     {0, 1, 1, 282956633, 1271167209, 3628482531, -5}, 0x1.19f7554a42d78p-2, 1111387505358u, 0x470f79c12ea172f3u},
    {4294967296u, {0xe3c5ebe285ac1625u, 0x8ea09968fe31dbccu}, 0x1.9a109ff09b1bdp-1, 0x1.29bc2dd875173p+2,
     {0, 1, -1, 136066921, 1015333254, 1077298781, -4}, 0x1.4336a40d68000p-12, 1078091239358u, 0x46faa1b476c8d839u},
    {12345678901234567u, {0x570bdf409a6934c3u, 0xe59712d10496fc19u}, 0x1.f9aac1ef20e52p-1, -0x1.3a751da2cd814p+1,
     {0, 1, -1, 1700005798, 2694460858, 3284430554, -5}, 0x1.4d0e30d142bebp-1, 1050697695310u, 0x677e0a7ef880c25bu},
    {9223372036854775808u, {0xcfb443e389167cfdu, 0x98b11eb7647f71b8u}, 0x1.bc8c74286c425p-1, 0x1.9aa16c92f9c00p-2,
     {0, 0, -1, 1146866695, 980415673, 2381757361, -5}, 0x1.c078c3f6844cdp-1, 1049753528571u, 0xa1a15b3528575044u},
    {18446744073709551615u, {0xae163a7a8c47568fu, 0xd86659f5f3382359u}, 0x1.e52b195bc2d00p-8, 0x1.0a04d55e33445p+2,
     {0, 1, -1, 651460560, 1369400973, 3482351219, -5}, 0x1.7624e8c04fac8p-3, 1051771889634u, 0xa7e99ff96692a5cau},
};
/* clang-format on */

static void a_seed_draws_what_numpy_draws(void) {
    for (size_t i = 0; i < sizeof EXPECTED / sizeof EXPECTED[0]; i++) {
        const draws *expected = &EXPECTED[i];
        shoal_rng rng;
        shoal_rng_seed(&rng, expected->seed);
        for (int k = 0; k < 2; k++)
            CHECK_EQUAL(shoal_random64(&rng), expected->raw[k]);
        CHECK(shoal_random(&rng) == expected->random);
        CHECK(shoal_uniform(&rng, -3, 5) == expected->uniform);
        for (int k = 0; k < 7; k++)
            CHECK_EQUAL(shoal_integers(&rng, RANGES[k][0], RANGES[k][1]), expected->integers[k]);
        CHECK(shoal_random(&rng) == expected->again);
        uint64_t total = 0;
        for (int k = 0; k < 1000; k++)
            total += (uint64_t)shoal_integers(&rng, 0, ((int64_t)1 << 31) + 1);
        CHECK_EQUAL(total, expected->total);
        CHECK_EQUAL(shoal_random64(&rng), expected->end);
    }
}

static void seeding_again_resets_the_generator(void) {
    shoal_rng fresh, used;
    shoal_rng_seed(&fresh, 7);
    shoal_rng_seed(&used, 3);
    for (int i = 0; i < 5; i++)
        (void)shoal_random32(&used); /* leaves half a draw behind */
    CHECK_EQUAL(used.has_half, 1);
    shoal_rng_seed(&used, 7);
    for (int i = 0; i < 100; i++)
        CHECK_EQUAL(shoal_random32(&used), shoal_random32(&fresh));
}

static void a_range_of_one_value_draws_nothing(void) {
    shoal_rng rng, untouched;
    shoal_rng_seed(&rng, 5);
    untouched = rng;
    CHECK_EQUAL(shoal_integers(&rng, 9, 10), 9);
    CHECK_EQUAL(shoal_integers(&rng, 9, 9), 9);
    CHECK_EQUAL(shoal_random64(&rng), shoal_random64(&untouched));
}

static void draw_that_would_bias_a_range_is_repeated(void) {
    shoal_rng rng, next;
    shoal_rng_seed(&rng, 5);
    next = rng;
    rng.has_half = 1;
    rng.half = 0;
    /* 2**32 draws over 2**32 - 1 values: the draw 0 is the one too many. */
    CHECK_EQUAL(shoal_integers(&rng, 0, 4294967295), shoal_integers(&next, 0, 4294967295));
    rng.has_half = 1;
    rng.half = 0;
    CHECK_EQUAL(shoal_integers(&rng, 0, 4294967296), 0);
}

static void small_range_draws_every_value_and_no_other(void) {
    shoal_rng rng;
    shoal_rng_seed(&rng, 0);
    uint32_t seen[6] = {0};
    for (int i = 0; i < 6000; i++) {
        int64_t value = shoal_integers(&rng, -2, 4);
        CHECK(value >= -2 && value < 4);
        seen[value + 2]++;
    }
    for (int i = 0; i < 6; i++)
        CHECK(seen[i] > 800 && seen[i] < 1200);
}

static void uniform_stays_in_its_range(void) {
    shoal_rng rng;
    shoal_rng_seed(&rng, 1);
    for (int i = 0; i < 10000; i++) {
        double value = shoal_uniform(&rng, -0.05, 0.05);
        CHECK(value >= -0.05 && value < 0.05);
    }
}

int main(void) {
    RUN(a_seed_draws_what_numpy_draws);
    RUN(seeding_again_resets_the_generator);
    RUN(a_range_of_one_value_draws_nothing);
    RUN(draw_that_would_bias_a_range_is_repeated);
    RUN(small_range_draws_every_value_and_no_other);
    RUN(uniform_stays_in_its_range);
    return 0;
}
