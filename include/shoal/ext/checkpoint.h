/* shoal.checkpoint/1: save one environment and restore it, here or in another environment of the same
 * options. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_EXT_CHECKPOINT_H
#define SHOAL_EXT_CHECKPOINT_H

#include <shoal/env.h>

#define SHOAL_EXT_CHECKPOINT "shoal.checkpoint/1"

/* The host itself keeps the random generator, episode statistics and time limit. With all three NULL it also
 * copies the instance: right for one-lane plug-ins whose instance holds no pointer. */
typedef struct shoal_checkpoint_v1 {
    uint64_t (*size)(shoal_envs *envs, uint64_t env);        /* bytes that save writes [main] */
    void (*save)(shoal_envs *envs, uint64_t env, void *out); /* [main] */
    const char *(*restore)(shoal_envs *envs, uint64_t env, const void *in,
                           uint64_t bytes); /* NULL or why not [main] */
} shoal_checkpoint_v1;

#endif
