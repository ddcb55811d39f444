/* The state that an environment exports, field by field. Each field is checked before it is passed on. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_STATE_H
#define SHOAL_STATE_H

#include "plugin.h"

#include <shoal/ext/state.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*shoal_state_visitor)(void *context, const shoal_state_field *field, uint64_t bytes);

/* Calls `visit` for each field of environment `env`. Returns 0, or -1 with `why` if a field is invalid; then
 * the fields visited before must not be used. */
int shoal_state_visit(const shoal_state_v1 *state, shoal_envs *envs, uint64_t env, shoal_state_visitor visit,
                      void *context, shoal_message *why);

/* The offset of a field in the instances, if all of it is in the block of `env`; else -1. */
int64_t shoal_state_offset(const shoal_envs *envs, uint64_t env, uint32_t lanes, const void *data,
                           uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
