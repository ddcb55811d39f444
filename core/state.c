/* Exported fields: see state.h. */
// SPDX-License-Identifier: MIT
#include "state.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const uint64_t MAX_BYTES = (uint64_t)1 << 32; /* of one field */
enum { MAX_LISTED = 4096 };                          /* columns, categories */

typedef struct visit {
    shoal_state_visitor visitor;
    void *context;
    shoal_message *why;
} visit;

__attribute__((format(printf, 2, 3))) static void refuse(shoal_message *why, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, sizeof why->text, format, arguments);
    va_end(arguments);
}

static int is_drawable(const shoal_state_field *field, shoal_message *why) {
    if (field->role > SHOAL_ROLE_IMAGE)
        return refuse(why, "state field %s: unknown role %u", field->name, field->role), 0;
    const int is_whole = field->dtype.code != SHOAL_CODE_FLOAT;
    if (field->role == SHOAL_ROLE_GRID && (field->ndim != 2 || !is_whole))
        return refuse(why, "state field %s: a grid is [height, width] of integers, found %u dimensions of %s",
                      field->name, field->ndim, is_whole ? "integers" : "floats"),
               0;
    if (field->role == SHOAL_ROLE_ENTITIES && (field->ndim != 2 || field->num_columns == 0))
        return refuse(why, "state field %s: entities are [count, columns] with names for the columns",
                      field->name),
               0;
    if (field->role == SHOAL_ROLE_IMAGE &&
        (field->dtype.code != SHOAL_CODE_UINT || field->dtype.bits != 8 ||
         !(field->ndim == 2 || (field->ndim == 3 && (field->shape[2] == 1 || field->shape[2] == 3)))))
        return refuse(why, "state field %s: an image is [height, width] or [height, width, 3] of uint8",
                      field->name),
               0;
    if (field->role == SHOAL_ROLE_SCALAR && field->ndim > 1)
        return refuse(why, "state field %s: a scalar is one number, or a few; found %u dimensions",
                      field->name, field->ndim),
               0;
    if ((field->num_columns != 0 && field->columns == NULL) || field->num_columns > MAX_LISTED ||
        (field->num_categories != 0 && field->categories == NULL) || field->num_categories > MAX_LISTED)
        return refuse(why, "state field %s: %llu columns and %llu categories, but NULL or too many",
                      field->name, (unsigned long long)field->num_columns,
                      (unsigned long long)field->num_categories),
               0;
    if (field->num_columns != 0 &&
        (field->ndim == 0 || (uint64_t)field->shape[field->ndim - 1] != field->num_columns))
        return refuse(why, "state field %s: %llu columns must name its last dimension", field->name,
                      (unsigned long long)field->num_columns),
               0;
    for (uint64_t i = 0; i < field->num_columns; i++)
        if (!shoal_name_is_valid(field->columns[i]))
            return refuse(why, "state field %s: column %llu needs a name", field->name,
                          (unsigned long long)i),
                   0;
    for (uint64_t i = 0; i < field->num_categories; i++)
        if (!shoal_name_is_valid(field->categories[i].name))
            return refuse(why, "state field %s: category %llu needs a name", field->name,
                          (unsigned long long)i),
                   0;
    return 1;
}

static void add(void *host, const shoal_state_field *field) {
    const visit *v = host;
    shoal_message *why = v->why;
    if (why->text[0] != '\0')
        return; /* an earlier field was invalid */
    if (!shoal_name_is_valid(field->name)) {
        refuse(why, "a state field needs a name of 1 to 255 printable characters");
        return;
    }
    if (!shoal_dtype_is_known(field->dtype)) {
        refuse(why, "state field %s: unknown dtype {code %u, bits %u, lanes %u}", field->name,
               field->dtype.code, field->dtype.bits, field->dtype.lanes);
        return;
    }
    if (field->ndim > SHOAL_MAX_NDIM) {
        refuse(why, "state field %s: %u dimensions, at most %d", field->name, field->ndim, SHOAL_MAX_NDIM);
        return;
    }
    if ((field->flags & ~(uint32_t)SHOAL_STATE_STABLE) != 0) {
        refuse(why, "state field %s: unknown flags %u", field->name, field->flags);
        return;
    }
    uint64_t bytes = field->dtype.bits / 8;
    for (uint32_t i = 0; i < field->ndim; i++) {
        const int64_t size = field->shape[i];
        if (size < 0 || (size > 0 && bytes > MAX_BYTES / (uint64_t)size)) {
            refuse(why, "state field %s: dimension %u is %lld", field->name, i, (long long)size);
            return;
        }
        bytes *= (uint64_t)size;
    }
    if (bytes != 0 && field->data == NULL) {
        refuse(why, "state field %s: data is NULL", field->name);
        return;
    }
    if (is_drawable(field, why))
        v->visitor(v->context, field, bytes);
}

int shoal_state_visit(const shoal_state_v1 *state, shoal_envs *envs, uint64_t env,
                      shoal_state_visitor visitor, void *context, shoal_message *why) {
    why->text[0] = '\0';
    visit v = {visitor, context, why};
    state->fields(envs, env, &v, add);
    return why->text[0] == '\0' ? 0 : -1;
}

int64_t shoal_state_offset(const shoal_envs *envs, uint64_t env, uint32_t lanes, const void *data,
                           uint64_t bytes) {
    const uint64_t block = envs->instance_bytes * lanes;
    const uintptr_t begin = (uintptr_t)envs->instances + env / lanes * block;
    const uintptr_t at = (uintptr_t)data;
    if (at < begin || at > begin + block || bytes > begin + block - at)
        return -1;
    return (int64_t)(at - (uintptr_t)envs->instances);
}
