/* Detects the instruction set and calls the loops that were compiled for it. */
// SPDX-License-Identifier: MIT
#include "isa.h"

#include "settle.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const NAMES[SHOAL_ISAS] = {"default", "avx2", "avx512"};

const char *shoal_isa_name(shoal_isa isa) { return NAMES[isa]; }

#ifdef __x86_64__
#include <cpuid.h>

/* The register states that the operating system saves (XCR0). A CPU may have vector registers that the
 * system does not save; then using them is an error. */
static uint64_t saved_states(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

shoal_isa shoal_isa_detect(void) {
    /* Leaf 1, ECX: SSE3, SSSE3, FMA, CMPXCHG16B, SSE4.1, SSE4.2, MOVBE, POPCNT, OSXSAVE, AVX, F16C. */
    const uint32_t basic = 1u << 0 | 1u << 9 | 1u << 12 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 22 |
                           1u << 23 | 1u << 27 | 1u << 28 | 1u << 29;
    const uint32_t extended = 1u << 0 | 1u << 5;         /* leaf 0x80000001, ECX: LAHF, LZCNT */
    const uint32_t v3 = 1u << 3 | 1u << 5 | 1u << 8;     /* leaf 7, EBX: BMI1, AVX2, BMI2 */
    const uint32_t v4 = 1u << 16 | 1u << 17 | 1u << 28 | /* AVX-512 F, DQ, CD, BW, VL */
                        1u << 30 | 1u << 31;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & basic) != basic)
        return SHOAL_ISA_DEFAULT;
    if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || (c & extended) != extended)
        return SHOAL_ISA_DEFAULT;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & v3) != v3)
        return SHOAL_ISA_DEFAULT;
    const uint64_t saved = saved_states(), avx = 0x6, avx512 = 0xe6;
    if ((saved & avx) != avx)
        return SHOAL_ISA_DEFAULT;
    return (b & v4) == v4 && (saved & avx512) == avx512 ? SHOAL_ISA_AVX512 : SHOAL_ISA_AVX2;
}
#else
shoal_isa shoal_isa_detect(void) { return SHOAL_ISA_DEFAULT; }
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static shoal_isa chosen;
static char error[256];

static void choose(void) {
    const shoal_isa most = shoal_isa_detect();
    const char *asked = getenv("SHOAL_ISA");
    chosen = most;
    if (asked == NULL || asked[0] == '\0')
        return;
    for (int isa = 0; isa < SHOAL_ISAS; isa++) {
        if (strcmp(asked, NAMES[isa]) != 0)
            continue;
        if (isa <= (int)most)
            chosen = (shoal_isa)isa;
        else
            snprintf(
                error, sizeof error,
                "SHOAL_ISA is %s, but this machine runs at most %s; choose that one, or remove the variable",
                asked, NAMES[most]);
        return;
    }
    snprintf(error, sizeof error, "SHOAL_ISA must be default, avx2 or avx512, found '%.64s'", asked);
}

shoal_isa shoal_isa_chosen(void) {
    pthread_once(&once, choose);
    return chosen;
}

const char *shoal_isa_error(void) {
    pthread_once(&once, choose);
    return error[0] == '\0' ? NULL : error;
}

/* ---- The core's loops ----
 *
 * The build compiles settle.c and actions.c once for each set, with the set's name behind the names of these
 * functions (CMakeLists.txt). A build for one set, such as the C tests, compiles them once with plain names.
 */
#ifdef SHOAL_SEVERAL_ISAS

#define DECLARE(isa)                                                                                         \
    uint64_t shoal_settle_##isa(const shoal_engine_arrays *, const shoal_envs *, uint64_t, uint64_t,         \
                                uint32_t, shoal_due *, shoal_statistics *);                                  \
    int64_t shoal_engine_bad_action_##isa(const shoal_field *, const void *, uint64_t, int);                 \
    int64_t shoal_engine_actions_to_bytes_##isa(const shoal_field *, const void *, uint64_t, uint8_t *);
#define LOOPS(isa) {shoal_settle_##isa, shoal_engine_bad_action_##isa, shoal_engine_actions_to_bytes_##isa}

DECLARE(default)
DECLARE(avx2)
DECLARE(avx512)

typedef struct loops {
    uint64_t (*settle)(const shoal_engine_arrays *, const shoal_envs *, uint64_t, uint64_t, uint32_t,
                       shoal_due *, shoal_statistics *);
    int64_t (*bad_action)(const shoal_field *, const void *, uint64_t, int);
    int64_t (*to_bytes)(const shoal_field *, const void *, uint64_t, uint8_t *);
} loops;

static const loops EACH[SHOAL_ISAS] = {LOOPS(default), LOOPS(avx2), LOOPS(avx512)};
static const loops *used = &EACH[SHOAL_ISA_DEFAULT];

__attribute__((constructor)) static void use_chosen(void) { used = &EACH[shoal_isa_chosen()]; }

uint64_t shoal_settle(const shoal_engine_arrays *arrays, const shoal_envs *to, uint64_t begin, uint64_t count,
                      uint32_t time_limit, shoal_due *due, shoal_statistics *statistics) {
    return used->settle(arrays, to, begin, count, time_limit, due, statistics);
}

int64_t shoal_engine_bad_action(const shoal_field *field, const void *rows, uint64_t count, int check_nan) {
    return used->bad_action(field, rows, count, check_nan);
}

int64_t shoal_engine_actions_to_bytes(const shoal_field *field, const void *rows, uint64_t count,
                                      uint8_t *bytes) {
    return used->to_bytes(field, rows, count, bytes);
}
#endif
