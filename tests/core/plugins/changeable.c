/* An environment whose entry the test writes: its symbol is a variable instead of a constant. */
// SPDX-License-Identifier: MIT
#include <shoal/env.h>

#ifdef __APPLE__
#define SYMBOL "_shoal_entry"
#else
#define SYMBOL "shoal_entry"
#endif

extern shoal_entry_v1 changeable __asm__(SYMBOL);
__attribute__((visibility("default"))) shoal_entry_v1 changeable = {0};
