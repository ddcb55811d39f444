/* A library that is no environment: it has no shoal_entry. */
// SPDX-License-Identifier: MIT
__attribute__((visibility("default"))) int not_an_entry;
