/* bfloat16, the upper half of a float's bits: what an environment may write where a trainer computes with it.
 * Shoal shows such observations as floats. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_BF16_H
#define SHOAL_PUFFER_BF16_H

#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

static inline bf16 f32_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bf16)(bits >> 16);
}

static inline float bf16_to_f32(bf16 value) {
    const uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

#if defined(__AVX2__)
#include <immintrin.h>
/* Eight at once, for environments that have them in a register. */
static inline void store_f32x8_as_bf16(bf16 *to, __m256 values) {
    float eight[8];
    _mm256_storeu_ps(eight, values);
    for (int i = 0; i < 8; i++)
        to[i] = f32_to_bf16(eight[i]);
}
#endif

#endif
