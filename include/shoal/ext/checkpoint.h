/* shoal.checkpoint/1: save one environment and restore it, in the same or another environment with the same
 * options. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_EXT_CHECKPOINT_H
#define SHOAL_EXT_CHECKPOINT_H

#include <shoal/env.h>

#define SHOAL_EXT_CHECKPOINT "shoal.checkpoint/1"

/* The host saves the random generator, episode statistics and time limit. If all three functions are NULL, it
 * also copies the instance: correct for one-lane plug-ins whose instance contains no pointer. */
typedef struct shoal_checkpoint_v1 {
    uint64_t (*size)(shoal_envs *envs, uint64_t env);        /* bytes that save writes [main] */
    void (*save)(shoal_envs *envs, uint64_t env, void *out); /* [main] */
    const char *(*restore)(shoal_envs *envs, uint64_t env, const void *in,
                           uint64_t bytes); /* NULL or an error message [main] */
} shoal_checkpoint_v1;

#endif
