/* What an environment exports of itself, field by field, each checked before anybody looks at it. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_STATE_H
#define SHOAL_STATE_H

#include "plugin.h"

#include <shoal/ext/state.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*shoal_state_visitor)(void *context, const shoal_state_field *field, uint64_t bytes);

/* Calls `visit` for each field of environment `env`. 0, or -1 with `why` if one is not as it should be; then
 * what was visited before is of no use. */
int shoal_state_visit(const shoal_state_v1 *state, shoal_envs *envs, uint64_t env, shoal_state_visitor visit,
                      void *context, shoal_message *why);

/* Where in the instances a field lies, if all of it lies in the block of `env`; else -1. */
int64_t shoal_state_offset(const shoal_envs *envs, uint64_t env, uint32_t lanes, const void *data,
                           uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
