/* <stdio.h> on a GPU: declarations alone, so that a plug-in with unused output compiles. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GRID_STDIO_H
#define SHOAL_GRID_STDIO_H

#include <stddef.h>

typedef struct grid_file FILE;
extern FILE *stdin, *stdout, *stderr;
#define EOF (-1)
int printf(const char *format, ...);
int fprintf(FILE *file, const char *format, ...);
int snprintf(char *to, size_t bytes, const char *format, ...);
int puts(const char *text);
int fflush(FILE *file);

#endif
