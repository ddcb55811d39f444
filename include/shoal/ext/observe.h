/* shoal.observe/1: write an environment's observation once more.
 *
 * The arrays that step and reset write into are lent to users, who may change them. A host that needs the
 * observations of environments it does not reset asks for them again. Without this ability it keeps a copy of
 * every step's observations. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_EXT_OBSERVE_H
#define SHOAL_EXT_OBSERVE_H

#include <shoal/env.h>

#define SHOAL_EXT_OBSERVE "shoal.observe/1"

typedef struct shoal_observe_v1 {
    /* Writes the same bytes as the last step or reset of each environment of any range: all its fields, all
     * its agents. Writes no rewards or flags, changes no environment and draws no random numbers. [worker] */
    void (*observe)(shoal_envs *envs, uint64_t begin, uint64_t end);
} shoal_observe_v1;

/* Writes the batch function Type_observe from one environment's: void observe_one(const Type *self,
 * shoal_envs *envs, uint64_t env). For plug-ins with one lane. */
#define SHOAL_OBSERVE(Type, observe_one)                                                                     \
    static void Type##_observe(shoal_envs *envs, uint64_t begin, uint64_t end) {                             \
        for (uint64_t env = begin; env < end; env++)                                                         \
            observe_one(SHOAL_INSTANCE(Type, envs, env), envs, env);                                         \
    }

#endif
