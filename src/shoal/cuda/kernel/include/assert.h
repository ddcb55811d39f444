/* <assert.h> on a GPU: a false assertion ends the kernel with an error. */
// SPDX-License-Identifier: MIT
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) ((condition) ? (void)0 : __builtin_trap())
#endif
#define static_assert _Static_assert
