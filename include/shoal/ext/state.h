/* shoal.state/1: export an environment's state to watchers, as named and typed fields.
 *
 *   host, between two steps                            plug-in
 *   fields(envs, env, host, add)  -------------------> add(host, &field) for each field
 *
 * A field that is flagged stable and lies inside the instance is read in place, without a copy. add copies
 * the data of any other field, and all names and categories, before it returns, so they may be on the stack.
 * Role, columns and categories say how to draw a field; a viewer knows nothing else about the environment. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_EXT_STATE_H
#define SHOAL_EXT_STATE_H

#include <shoal/env.h>

#define SHOAL_EXT_STATE "shoal.state/1"

enum shoal_state_flags {
    SHOAL_STATE_STABLE = 1 /* address and shape never change; the content may */
};

enum shoal_state_role {
    SHOAL_ROLE_NONE = 0,
    SHOAL_ROLE_GRID = 1, /* [height, width] of integers: tiles, each a category; a second grid is drawn above
                            the first, and values without a category are transparent */
    SHOAL_ROLE_ENTITIES = 2, /* [count, columns]: one row per entity; columns r and c (or x and y) are its
                                position, kind its category, hp and hp_max its health, dir its direction (0
                                up, 1 right, 2 down, 3 left); r < 0: it is not on the map */
    SHOAL_ROLE_SCALAR = 3,   /* one number, or a few, for charts */
    SHOAL_ROLE_IMAGE = 4     /* [height, width] or [height, width, 3] of uint8 */
};

typedef struct shoal_category {
    int64_t value;
    const char *name;
    uint32_t rgb;      /* 0xRRGGBB */
    uint32_t reserved; /* 0 */
} shoal_category;

typedef struct shoal_state_field {
    const char *name;
    shoal_dtype dtype;
    uint32_t ndim;
    int64_t shape[SHOAL_MAX_NDIM]; /* 0 is allowed: the field is empty now */
    const void *data;              /* packed, in C order */
    uint32_t flags;                /* shoal_state_flags */
    uint32_t role;                 /* shoal_state_role */
    const char *const *columns;    /* names along the last dimension; NULL: none */
    uint64_t num_columns;
    const shoal_category *categories; /* of a grid's values, or of the column kind; NULL: none */
    uint64_t num_categories;
} shoal_state_field;

typedef struct shoal_state_v1 {
    /* Calls add for each field of one environment, and changes nothing. Not called during a step of it.
     * [worker] */
    void (*fields)(shoal_envs *envs, uint64_t env, void *host,
                   void (*add)(void *host, const shoal_state_field *field));
} shoal_state_v1;

#endif
