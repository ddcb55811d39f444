/* shoal.observe/1: write an environment's observation again.
 *
 * The arrays that step and reset write into are returned to users, who may change them. The host calls
 * observe when it needs the observations of environments that it does not reset. Without this extension it
 * copies the observations in every step. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_EXT_OBSERVE_H
#define SHOAL_EXT_OBSERVE_H

#include <shoal/env.h>

#define SHOAL_EXT_OBSERVE "shoal.observe/1"

typedef struct shoal_observe_v1 {
    /* For each environment of the range, writes the bytes that its last step or reset wrote: all fields of
     * all agents. The range may begin and end inside a block of lanes. Writes no rewards or flags, changes no
     * environment and uses no random numbers. [worker] */
    void (*observe)(shoal_envs *envs, uint64_t begin, uint64_t end);
} shoal_observe_v1;

/* Defines the batch function Type_observe from the function of one environment: void observe_one(const Type
 * *self, shoal_envs *envs, uint64_t env). For plug-ins with one lane. */
#define SHOAL_OBSERVE(Type, observe_one)                                                                     \
    static void Type##_observe(shoal_envs *envs, uint64_t begin, uint64_t end) {                             \
        for (uint64_t env = begin; env < end; env++)                                                         \
            observe_one(SHOAL_INSTANCE(Type, envs, env), envs, env);                                         \
    }

#endif
