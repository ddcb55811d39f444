/* How a world is made and unmade: its buffers laid out with guards between them, its environments made by the
 * contract and bound to them, tried once, and closed. Included by world.h, which says what a world is. */
// SPDX-License-Identifier: MIT

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define PUFFER_POISON(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define PUFFER_UNPOISON(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
enum { PUFFER_GUARD = 64 };
#else
#define PUFFER_POISON(at, bytes) ((void)(at), (void)(bytes))
#define PUFFER_UNPOISON(at, bytes) ((void)(at), (void)(bytes))
enum { PUFFER_GUARD = 0 }; /* close together: a step of a small world is as long as its cache misses */
#endif

enum { PUFFER_PATTERN = 0xA5, PUFFER_TRIAL = 1 << 16 };

/* ---- Laid out ---- */

static uint64_t puffer_rounded(uint64_t bytes) { return (bytes + 15) & ~(uint64_t)15; }

static uint64_t puffer_head_bytes(int tells) { /* whole cache lines */
    return (sizeof(puffer_world) + (tells ? PUFFER_LOGS * sizeof(double) : 0) + 63) & ~(uint64_t)63;
}

/* Lays the buffers out behind `at` with `guard` bytes before, between and after; returns where they end. */
static char *puffer_lay(puffer_guarded *guarded, const puffer_settings *s, char *at, uint64_t guard) {
    const uint64_t agents = (uint64_t)s->agents;
    const uint64_t bytes[] = {agents * s->num_actions * sizeof(PUFFER_ACTION_T), agents * sizeof(float),
                              agents * sizeof(PUFFER_END_T), agents * s->mask_bytes,
                              agents * s->observation_bytes};
    guarded->guard = guard;
    for (int i = 0; i < 5; i++) {
        at += guard;
        guarded->starts[i] = at;
        guarded->stops[i] = at + bytes[i];
        at += puffer_rounded(bytes[i]);
    }
    return guarded->end = at + guard;
}

static void puffer_lay_out(puffer_world *world, const puffer_settings *s, char *at, uint64_t guard) {
    puffer_lay(&world->guarded, s, at, guard);
    char *const *starts = world->guarded.starts;
    world->buffers = (puffer_buffers){
        .actions = starts[0], .rewards = starts[1], .ends = starts[2], .observations = starts[4]};
    world->mask = starts[3];
    world->agents = (uint32_t)s->agents;
    world->num_actions = (uint32_t)s->num_actions;
}

/* Calls `visit` with every guard of a world, from the end of a buffer to the start of the next. */
static int puffer_guards(const puffer_world *world, int (*visit)(unsigned char *begin, unsigned char *end)) {
    const puffer_guarded *guarded = &world->guarded;
    int sound =
        visit((unsigned char *)guarded->starts[0] - guarded->guard, (unsigned char *)guarded->starts[0]);
    for (int i = 0; i < 5; i++)
        sound &= visit((unsigned char *)guarded->stops[i],
                       (unsigned char *)(i < 4 ? guarded->starts[i + 1] : guarded->end));
    return sound;
}

static int puffer_guard_fill(unsigned char *begin, unsigned char *end) {
    memset(begin, PUFFER_PATTERN, (size_t)(end - begin));
    return 1;
}

static int puffer_guard_check(unsigned char *begin, unsigned char *end) {
    while (begin < end && *begin == PUFFER_PATTERN)
        begin++;
    return begin == end;
}

static int puffer_guard_poison(unsigned char *begin, unsigned char *end) {
    PUFFER_POISON(begin, (size_t)(end - begin));
    return 1;
}

static int puffer_guard_unpoison(unsigned char *begin, unsigned char *end) {
    PUFFER_UNPOISON(begin, (size_t)(end - begin));
    return 1;
}

/* ---- Made and unmade ---- */

typedef struct puffer_call {
    puffer_world *world;
    const puffer_settings *s;
    uint64_t seed;
    const char *refusal;
} puffer_call;

/* Calls environments; true if they wanted out (exit, assert), and why is in puffer_message. */
static int puffer_escapes(void (*call)(puffer_call *), puffer_call *with) {
    jmp_buf escape;
    if (setjmp(escape) != 0) {
        puffer_escape = NULL;
        puffer_drawing = NULL;
        return 1;
    }
    puffer_escape = &escape;
    puffer_drawing = &with->world->random;
    call(with);
    puffer_escape = NULL;
    puffer_drawing = NULL;
    return 0;
}

static void puffer_call_make(puffer_call *call) {
    puffer_world *world = call->world;
    const puffer_settings *s = call->s;
    call->refusal = puffer_make(world, s, (int)(puffer_mixed(call->seed) >> 34));
    int agents = 0;
    for (int i = 0; call->refusal == NULL && i < world->count; i++) {
        puffer_bind(world, s, &world->envs[i], agents);
        agents += puffer_agents(s, &world->envs[i]);
    }
    if (call->refusal == NULL && s->agents != 0 && agents != s->agents)
        puffer_stop("it has %d agents where there are buffers for %d; say agents=%d", agents, s->agents,
                    agents);
}

static void puffer_call_first_steps(puffer_call *call) {
    puffer_world *world = call->world;
    for (int i = 0; i < world->count; i++)
        PUFFER_RESET(&world->envs[i]);
    for (int t = 0; t < 4; t++)
        PUFFER_STEP_ALL(world);
}

/* Makes the environments of a world and gives them their buffers; a message if they do not want to be. */
static const char *puffer_populate(puffer_world *world, const puffer_settings *s, uint64_t seed) {
    puffer_message[0] = puffer_missing[0] = '\0';
    world->random = (puffer_random){.state = seed};
    puffer_call call = {world, s, seed, NULL};
    if (puffer_escapes(puffer_call_make, &call))
        return puffer_message;
    world->wants_seed |= world->random.state != seed;
    world->is_fresh = world->is_stepped = 0;
    return call.refusal;
}

static void puffer_depopulate(puffer_world *world) {
    puffer_drawing = &world->random;
    puffer_closing = world->envs;
    if (world->envs != NULL)
        puffer_unmake(world);
    puffer_drawing = NULL;
    puffer_closing = NULL;
    puffer_options_free(world->options);
    world->envs = NULL;
    world->options = NULL;
    world->count = 0;
}

/* A world on the heap with wide guards is reset and stepped: whoever writes beyond its rows is refused. */
static const char *puffer_try(const puffer_settings *s) {
    puffer_guarded unused;
    const uint64_t size = (uint64_t)(puffer_lay(&unused, s, NULL, 0) - (char *)NULL);
    const uint64_t guard = puffer_rounded(size * 4 + PUFFER_TRIAL);
    char *memory = calloc(1, size + 6 * guard);
    puffer_world *world = calloc(1, sizeof *world);
    if (memory == NULL || world == NULL) {
        free(memory);
        free(world);
        return "out of memory";
    }
    puffer_lay_out(world, s, memory, guard);
    puffer_guards(world, puffer_guard_fill);
    const char *refusal = puffer_populate(world, s, 0);
    puffer_call call = {world, s, 0, NULL};
    if (refusal == NULL && puffer_escapes(puffer_call_first_steps, &call))
        refusal = puffer_message;
    if (refusal == NULL && !puffer_guards(world, puffer_guard_check)) {
        snprintf(
            puffer_message, sizeof puffer_message,
            "it wrote beyond the rows of its %d agents (observations of %llu bytes); are the spaces and the "
            "number of agents right?",
            s->agents, (unsigned long long)s->observation_bytes);
        refusal = puffer_message;
    }
    if (refusal == NULL)
        puffer_depopulate(world);
    free(memory);
    free(world);
    return refusal;
}

static const char *puffer_init(shoal_envs *envs, uint64_t env) {
    puffer_settings settings, *s = &settings;
    const char *refusal = puffer_settings_read(s, envs->options[0].s);
    if (refusal == NULL)
        refusal = puffer_spaces(s);
    if (refusal == NULL && env == 0)
        refusal = puffer_try(s);
    puffer_world *world = SHOAL_INSTANCE(puffer_world, envs, env);
    if (refusal == NULL) {
        world->tells = (uint8_t)s->tells;
        puffer_lay_out(world, s, (char *)world + puffer_head_bytes(s->tells), PUFFER_GUARD);
        memset(world->mask, 1, (size_t)s->agents * s->mask_bytes); /* until it says otherwise */
        refusal = puffer_populate(world, s, shoal_random64(&envs->rng[env]));
        world->left = envs->rng[env];
    }
    if (refusal == NULL)
        puffer_guards(world, puffer_guard_poison);
    puffer_settings_free(s);
    return refusal;
}

static void puffer_close(shoal_envs *envs, uint64_t env) {
    puffer_world *world = SHOAL_INSTANCE(puffer_world, envs, env);
    puffer_guards(world, puffer_guard_unpoison);
    puffer_depopulate(world);
}
