/* shoal.render/1: draw one environment as RGB. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_EXT_RENDER_H
#define SHOAL_EXT_RENDER_H

#include <shoal/env.h>

#define SHOAL_EXT_RENDER "shoal.render/1"

typedef struct shoal_render_v1 {
    uint32_t fps;      /* for videos; 0: unknown */
    uint32_t reserved; /* 0 */
    void (*size)(shoal_envs *envs, uint64_t env, uint32_t *height, uint32_t *width); /* [main] */
    void (*draw)(shoal_envs *envs, uint64_t env, uint8_t *rgb); /* height * width * 3 bytes [main] */
} shoal_render_v1;

#endif
