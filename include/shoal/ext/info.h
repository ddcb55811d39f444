/* shoal.info/1: what the numbers of an environment mean, in words.
 *
 * `shoal envs`, `shoal info` and the documentation print these texts beside what describe() declares. The
 * host never needs them to run an environment. All texts are UTF-8, constant, and owned by the plug-in. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_EXT_INFO_H
#define SHOAL_EXT_INFO_H

#include <shoal/env.h>

#define SHOAL_EXT_INFO "shoal.info/1"

/* One field. Names of elements are for the last dimension: a field of shape [11, 11, 4] has four. Names of
 * values are for fields of integers: the first is for the field's low bound. */
typedef struct shoal_info_field {
    const char *text;            /* what the field holds, in a sentence or two */
    const char *const *elements; /* NULL: the elements have no names */
    uint64_t num_elements;
    const char *const *values; /* NULL: the values have no names */
    uint64_t num_values;
} shoal_info_field;

typedef struct shoal_info_v1 {
    const char *summary; /* the task in one line of at most 100 characters, without a full stop */
    const char *reward;  /* how it is computed */
    const char *ending;  /* when an episode ends, without the time limit, which the host knows */
    const shoal_info_field *observations; /* one for each field, in the order of add_observation */
    uint64_t num_observations;
    const shoal_info_field *actions; /* one for each field, in the order of add_action */
    uint64_t num_actions;
} shoal_info_v1;

/* An array of names and their count, for shoal_info_field: SHOAL_NAMES("left", "right"). */
#define SHOAL_NAMES(...)                                                                                     \
    (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

#endif
