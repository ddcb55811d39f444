/* Everything a plug-in can declare wrong: option `mistake` chooses one, ENTRY one that is in the entry. */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <shoal/env.h>

#ifndef ENTRY
#define ENTRY 0
#endif

enum { RIGHT, TWO_ALIKE, NO_DEFAULT, NO_ENTRY, OTHER_ABI, NO_STEP };

static const shoal_option OPTIONS[] = {
    {.name = "mistake", .type = SHOAL_OPTION_INT},
    {.name = ENTRY == TWO_ALIKE ? "mistake" : "mode",
     .type = SHOAL_OPTION_STRING,
     .value = {.s = ENTRY == NO_DEFAULT ? 0 : "easy"}},
};

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    static const double NAN_LOWS[] = {0, NAN};
    shoal_field seen = {.name = "seen", .dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {2}, .high = 1};
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .high = 1};
    spec->instance_bytes = 8;
    switch (options[0].i) {
    case 1:
        return "mistake must not be 1";
    case 2:
        seen.dtype.bits = 33;
        break;
    case 3:
        seen.ndim = 7;
        break;
    case 4:
        seen.shape[0] = -4;
        break;
    case 5:
        seen.lows = NAN_LOWS;
        break;
    case 6:
        move.high = 0.5;
        break;
    case 7:
        move.dtype = (shoal_dtype)SHOAL_FLOAT32;
        break;
    case 8:
        spec->lanes = 3;
        break;
    case 9:
        spec->agents = 0;
        break;
    case 10:
        spec->max_episode_steps = -1;
        break;
    case 11:
        spec->instance_bytes = UINT64_MAX;
        break;
    case 12:
        spec->add_observation(spec->host, &seen);
        break;
    case 13:
        return 0;
    case 14:
        move.dtype = (shoal_dtype)SHOAL_UINT8;
        move.high = 255;
        break;
    }
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &move);
    return 0;
}

static void nothing(shoal_envs *envs, uint64_t begin, uint64_t end) { (void)envs, (void)begin, (void)end; }

#if ENTRY == 3 /* NO_ENTRY */
#define shoal_entry another_name
SHOAL_EXPORT const shoal_entry_v1 another_name;
#endif

const shoal_entry_v1 shoal_entry = {
    .abi_major = ENTRY == OTHER_ABI ? 2 : SHOAL_ABI_MAJOR,
    .name = "Refused-v0",
    .options = OPTIONS,
    .num_options = 2,
    .describe = describe,
    .reset = nothing,
    .step = ENTRY == NO_STEP ? 0 : nothing,
};
