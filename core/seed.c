/* NumPy's SeedSequence hash and PCG64's initialisation, so that a seed gives the same numbers in C and
 * Python. */
// SPDX-License-Identifier: MIT
#include "seed.h"

enum { SHOAL_SEED_POOL = 4 }; /* prefixed: kernels for a GPU include this file beside a plug-in */

static uint32_t shoal_seed_hash(uint32_t value, uint32_t *constant) {
    value ^= *constant;
    *constant *= 0x931e8875u;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t shoal_seed_mix(uint32_t x, uint32_t y) {
    uint32_t result = 0xca01f9ddu * x - 0x4973f715u * y;
    return result ^ result >> 16;
}

/* SeedSequence(seed).generate_state(4, uint64) */
static void shoal_seed_sequence(uint64_t seed, uint64_t out[4]) {
    uint32_t entropy[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t words = entropy[1] != 0 ? 2 : 1;
    uint32_t pool[SHOAL_SEED_POOL], constant = 0x43b0d7e5u;
    for (uint32_t i = 0; i < SHOAL_SEED_POOL; i++)
        pool[i] = shoal_seed_hash(i < words ? entropy[i] : 0, &constant);
    for (uint32_t from = 0; from < SHOAL_SEED_POOL; from++)
        for (uint32_t to = 0; to < SHOAL_SEED_POOL; to++)
            if (from != to)
                pool[to] = shoal_seed_mix(pool[to], shoal_seed_hash(pool[from], &constant));
    uint32_t output = 0x8b51f9ddu, half[8];
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t value = pool[i % SHOAL_SEED_POOL] ^ output;
        output *= 0x58f38dedu;
        value *= output;
        half[i] = value ^ value >> 16;
    }
    for (uint32_t i = 0; i < 4; i++)
        out[i] = (uint64_t)half[2 * i + 1] << 32 | half[2 * i];
}

void shoal_rng_seed(shoal_rng *rng, uint64_t seed) {
    uint64_t words[4];
    shoal_seed_sequence(seed, words);
    shoal_u128 sequence = (shoal_u128)words[2] << 64 | words[3];
    shoal_u128 increment = sequence << 1 | 1;
    *rng = (shoal_rng){0, 0, (uint64_t)(increment >> 64), (uint64_t)increment, 0, 0};
    (void)shoal_random64(rng); /* one step of the generator from state 0 */
    shoal_u128 state = (shoal_u128)rng->state_high << 64 | rng->state_low;
    state += (shoal_u128)words[0] << 64 | words[1];
    rng->state_high = (uint64_t)(state >> 64);
    rng->state_low = (uint64_t)state;
    (void)shoal_random64(rng);
}
