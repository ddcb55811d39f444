/* Checks actions before anything is stepped: discrete ranges and NaN, at memory speed; and makes bytes of
 * small actions. The build compiles this file once for each instruction set (core/isa.c). */
// SPDX-License-Identifier: MIT
#include "engine.h"

/* A first pass without branches, which the compiler vectorises: with `span` below half of the type's range, a
 * value is outside exactly if the highest bit of value - low or of span - (value - low) is set. The second
 * pass finds the row, and also handles bounds per element. */
#define OUTSIDE(T, U)                                                                                        \
    {                                                                                                        \
        const T *values = rows;                                                                              \
        const U half = (U)((U)1 << (8 * sizeof(U) - 1));                                                     \
        if (field->lows == NULL && field->highs == NULL) {                                                   \
            const U low = (U)(T)field->low, span = (U)((U)(T)field->high - low);                             \
            U bits = span;                                                                                   \
            for (uint64_t i = 0; i < count * elements; i++) {                                                \
                const U above = (U)((U)values[i] - low);                                                     \
                bits |= (U)(above | (U)(span - above));                                                      \
            }                                                                                                \
            if (bits < half)                                                                                 \
                return -1;                                                                                   \
        }                                                                                                    \
        for (uint64_t row = 0; row < count; row++)                                                           \
            for (uint64_t i = 0; i < elements; i++) {                                                        \
                const T value = values[row * elements + i];                                                  \
                if (value < (T)(field->lows == NULL ? field->low : field->lows[i]) ||                        \
                    value > (T)(field->highs == NULL ? field->high : field->highs[i]))                       \
                    return (int64_t)row;                                                                     \
            }                                                                                                \
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

#define TO_BYTES(T)                                                                                          \
    {                                                                                                        \
        const T *values = (const T *)((const char *)rows + begin * bytes_per_row);                           \
        uint8_t *to = bytes + begin * elements;                                                              \
        for (uint64_t i = 0; i < (end - begin) * elements; i++)                                              \
            to[i] = (uint8_t)values[i];                                                                      \
        break;                                                                                               \
    }

enum { BLOCK_ELEMENTS = 2048 }; /* stay in the first cache between the check and the copy */

int64_t shoal_engine_actions_to_bytes(const shoal_field *field, const void *rows, uint64_t count,
                                      uint8_t *bytes) {
    const uint64_t elements = shoal_field_elements(field), bytes_per_row = shoal_field_bytes(field);
    const uint64_t block = elements < BLOCK_ELEMENTS ? BLOCK_ELEMENTS / elements : 1;
    for (uint64_t begin = 0, end; begin < count; begin = end) {
        end = count - begin < block ? count : begin + block;
        const int64_t bad =
            shoal_engine_bad_action(field, (const char *)rows + begin * bytes_per_row, end - begin, 0);
        if (bad >= 0)
            return (int64_t)begin + bad;
        switch (field->dtype.bits) {
        case 16:
            TO_BYTES(uint16_t)
        case 32:
            TO_BYTES(uint32_t)
        default:
            TO_BYTES(uint64_t)
        }
    }
    return -1;
}
