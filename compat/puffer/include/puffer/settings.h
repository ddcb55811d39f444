/* The settings of a world, as shoal.compat.puffer.options writes them: words separated by spaces, each
 * NAME=VALUE with other bytes as %XX.
 *
 *   agents=4  obs=f4:7x7:0:1  act=discrete:5 | multi:5,3 | box:2:-1:1  root=/where/assets/lie  log=1
 *   i.NAME=3  f.NAME=0.5  s.NAME=text     options of the environment: an int, a float, a string
 *   h.NAME=3                              arguments of what its environments share (contract 3.0)
 *   state=NAME                            the option under which they are handed what they share
 */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_SETTINGS_H
#define SHOAL_PUFFER_SETTINGS_H

#include <puffer/prelude.h>
#include <shoal/env.h>

enum { PUFFER_WORDS = 512, PUFFER_ACTIONS = 256 };

typedef struct puffer_word {
    char kind; /* i, f, s or h */
    const char *name, *text;
    double number;
} puffer_word;

typedef struct puffer_settings {
    char *memory;
    const char *text; /* as it was given */
    int agents;       /* 0: not said */
    int tells;        /* the log is wanted */
    int has_spaces;
    const char *state;          /* may be NULL */
    uint64_t observation_bytes; /* of one agent's row as the environment writes it */
    uint64_t mask_bytes;
    uint64_t num_actions;
    shoal_field observation, mask, action;
    double highs[PUFFER_ACTIONS];
    int num_words;
    puffer_word words[PUFFER_WORDS];
} puffer_settings;

typedef struct puffer_buffers {
    void *observations, *actions, *rewards, *ends;
} puffer_buffers;

typedef struct puffer_guarded {
    char *starts[5], *stops[5], *end; /* where the bytes of each buffer end, and where the last guard does */
    uint64_t guard;
} puffer_guarded;

typedef struct puffer_world puffer_world;

static void puffer_settings_free(puffer_settings *s) {
    free(s->memory);
    s->memory = NULL;
}

static void puffer_unescape(char *text) {
    char *to = text;
    for (; *text != '\0'; text++) {
        if (text[0] == '%' && text[1] != '\0' && text[2] != '\0') {
            const char digits[3] = {text[1], text[2], '\0'};
            *to++ = (char)strtol(digits, NULL, 16);
            text += 2;
        } else {
            *to++ = *text;
        }
    }
    *to = '\0';
}

/* f4:7x7:0:1 */
static const char *puffer_read_observation(puffer_settings *s, char *text) {
    shoal_field *field = &s->observation;
    const char code = text[0];
    const int bytes = text[0] == '\0' ? 0 : text[1] - '0';
    *field = (shoal_field){.kind = SHOAL_BOX};
    field->dtype = (shoal_dtype){code == 'f'   ? SHOAL_CODE_FLOAT
                                 : code == 'i' ? SHOAL_CODE_INT
                                               : SHOAL_CODE_UINT,
                                 (uint8_t)(8 * bytes), 1};
    if (strchr("fiu", code) == NULL || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) ||
        text[2] != ':')
        return "settings: obs must be such as f4:7x7:0:1";
    uint64_t elements = 1;
    char *at = text + 3;
    do {
        if (field->ndim == SHOAL_MAX_NDIM)
            return "settings: obs has too many dimensions";
        const int64_t size = strtoll(at, &at, 10);
        field->shape[field->ndim++] = size;
        elements *= size < 1 ? 0 : (uint64_t)size;
    } while (*at++ == 'x');
    field->low = strtod(at, &at);
    field->high = *at == ':' ? strtod(at + 1, NULL) : field->low;
    s->observation_bytes = elements * (uint64_t)bytes;
    return elements == 0 ? "settings: a dimension of obs is not a positive number" : NULL;
}

/* One discrete action, or several, or numbers within bounds. */
static void puffer_set_action(puffer_settings *s, uint32_t kind, uint64_t count, double low, double high) {
    static const shoal_dtype real = SHOAL_FLOAT32, whole = SHOAL_INT64;
    s->num_actions = count;
    s->action = (shoal_field){.dtype = kind == SHOAL_BOX ? real : whole,
                              .kind = kind,
                              .ndim = kind == SHOAL_DISCRETE ? 0 : 1,
                              .shape = {(int64_t)count},
                              .low = low,
                              .high = kind == SHOAL_DISCRETE ? s->highs[0] : high,
                              .highs = kind == SHOAL_MULTI_DISCRETE ? s->highs : NULL};
}

/* discrete:5, multi:5,3 or box:2:-1:1 */
static const char *puffer_read_action(puffer_settings *s, char *text) {
    char *at = strchr(text, ':');
    if (at++ == NULL)
        return "settings: act must be such as discrete:5, multi:5,3 or box:2:-1:1";
    if (strncmp(text, "box:", 4) == 0) {
        const uint64_t count = strtoull(at, &at, 10);
        const double low = *at == ':' ? strtod(at + 1, &at) : -1;
        const double high = *at == ':' ? strtod(at + 1, &at) : 1;
        puffer_set_action(s, SHOAL_BOX, count, low, high);
        return NULL;
    }
    uint64_t count = 0;
    do {
        if (count == PUFFER_ACTIONS)
            return "settings: act has too many numbers";
        s->highs[count++] = strtod(at, &at) - 1;
    } while (*at++ == ',');
    puffer_set_action(s, text[0] == 'm' ? SHOAL_MULTI_DISCRETE : SHOAL_DISCRETE, count, 0, 0);
    return NULL;
}

static const char *puffer_settings_read(puffer_settings *s, const char *text) {
    memset(s, 0, sizeof *s);
    s->text = text;
    s->memory = strdup(text);
    if (s->memory == NULL)
        return "out of memory";
    char *rest = NULL;
    for (char *word = strtok_r(s->memory, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        if (value == NULL)
            return "settings: a word without '='; they are written by shoal.make_vec(\"puffer:PATH\")";
        *value++ = '\0';
        puffer_unescape(value);
        const char *refusal = NULL;
        if (strcmp(word, "agents") == 0)
            s->agents = atoi(value);
        else if (strcmp(word, "log") == 0)
            s->tells = atoi(value);
        else if (strcmp(word, "state") == 0)
            s->state = value;
        else if (strcmp(word, "root") == 0)
            snprintf(puffer_root, sizeof puffer_root, "%s", value);
        else if (strcmp(word, "obs") == 0)
            refusal = puffer_read_observation(s, value);
        else if (strcmp(word, "act") == 0)
            s->has_spaces = 1, refusal = puffer_read_action(s, value);
        else if (word[0] != '\0' && word[1] == '.' && s->num_words < PUFFER_WORDS)
            s->words[s->num_words++] = (puffer_word){word[0], word + 2, value, strtod(value, NULL)};
        else
            refusal =
                "settings: an unknown word, or too many; they are written by shoal.make_vec(\"puffer:PATH\")";
        if (refusal != NULL)
            return refusal;
    }
    if (s->agents < 0 || s->agents > 1 << 20)
        return "settings: agents must be between 1 and 1048576";
    return NULL;
}

/* bfloat16 as float: the upper half of its bits. */
static PUFFER_UNUSED void puffer_widen(float *to, const uint16_t *from, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

#endif
