/* The two machines that run the kernels: a GPU, where a thread of a block steps one environment, and the CPU,
 * where a loop takes the place of the threads, for tests and sanitizers.
 *
 *   GRID_KERNEL(name)        defines a kernel; its body runs once per block, with `block` and `a`
 *   GRID_THREADS(t) { ... }  runs the braces for each thread of the block
 *   GRID_BARRIER             all threads of the block have reached it before one goes on */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GRID_H
#define SHOAL_GRID_H

#define GRID_INLINE static inline __attribute__((always_inline))

#ifdef __NVPTX__

#define GRID_SHARED static __attribute__((address_space(3), aligned(16)))
#define GRID_MARKS __attribute__((address_space(3))) uint32_t *
#define GRID_THREADS(t) for (uint32_t t = __nvvm_read_ptx_sreg_tid_x(), once = 1; once; once = 0)
#define GRID_BARRIER __asm__ volatile("bar.sync 0;" ::: "memory")
#define GRID_KERNEL(name)                                                                                    \
    GRID_INLINE void name##_block(const shoal_grid *a, uint32_t block);                                      \
    __attribute__((nvptx_kernel)) void name(const shoal_grid grid) {                                         \
        name##_block(&grid, __nvvm_read_ptx_sreg_ctaid_x());                                                 \
    }                                                                                                        \
    GRID_INLINE void name##_block(const shoal_grid *a, uint32_t block)

/* Sets bit t of the block's marks. All threads of the warp call it. */
GRID_INLINE void grid_mark(GRID_MARKS marks, uint32_t t, int is_marked) {
    const uint32_t mask = __nvvm_vote_ballot_sync(~0u, is_marked);
    if (t % 32 == 0)
        marks[t / 32] = mask;
}

/* Asks for the line of an address, without waiting for it. */
GRID_INLINE void grid_prefetch(const void *address) {
    __asm__ volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* How many threads of the warp say yes. All 32 must call it, and the next ones. */
GRID_INLINE uint32_t grid_warp_count(int is_yes) {
    return (uint32_t)__builtin_popcount(__nvvm_vote_ballot_sync(~0u, is_yes));
}

/* Every thread of the warp gets the sum. */
GRID_INLINE uint32_t grid_warp_sum(uint32_t value) {
    for (int distance = 16; distance > 0; distance /= 2)
        value += (uint32_t)__nvvm_shfl_sync_bfly_i32(~0u, (int)value, distance, 31);
    return value;
}
GRID_INLINE double grid_warp_sum_real(double value) {
    for (int distance = 16; distance > 0; distance /= 2) {
        uint64_t bits;
        __builtin_memcpy(&bits, &value, 8);
        const uint32_t low = (uint32_t)__nvvm_shfl_sync_bfly_i32(~0u, (int)bits, distance, 31);
        const uint32_t high = (uint32_t)__nvvm_shfl_sync_bfly_i32(~0u, (int)(bits >> 32), distance, 31);
        const uint64_t other = (uint64_t)high << 32 | low;
        double theirs;
        __builtin_memcpy(&theirs, &other, 8);
        value += theirs;
    }
    return value;
}
GRID_INLINE int grid_is_warp_first(uint32_t t) { return t % 32 == 0; }

/* No other thread waits for these sums, so they need no order. */
GRID_INLINE void grid_add(uint64_t *sum, uint64_t value) {
    __asm__ volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(sum), "l"(value) : "memory");
}
GRID_INLINE void grid_add_real(double *sum, double value) {
    __asm__ volatile("red.relaxed.gpu.global.add.f64 [%0], %1;" ::"l"(sum), "d"(value) : "memory");
}

#else

#define GRID_SHARED static _Thread_local __attribute__((aligned(16)))
#define GRID_MARKS uint32_t *
#define GRID_THREADS(t) for (uint32_t t = 0; t < GRID_BLOCK; t++)
#define GRID_BARRIER ((void)0)
#define GRID_KERNEL(name)                                                                                    \
    GRID_INLINE void name##_block(const shoal_grid *a, uint32_t block);                                      \
    __attribute__((visibility("default"))) void name(const shoal_grid *a, uint32_t blocks);                  \
    void name(const shoal_grid *a, uint32_t blocks) {                                                        \
        for (uint32_t block = 0; block < blocks; block++)                                                    \
            name##_block(a, block);                                                                          \
    }                                                                                                        \
    GRID_INLINE void name##_block(const shoal_grid *a, uint32_t block)

GRID_INLINE void grid_mark(GRID_MARKS marks, uint32_t t, int is_marked) {
    const uint32_t bit = 1u << t % 32;
    marks[t / 32] = is_marked ? marks[t / 32] | bit : marks[t / 32] & ~bit;
}
GRID_INLINE void grid_prefetch(const void *address) { (void)address; }
GRID_INLINE uint32_t grid_warp_count(int is_yes) { return is_yes != 0; }
GRID_INLINE uint32_t grid_warp_sum(uint32_t value) { return value; } /* a warp of one thread */
GRID_INLINE double grid_warp_sum_real(double value) { return value; }
GRID_INLINE int grid_is_warp_first(uint32_t t) { return t == t; }
GRID_INLINE void grid_add(uint64_t *sum, uint64_t value) { *sum += value; }
GRID_INLINE void grid_add_real(double *sum, double value) { *sum += value; }

#endif
#endif
