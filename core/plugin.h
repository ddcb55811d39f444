/* Plug-ins: loads a C environment's library, checks it, and describes it for one choice of options. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PLUGIN_H
#define SHOAL_PLUGIN_H

#include <shoal/env.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why a call failed, as text for users; empty on success. */
typedef struct shoal_message {
    char text[512];
} shoal_message;

typedef struct shoal_fields {
    shoal_field *items; /* names and bounds are copies */
    uint64_t count;
} shoal_fields;

typedef struct shoal_description {
    shoal_spec spec;
    shoal_fields observations, actions;
    int failed; /* out of memory while fields were added */
} shoal_description;

typedef struct shoal_plugin {
    void *library;
    const shoal_entry_v1 *entry;
} shoal_plugin;

/* Loads the library at an absolute path and checks its entry before it calls anything in it. Returns 0, or -1
 * with `why`. */
int shoal_plugin_open(const char *path, shoal_plugin *plugin, shoal_message *why);
void shoal_plugin_close(shoal_plugin *plugin);

/* Gets the plug-in's spec and fields and checks each number. `values` has one value per declared option, in
 * order. Returns 0, or -1 with `why`. Call shoal_description_free in both cases. */
int shoal_plugin_describe(const shoal_plugin *plugin, const shoal_value *values,
                          shoal_description *description, shoal_message *why);
void shoal_description_free(shoal_description *description);

int shoal_name_is_valid(const char *name);               /* 1 to 255 printable ASCII characters */
int shoal_dtype_is_known(const shoal_dtype dtype);       /* integers, floats, bool */
uint64_t shoal_field_elements(const shoal_field *field); /* of one row */
uint64_t shoal_field_bytes(const shoal_field *field);

#ifdef __cplusplus
}
#endif
#endif
