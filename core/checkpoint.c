/* Checkpoints: see checkpoint.h for the format. */
// SPDX-License-Identifier: MIT
#include "checkpoint.h"

#include "durable.h"

#include <stddef.h>
#include <string.h>

static const char MAGIC[8] = {'S', 'H', 'O', 'A', 'L', 'E', 'N', 'V'};

typedef struct head {
    char magic[8];
    uint64_t check, instance_bytes, agents, part_bytes;
    shoal_rng rng;
    uint32_t reset, elapsed;
} head;

_Static_assert(sizeof(head) == 88 && offsetof(head, rng) == 40 && offsetof(head, reset) == 80, "frozen");

/* The size of what precedes the plug-in's part. */
static uint64_t fixed_bytes(const shoal_checkpoints *of) {
    return sizeof(head) + of->spec->agents * (sizeof(double) + sizeof(uint32_t));
}

static uint64_t check_of(const shoal_checkpoints *of, const char *data, uint64_t bytes) {
    const uint64_t before = offsetof(head, instance_bytes);
    return shoal_hash(data + before, bytes - before) ^ shoal_hash(of->name, strlen(of->name));
}

static char *instance_of(const shoal_checkpoints *of, uint64_t env) {
    return (char *)of->envs->instances + env * of->spec->instance_bytes;
}

uint64_t shoal_checkpoint_bytes(const shoal_checkpoints *of, uint64_t env) {
    return fixed_bytes(of) +
           (of->extension->size == NULL ? of->spec->instance_bytes : of->extension->size(of->envs, env));
}

void shoal_checkpoint_write(const shoal_checkpoints *of, uint64_t env, void *out, uint64_t bytes) {
    const uint64_t agents = of->spec->agents, fixed = fixed_bytes(of);
    head saved = {.instance_bytes = of->spec->instance_bytes,
                  .agents = agents,
                  .part_bytes = bytes - fixed,
                  .rng = of->arrays->rng[env],
                  .reset = of->arrays->reset[env] || of->over[env], /* it has ended: the next step resets */
                  .elapsed = of->arrays->elapsed[env]};
    memcpy(saved.magic, MAGIC, sizeof MAGIC);
    char *data = out, *rows = data + sizeof saved;
    memset(data + fixed, 0, bytes - fixed); /* the plug-in may not write every byte */
    memcpy(data, &saved, sizeof saved);
    memcpy(rows, of->arrays->total + env * agents, agents * sizeof(double));
    memcpy(rows + agents * sizeof(double), of->arrays->length + env * agents, agents * sizeof(uint32_t));
    if (of->extension->save != NULL)
        of->extension->save(of->envs, env, data + fixed);
    else
        memcpy(data + fixed, instance_of(of, env), of->spec->instance_bytes);
    saved.check = check_of(of, data, bytes);
    memcpy(data, &saved, sizeof saved);
}

int shoal_checkpoint_verify(const shoal_checkpoints *of, const void *data, uint64_t bytes) {
    head saved;
    if (bytes < fixed_bytes(of))
        return 0;
    memcpy(&saved, data, sizeof saved);
    return memcmp(saved.magic, MAGIC, sizeof MAGIC) == 0 &&
           saved.instance_bytes == of->spec->instance_bytes && saved.check == check_of(of, data, bytes) &&
           saved.agents == of->spec->agents && saved.part_bytes == bytes - fixed_bytes(of) &&
           saved.reset <= 1 && saved.rng.has_half <= 1 && saved.rng.inc_low % 2 == 1 &&
           (of->extension->restore != NULL || saved.part_bytes == of->spec->instance_bytes);
}

const char *shoal_checkpoint_read(const shoal_checkpoints *of, uint64_t env, const void *data,
                                  uint64_t bytes) {
    const uint64_t agents = of->spec->agents, fixed = fixed_bytes(of);
    const char *part = (const char *)data + fixed, *rows = (const char *)data + sizeof(head);
    head saved;
    memcpy(&saved, data, sizeof saved);
    const char *why = NULL;
    if (of->extension->restore == NULL)
        memcpy(instance_of(of, env), part, of->spec->instance_bytes);
    else if ((why = of->extension->restore(of->envs, env, part, bytes - fixed)) != NULL)
        return why;
    memcpy(of->arrays->total + env * agents, rows, agents * sizeof(double));
    memcpy(of->arrays->length + env * agents, rows + agents * sizeof(double), agents * sizeof(uint32_t));
    of->arrays->rng[env] = saved.rng;
    of->arrays->reset[env] = of->is_disabled ? 0 : (uint8_t)saved.reset;
    if (of->is_disabled)
        of->over[env] = (uint8_t)saved.reset;
    of->arrays->elapsed[env] = saved.elapsed;
    return NULL;
}
