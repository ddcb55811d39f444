/* A checkpoint: all that one environment is, as bytes that can be restored here or in another environment of
 * the same plug-in and options.
 *
 *    "SHOALENV" | check | instance_bytes agents part_bytes | generator | reset elapsed | per agent: reward so
 *    far [agents], steps so far [agents] | the plug-in's own part [part_bytes]
 *
 * `check` is a hash of all that follows and of the plug-in's name. The format is frozen: checkpoints of
 * earlier releases must restore. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_CHECKPOINT_H
#define SHOAL_CHECKPOINT_H

#include "engine.h"

#include <shoal/ext/checkpoint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The environments that checkpoints are taken of. */
typedef struct shoal_checkpoints {
    const char *name; /* the plug-in's */
    const shoal_spec *spec;
    const shoal_checkpoint_v1 *extension;
    shoal_envs *envs;
    const shoal_engine_arrays *arrays;
    uint8_t *over;   /* per environment: it ended and was not reset */
    int is_disabled; /* SHOAL_DISABLED: a restored end goes there, and the next step does not reset */
} shoal_checkpoints;

/* How many bytes shoal_checkpoint_write needs, asked of the plug-in once before each write. */
uint64_t shoal_checkpoint_bytes(const shoal_checkpoints *of, uint64_t env);
void shoal_checkpoint_write(const shoal_checkpoints *of, uint64_t env, void *out, uint64_t bytes);
/* Whether these bytes are a checkpoint of such environments. A plug-in can still refuse its own part. */
int shoal_checkpoint_verify(const shoal_checkpoints *of, const void *data, uint64_t bytes);
/* Restores an environment from verified bytes. NULL, or why the plug-in refused: then only the plug-in's part
 * may have changed. */
const char *shoal_checkpoint_read(const shoal_checkpoints *of, uint64_t env, const void *data,
                                  uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
