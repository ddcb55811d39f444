/* What contracts 4.0 and 5.0 have in common: spaces from macros, agents counted by the environments
 * themselves. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_MACROS_H
#define SHOAL_PUFFER_MACROS_H

#define PUFFER_DTYPE(T)                                                                                      \
    _Generic((T)0,                                                                                           \
        float: (shoal_dtype)SHOAL_FLOAT32,                                                                   \
        double: (shoal_dtype)SHOAL_FLOAT64,                                                                  \
        unsigned char: (shoal_dtype)SHOAL_UINT8,                                                             \
        signed char: (shoal_dtype)SHOAL_INT8,                                                                \
        char: (shoal_dtype)SHOAL_INT8,                                                                       \
        bool: (shoal_dtype)SHOAL_UINT8,                                                                      \
        unsigned short: (shoal_dtype)SHOAL_FLOAT32, /* bfloat16, which is widened */                         \
        int: (shoal_dtype)SHOAL_INT32,                                                                       \
        long: (shoal_dtype)SHOAL_INT64,                                                                      \
        long long: (shoal_dtype)SHOAL_INT64)

static const int puffer_action_sizes[] = ACT_SIZES;

/* The environments of a world whose options are set. */
static const char *puffer_make_envs(puffer_world *world, const puffer_settings *s, int seed) {
#ifdef MY_VEC_INIT
    int starts[1] = {0}, counts[1] = {0};
    Dict *vector = PUFFER_NEW_OPTIONS();
    const DictItem *said = PUFFER_FIND(world->options, "num_agents");
    dict_set(vector, "total_agents", s->agents != 0 ? s->agents : said != NULL ? said->value : 1);
    dict_set(vector, "num_buffers", 1);
    dict_set(vector, "num_threads", 1);
    dict_set(vector, "num_policies", 1); /* who plays all agents; in words of two versions */
    dict_set(vector, "hist_policy_percent", 0);
    dict_set(vector, "num_frozen_banks", 0);
    dict_set(vector, "frozen_bank_pct", 0);
    dict_set(vector, "seed", seed);
    world->envs = my_vec_init(&world->count, starts, counts, vector, world->options);
    puffer_options_free(vector);
    if (world->envs == NULL || world->count < 1)
        puffer_stop("my_vec_init made no environments of %d agents: say agents=, how many one world has",
                    s->agents != 0 ? s->agents : 1);
    world->wants_seed = 1;
#else
    (void)s;
    world->envs = (Env *)calloc(1, sizeof(Env));
    if (world->envs == NULL)
        return "out of memory";
    world->count = 1;
    PUFFER_SEED(world->envs, (unsigned)seed);
    PUFFER_INIT(world->envs, world->options);
#endif
    return NULL;
}

/* How many agents a choice of options makes: asked once of environments that are closed again. */
static const char *puffer_count_agents(puffer_settings *s, const char *text) {
    static struct puffer_counted {
        char *text;
        int agents;
        struct puffer_counted *next;
    } *puffer_counts;
    for (const struct puffer_counted *one = puffer_counts; one != NULL; one = one->next)
        if (strcmp(one->text, text) == 0) {
            s->agents = one->agents;
            return NULL;
        }
    puffer_world *world = (puffer_world *)calloc(1, sizeof *world);
    struct puffer_counted *one = (struct puffer_counted *)calloc(1, sizeof *one);
    if (world == NULL || one == NULL)
        return "out of memory";
    const char *refusal = puffer_populate(world, s, 0);
    if (refusal == NULL) {
        for (int i = 0; i < world->count; i++)
            s->agents += puffer_agents(s, &world->envs[i]);
        puffer_depopulate(world);
        *one = (struct puffer_counted){strdup(text), s->agents, puffer_counts};
        puffer_counts = one;
    }
    free(world);
    return refusal != NULL ? refusal : s->agents < 1 ? "it has no agents (num_agents)" : NULL;
}

static const char *puffer_spaces(puffer_settings *s) {
    const uint64_t sizes = sizeof puffer_action_sizes / sizeof puffer_action_sizes[0];
    uint64_t numbers = 0, mask = 0;
    for (uint64_t i = 0; i < sizes; i++) {
        numbers += puffer_action_sizes[i] == 1;
        mask += (uint64_t)puffer_action_sizes[i];
        s->highs[i < PUFFER_ACTIONS ? i : 0] = puffer_action_sizes[i] - 1;
    }
    if (sizes != NUM_ATNS || sizes > PUFFER_ACTIONS)
        return "ACT_SIZES has not NUM_ATNS numbers (256 at most)";
    if (numbers != 0 && numbers != sizes)
        return "ACT_SIZES has sizes of 1, which are continuous, beside others; no Gymnasium space is both";
    if (numbers == sizes)
        puffer_set_action(s, SHOAL_BOX, sizes, -1, 1);
    else
        puffer_set_action(s, sizes == 1 ? SHOAL_DISCRETE : SHOAL_MULTI_DISCRETE, sizes, 0, 0);

    const shoal_dtype dtype = PUFFER_DTYPE(PUFFER_OBSERVATION_T);
    const int bits = dtype.bits < 53 ? dtype.bits : 53;
    const int is_signed = dtype.code == SHOAL_CODE_INT, is_real = dtype.code == SHOAL_CODE_FLOAT;
    s->observation_bytes = OBS_SIZE * sizeof(PUFFER_OBSERVATION_T);
    s->observation = (shoal_field){.dtype = dtype, .kind = SHOAL_BOX, .ndim = 1, .shape = {OBS_SIZE}};
    s->observation.low = is_real ? -INFINITY : is_signed ? -ldexp(1, bits - 1) : 0;
    s->observation.high = is_real ? INFINITY : ldexp(1, bits - is_signed) - 1;
#ifdef PUFFER_SHOWS_MASK
    mask = PUFFER_SHOWS_MASK > 0 ? PUFFER_SHOWS_MASK : mask; /* 0: nobody says how many */
    s->mask_bytes = mask;
    s->mask = (shoal_field){.name = "action_mask",
                            .dtype = SHOAL_INT8,
                            .kind = SHOAL_MULTI_BINARY,
                            .ndim = 1,
                            .shape = {(int64_t)mask},
                            .high = 1};
    s->observation.name = "observation";
#endif
    return s->agents == 0 ? puffer_count_agents(s, s->text) : NULL;
}

#endif
