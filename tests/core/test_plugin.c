/* Tests of core/plugin.c: everything that a plug-in declares wrongly is rejected with a message that names
 * it.
 *
 * 1. Entries: plugins/changeable.c, whose entry the tests write before they have it loaded.
 * 2. Descriptions: an entry in this program, whose describe plays back a plan. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "plugin.h"

#include "check.h"

#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

static void expect_text(const char *found, const char *expected, int line) {
    if (strstr(found, expected) == NULL) {
        fprintf(stderr, "%s:%d: expected \"%s\" in \"%s\"\n", __FILE__, line, expected, found);
        exit(1);
    }
}

/* ---- Entries */

static char directory[PATH_MAX]; /* of this program and the libraries */
static shoal_entry_v1 *entry;    /* of changeable.so */

static const char *describe_nothing(const shoal_value *values, shoal_spec *spec) {
    (void)values, (void)spec;
    return NULL;
}
static void do_nothing(shoal_envs *envs, uint64_t begin, uint64_t end) { (void)envs, (void)begin, (void)end; }

static shoal_entry_v1 good_entry(void) {
    return (shoal_entry_v1){.abi_major = SHOAL_ABI_MAJOR,
                            .name = "Good-v0",
                            .describe = describe_nothing,
                            .reset = do_nothing,
                            .step = do_nothing};
}

static const char *path_of(const char *name) {
    static char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static void expect_open_refused(const char *path, const char *message, int line) {
    shoal_plugin plugin;
    shoal_message why;
    memset(&why, 'x', sizeof why);
    CHECK_EQUAL(shoal_plugin_open(path, &plugin, &why), -1);
    CHECK(plugin.entry == NULL && plugin.library == NULL);
    expect_text(why.text, message, line);
    expect_text(why.text, path, line);
    shoal_plugin_close(&plugin); /* allowed, does nothing */
}
#define OPEN_REFUSED(path, message) expect_open_refused(path, message, __LINE__)
#define ENTRY_REFUSED(message) OPEN_REFUSED(path_of("changeable.so"), message)

static void file_that_is_not_a_library_is_rejected(void) {
    char text[] = "/tmp/shoal-plugin-XXXXXX";
    int fd = mkstemp(text);
    CHECK(fd >= 0 && write(fd, "not an ELF file\n", 16) == 16);
    OPEN_REFUSED(text, "cannot be loaded: ");
    CHECK(ftruncate(fd, 0) == 0);
    OPEN_REFUSED(text, "cannot be loaded: ");
    close(fd);
    unlink(text);
    OPEN_REFUSED(text, "cannot be loaded: ");
    OPEN_REFUSED("/", "cannot be loaded: ");
    OPEN_REFUSED("changeable.so", "absolute path");
    OPEN_REFUSED("./changeable.so", "absolute path");
    OPEN_REFUSED("", "absolute path");
    OPEN_REFUSED(path_of("nameless.so"), "exports no symbol shoal_entry");
}

static void entry_of_another_abi_is_rejected_without_reading_more(void) {
    memset(entry, 0xff, sizeof *entry); /* no pointer in it can be followed */
    entry->abi_major = 2;
    entry->abi_minor = 7;
    ENTRY_REFUSED("built for ABI 2.7 of shoal/env.h, this Shoal runs ABI 1");
    entry->abi_major = 0;
    ENTRY_REFUSED("built for ABI 0.7");
}

static void entry_without_required_functions_is_rejected(void) {
    static char endless[300];
    memset(endless, 'x', sizeof endless - 1);
    const char *names[] = {NULL, "", endless};
    for (int i = 0; i < 3; i++) {
        *entry = good_entry();
        entry->name = names[i];
        ENTRY_REFUSED("shoal_entry.name must be a string of 1 to 255 characters");
    }
    *entry = good_entry();
    entry->step = NULL;
    ENTRY_REFUSED("step is NULL");
    *entry = good_entry();
    entry->reset = NULL;
    ENTRY_REFUSED("reset is NULL");
    *entry = good_entry();
    entry->describe = NULL;
    ENTRY_REFUSED("describe is NULL");
}

static void bad_options_are_refused_by_name_or_number(void) {
    shoal_option options[3] = {{.name = "size", .type = SHOAL_OPTION_INT},
                               {.name = "scale", .type = SHOAL_OPTION_FLOAT},
                               {.name = "mode", .type = SHOAL_OPTION_STRING, .value = {.s = "easy"}}};
    *entry = good_entry();
    entry->options = options;
    entry->num_options = 3;
    shoal_plugin plugin;
    shoal_message why;
    CHECK_EQUAL(shoal_plugin_open(path_of("changeable.so"), &plugin, &why), 0);
    CHECK(plugin.entry == entry && why.text[0] == '\0');
    shoal_plugin_close(&plugin);
    CHECK(plugin.entry == NULL);
    options[2].value.s = NULL;
    ENTRY_REFUSED("the default of option mode is NULL");
    options[2].type = 3;
    ENTRY_REFUSED("option 2 needs a name and a type from 0 to 2");
    options[1].name = "size";
    ENTRY_REFUSED("two options are called size");
    options[1].name = "";
    ENTRY_REFUSED("option 1 needs a name");
    options[0].name = NULL;
    ENTRY_REFUSED("option 0 needs a name");
    entry->num_options = 1025;
    ENTRY_REFUSED("num_options is 1025 but options is too long");
    entry->num_options = UINT64_MAX;
    ENTRY_REFUSED("num_options is 18446744073709551615 but options is too long");
    entry->options = NULL;
    entry->num_options = 1;
    ENTRY_REFUSED("num_options is 1 but options is NULL");
}

/* ---- Descriptions */

static struct {
    const char *refusal;
    shoal_spec spec; /* what differs from the default */
    shoal_field fields[2][2];
    int counts[2];
    const shoal_value *values; /* that describe got */
} plan;

static const shoal_field BOX = {.dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {3}, .low = 0, .high = 1};
static const shoal_field MOVE = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 4};

static const char *describe(const shoal_value *values, shoal_spec *spec) {
    plan.values = values;
    CHECK(spec->lanes == 1 && spec->agents == 1 && spec->max_episode_steps == 0 && spec->instance_bytes == 0);
    spec->instance_bytes = plan.spec.instance_bytes;
    spec->lanes = plan.spec.lanes;
    spec->agents = plan.spec.agents;
    spec->max_episode_steps = plan.spec.max_episode_steps;
    for (int i = 0; i < plan.counts[0]; i++)
        spec->add_observation(spec->host, &plan.fields[0][i]);
    for (int i = 0; i < plan.counts[1]; i++)
        spec->add_action(spec->host, &plan.fields[1][i]);
    return plan.refusal;
}

static const shoal_entry_v1 PLANNED = {.abi_major = 1, .name = "Planned-v0", .describe = describe};
static const shoal_plugin PLUGIN = {NULL, &PLANNED};

static void good_plan(void) {
    memset(&plan, 0, sizeof plan);
    plan.spec = (shoal_spec){.instance_bytes = 16, .lanes = 1, .agents = 1};
    plan.fields[0][0] = BOX;
    plan.fields[1][0] = MOVE;
    plan.counts[0] = plan.counts[1] = 1;
}

static void expect_described(const char *message, int line) {
    shoal_description description;
    shoal_message why;
    shoal_value values[1] = {{.i = 3}};
    memset(&why, 'x', sizeof why);
    int result = shoal_plugin_describe(&PLUGIN, values, &description, &why);
    expect_text(why.text, message, line);
    CHECK_EQUAL(result, message[0] == '\0' ? 0 : -1);
    CHECK_EQUAL(why.text[0] == '\0', result == 0);
    CHECK(plan.values == values);
    shoal_description_free(&description);
}
#define ACCEPTED() expect_described("", __LINE__)
#define REFUSED(message) expect_described(message, __LINE__)

static void description_is_an_independent_copy(void) {
    char name[] = "speed";
    double lows[] = {0, -1, -2}, highs[] = {1, 2, 3};
    good_plan();
    plan.fields[0][0] = (shoal_field){
        .name = name, .dtype = SHOAL_FLOAT64, .ndim = 2, .shape = {3, 1}, .lows = lows, .highs = highs};
    shoal_description description;
    shoal_message why;
    CHECK_EQUAL(shoal_plugin_describe(&PLUGIN, NULL, &description, &why), 0);
    memset(name, 'x', sizeof name);
    lows[2] = highs[0] = 99;
    const shoal_field *field = &description.observations.items[0];
    CHECK_EQUAL(description.observations.count, 1);
    CHECK(strcmp(field->name, "speed") == 0 && field->lows[2] == -2 && field->highs[0] == 1);
    CHECK_EQUAL(shoal_field_elements(field), 3);
    CHECK_EQUAL(shoal_field_bytes(field), 24);
    CHECK_EQUAL(shoal_field_bytes(&description.actions.items[0]), 8);
    CHECK(description.actions.items[0].name == NULL);
    shoal_description_free(&description);
    CHECK(description.observations.items == NULL);
}

static void plugin_may_reject_options_with_a_reason(void) {
    good_plan();
    ACCEPTED();
    plan.refusal = "size must be odd, 100% of the time: %s%n";
    REFUSED("size must be odd, 100% of the time: %s%n");
}

static void bad_numbers_in_the_spec_are_refused(void) {
    static const struct {
        shoal_spec spec;
        const char *message;
    } CASES[] = {
        {{.lanes = 0, .agents = 1}, "lanes must be a power of two up to 1024, got 0"},
        {{.lanes = 3, .agents = 1}, "lanes must be a power of two up to 1024, got 3"},
        {{.lanes = 2048, .agents = 1}, "lanes must be a power of two up to 1024, got 2048"},
        {{.lanes = 1u << 31, .agents = 1}, "lanes must be a power of two"},
        {{.lanes = 1, .agents = 0}, "agents must be from 1 to 1048576, got 0"},
        {{.lanes = 1, .agents = UINT32_MAX}, "agents must be from 1 to 1048576, got 4294967295"},
        {{.lanes = 1, .agents = 1, .max_episode_steps = -1}, "max_episode_steps must be from 0"},
        {{.lanes = 1, .agents = 1, .max_episode_steps = INT64_MIN}, "got -9223372036854775808"},
        {{.lanes = 1, .agents = 1, .max_episode_steps = (int64_t)1 << 32}, "got 4294967296"},
        {{.lanes = 1, .agents = 1, .instance_bytes = UINT64_MAX}, "got 18446744073709551615"},
        {{.lanes = 1, .agents = 1, .instance_bytes = ((uint64_t)1 << 40) + 1}, "got 109951162777"},
        {{.lanes = 1024, .agents = 1, .max_episode_steps = UINT32_MAX}, ""},
        {{.lanes = 1, .agents = 1 << 20, .instance_bytes = 0}, ""},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        good_plan();
        plan.spec = CASES[i].spec;
        expect_described(CASES[i].message, __LINE__);
    }
}

static void fields_must_exist_and_have_unique_names(void) {
    static const char *ROLES[] = {"observation", "action"};
    static char endless[400];
    memset(endless, 'n', sizeof endless - 1);
    for (int role = 0; role < 2; role++) {
        shoal_field *fields = plan.fields[role];
        char message[128];
        good_plan();
        plan.counts[role] = 0;
        snprintf(message, sizeof message, "describe declared no %s", ROLES[role]);
        REFUSED(message);
        plan.counts[role] = 2;
        fields[1] = fields[0];
        snprintf(message, sizeof message, "%s 0 of 2 needs a name", ROLES[role]);
        REFUSED(message);
        fields[0].name = "left";
        snprintf(message, sizeof message, "%s 1 of 2 needs a name", ROLES[role]);
        REFUSED(message);
        fields[1].name = "";
        REFUSED(message);
        fields[1].name = endless;
        REFUSED(message);
        fields[1].name = "left";
        snprintf(message, sizeof message, "two %ss are called left", ROLES[role]);
        REFUSED(message);
        fields[1].name = "right";
        ACCEPTED();
        plan.counts[role] = 1;
        fields[0].name = "";
        snprintf(message, sizeof message, "%s 0 of 1 needs a name", ROLES[role]);
        REFUSED(message);
    }
}

int main(int count, char **words) {
    CHECK(count == 1 && realpath(words[0], directory) != NULL);
    *strrchr(directory, '/') = '\0';
    void *library = dlopen(path_of("changeable.so"), RTLD_NOW);
    CHECK(library != NULL && (entry = dlsym(library, "shoal_entry")) != NULL);
    RUN(file_that_is_not_a_library_is_rejected);
    RUN(entry_of_another_abi_is_rejected_without_reading_more);
    RUN(entry_without_required_functions_is_rejected);
    RUN(bad_options_are_refused_by_name_or_number);
    RUN(description_is_an_independent_copy);
    RUN(plugin_may_reject_options_with_a_reason);
    RUN(bad_numbers_in_the_spec_are_refused);
    RUN(fields_must_exist_and_have_unique_names);
    dlclose(library);
    return 0;
}
