/* The two machines that run the kernels: a GPU, where a thread of a block steps one environment, and the CPU,
 * where a loop takes the place of the threads, for tests and sanitizers.
 *
 *   GRID_KERNEL(name)        defines a kernel; its body runs once per block, with `block` and `a`
 *   GRID_THREADS(t) { ... }  runs the braces for each thread of the block
 *   GRID_BARRIER             all threads of the block have reached it before one goes on
 *   GRID_OWN(type, name)     declares a variable of each thread that outlives a barrier; GRID_OWN_OF(name, t)
 *                            is its address */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GRID_H
#define SHOAL_GRID_H

#define GRID_INLINE static inline __attribute__((always_inline))
typedef uint32_t grid_words __attribute__((vector_size(16), may_alias));

#ifdef __NVPTX__

#define GRID_SHARED static __attribute__((address_space(3), aligned(16)))
#define GRID_MARKS __attribute__((address_space(3))) uint32_t *
/* Adds to a counter in shared memory. */
#define GRID_COUNT(counter, value) ((void)__atomic_fetch_add(counter, value, __ATOMIC_RELAXED))
#define GRID_THREADS(t) for (uint32_t t = __nvvm_read_ptx_sreg_tid_x(), once = 1; once; once = 0)
#define GRID_BARRIER __asm__ volatile("bar.sync 0;" ::: "memory")
#define GRID_OWN(type, name) type name
#define GRID_OWN_OF(name, t) (&name)
#define GRID_KERNEL(name)                                                                                    \
    GRID_INLINE void name##_block(const shoal_grid *a, uint32_t block);                                      \
    __attribute__((nvptx_kernel)) void name(const shoal_grid grid) {                                         \
        const uint32_t number = __nvvm_read_ptx_sreg_ctaid_x();                                              \
        name##_block(&grid, grid.is_backward ? __nvvm_read_ptx_sreg_nctaid_x() - 1 - number : number);       \
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

/* Stores results, which no kernel of Shoal reads again. The cache evicts them before other lines, so that
 * more of the environments' state stays in it until the next step. */
GRID_INLINE void grid_stream_byte(uint8_t *to, uint8_t value) {
    __asm__ volatile("st.global.cs.u8 [%0], %1;" ::"l"(to), "h"((uint16_t)value) : "memory");
}
GRID_INLINE void grid_stream_word(void *to, uint64_t value) {
    __asm__ volatile("st.global.cs.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
GRID_INLINE void grid_stream_words(grid_words *to, grid_words value) {
    __asm__ volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value[0]), "r"(value[1]),
                     "r"(value[2]), "r"(value[3])
                     : "memory");
}

/* How many threads of the warp say yes. All 32 must call it. */
GRID_INLINE uint32_t grid_warp_count(int is_yes) {
    return (uint32_t)__builtin_popcount(__nvvm_vote_ballot_sync(~0u, is_yes));
}

GRID_INLINE int grid_is_warp_first(uint32_t t) { return t % 32 == 0; }

/* No other thread waits for these sums, so they need no order. */
GRID_INLINE void grid_add(uint64_t *sum, uint64_t value) {
    __asm__ volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(sum), "l"(value) : "memory");
}
GRID_INLINE void grid_count_up(uint32_t *count) {
    __asm__ volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
GRID_INLINE void grid_add_real(double *sum, double value) {
    __asm__ volatile("red.relaxed.gpu.global.add.f64 [%0], %1;" ::"l"(sum), "d"(value) : "memory");
}

#else

#define GRID_SHARED static _Thread_local __attribute__((aligned(16)))
#define GRID_MARKS uint32_t *
#define GRID_COUNT(counter, value) ((void)(*(counter) += (value)))
#define GRID_THREADS(t) for (uint32_t t = 0; t < a->threads; t++)
#define GRID_BARRIER ((void)0)
#define GRID_OWN(type, name) type name[GRID_BLOCK + GRID_SPARE]
#define GRID_OWN_OF(name, t) (&name[t])
#define GRID_KERNEL(name)                                                                                    \
    GRID_INLINE void name##_block(const shoal_grid *a, uint32_t block);                                      \
    __attribute__((visibility("default"))) void name(const shoal_grid *a, uint32_t blocks);                  \
    void name(const shoal_grid *a, uint32_t blocks) {                                                        \
        for (uint32_t number = 0; number < blocks; number++)                                                 \
            name##_block(a, a->is_backward ? blocks - 1 - number : number);                                  \
    }                                                                                                        \
    GRID_INLINE void name##_block(const shoal_grid *a, uint32_t block)

GRID_INLINE void grid_mark(GRID_MARKS marks, uint32_t t, int is_marked) {
    const uint32_t bit = 1u << t % 32;
    marks[t / 32] = is_marked ? marks[t / 32] | bit : marks[t / 32] & ~bit;
}
GRID_INLINE void grid_prefetch(const void *address) { (void)address; }
GRID_INLINE void grid_stream_byte(uint8_t *to, uint8_t value) { *to = value; }
GRID_INLINE void grid_stream_word(void *to, uint64_t value) { __builtin_memcpy(to, &value, 8); }
GRID_INLINE void grid_stream_words(grid_words *to, grid_words value) { *to = value; }
GRID_INLINE uint32_t grid_warp_count(int is_yes) { return is_yes != 0; } /* a warp of one thread */
GRID_INLINE int grid_is_warp_first(uint32_t t) { return t == t; }
GRID_INLINE void grid_add(uint64_t *sum, uint64_t value) { *sum += value; }
GRID_INLINE void grid_count_up(uint32_t *count) { ++*count; }
GRID_INLINE void grid_add_real(double *sum, double value) { *sum += value; }

#endif

GRID_INLINE void grid_stream_real(double *to, double value) {
    uint64_t bits;
    __builtin_memcpy(&bits, &value, 8);
    grid_stream_word(to, bits);
}
#endif
