/* Checks actions before anything is stepped: discrete ranges and NaN, at memory speed. The build compiles
 * this file once for each instruction set (core/isa.c). */
// SPDX-License-Identifier: MIT
#include "engine.h"

/* A fast first pass ORs all values minus the lower bound: no value exceeds the result, so if that is in
 * range, all values are. Otherwise, or with bounds per element, each value is compared. */
#define OUTSIDE(T, U)                                                                                        \
    {                                                                                                        \
        const T *values = rows;                                                                              \
        const T low = field->lows == NULL ? (T)field->low : 0;                                               \
        const T high = field->highs == NULL ? (T)field->high : 0;                                            \
        const uint64_t all = count * elements;                                                               \
        U bits = 0;                                                                                          \
        for (uint64_t i = 0; i < all; i++)                                                                   \
            bits |= (U)((U)values[i] - (U)low);                                                              \
        if (bits <= (U)((U)high - (U)low) && field->lows == NULL && field->highs == NULL)                    \
            return -1;                                                                                       \
        for (uint64_t i = 0; i < all; i++) {                                                                 \
            T least = field->lows == NULL ? low : (T)field->lows[i % elements];                              \
            T most = field->highs == NULL ? high : (T)field->highs[i % elements];                            \
            if (values[i] < least || values[i] > most)                                                       \
                return (int64_t)(i / elements);                                                              \
        }                                                                                                    \
        return -1;                                                                                           \
    }

#define IS_NAN(x) ((x) != (x))
#define IS_NAN_HALF(x) (((x) & 0x7fff) > 0x7c00)

#define NOT_A_NUMBER(T, is_nan)                                                                              \
    {                                                                                                        \
        const T *values = rows;                                                                              \
        uint64_t bad = 0;                                                                                    \
        for (uint64_t i = 0; i < count * elements; i++)                                                      \
            bad |= (uint64_t)is_nan(values[i]);                                                              \
        if (bad)                                                                                             \
            for (uint64_t i = 0; i < count * elements; i++)                                                  \
                if (is_nan(values[i]))                                                                       \
                    return (int64_t)(i / elements);                                                          \
        return -1;                                                                                           \
    }

int64_t shoal_engine_bad_action(const shoal_field *field, const void *rows, uint64_t count, int check_nan) {
    uint64_t elements = shoal_field_elements(field);
    int is_float = field->dtype.code == SHOAL_CODE_FLOAT;
    if (is_float) { /* environments clip Box actions that exceed the bounds, as in Gymnasium */
        if (!check_nan)
            return -1;
        if (field->dtype.bits == 16)
            NOT_A_NUMBER(uint16_t, IS_NAN_HALF)
        if (field->dtype.bits == 32)
            NOT_A_NUMBER(float, IS_NAN)
        NOT_A_NUMBER(double, IS_NAN)
    }
    if (field->kind == SHOAL_BOX)
        return -1;
    int is_signed = field->dtype.code == SHOAL_CODE_INT;
    switch (field->dtype.bits) {
    case 8:
        if (is_signed)
            OUTSIDE(int8_t, uint8_t)
        OUTSIDE(uint8_t, uint8_t)
    case 16:
        if (is_signed)
            OUTSIDE(int16_t, uint16_t)
        OUTSIDE(uint16_t, uint16_t)
    case 32:
        if (is_signed)
            OUTSIDE(int32_t, uint32_t)
        OUTSIDE(uint32_t, uint32_t)
    default:
        if (is_signed)
            OUTSIDE(int64_t, uint64_t)
        OUTSIDE(uint64_t, uint64_t)
    }
}
