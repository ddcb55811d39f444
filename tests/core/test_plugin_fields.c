/* Tests of core/plugin.c: every number of a field is checked, alone and in 100,000 random descriptions. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "plugin.h"

#include "check.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { MOST = 3, BOUNDS = 64, ROUNDS = 100000 };

static struct {
    shoal_spec spec;
    shoal_field fields[2][MOST]; /* observations, actions */
    uint64_t counts[2];
    const char *refusal;
} plan;

static const char *describe(const shoal_value *values, shoal_spec *spec) {
    (void)values;
    spec->instance_bytes = plan.spec.instance_bytes;
    spec->lanes = plan.spec.lanes;
    spec->agents = plan.spec.agents;
    spec->max_episode_steps = plan.spec.max_episode_steps;
    for (int role = 0; role < 2; role++)
        for (uint64_t i = 0; i < plan.counts[role]; i++)
            (role == 0 ? spec->add_observation : spec->add_action)(spec->host, &plan.fields[role][i]);
    return plan.refusal;
}

static const shoal_entry_v1 PLANNED = {.abi_major = 1, .name = "Planned-v0", .describe = describe};
static const shoal_plugin PLUGIN = {NULL, &PLANNED};
static const shoal_field GOOD = {.name = "good", .dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .high = 4};

/* As an observation and as an action: the message begins with the field and goes on with `message`. */
static void expect_field(const shoal_field *field, const char *message, int line) {
    static const char *ROLES[] = {"observation", "action"};
    for (int role = 0; role < 2; role++) {
        memset(&plan, 0, sizeof plan);
        plan.spec.lanes = plan.spec.agents = 1;
        plan.counts[0] = plan.counts[1] = 1;
        plan.fields[0][0] = plan.fields[1][0] = GOOD;
        plan.fields[role][0] = *field;
        shoal_description description;
        shoal_message why;
        char expected[256] = "";
        if (message != NULL)
            snprintf(expected, sizeof expected, "%s %s: %s", ROLES[role],
                     field->name == NULL ? "(unnamed)" : field->name, message);
        int result = shoal_plugin_describe(&PLUGIN, NULL, &description, &why);
        if (result != (message == NULL ? 0 : -1) || strncmp(why.text, expected, strlen(expected)) != 0) {
            fprintf(stderr, "%s:%d: expected \"%s\", found \"%s\"\n", __FILE__, line, expected, why.text);
            exit(1);
        }
        shoal_description_free(&description);
    }
}
#define REFUSED(message, ...) expect_field(&(shoal_field){__VA_ARGS__}, message, __LINE__)
#define ACCEPTED(...) expect_field(&(shoal_field){__VA_ARGS__}, NULL, __LINE__)

static void an_unknown_dtype_or_kind_is_refused(void) {
    REFUSED("unknown dtype {code 3, bits 32, lanes 1}", .name = "a", .dtype = {3, 32, 1});
    REFUSED("unknown dtype {code 0, bits 128, lanes 1}", .name = "a", .dtype = {0, 128, 1});
    REFUSED("unknown dtype {code 0, bits 0, lanes 1}", .dtype = {0, 0, 1});
    REFUSED("unknown dtype {code 1, bits 7, lanes 1}", .dtype = {1, 7, 1});
    REFUSED("unknown dtype {code 2, bits 8, lanes 1}", .dtype = {2, 8, 1});
    REFUSED("unknown dtype {code 6, bits 1, lanes 1}", .dtype = {6, 1, 1});
    REFUSED("unknown dtype {code 2, bits 32, lanes 4}", .dtype = {2, 32, 4});
    REFUSED("unknown dtype {code 2, bits 32, lanes 0}", .dtype = {2, 32, 0});
    REFUSED("unknown kind 4", .name = "a", .dtype = SHOAL_FLOAT32, .kind = 4);
    REFUSED("unknown kind 4294967295", .name = "a", .dtype = SHOAL_FLOAT32, .kind = UINT32_MAX);
    static const uint8_t KNOWN[][2] = {{0, 8},  {0, 16}, {0, 32}, {0, 64}, {1, 8},  {1, 16},
                                       {1, 32}, {1, 64}, {2, 16}, {2, 32}, {2, 64}, {6, 8}};
    for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++)
        ACCEPTED(.dtype = {KNOWN[i][0], KNOWN[i][1], 1}, .high = 1);
}

static void a_shape_that_no_row_can_have_is_refused(void) {
#define SHAPED(...) .name = "a", .dtype = SHOAL_FLOAT64, .shape = { __VA_ARGS__ }
    double one = 0; /* an array of bounds shorter than any of these shapes: it must not be read */
    REFUSED("7 dimensions, at most 6", .ndim = 7, SHAPED(1, 1, 1, 1, 1, 1), .lows = &one);
    REFUSED("4294967295 dimensions", .ndim = UINT32_MAX, SHAPED(1), .lows = &one);
    REFUSED("dimension 1 is 0", .ndim = 2, SHAPED(3, 0), .lows = &one);
    REFUSED("dimension 0 is -1", .ndim = 1, SHAPED(-1), .highs = &one);
    REFUSED("dimension 0 is -9223372036854775808", .ndim = 1, SHAPED(INT64_MIN), .lows = &one);
    REFUSED("dimension 0 is 9223372036854775807", .ndim = 1, SHAPED(INT64_MAX), .lows = &one);
    REFUSED("dimension 1 is 4294967296", .ndim = 2, SHAPED(1 << 26, (int64_t)1 << 32), .lows = &one);
    REFUSED("dimension 0 is 67108865; each is at least 1, and a row has at most 67108864 elements", .ndim = 1,
            SHAPED((1 << 26) + 1), .lows = &one);
    REFUSED("dimension 1 is 2", .ndim = 2, SHAPED(1 << 26, 2), .lows = &one);
    REFUSED("dimension 5 is 65", .ndim = 6, SHAPED(16, 16, 16, 16, 16, 65), .lows = &one);
    ACCEPTED(.ndim = 6, SHAPED(1, 2, 3, 4, 5, 6));
    ACCEPTED(.ndim = 1, SHAPED(1 << 26));
    ACCEPTED(.ndim = 0, SHAPED(-5)); /* not a dimension */
}

static void fields_of_a_row_have_a_total_limit(void) {
    for (int64_t more = 0; more < 2; more++) {
        memset(&plan, 0, sizeof plan);
        plan.spec.lanes = plan.spec.agents = 1;
        plan.counts[0] = 2, plan.counts[1] = 1;
        plan.fields[0][0] =
            (shoal_field){.name = "a", .dtype = SHOAL_BOOL, .ndim = 1, .shape = {(1 << 26) - 1}, .high = 1};
        plan.fields[0][1] =
            (shoal_field){.name = "b", .dtype = SHOAL_BOOL, .ndim = 1, .shape = {1 + more}, .high = 1};
        plan.fields[1][0] = GOOD;
        shoal_description description;
        shoal_message why;
        CHECK_EQUAL(shoal_plugin_describe(&PLUGIN, NULL, &description, &why), more == 0 ? 0 : -1);
        CHECK(more == 0 ||
              strcmp(why.text, "a row of the observations has more than 67108864 elements") == 0);
        shoal_description_free(&description);
    }
}

static void a_kind_must_go_with_its_dtype_and_shape(void) {
    REFUSED("a discrete field needs an integer dtype", .dtype = SHOAL_FLOAT32, .kind = SHOAL_DISCRETE);
    REFUSED("a discrete field needs an integer dtype", .dtype = SHOAL_BOOL, .kind = SHOAL_MULTI_DISCRETE);
    REFUSED("a discrete field has no shape, got 1 dim", .name = "a", .dtype = SHOAL_INT64,
            .kind = SHOAL_DISCRETE, .ndim = 1, .shape = {1});
    REFUSED("a multi-binary field needs dtype int8 or bool", .dtype = SHOAL_FLOAT32,
            .kind = SHOAL_MULTI_BINARY);
    REFUSED("a multi-binary field needs dtype int8 or bool", .dtype = SHOAL_UINT8,
            .kind = SHOAL_MULTI_BINARY);
    REFUSED("a multi-binary field needs dtype int8 or bool", .dtype = SHOAL_INT64,
            .kind = SHOAL_MULTI_BINARY);
    REFUSED("low and high of a multi-binary field must be 0 and 1", .name = "a", .dtype = SHOAL_INT8,
            .kind = SHOAL_MULTI_BINARY);
    ACCEPTED(.dtype = SHOAL_INT8, .kind = SHOAL_MULTI_BINARY, .ndim = 1, .shape = {4}, .high = 1);
    ACCEPTED(.dtype = SHOAL_BOOL, .kind = SHOAL_MULTI_BINARY, .ndim = 1, .shape = {4}, .high = 1);
    ACCEPTED(.dtype = SHOAL_INT8, .kind = SHOAL_MULTI_DISCRETE, .ndim = 1, .shape = {4}, .low = -3,
             .high = 1);
}

static void bounds_out_of_order_or_not_a_number_are_refused(void) {
    double rising[] = {0, 1, 2}, falling[] = {2, 1, 0}, broken[] = {3, NAN, 3};
#define THREE .name = "a", .dtype = SHOAL_FLOAT64, .ndim = 1, .shape = {3}
    REFUSED("low 2 is not at most high 1", THREE, .low = 2, .high = 1);
    REFUSED("low nan is not at most high 1", THREE, .low = fabs(NAN), .high = 1);
    REFUSED("low 0 is not at most high nan", THREE, .high = fabs(NAN));
    REFUSED("low 2 is not at most high 0", THREE, .lows = rising, .highs = falling);
    REFUSED("low 2 is not at most high 1", THREE, .lows = rising, .high = 1);
    REFUSED("low 1 is not at most high 0", THREE, .low = 1, .highs = falling);
    REFUSED("low 0 is not at most high nan", THREE, .highs = broken);
    ACCEPTED(THREE, .lows = rising, .highs = rising);
    ACCEPTED(THREE, .low = NAN, .high = NAN, .lows = falling, .highs = falling); /* low and high not used */
    ACCEPTED(THREE, .low = -INFINITY, .high = INFINITY);
}

static void bounds_that_the_dtype_cannot_hold_are_refused(void) {
#define BOUNDED(type, bits, from, to) .dtype = {SHOAL_CODE_##type, bits, 1}, .low = from, .high = to
    REFUSED("bounds 0 and 256 do not fit its dtype of 8 bits", BOUNDED(UINT, 8, 0, 256));
    REFUSED("bounds -1 and 1 do not fit", BOUNDED(UINT, 8, -1, 1));
    REFUSED("bounds -129 and 0 do not fit", BOUNDED(INT, 8, -129, 0));
    REFUSED("bounds 0 and 32768 do not fit", BOUNDED(INT, 16, 0, 32768));
    REFUSED("bounds 0 and 4.29497e+09 do not fit", BOUNDED(UINT, 32, 0, 4294967296.0));
    REFUSED("bounds -inf and inf do not fit its dtype of 32 bits", BOUNDED(INT, 32, -INFINITY, INFINITY));
    REFUSED("bounds 0 and 9.22337e+18 do not fit", BOUNDED(INT, 64, 0, 9223372036854775808.0));
    REFUSED("bounds 0 and 2 do not fit", BOUNDED(BOOL, 8, 0, 2));
    REFUSED("bounds 0.5 and 3 must be whole numbers", BOUNDED(UINT, 8, 0.5, 3));
    REFUSED("bounds 0 and 1e+39 do not fit float32", BOUNDED(FLOAT, 32, 0, 1e39));
    REFUSED("bounds -1e+06 and 0 do not fit float16", BOUNDED(FLOAT, 16, -1e6, 0));
    ACCEPTED(BOUNDED(UINT, 8, 0, 255));
    ACCEPTED(BOUNDED(INT, 8, -128, 127));
    ACCEPTED(BOUNDED(INT, 64, -9223372036854775808.0, 9223372036854774784.0));
    ACCEPTED(BOUNDED(UINT, 64, 0, 18446744073709549568.0));
    ACCEPTED(BOUNDED(FLOAT, 32, -FLT_MAX, FLT_MAX));
    ACCEPTED(BOUNDED(FLOAT, 32, -3.4028235e38, INFINITY)); /* rounds to a float */
    ACCEPTED(BOUNDED(FLOAT, 64, -DBL_MAX, DBL_MAX));
    ACCEPTED(BOUNDED(FLOAT, 16, -65504, 65504));
}

static void discrete_bounds_must_be_whole_and_count_within_the_dtype(void) {
#define DISCRETE(type, bits, from, to) BOUNDED(type, bits, from, to), .kind = SHOAL_DISCRETE, .name = "a"
    REFUSED("discrete bounds 0 and 1.5 must be whole numbers", DISCRETE(INT, 64, 0, 1.5));
    REFUSED("discrete bounds -inf and 1 must be whole numbers", DISCRETE(INT, 64, -INFINITY, 1));
    REFUSED("discrete bounds 0 and 1e+17 must be whole numbers", DISCRETE(INT, 64, 0, 1e17));
    REFUSED("bounds 0 and 127, and how many values they allow, do not fit", DISCRETE(INT, 8, 0, 127));
    REFUSED("bounds 0 and 255, and how many values they allow, do not fit", DISCRETE(UINT, 8, 0, 255));
    double highs[] = {3, 4.25};
    REFUSED("discrete bounds 0 and 4.25 must be whole numbers", .name = "a", .dtype = SHOAL_INT32,
            .kind = SHOAL_MULTI_DISCRETE, .ndim = 1, .shape = {2}, .highs = highs);
    ACCEPTED(DISCRETE(UINT, 8, 0, 254));
    ACCEPTED(DISCRETE(INT, 8, -64, 62));
    ACCEPTED(DISCRETE(INT, 64, -8e15, 8e15));
}

/* ---- 100,000 random descriptions */

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint64_t draw(uint64_t count) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % count;
}
#define PICK(array) array[draw(sizeof array / sizeof array[0])]
#define RARELY() (draw(60) == 0)

static double random_bound(void) {
    static const double ODD[] = {0.5,  NAN, INFINITY, -INFINITY, 1e300, -1e300,
                                 9e15, 128, 255,      256,       -129,  70000};
    return RARELY() ? PICK(ODD) : (double)draw(3);
}

static int is_sane(const shoal_field *field, double *elements) {
    *elements = 1;
    for (uint32_t i = 0; i < field->ndim && i < SHOAL_MAX_NDIM; i++) {
        if (field->shape[i] < 1)
            return 0;
        *elements *= (double)field->shape[i];
    }
    return field->ndim <= SHOAL_MAX_NDIM && *elements <= 4294967296.0;
}

static shoal_field random_field(double *lows, double *highs) {
    static const uint8_t BITS[] = {8, 16, 32, 64}, ODD_BITS[] = {0, 1, 7, 24, 128, 255};
    static const uint8_t CODES[] = {0, 1, 2, 6}, ODD_CODES[] = {3, 4, 5, 7, 255};
    static const int64_t ODD_SIZES[] = {
        -1, 0, INT64_MIN, INT64_MAX, (int64_t)1 << 32, 65536, (int64_t)1 << 62};
    static char endless[300];
    memset(endless, 'n', sizeof endless - 1);
    static const char *const NAMES[] = {"a", "b", "c", "d", "e"}, *const ODD_NAMES[] = {NULL, "", endless};
    shoal_field field = {.name = RARELY() ? PICK(ODD_NAMES) : PICK(NAMES),
                         .dtype = {RARELY() ? PICK(ODD_CODES) : PICK(CODES),
                                   RARELY() ? PICK(ODD_BITS) : PICK(BITS),
                                   RARELY() ? (uint16_t)draw(70000) : 1},
                         .kind = RARELY() ? (uint32_t)draw(1000) : (uint32_t)(draw(3) ? SHOAL_BOX : draw(4)),
                         .ndim = RARELY() ? (uint32_t)draw(1u << 31) : (uint32_t)draw(4),
                         .low = random_bound(),
                         .high = 2 + random_bound()};
    for (int i = 0; i < SHOAL_MAX_NDIM; i++)
        field.shape[i] = RARELY() ? PICK(ODD_SIZES) : (int64_t)(1 + draw(4));
    double elements;
    int sane = is_sane(&field, &elements);
    if (!sane || elements <= BOUNDS) { /* bounds of a shape that is not sane must never be read */
        for (int i = 0; i < BOUNDS; i++) {
            lows[i] = random_bound();
            highs[i] = 2 + random_bound();
        }
        field.lows = draw(3) ? NULL : lows;
        field.highs = draw(3) ? NULL : sane ? highs : (const double *)(uintptr_t)8;
    }
    return field;
}

static void expect_checked(const shoal_fields *fields, uint64_t count) {
    CHECK(count >= 1 && fields->count == count);
    for (uint64_t i = 0; i < count; i++) {
        const shoal_field *field = &fields->items[i];
        double elements;
        CHECK(is_sane(field, &elements));
        CHECK(count == 1 || (field->name != NULL && field->name[0] != '\0'));
        for (uint64_t j = 0; j < i; j++)
            CHECK(strcmp(field->name, fields->items[j].name) != 0);
        CHECK(field->kind <= SHOAL_MULTI_BINARY && field->dtype.lanes == 1);
        CHECK_EQUAL(shoal_field_bytes(field), elements * field->dtype.bits / 8);
        for (uint64_t k = 0; k < (field->lows || field->highs ? elements : 1); k++) {
            double low = field->lows ? field->lows[k] : field->low;
            double high = field->highs ? field->highs[k] : field->high;
            CHECK(low <= high);
            if (field->dtype.code == SHOAL_CODE_UINT || field->kind != SHOAL_BOX)
                CHECK(low == (double)(int64_t)low && high == (double)(int64_t)high);
            if (field->dtype.code == SHOAL_CODE_UINT)
                CHECK(low >= 0 && high < ldexp(1, field->dtype.bits));
        }
    }
}

static void a_random_description_is_refused_or_holds_what_was_checked(void) {
    static const uint32_t LANES[] = {1, 2, 16, 1024}, ODD[] = {0, 3, 2048, UINT32_MAX};
    int accepted = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double bounds[2][MOST][2][BOUNDS];
        plan.refusal = RARELY() ? "no" : NULL;
        plan.spec =
            (shoal_spec){.instance_bytes = RARELY() ? draw(UINT64_MAX) : draw(1000),
                         .lanes = RARELY() ? PICK(ODD) : PICK(LANES),
                         .agents = RARELY() ? (uint32_t)draw(1u << 31) : (uint32_t)draw(4),
                         .max_episode_steps = RARELY() ? (int64_t)draw(UINT64_MAX) : (int64_t)draw(500)};
        for (int role = 0; role < 2; role++) {
            plan.counts[role] = RARELY() ? 0 : 1 + draw(MOST);
            for (uint64_t i = 0; i < plan.counts[role]; i++)
                plan.fields[role][i] = random_field(bounds[role][i][0], bounds[role][i][1]);
        }
        shoal_description description;
        shoal_message why;
        memset(&why, 'x', sizeof why);
        int result = shoal_plugin_describe(&PLUGIN, NULL, &description, &why);
        CHECK(memchr(why.text, '\0', sizeof why.text) != NULL);
        CHECK_EQUAL(result, why.text[0] == '\0' ? 0 : -1);
        if (result == 0) {
            expect_checked(&description.observations, plan.counts[0]);
            expect_checked(&description.actions, plan.counts[1]);
            CHECK(plan.spec.agents >= 1 && plan.spec.max_episode_steps >= 0 && plan.refusal == NULL);
            accepted++;
        }
        shoal_description_free(&description);
    }
    CHECK(accepted > ROUNDS / 50 && accepted < ROUNDS / 2);
}

int main(void) {
    RUN(an_unknown_dtype_or_kind_is_refused);
    RUN(a_shape_that_no_row_can_have_is_refused);
    RUN(fields_of_a_row_have_a_total_limit);
    RUN(a_kind_must_go_with_its_dtype_and_shape);
    RUN(bounds_out_of_order_or_not_a_number_are_refused);
    RUN(bounds_that_the_dtype_cannot_hold_are_refused);
    RUN(discrete_bounds_must_be_whole_and_count_within_the_dtype);
    RUN(a_random_description_is_refused_or_holds_what_was_checked);
    return 0;
}
