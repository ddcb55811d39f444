/* Sized-v0: observations of a given number of bytes, copied from a pattern, so that a step costs a memcpy.
 */
// SPDX-License-Identifier: MIT
#include <shoal/env.h>
#include <string.h>

enum { MOST = 1 << 20, SHIFTS = 256 };

static uint8_t pattern[MOST + SHIFTS]; /* written by describe, read by all threads */

typedef struct Sized {
    uint64_t turn;
    uint8_t apart[56]; /* fills a cache line, so two threads never share one */
} Sized;

static const shoal_option OPTIONS[] = {
    {.name = "bytes", .help = "of one observation", .type = SHOAL_OPTION_INT, .value = {.i = 16}},
};

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    if (options[0].i < 1 || options[0].i > MOST)
        return "bytes must be from 1 to 1048576";
    for (uint32_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)(i * 167 + (i >> 8));
    shoal_field seen = {.dtype = SHOAL_UINT8, .kind = SHOAL_BOX, .ndim = 1, .low = 0, .high = 255};
    seen.shape[0] = options[0].i;
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 1};
    spec->instance_bytes = sizeof(Sized);
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &move);
    return 0;
}

static void look(Sized *self, shoal_envs *envs, uint64_t env) {
    uint8_t *seen = SHOAL_OBSERVATION(uint8_t, envs, 0, env);
    memcpy(seen, pattern + self->turn++ % SHIFTS, (size_t)envs->options[0].i);
}

static void reset_one(Sized *self, shoal_envs *envs, uint64_t env) {
    self->turn = env;
    look(self, envs, env);
}

static void step_one(Sized *self, shoal_envs *envs, uint64_t env) {
    look(self, envs, env);
    envs->rewards[env] = 0;
    envs->terminated[env] = 0;
}

SHOAL_BATCH(Sized, reset_one, step_one)

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Sized-v0",
    .options = OPTIONS,
    .num_options = 1,
    .describe = describe,
    .reset = Sized_reset,
    .step = Sized_step,
};
