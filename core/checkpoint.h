/* A checkpoint: the whole state of one environment as bytes, which can be restored in any environment of the
 * same plug-in with the same options.
 *
 *    "SHOALENV" | check | instance_bytes agents part_bytes | generator | reset elapsed
 *               | reward so far [agents] | steps so far [agents] | the plug-in's own part [part_bytes]
 *
 * `check` is a hash of everything after it and of the plug-in's name. The format is frozen: checkpoints of
 * earlier releases must restore. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_CHECKPOINT_H
#define SHOAL_CHECKPOINT_H

#include "engine.h"

#include <shoal/ext/checkpoint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The environments to save and restore. */
typedef struct shoal_checkpoints {
    const char *name; /* the plug-in's */
    const shoal_spec *spec;
    const shoal_checkpoint_v1 *extension;
    shoal_envs *envs;
    const shoal_engine_arrays *arrays;
    uint8_t *over;   /* per environment: it ended and was not reset */
    int is_disabled; /* SHOAL_DISABLED: a restored end of episode sets `over`, and no step resets */
} shoal_checkpoints;

/* How many bytes shoal_checkpoint_write needs. Call it once before each write: it asks the plug-in. */
uint64_t shoal_checkpoint_bytes(const shoal_checkpoints *of, uint64_t env);
void shoal_checkpoint_write(const shoal_checkpoints *of, uint64_t env, void *out, uint64_t bytes);
/* Whether these bytes are a checkpoint of such environments. The plug-in can still reject its own part. */
int shoal_checkpoint_verify(const shoal_checkpoints *of, const void *data, uint64_t bytes);
/* Restores an environment from verified bytes. Returns NULL, or the reason why the plug-in rejected its part;
 * then only that part may have changed. */
const char *shoal_checkpoint_read(const shoal_checkpoints *of, uint64_t env, const void *data,
                                  uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
