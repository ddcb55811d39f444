/* Loads and checks plug-ins: everything that a plug-in declares is checked here before it is used. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "plugin.h"

#include "isa.h"

#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 256, MAX_AGENTS = 1 << 20, MAX_LANES = 1024 };
static const uint64_t MAX_BYTES = (uint64_t)1 << 40;    /* of one environment */
static const uint64_t MAX_ELEMENTS = (uint64_t)1 << 26; /* of one row: a Box keeps two bounds for each */

__attribute__((format(printf, 2, 3))) static int refuse(shoal_message *why, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, sizeof why->text, format, arguments);
    va_end(arguments);
    return -1;
}

int shoal_name_is_valid(const char *name) {
    if (name == NULL || name[0] == '\0' || strnlen(name, MAX_NAME) == MAX_NAME)
        return 0;
    for (; *name != '\0'; name++)
        if (*name < ' ' || *name > '~') /* printable ASCII, because it becomes a key, an option or an id */
            return 0;
    return 1;
}

static int check_entry(const shoal_entry_v1 *entry, const char *path, shoal_message *why) {
    /* The first eight bytes are the same in every version; the rest only in this one. */
    if (entry->abi_major != SHOAL_ABI_MAJOR)
        return refuse(
            why,
            "%s was built for ABI %u.%u of shoal/env.h, this Shoal runs ABI %u; rebuild it with this "
            "Shoal's header",
            path, entry->abi_major, entry->abi_minor, SHOAL_ABI_MAJOR);
    if (!shoal_name_is_valid(entry->name))
        return refuse(why, "%s: shoal_entry.name must be a string of 1 to %d characters", path, MAX_NAME - 1);
    if (entry->describe == NULL || entry->reset == NULL || entry->step == NULL)
        return refuse(why, "%s: shoal_entry needs describe, reset and step; %s is NULL", path,
                      entry->describe == NULL ? "describe"
                      : entry->reset == NULL  ? "reset"
                                              : "step");
    if (entry->num_options > 1024 || (entry->num_options != 0 && entry->options == NULL))
        return refuse(why, "%s: shoal_entry.num_options is %llu but options is %s", path,
                      (unsigned long long)entry->num_options, entry->options == NULL ? "NULL" : "too long");
    for (uint64_t i = 0; i < entry->num_options; i++) {
        const shoal_option *option = &entry->options[i];
        if (!shoal_name_is_valid(option->name) || option->type > SHOAL_OPTION_STRING)
            return refuse(why, "%s: option %llu needs a name and a type from 0 to 2", path,
                          (unsigned long long)i);
        if (option->type == SHOAL_OPTION_STRING && option->value.s == NULL)
            return refuse(why, "%s: the default of option %s is NULL", path, option->name);
        for (uint64_t j = 0; j < i; j++)
            if (strcmp(option->name, entry->options[j].name) == 0)
                return refuse(why, "%s: two options are called %s", path, option->name);
    }
    return 0;
}

/* Finds the entry for the largest instruction set that is in use: shoal_entry_avx512, shoal_entry_avx2, or
 * shoal_entry itself, which every plug-in has. */
static const shoal_entry_v1 *find_entry(void *library) {
    for (int isa = (int)shoal_isa_chosen(); isa > SHOAL_ISA_DEFAULT; isa--) {
        char name[32];
        snprintf(name, sizeof name, "shoal_entry_%s", shoal_isa_name((shoal_isa)isa));
        const shoal_entry_v1 *entry = (const shoal_entry_v1 *)dlsym(library, name);
        if (entry != NULL)
            return entry;
    }
    return (const shoal_entry_v1 *)dlsym(library, "shoal_entry");
}

int shoal_plugin_open(const char *path, shoal_plugin *plugin, shoal_message *why) {
    memset(plugin, 0, sizeof *plugin);
    why->text[0] = '\0';
    if (path[0] != '/')
        return refuse(why, "a plug-in needs an absolute path, got %s", path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return refuse(why, "%s cannot be loaded: %s; build it again with `shoal build`", path, dlerror());
    const shoal_entry_v1 *entry = find_entry(library);
    int result = entry == NULL ? refuse(why,
                                        "%s exports no symbol shoal_entry; is it a Shoal environment? "
                                        "It must define `const shoal_entry_v1 shoal_entry`",
                                        path)
                               : check_entry(entry, path, why);
    if (result != 0) {
        dlclose(library);
        return result;
    }
    plugin->library = library;
    plugin->entry = entry;
    return 0;
}

void shoal_plugin_close(shoal_plugin *plugin) {
    if (plugin->library != NULL)
        dlclose(plugin->library);
    memset(plugin, 0, sizeof *plugin);
}

int shoal_dtype_is_known(const shoal_dtype dtype) {
    const int bits = dtype.bits;
    const int wide = bits == 16 || bits == 32 || bits == 64;
    return dtype.lanes == 1 &&
           (((dtype.code == SHOAL_CODE_INT || dtype.code == SHOAL_CODE_UINT) && (wide || bits == 8)) ||
            (dtype.code == SHOAL_CODE_FLOAT && wide) || (dtype.code == SHOAL_CODE_BOOL && bits == 8));
}

uint64_t shoal_field_elements(const shoal_field *field) {
    uint64_t elements = 1;
    for (uint32_t i = 0; i < field->ndim; i++)
        elements *= (uint64_t)field->shape[i];
    return elements;
}

uint64_t shoal_field_bytes(const shoal_field *field) {
    return shoal_field_elements(field) * (field->dtype.bits / 8);
}

/* Checks the bounds of one element: they are in order, and the dtype and Gymnasium's space can hold them. */
static int check_bounds(const shoal_field *field, const char *role, const char *name, double low, double high,
                        shoal_message *why) {
    const shoal_dtype dtype = field->dtype;
    if (!(low <= high)) /* also for NaN */
        return refuse(why, "%s %s: low %g is not at most high %g", role, name, low, high);
    if (dtype.code == SHOAL_CODE_FLOAT) {
        double end = dtype.bits == 16 ? 65520 : dtype.bits == 32 ? 0x1.ffffffp127 : (double)INFINITY;
        if ((!isinf(low) && fabs(low) >= end) || (!isinf(high) && fabs(high) >= end))
            return refuse(why, "%s %s: bounds %g and %g do not fit float%u; INFINITY means none", role, name,
                          low, high, dtype.bits);
        return 0;
    }
    if (field->kind == SHOAL_MULTI_BINARY && !(low == 0 && high == 1))
        return refuse(why, "%s %s: low and high of a multi-binary field must be 0 and 1, got %g and %g", role,
                      name, low, high);
    int discrete = field->kind == SHOAL_DISCRETE || field->kind == SHOAL_MULTI_DISCRETE;
    if (floor(low) != low || floor(high) != high || (discrete && !(fabs(low) < 9e15 && fabs(high) < 9e15)))
        return refuse(why, "%s %s: %sbounds %g and %g must be whole numbers", role, name,
                      discrete ? "discrete " : "", low, high);
    int is_signed = dtype.code == SHOAL_CODE_INT;
    double end = dtype.code == SHOAL_CODE_BOOL ? 2 : ldexp(1, dtype.bits - is_signed);
    if (low < (is_signed ? -end : 0) || high >= end || (discrete && high - low + 1 >= end))
        return refuse(why, "%s %s: bounds %g and %g%s do not fit its dtype of %u bits", role, name, low, high,
                      discrete ? ", and how many values they allow," : "", dtype.bits);
    return 0;
}

static int check_field(const shoal_field *field, const char *role, uint64_t index, uint64_t count,
                       shoal_message *why) {
    const char *name = field->name == NULL ? "(unnamed)" : field->name;
    const shoal_dtype dtype = field->dtype;
    int integer = dtype.code == SHOAL_CODE_INT || dtype.code == SHOAL_CODE_UINT;
    if ((count > 1 || field->name != NULL) && !shoal_name_is_valid(field->name))
        return refuse(why, "%s %llu of %llu needs a name of 1 to %d characters", role,
                      (unsigned long long)index, (unsigned long long)count, MAX_NAME - 1);
    if (!shoal_dtype_is_known(dtype))
        return refuse(why, "%s %s: unknown dtype {code %u, bits %u, lanes %u}", role, name, dtype.code,
                      dtype.bits, dtype.lanes);
    if (field->kind > SHOAL_MULTI_BINARY)
        return refuse(why, "%s %s: unknown kind %u", role, name, field->kind);
    if (field->ndim > SHOAL_MAX_NDIM)
        return refuse(why, "%s %s: %u dimensions, at most %d", role, name, field->ndim, SHOAL_MAX_NDIM);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < field->ndim; i++) {
        if (field->shape[i] < 1 || (uint64_t)field->shape[i] > MAX_ELEMENTS / elements)
            return refuse(
                why, "%s %s: dimension %u is %lld; each is at least 1, and a row has at most %llu elements",
                role, name, i, (long long)field->shape[i], (unsigned long long)MAX_ELEMENTS);
        elements *= (uint64_t)field->shape[i];
    }
    if (field->kind == SHOAL_DISCRETE && field->ndim != 0)
        return refuse(why, "%s %s: a discrete field has no shape, got %u dimensions", role, name,
                      field->ndim);
    if ((field->kind == SHOAL_DISCRETE || field->kind == SHOAL_MULTI_DISCRETE) && !integer)
        return refuse(why, "%s %s: a discrete field needs an integer dtype", role, name);
    if (field->kind == SHOAL_MULTI_BINARY && (dtype.bits != 8 || dtype.code == SHOAL_CODE_UINT))
        return refuse(why, "%s %s: a multi-binary field needs dtype int8 or bool", role, name);
    for (uint64_t i = 0; i < elements; i++) {
        double low = field->lows == NULL ? field->low : field->lows[i];
        double high = field->highs == NULL ? field->high : field->highs[i];
        if (check_bounds(field, role, name, low, high, why) != 0)
            return -1;
        if (field->lows == NULL && field->highs == NULL)
            break;
    }
    return 0;
}

static int check_fields(const shoal_fields *fields, const char *role, shoal_message *why) {
    if (fields->count == 0)
        return refuse(why, "describe declared no %s", role);
    uint64_t elements = 0;
    for (uint64_t i = 0; i < fields->count; i++) {
        if (check_field(&fields->items[i], role, i, fields->count, why) != 0)
            return -1;
        elements += shoal_field_elements(&fields->items[i]);
        if (elements > MAX_ELEMENTS)
            return refuse(why, "a row of the %ss has more than %llu elements", role,
                          (unsigned long long)MAX_ELEMENTS);
        for (uint64_t j = 0; j < i; j++)
            if (fields->items[i].name != NULL && fields->items[j].name != NULL &&
                strcmp(fields->items[i].name, fields->items[j].name) == 0)
                return refuse(why, "two %ss are called %s", role, fields->items[i].name);
    }
    return 0;
}

static const double *copy_bounds(const double *bounds, uint64_t count, int *failed) {
    if (bounds == NULL)
        return NULL;
    double *copy = malloc(count * sizeof *copy);
    if (copy == NULL)
        *failed = 1;
    else
        memcpy(copy, bounds, count * sizeof *copy);
    return copy;
}

static void add_field(shoal_description *description, shoal_fields *fields, const shoal_field *field) {
    shoal_field *items = realloc(fields->items, (fields->count + 1) * sizeof *items);
    if (items == NULL) {
        description->failed = 1;
        return;
    }
    fields->items = items;
    shoal_field *copy = &items[fields->count++];
    *copy = *field;
    /* check_field has not checked the shape yet, so bounds arrays of an absurd length must not be copied. */
    uint64_t elements = 1;
    int sane = field->ndim <= SHOAL_MAX_NDIM;
    for (uint32_t i = 0; sane && i < field->ndim; i++) {
        sane = field->shape[i] >= 1 && (uint64_t)field->shape[i] <= MAX_ELEMENTS / elements;
        elements *= sane ? (uint64_t)field->shape[i] : 1;
    }
    copy->name = field->name == NULL ? NULL : strndup(field->name, MAX_NAME);
    description->failed |= field->name != NULL && copy->name == NULL;
    copy->lows = sane ? copy_bounds(field->lows, elements, &description->failed) : NULL;
    copy->highs = sane ? copy_bounds(field->highs, elements, &description->failed) : NULL;
}

static void add_observation(void *host, const shoal_field *field) {
    shoal_description *description = host;
    add_field(description, &description->observations, field);
}

static void add_action(void *host, const shoal_field *field) {
    shoal_description *description = host;
    add_field(description, &description->actions, field);
}

int shoal_plugin_describe(const shoal_plugin *plugin, const shoal_value *values,
                          shoal_description *description, shoal_message *why) {
    memset(description, 0, sizeof *description);
    why->text[0] = '\0';
    shoal_spec *spec = &description->spec;
    spec->lanes = spec->agents = 1;
    spec->host = description;
    spec->add_observation = add_observation;
    spec->add_action = add_action;
    const char *refusal = plugin->entry->describe(values, spec);
    if (refusal != NULL)
        return refuse(why, "%s", refusal);
    if (description->failed)
        return refuse(why, "out of memory");
    if (spec->instance_bytes > MAX_BYTES)
        return refuse(why, "instance_bytes must be at most %llu, got %llu", (unsigned long long)MAX_BYTES,
                      (unsigned long long)spec->instance_bytes);
    if (spec->lanes == 0 || spec->lanes > MAX_LANES || (spec->lanes & (spec->lanes - 1)) != 0)
        return refuse(why, "lanes must be a power of two up to %d, got %u", MAX_LANES, spec->lanes);
    if (spec->agents == 0 || spec->agents > MAX_AGENTS)
        return refuse(why, "agents must be from 1 to %d, got %u", MAX_AGENTS, spec->agents);
    if (spec->max_episode_steps < 0 || spec->max_episode_steps > UINT32_MAX)
        return refuse(why, "max_episode_steps must be from 0 to 4294967295, got %lld",
                      (long long)spec->max_episode_steps);
    if (check_fields(&description->observations, "observation", why) != 0)
        return -1;
    return check_fields(&description->actions, "action", why);
}

static void free_fields(shoal_fields *fields) {
    for (uint64_t i = 0; i < fields->count; i++) {
        free((void *)fields->items[i].name);
        free((void *)fields->items[i].lows);
        free((void *)fields->items[i].highs);
    }
    free(fields->items);
}

void shoal_description_free(shoal_description *description) {
    free_fields(&description->observations);
    free_fields(&description->actions);
    memset(description, 0, sizeof *description);
}
