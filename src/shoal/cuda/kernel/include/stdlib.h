/* <stdlib.h> on a GPU. What is only declared has no definition there: `shoal build` names it if a step uses
 * it. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GRID_STDLIB_H
#define SHOAL_GRID_STDLIB_H

#include <stddef.h>

static inline int abs(int x) { return x < 0 ? -x : x; }
static inline long labs(long x) { return x < 0 ? -x : x; }
static inline long long llabs(long long x) { return x < 0 ? -x : x; }

#define RAND_MAX 2147483647
void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *memory, size_t bytes);
void free(void *memory);
void abort(void);
void exit(int status);
int rand(void);
void srand(unsigned seed);
char *getenv(const char *name);
int atoi(const char *text);
double atof(const char *text);
void qsort(void *base, size_t count, size_t bytes, int (*compare)(const void *, const void *));

#endif
