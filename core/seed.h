/* Seeding as NumPy does: Generator(PCG64(SeedSequence(seed))) from a 64-bit seed. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_SEED_H
#define SHOAL_SEED_H

#include <shoal/env.h>

#ifdef __cplusplus
extern "C" {
#endif

void shoal_rng_seed(shoal_rng *rng, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
