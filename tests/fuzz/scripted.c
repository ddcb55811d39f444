/* A plug-in that declares whatever a script in its memory says: the fuzzer writes the script. */
// SPDX-License-Identifier: MIT
#include <shoal/env.h>
#include <string.h>

enum { FIELDS = 6, BOUNDS = 8 };

typedef struct scripted_field {
    uint32_t is_action, has_name, has_lows, has_highs;
    char name[16]; /* may lack its end: it is given one */
    shoal_field field;
    double lows[BOUNDS], highs[BOUNDS];
} scripted_field;

typedef struct script {
    uint64_t instance_bytes;
    uint32_t lanes, agents;
    int64_t max_episode_steps;
    uint32_t count, refuses;
    char name[16], option[16];
    shoal_option options[2];
    uint32_t num_options, abi_major;
    scripted_field fields[FIELDS];
} script;

__attribute__((visibility("default"))) script shoal_script;
__attribute__((visibility("default"))) const uint64_t shoal_script_bytes = sizeof(script);

static uint64_t elements_of(const shoal_field *field) {
    uint64_t elements = 1;
    for (uint32_t i = 0; i < field->ndim && i < SHOAL_MAX_NDIM; i++)
        elements = field->shape[i] >= 0 && field->shape[i] <= BOUNDS ? elements * (uint64_t)field->shape[i]
                                                                     : BOUNDS + 1;
    return elements;
}

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    if (shoal_script.refuses == 7)
        return "the script says no";
    spec->instance_bytes = shoal_script.instance_bytes;
    spec->lanes = shoal_script.lanes;
    spec->agents = shoal_script.agents;
    spec->max_episode_steps = shoal_script.max_episode_steps;
    for (uint32_t i = 0; i < shoal_script.count % (FIELDS + 1); i++) {
        scripted_field *given = &shoal_script.fields[i];
        shoal_field field = given->field;
        given->name[sizeof given->name - 1] = '\0';
        field.name = given->has_name % 4 ? given->name : NULL;
        const int bounded = elements_of(&field) <= BOUNDS; /* that many bounds are there */
        field.lows = bounded && given->has_lows == 1 ? given->lows : NULL;
        field.highs = bounded && given->has_highs == 1 ? given->highs : NULL;
        (given->is_action % 2 ? spec->add_action : spec->add_observation)(spec->host, &field);
    }
    return NULL;
}

static void fill(shoal_envs *envs, uint64_t begin, uint64_t end) {
    const uint64_t agents = shoal_script.agents;
    uint64_t field = 0;
    for (uint32_t i = 0; i < shoal_script.count % (FIELDS + 1); i++)
        if (shoal_script.fields[i].is_action % 2 == 0) {
            const uint64_t bytes = envs->observation_bytes[field];
            memset((char *)envs->observations[field] + begin * agents * bytes, 0,
                   (end - begin) * agents * bytes);
            field++;
        }
    memset((char *)envs->instances + begin * envs->instance_bytes, 1, (end - begin) * envs->instance_bytes);
}

static void step(shoal_envs *envs, uint64_t begin, uint64_t end) {
    fill(envs, begin, end);
    for (uint64_t row = begin * shoal_script.agents; row < end * shoal_script.agents; row++) {
        envs->rewards[row] = 1;
        envs->terminated[row] = row % 5 == 0;
    }
}

extern shoal_entry_v1 changeable __asm__("shoal_entry");
__attribute__((visibility("default"))) shoal_entry_v1 changeable;

/* Makes the entry what the script says. */
__attribute__((visibility("default"))) void shoal_script_apply(void) {
    shoal_script.name[sizeof shoal_script.name - 1] = shoal_script.option[sizeof shoal_script.option - 1] =
        '\0';
    for (int i = 0; i < 2; i++) {
        shoal_script.options[i].name = i == 0 ? shoal_script.option : "second";
        shoal_script.options[i].help = NULL;
        if (shoal_script.options[i].type == SHOAL_OPTION_STRING)
            shoal_script.options[i].value.s = shoal_script.name;
    }
    changeable = (shoal_entry_v1){.abi_major = shoal_script.abi_major,
                                  .name = shoal_script.name,
                                  .options = shoal_script.options,
                                  .num_options = shoal_script.num_options % 3,
                                  .describe = describe,
                                  .reset = fill,
                                  .step = step};
}
