/* The Dict of contract 5.0: options by name, a number, a string or a list of numbers each. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_INI_H
#define SHOAL_PUFFER_INI_H

#include <puffer/prelude.h>

#include <ctype.h> /* as these have always come with it */
#include <errno.h>

#define PUF_DICT_MAX_KEY 128

typedef struct DictItem {
    char key[PUF_DICT_MAX_KEY];
    char *str;
    double value;
    double *values; /* of a list; NULL: none */
    int len;
} DictItem;

typedef struct Dict {
    char *name;
    DictItem *items;
    int size, cap;
} Dict;

static PUFFER_UNUSED DictItem *dict_find(Dict *dict, const char *key) {
    for (int i = 0; i < dict->size; i++)
        if (strcmp(dict->items[i].key, key) == 0)
            return &dict->items[i];
    return NULL;
}

static PUFFER_UNUSED DictItem *dict_item(Dict *dict, const char *key) {
    DictItem *item = dict_find(dict, key);
    if (item != NULL)
        return item;
    if (strlen(key) >= PUF_DICT_MAX_KEY)
        puffer_stop("an option's name is longer than %d: %s", PUF_DICT_MAX_KEY - 1, key);
    if (dict->size == dict->cap) {
        dict->cap = dict->cap == 0 ? 32 : 2 * dict->cap;
        dict->items = (DictItem *)realloc(dict->items, (size_t)dict->cap * sizeof *dict->items);
        if (dict->items == NULL)
            puffer_stop("out of memory");
    }
    item = &dict->items[dict->size++];
    memset(item, 0, sizeof *item);
    snprintf(item->key, sizeof item->key, "%s", key);
    return item;
}

static PUFFER_UNUSED void dict_item_clear(DictItem *item) {
    free(item->str);
    free(item->values);
    item->str = NULL;
    item->values = NULL;
    item->len = 0;
}

static PUFFER_UNUSED double dict_get(Dict *dict, const char *key) {
    const DictItem *item = dict_find(dict, key);
    if (item == NULL)
        puffer_stop("it wants the option %s: give it, %s=..., or add it to [env] in its .ini", key, key);
    return item->value;
}

static PUFFER_UNUSED const char *dict_get_str(Dict *dict, const char *key) {
    const DictItem *item = dict_find(dict, key);
    if (item == NULL || item->str == NULL)
        puffer_stop("it wants a string for the option %s: give it, %s=\"...\", or add it to its .ini", key,
                    key);
    return item->str;
}

static PUFFER_UNUSED DictItem *dict_set(Dict *dict, const char *key, double value) {
    DictItem *item = dict_item(dict, key);
    dict_item_clear(item);
    item->value = value;
    return item;
}

static PUFFER_UNUSED DictItem *dict_set_str(Dict *dict, const char *key, const char *value) {
    DictItem *item = dict_item(dict, key);
    dict_item_clear(item);
    item->str = strdup(value);
    return item;
}

/* As an .ini has it: the text, the number it is, or the numbers of a list; any other text is no number. */
static PUFFER_UNUSED DictItem *puffer_ini_set(Dict *dict, const char *key, const char *text) {
    DictItem *item = dict_set_str(dict, key, text);
    double *values = (double *)calloc(strlen(text) + 1, sizeof *values);
    int count = 0;
    char *at = (char *)text, *end = NULL;
    while (values != NULL && *at != '\0') {
        values[count++] = strtod(at, &end);
        end += strspn(end, " ");
        if (end == at || (*end != ',' && *end != '\0'))
            break;
        at = end + (*end == ',');
    }
    const int is_number = count > 0 && *at == '\0';
    item->value = is_number ? values[0] : 0;
    if (is_number && strchr(text, ',') != NULL) {
        item->values = values;
        item->len = count;
    } else {
        free(values);
    }
    return item;
}

static PUFFER_UNUSED void dict_clear(Dict *dict) {
    for (int i = 0; i < dict->size; i++)
        dict_item_clear(&dict->items[i]);
    free(dict->name);
    free(dict->items);
    memset(dict, 0, sizeof *dict);
}

static PUFFER_UNUSED void dict_copy(Dict *to, Dict *from) {
    memset(to, 0, sizeof *to);
    for (int i = 0; i < from->size; i++) {
        const DictItem *item = &from->items[i];
        DictItem *copy = dict_set(to, item->key, item->value);
        copy->str = item->str == NULL ? NULL : strdup(item->str);
        copy->len = item->len;
        if (item->values != NULL &&
            (copy->values = (double *)calloc((size_t)item->len, sizeof(double))) != NULL)
            memcpy(copy->values, item->values, (size_t)item->len * sizeof(double));
    }
}

#endif
