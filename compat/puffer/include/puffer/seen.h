/* What can be seen of a world: the log its environments keep, told when an episode ends, and the fields of
 * my_state, both as shoal.state/1. Included by world.h. */
// SPDX-License-Identifier: MIT

#define PUFFER_NUM_LOGS (sizeof(Log) / sizeof(float))

/* The sums of all its environments, which begin anew; how many episodes they are of. */
static float puffer_gather(puffer_world *world, Log *sum) {
    memset(sum, 0, sizeof *sum);
    for (int i = 0; i < world->count; i++) {
        float *from = (float *)&world->envs[i].log, *to = (float *)sum;
        for (size_t k = 0; world->envs[i].log.n > 0 && k < PUFFER_NUM_LOGS; k++) /* else of no episode yet */
            to[k] += from[k];
        memset(from, 0, sizeof(Log));
    }
    const float episodes = sum->n;
    for (size_t k = 0; episodes > 0 && k < PUFFER_NUM_LOGS; k++)
        ((float *)sum)[k] /= episodes;
    return episodes;
}

/* If episodes ended: their means, by the names that my_log gives them. */
static void puffer_tell(puffer_world *world) {
    for (int i = 0; i < world->count; i++)
        if (world->envs[i].log.n > 0)
            break;
        else if (i == world->count - 1)
            return;
    Log mean;
    const double episodes = puffer_gather(world, &mean);
    puffer_options *out = puffer_log(&mean);
    for (int i = 0; i < PUFFER_LOGS && i < puffer_options_count(out); i++)
        world->log[i] =
            strcmp(puffer_options_name(out, i), "n") == 0 ? episodes : puffer_options_number(out, i);
    puffer_options_free(out);
}

#ifdef MY_STATE
enum { PUFFER_FIELDS = 1024 };

static const char *puffer_dtype(const char *name, shoal_dtype *out) {
    static const char *const names[] = {"int", "uint", "float", NULL};
    *out = (shoal_dtype){SHOAL_CODE_BOOL, 8, 1};
    if (strcmp(name, "bool") == 0)
        return NULL;
    for (uint8_t code = 0; names[code] != NULL; code++) {
        const size_t length = strlen(names[code]);
        const int bits = strncmp(name, names[code], length) == 0 ? atoi(name + length) : 0;
        if (bits == 8 || bits == 16 || bits == 32 || bits == 64) {
            *out = (shoal_dtype){code, (uint8_t)bits, 1};
            return NULL;
        }
    }
    return "an unknown dtype";
}

/* A field that is none: its name is the message the host raises. */
static void puffer_refuse_state(void *host, void (*add)(void *, const shoal_state_field *), const char *why) {
    add(host, &(shoal_state_field){.name = why, .dtype = {255, 0, 0}});
}

static void puffer_add_state(puffer_world *world, int number, void *host,
                             void (*add)(void *host, const shoal_state_field *field)) {
    char text[256];
    StateField *fields = calloc(PUFFER_FIELDS, sizeof *fields);
    if (fields == NULL)
        return;
    const int count = my_state(&world->envs[number], fields, PUFFER_FIELDS);
    if (count < 0 || count > PUFFER_FIELDS) {
        snprintf(text, sizeof text, "(my_state has %d fields where there is room for %d)", count,
                 PUFFER_FIELDS);
        puffer_refuse_state(host, add, text);
    }
    for (int i = 0; i < count && count <= PUFFER_FIELDS; i++) {
        shoal_state_field field = {.data = fields[i].data, .ndim = (uint32_t)fields[i].ndim};
        const char *name = fields[i].name == NULL ? "" : fields[i].name;
        if (fields[i].dtype == NULL || puffer_dtype(fields[i].dtype, &field.dtype) != NULL ||
            fields[i].ndim < 0 || fields[i].ndim > PUFF_STATE_MAX_DIMS || fields[i].ndim > SHOAL_MAX_NDIM) {
            snprintf(text, sizeof text, "(my_state, field %.80s: dtype %.40s, %d dimensions)", name,
                     fields[i].dtype == NULL ? "NULL" : fields[i].dtype, fields[i].ndim);
            puffer_refuse_state(host, add, text);
            break;
        }
        snprintf(text, sizeof text, world->count == 1 ? "%.0d%s" : "%d/%s", world->count == 1 ? 0 : number,
                 name);
        field.name = text;
        field.flags = fields[i].flags & PUFF_STATE_ZERO_COPY ? SHOAL_STATE_STABLE : 0;
        for (int d = 0; d < fields[i].ndim; d++)
            field.shape[d] = fields[i].dims[d];
        if (field.ndim == 2 && field.dtype.code != SHOAL_CODE_FLOAT && field.flags != 0)
            field.role = SHOAL_ROLE_GRID; /* a map that stays where it is */
        else if (field.ndim <= 1)
            field.role = SHOAL_ROLE_SCALAR;
        add(host, &field);
    }
    free(fields);
}
#endif

static void puffer_state_fields(shoal_envs *envs, uint64_t env, void *host,
                                void (*add)(void *host, const shoal_state_field *field)) {
    puffer_world *world = SHOAL_INSTANCE(puffer_world, envs, env);
#ifdef MY_STATE
    for (int i = 0; i < world->count; i++)
        puffer_add_state(world, i, host, add);
#endif
    if (!world->tells)
        return;
    Log none;
    memset(&none, 0, sizeof none);
    none.n = 1;
    puffer_options *out = puffer_log(&none);
    char text[256];
    for (int i = 0; i < PUFFER_LOGS && i < puffer_options_count(out); i++) {
        snprintf(text, sizeof text, "log/%s", puffer_options_name(out, i));
        add(host, &(shoal_state_field){.name = text,
                                       .dtype = SHOAL_FLOAT64,
                                       .data = &world->log[i],
                                       .flags = SHOAL_STATE_STABLE,
                                       .role = SHOAL_ROLE_SCALAR});
    }
    puffer_options_free(out);
}
