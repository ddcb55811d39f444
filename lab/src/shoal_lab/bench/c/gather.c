/* The lower bound of a sample of rows: random records of one array, copied column by column. */
// SPDX-License-Identifier: MIT
#include <stdint.h>
#include <string.h>

static uint64_t state = 88172645463325252u;

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static inline void copy(const char *from, uint64_t stride, const uint64_t *drawn, uint64_t n, char *to,
                        uint64_t bytes) {
    for (uint64_t i = 0; i < n; i++)
        memcpy(to + i * bytes, from + drawn[i] * stride, bytes);
}

/* `count` times: a batch of n rows out of `rows` records of `stride` bytes. */
void gather(const char *records, uint64_t rows, uint64_t stride, uint64_t num_columns,
            const uint64_t *offsets, const uint64_t *bytes, char *const *out, uint64_t n, uint64_t count) {
    uint64_t drawn[4096];
    for (uint64_t turn = 0; turn < count; turn++) {
        for (uint64_t i = 0; i < n; i++) {
            drawn[i] = (uint64_t)((unsigned __int128)next_random() * rows >> 64);
            const uint64_t ahead = stride < 512 ? stride : 512;
            for (uint64_t at = 0; at < ahead; at += 64)
                __builtin_prefetch(records + drawn[i] * stride + at);
        }
        for (uint64_t c = 0; c < num_columns; c++)
            switch (bytes[c]) { /* for constant sizes the compiler emits moves, not calls */
            case 1:
                copy(records + offsets[c], stride, drawn, n, out[c], 1);
                break;
            case 4:
                copy(records + offsets[c], stride, drawn, n, out[c], 4);
                break;
            case 8:
                copy(records + offsets[c], stride, drawn, n, out[c], 8);
                break;
            case 16:
                copy(records + offsets[c], stride, drawn, n, out[c], 16);
                break;
            default:
                copy(records + offsets[c], stride, drawn, n, out[c], bytes[c]);
            }
    }
}
