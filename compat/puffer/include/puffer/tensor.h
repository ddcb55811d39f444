/* The names that OBS_TENSOR_T chooses from: what an observation's numbers are. vecenv.h adds PrecisionTensor.
 */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_TENSOR_H
#define SHOAL_PUFFER_TENSOR_H

#include <stdint.h>

#define PUF_MAX_DIMS 8
#define PUFFER_TENSOR(Name, type)                                                                            \
    typedef struct Name {                                                                                    \
        type *data;                                                                                          \
        int64_t shape[PUF_MAX_DIMS];                                                                         \
    } Name

PUFFER_TENSOR(FloatTensor, float);
PUFFER_TENSOR(ByteTensor, unsigned char);
PUFFER_TENSOR(IntTensor, int);
PUFFER_TENSOR(LongTensor, long);

#endif
