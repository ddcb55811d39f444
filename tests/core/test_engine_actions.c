/* Tests of core/actions.c: the first row out of bounds, for every dtype and kind of bounds; actions as bytes.
 */
// SPDX-License-Identifier: MIT
#include "engine.h"

#include "check.h"

#include <math.h>
#include <string.h>

enum { ROWS = 10000 }; /* more than one block of the dense search */

/* Rows to spoil: the ends, the ends of blocks, and some in between. */
static const int64_t PLACES[] = {0, 1, 31, 1365, 4095, 4096, 8191, ROWS - 1};

/* One function per integer type. `low` and `high` are the bounds; the type can hold one less and one more. */
#define CHECK_INTEGERS(T, dtype_code, dtype_bits, from, to)                                                  \
    static void check_##T(void) {                                                                            \
        static T scalars[ROWS], vectors[ROWS][3];                                                            \
        const T low = (from), high = (to), below = low - 1, above = high + 1;                                \
        shoal_field one = {.dtype = {dtype_code, dtype_bits, 1},                                             \
                           .kind = SHOAL_DISCRETE,                                                           \
                           .low = (double)low,                                                               \
                           .high = (double)high};                                                            \
        for (int i = 0; i < ROWS; i++)                                                                       \
            scalars[i] = i % 3 == 0 ? low : i % 3 == 1 ? high : (T)(low + 1);                                \
        CHECK_EQUAL(shoal_engine_bad_action(&one, scalars, ROWS, 1), -1);                                    \
        for (size_t k = 0; k < sizeof PLACES / sizeof PLACES[0]; k++) {                                      \
            T *place = &scalars[PLACES[k]], before = *place;                                                 \
            *place = below;                                                                                  \
            CHECK_EQUAL(shoal_engine_bad_action(&one, scalars, ROWS, 0), PLACES[k]);                         \
            CHECK_EQUAL(shoal_engine_bad_action(&one, scalars, (uint64_t)PLACES[k], 0), -1);                 \
            *place = above;                                                                                  \
            CHECK_EQUAL(shoal_engine_bad_action(&one, scalars, ROWS, 0), PLACES[k]);                         \
            scalars[ROWS - 1] = above; /* a later one does not hide it */                                    \
            CHECK_EQUAL(shoal_engine_bad_action(&one, scalars, ROWS, 0), PLACES[k]);                         \
            scalars[ROWS - 1] = low;                                                                         \
            *place = PLACES[k] == ROWS - 1 ? low : before;                                                   \
        }                                                                                                    \
        CHECK_EQUAL(shoal_engine_bad_action(&one, scalars, ROWS, 0), -1);                                    \
        double lows[3] = {(double)low, (double)low + 1, (double)low}, highs[3];                              \
        for (int k = 0; k < 3; k++)                                                                          \
            highs[k] = (double)high - (k == 2);                                                              \
        shoal_field many = {.dtype = {dtype_code, dtype_bits, 1},                                            \
                            .kind = SHOAL_MULTI_DISCRETE,                                                    \
                            .ndim = 1,                                                                       \
                            .shape = {3},                                                                    \
                            .low = NAN, /* not used beside arrays */                                         \
                            .high = NAN,                                                                     \
                            .lows = lows,                                                                    \
                            .highs = highs};                                                                 \
        for (int i = 0; i < ROWS; i++) {                                                                     \
            vectors[i][0] = low;                                                                             \
            vectors[i][1] = high;                                                                            \
            vectors[i][2] = high - 1;                                                                        \
        }                                                                                                    \
        CHECK_EQUAL(shoal_engine_bad_action(&many, vectors, ROWS, 1), -1);                                   \
        for (size_t k = 0; k < sizeof PLACES / sizeof PLACES[0]; k++) {                                      \
            T *row = vectors[PLACES[k]];                                                                     \
            row[1] = low; /* fine for its neighbours */                                                      \
            CHECK_EQUAL(shoal_engine_bad_action(&many, vectors, ROWS, 0), PLACES[k]);                        \
            row[1] = high;                                                                                   \
            row[2] = high;                                                                                   \
            CHECK_EQUAL(shoal_engine_bad_action(&many, vectors, ROWS, 0), PLACES[k]);                        \
            many.highs = NULL; /* one array and one number */                                                \
            many.high = (double)high;                                                                        \
            CHECK_EQUAL(shoal_engine_bad_action(&many, vectors, ROWS, 0), -1);                               \
            row[0] = below;                                                                                  \
            CHECK_EQUAL(shoal_engine_bad_action(&many, vectors, ROWS, 0), PLACES[k]);                        \
            many.highs = highs;                                                                              \
            row[0] = low;                                                                                    \
            row[2] = high - 1;                                                                               \
        }                                                                                                    \
        many.lows = many.highs = NULL; /* one pair of numbers for every element */                           \
        many.low = (double)low;                                                                              \
        many.high = (double)high - 1;                                                                        \
        CHECK_EQUAL(shoal_engine_bad_action(&many, vectors, ROWS, 0), 0);                                    \
        many.high = (double)high;                                                                            \
        CHECK_EQUAL(shoal_engine_bad_action(&many, vectors, ROWS, 0), -1);                                   \
        many.kind = SHOAL_BOX; /* a Box is the environment's to clip */                                      \
        many.high = (double)low;                                                                             \
        CHECK_EQUAL(shoal_engine_bad_action(&many, vectors, ROWS, 1), -1);                                   \
    }

CHECK_INTEGERS(int8_t, SHOAL_CODE_INT, 8, -100, 26)
CHECK_INTEGERS(int16_t, SHOAL_CODE_INT, 16, -300, 32000)
CHECK_INTEGERS(int32_t, SHOAL_CODE_INT, 32, -2147483647, -5)
CHECK_INTEGERS(int64_t, SHOAL_CODE_INT, 64, -8999999999999999, 8999999999999999)
CHECK_INTEGERS(uint8_t, SHOAL_CODE_UINT, 8, 1, 254)
CHECK_INTEGERS(uint16_t, SHOAL_CODE_UINT, 16, 1, 65534)
CHECK_INTEGERS(uint32_t, SHOAL_CODE_UINT, 32, 7, 4294967294)
CHECK_INTEGERS(uint64_t, SHOAL_CODE_UINT, 64, 1, 8999999999999999)

static void integers_outside_their_bounds_are_found_in_every_dtype(void) {
    check_int8_t();
    check_int16_t();
    check_int32_t();
    check_int64_t();
    check_uint8_t();
    check_uint16_t();
    check_uint32_t();
    check_uint64_t();
}

/* Every pair of bounds and every value of a type of 8 bits, against a plain comparison. */
#define CHECK_EVERY_VALUE(T, dtype_code, least, most)                                                        \
    for (int low = (least); low <= (most); low++)                                                            \
        for (int high = low; high <= (most); high++) {                                                       \
            const shoal_field field = {                                                                      \
                .dtype = {dtype_code, 8, 1}, .kind = SHOAL_DISCRETE, .low = low, .high = high};              \
            for (int value = (least); value <= (most); value++) {                                            \
                const T rows[2] = {(T)low, (T)value};                                                        \
                if (shoal_engine_bad_action(&field, rows, 2, 0) != (value < low || value > high ? 1 : -1))   \
                    wrong++;                                                                                 \
            }                                                                                                \
        }

static void every_value_is_compared_with_every_pair_of_bounds(void) {
    int wrong = 0;
    CHECK_EVERY_VALUE(int8_t, SHOAL_CODE_INT, INT8_MIN, INT8_MAX)
    CHECK_EVERY_VALUE(uint8_t, SHOAL_CODE_UINT, 0, UINT8_MAX)
    CHECK_EQUAL(wrong, 0);
}

static void extreme_values_of_every_dtype_are_out_of_bounds(void) {
    int64_t wide[] = {INT64_MIN, 0}, widest[] = {0, INT64_MAX};
    shoal_field field = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .high = 4};
    CHECK_EQUAL(shoal_engine_bad_action(&field, wide, 2, 0), 0);
    CHECK_EQUAL(shoal_engine_bad_action(&field, widest, 2, 0), 1);
    uint64_t large[] = {0, 4, UINT64_MAX};
    field.dtype = (shoal_dtype){SHOAL_CODE_UINT, 64, 1};
    CHECK_EQUAL(shoal_engine_bad_action(&field, large, 3, 0), 2);
    CHECK_EQUAL(shoal_engine_bad_action(&field, large, 2, 0), -1);
    CHECK_EQUAL(shoal_engine_bad_action(&field, large, 0, 0), -1);
}

static void binary_fields_hold_zeros_and_ones(void) {
    shoal_dtype dtypes[] = {SHOAL_INT8, SHOAL_BOOL};
    for (int d = 0; d < 2; d++) {
        shoal_field field = {
            .dtype = dtypes[d], .kind = SHOAL_MULTI_BINARY, .ndim = 2, .shape = {2, 2}, .high = 1};
        uint8_t rows[3][4] = {{0, 1, 1, 0}, {1, 1, 1, 1}, {0, 0, 0, 0}};
        CHECK_EQUAL(shoal_engine_bad_action(&field, rows, 3, 1), -1);
        rows[1][3] = 2;
        CHECK_EQUAL(shoal_engine_bad_action(&field, rows, 3, 1), 1);
        rows[1][3] = 255;
        CHECK_EQUAL(shoal_engine_bad_action(&field, rows, 3, 1), 1);
    }
}

#define CHECK_FLOATS(T, code_bits, nan_value, infinite)                                                      \
    do {                                                                                                     \
        static T rows[ROWS][2];                                                                              \
        shoal_field field = {.dtype = {SHOAL_CODE_FLOAT, code_bits, 1}, .ndim = 1, .shape = {2}, .high = 1}; \
        rows[17][0] = infinite; /* outside, and yet a number */                                              \
        CHECK_EQUAL(shoal_engine_bad_action(&field, rows, ROWS, 1), -1);                                     \
        for (size_t k = 0; k < sizeof PLACES / sizeof PLACES[0]; k++)                                        \
            for (int element = 0; element < 2; element++) {                                                  \
                T before = rows[PLACES[k]][element];                                                         \
                rows[PLACES[k]][element] = nan_value;                                                        \
                CHECK_EQUAL(shoal_engine_bad_action(&field, rows, ROWS, 1), PLACES[k]);                      \
                CHECK_EQUAL(shoal_engine_bad_action(&field, rows, ROWS, 0), -1);                             \
                CHECK_EQUAL(shoal_engine_bad_action(&field, rows, (uint64_t)PLACES[k], 1), -1);              \
                rows[PLACES[k]][element] = before;                                                           \
            }                                                                                                \
        rows[5000][1] = rows[9000][0] = nan_value;                                                           \
        CHECK_EQUAL(shoal_engine_bad_action(&field, rows, ROWS, 1), 5000);                                   \
    } while (0)

static void nan_is_found_if_check_nan_is_set(void) {
    CHECK_FLOATS(float, 32, NAN, INFINITY);
    CHECK_FLOATS(double, 64, -NAN, -INFINITY);
    CHECK_FLOATS(uint16_t, 16, 0x7e00, 0x7c00);
    CHECK_FLOATS(uint16_t, 16, 0xfc01, 0xfc00);
}

/* Every type with more than one byte, scalars and rows longer than a block. */
#define CHECK_BYTES(T, dtype_code, dtype_bits)                                                               \
    static void check_bytes_##T(uint64_t elements) {                                                         \
        static T values[3 * ROWS];                                                                           \
        static uint8_t bytes[3 * ROWS];                                                                      \
        const uint64_t rows = 3 * ROWS / elements;                                                           \
        shoal_field field = {.dtype = {dtype_code, dtype_bits, 1},                                           \
                             .kind = elements == 1 ? SHOAL_DISCRETE : SHOAL_MULTI_DISCRETE,                  \
                             .ndim = elements != 1,                                                          \
                             .shape = {(int64_t)elements},                                                   \
                             .low = 3,                                                                       \
                             .high = 255};                                                                   \
        CHECK(shoal_engine_actions_fit_bytes(&field));                                                       \
        for (uint64_t i = 0; i < rows * elements; i++)                                                       \
            values[i] = (T)(3 + i % 253);                                                                    \
        CHECK_EQUAL(shoal_engine_actions_to_bytes(&field, values, rows, bytes), -1);                         \
        for (uint64_t i = 0; i < rows * elements; i++)                                                       \
            CHECK_EQUAL(bytes[i], 3 + i % 253);                                                              \
        for (uint64_t bad = 0; bad < rows; bad += rows / 7 + 1)                                              \
            for (int k = 0; k < 3; k++) {                                                                    \
                const T wrong[] = {2, 256, (T) - 1};                                                         \
                T *place = &values[bad * elements + elements / 2], before = *place;                          \
                *place = wrong[k];                                                                           \
                CHECK_EQUAL(shoal_engine_actions_to_bytes(&field, values, rows, bytes), bad);                \
                *place = before;                                                                             \
            }                                                                                                \
        field.high = 256;                                                                                    \
        CHECK(!shoal_engine_actions_fit_bytes(&field));                                                      \
        field.low = -1;                                                                                      \
        field.high = 5;                                                                                      \
        CHECK(!shoal_engine_actions_fit_bytes(&field));                                                      \
        field.low = 0;                                                                                       \
        field.kind = SHOAL_BOX;                                                                              \
        CHECK(!shoal_engine_actions_fit_bytes(&field));                                                      \
    }

CHECK_BYTES(int16_t, SHOAL_CODE_INT, 16)
CHECK_BYTES(uint16_t, SHOAL_CODE_UINT, 16)
CHECK_BYTES(int32_t, SHOAL_CODE_INT, 32)
CHECK_BYTES(uint32_t, SHOAL_CODE_UINT, 32)
CHECK_BYTES(int64_t, SHOAL_CODE_INT, 64)
CHECK_BYTES(uint64_t, SHOAL_CODE_UINT, 64)

static void small_actions_become_bytes(void) {
    const uint64_t lengths[] = {1, 3, 7000};
    for (int i = 0; i < 3; i++) {
        check_bytes_int16_t(lengths[i]);
        check_bytes_uint16_t(lengths[i]);
        check_bytes_int32_t(lengths[i]);
        check_bytes_uint32_t(lengths[i]);
        check_bytes_int64_t(lengths[i]);
        check_bytes_uint64_t(lengths[i]);
    }
    double lows[2] = {0, -1}, highs[2] = {255, 255};
    shoal_field field = {
        .dtype = {SHOAL_CODE_INT, 32, 1}, .kind = SHOAL_MULTI_DISCRETE, .ndim = 1, .shape = {2}};
    field.lows = lows;
    field.highs = highs;
    CHECK(!shoal_engine_actions_fit_bytes(&field)); /* one element is enough */
    lows[1] = 0;
    CHECK(shoal_engine_actions_fit_bytes(&field));
    highs[1] = 256;
    CHECK(!shoal_engine_actions_fit_bytes(&field));
    const shoal_field byte = {.dtype = {SHOAL_CODE_UINT, 8, 1}, .kind = SHOAL_DISCRETE, .high = 3};
    CHECK(!shoal_engine_actions_fit_bytes(&byte)); /* nothing is gained */
}

int main(void) {
    RUN(integers_outside_their_bounds_are_found_in_every_dtype);
    RUN(every_value_is_compared_with_every_pair_of_bounds);
    RUN(extreme_values_of_every_dtype_are_out_of_bounds);
    RUN(binary_fields_hold_zeros_and_ones);
    RUN(nan_is_found_if_check_nan_is_set);
    RUN(small_actions_become_bytes);
    return 0;
}
