/* The instruction set that this process uses. Plug-ins and the core's hot loops are compiled once for each
 * set; one is chosen when the library is loaded, whatever compiler built it.
 *
 *   default   baseline x86-64 (x86-64-v1), and the only set on other CPUs
 *   avx2      x86-64-v3
 *   avx512    x86-64-v4
 *
 * The environment variable SHOAL_ISA names one of them instead; all give the same results. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_ISA_H
#define SHOAL_ISA_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum shoal_isa { SHOAL_ISA_DEFAULT = 0, SHOAL_ISA_AVX2 = 1, SHOAL_ISA_AVX512 = 2 } shoal_isa;
enum { SHOAL_ISAS = 3 };

/* The largest set that this CPU has and that the operating system has enabled. */
shoal_isa shoal_isa_detect(void);

/* The set that is used: SHOAL_ISA as it was at the first call, else the detected one. */
shoal_isa shoal_isa_chosen(void);

/* NULL, or what is wrong with SHOAL_ISA; the detected set is used then. */
const char *shoal_isa_error(void);

const char *shoal_isa_name(shoal_isa isa);

#ifdef __cplusplus
}
#endif
#endif
