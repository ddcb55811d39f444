/* Pictures and exported state of plug-ins that use lanes.h.
 *
 *   one lane of each array of the block --> double state[] --+-> draw_state(canvas, state)   shoal.render/1
 *                                                            `-> one named field             shoal.state/1
 *
 * Nothing of this runs in a step, and a block needs no members for it. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_LANES_VIEW_H
#define SHOAL_LANES_VIEW_H

#include "lanes.h"
#include <shoal/draw.h>
#include <shoal/ext/render.h>
#include <shoal/ext/state.h>

enum { LANES_MOST_STATE = 8 };

/* Reads one environment: one number from each of the first `count` arrays of its block. */
static inline void lanes_read(const shoal_envs *envs, uint64_t env, uint64_t count, double *state) {
    const void *block = lanes_block(envs, env);
    int is_float = lanes_real_bytes(envs->options) == sizeof(float);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = i * LANES + env % LANES;
        state[i] = is_float ? ((const float *)block)[at] : ((const double *)block)[at];
    }
}

/* Defines lanes_view_extension, which returns shoal.render/1, shoal.state/1 and the extensions of lanes.h.
 * The last arguments name the arrays of a block, in their order; draw_state gets a white canvas. */
#define LANES_VIEW(pixels_high, pixels_wide, frames_per_s, draw_state, ...)                                  \
    static const char *const LANES_COLUMNS[] = {__VA_ARGS__};                                                \
    enum { LANES_NUM_COLUMNS = sizeof LANES_COLUMNS / sizeof LANES_COLUMNS[0] };                             \
    _Static_assert((int)LANES_NUM_COLUMNS <= (int)LANES_MOST_STATE, "raise LANES_MOST_STATE");               \
    static void lanes_fields(shoal_envs *envs, uint64_t env, void *host,                                     \
                             void (*add)(void *host, const shoal_state_field *field)) {                      \
        double numbers[LANES_MOST_STATE];                                                                    \
        lanes_read(envs, env, LANES_NUM_COLUMNS, numbers);                                                   \
        shoal_state_field state = {.name = "state", .dtype = SHOAL_FLOAT64, .ndim = 1};                      \
        state.shape[0] = LANES_NUM_COLUMNS;                                                                  \
        state.data = numbers;                                                                                \
        state.role = SHOAL_ROLE_SCALAR;                                                                      \
        state.columns = LANES_COLUMNS;                                                                       \
        state.num_columns = LANES_NUM_COLUMNS;                                                               \
        add(host, &state);                                                                                   \
    }                                                                                                        \
    static void lanes_picture_size(shoal_envs *envs, uint64_t env, uint32_t *height, uint32_t *width) {      \
        (void)envs, (void)env;                                                                               \
        *height = pixels_high;                                                                               \
        *width = pixels_wide;                                                                                \
    }                                                                                                        \
    static void lanes_picture(shoal_envs *envs, uint64_t env, uint8_t *rgb) {                                \
        double state[LANES_MOST_STATE];                                                                      \
        shoal_canvas canvas = {rgb, pixels_high, pixels_wide};                                               \
        lanes_read(envs, env, LANES_NUM_COLUMNS, state);                                                     \
        shoal_draw_fill(&canvas, 0xffffff);                                                                  \
        draw_state(&canvas, state);                                                                          \
    }                                                                                                        \
    static const void *lanes_view_extension(const char *id) {                                                \
        static const shoal_state_v1 state = {lanes_fields};                                                  \
        static const shoal_render_v1 render = {                                                              \
            .fps = frames_per_s, .size = lanes_picture_size, .draw = lanes_picture};                         \
        if (strcmp(id, SHOAL_EXT_RENDER) == 0)                                                               \
            return &render;                                                                                  \
        return strcmp(id, SHOAL_EXT_STATE) == 0 ? &state : lanes_get_extension(id);                          \
    }

#endif
