/* my_state: the fields that an environment exports, as PufferLib's proposal has them. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_STATE_H
#define SHOAL_PUFFER_STATE_H

#include <stdint.h>

#define PUFF_STATE_MAX_DIMS 8
#define PUFF_STATE_ZERO_COPY 1 /* the buffer stays where it is for the environment's life */

typedef struct StateField {
    const char *name;
    const void *data;
    const char *dtype; /* NumPy's name of it: "int8", "float32" */
    int ndim;
    int64_t dims[PUFF_STATE_MAX_DIMS];
    int flags;
} StateField;

#ifdef MY_STATE
int my_state(void *env, StateField *fields, int max_fields);
#endif

#endif
