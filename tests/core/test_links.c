/* Rows that lead to each other: transitions, stacks, n steps and sequences are what was pushed, whole, under
 * links that lead nowhere, and while threads push; also under the sanitizers. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "check.h"
#include "platform.h"
#include "ring.h"
#include "seed.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The source itself, with a hook after the word of a row is loaded and (NULL) after rows are copied. */
static void (*hook)(const shoal_word64 *loaded);
static uint64_t load_and_call(const shoal_word64 *at) {
    const uint64_t word = shoal_ring_load_at(at);
    if (hook != NULL)
        hook(at);
    return word;
}
static uint64_t load_full_and_call(const shoal_word64 *at) {
    const uint64_t word = shoal_ring_load_full_at(at);
    if (hook != NULL)
        hook(at);
    return word;
}
static void call_and_fence(void) {
    if (hook != NULL)
        hook(NULL);
    shoal_ring_fence_copies();
}
#define shoal_links_set hooked_links_set
#define shoal_walk_begin hooked_walk_begin
#define shoal_walk_draw hooked_walk_draw
#define shoal_walk_gather hooked_walk_gather
#define shoal_walk_end hooked_walk_end
#define shoal_ring_load_at load_and_call
#define shoal_ring_load_full_at load_full_and_call
#define shoal_ring_fence_copies call_and_fence
#include "links.c"
#undef shoal_ring_load_at
#undef shoal_ring_load_full_at
#undef shoal_ring_fence_copies

/* An observation says where it comes from, and says it in every word: environment, episode, time. */
#ifdef __SANITIZE_THREAD__ /* under which copies go byte by byte */
enum { OBS_WORDS = 8, PUSHED_STEPS = 300, BATCHES = 200 };
#else
enum { OBS_WORDS = 64, PUSHED_STEPS = 1500, BATCHES = 4000 };
#endif
enum { ENVS = 3, ROWS = 64, STACK = 4, LENGTH = 6 };
enum { TERMINATED_AT = 8, TRUNCATED_AT, FIRST_AT, REWARD_AT = 12, PREVIOUS_AT = 16, OBS_AT = 24 };
enum { STRIDE = OBS_AT + 8 * OBS_WORDS + 8, MOST = 4096 };

typedef struct memory {
    shoal_word64 tail, numbers_used;
    shoal_ring_writer writers[SHOAL_RING_WRITERS];
    uint64_t next[MOST];
    _Alignas(64) char rows[MOST * STRIDE];
} memory;

typedef struct seen {
    uint64_t words[OBS_WORDS]; /* environment << 48 | episode << 24 | time, in each */
} seen;

static memory *shared;
static int shared_fd;
static shoal_word stop;
static const shoal_column every[] = {{OBS_AT, sizeof(seen)}, {REWARD_AT, 4}, {TERMINATED_AT, 1},
                                     {TRUNCATED_AT, 1},      {FIRST_AT, 1},  {PREVIOUS_AT, 8}};

static void begin(void) {
    free(shared);
    shared = aligned_alloc(64, sizeof *shared);
    memset(shared, 0, sizeof *shared);
    shared_fd = shoal_memory_create();
    CHECK(shared_fd >= 0);
    atomic_store(&stop, 0);
}

static shoal_ring handle(uint64_t capacity) {
    return (shoal_ring){.tail = &shared->tail,
                        .numbers_used = &shared->numbers_used,
                        .writers = shared->writers,
                        .rows = shared->rows,
                        .capacity = capacity,
                        .stride = STRIDE,
                        .lock_fd = shoal_reopen(shared_fd, 1),
                        .writer = SHOAL_RING_WRITERS};
}

static shoal_links make_links(const shoal_ring *ring) {
    return (shoal_links){ring,
                         shared->next,
                         {FIRST_AT, 1},
                         {PREVIOUS_AT, 8},
                         {{REWARD_AT, 4}, {TERMINATED_AT, 1}, {TRUNCATED_AT, 1}},
                         ENVS};
}

/* Environments whose episodes end after 3, 4, ... steps; a row after an end, or after an early reset, begins
 * another. */
typedef struct actor {
    shoal_ring ring;
    shoal_links links;
    uint64_t name, last[ENVS], time[ENVS], episode[ENVS];
    uint8_t over[ENVS];
} actor;

static uint64_t episode_length(uint64_t env, uint64_t episode) { return 3 + (env + episode) % 5; }

static void add_step(actor *self) {
    seen obs[ENVS];
    float reward[ENVS];
    uint8_t terminated[ENVS], truncated[ENVS], first[ENVS];
    uint64_t ids[ENVS], done = 0, since = 0;
    for (uint64_t e = 0; e < ENVS; e++) {
        first[e] = self->over[e];
        self->episode[e] += first[e];
        self->time[e] = first[e] ? 0 : self->time[e] + 1;
        const int ends = self->time[e] == episode_length(e, self->episode[e]);
        terminated[e] = ends && self->episode[e] % 2 == 0;
        truncated[e] = ends && self->episode[e] % 2 == 1;
        const int is_reset = self->episode[e] % 7 == 3 && self->time[e] == 2; /* before its end */
        self->over[e] = (uint8_t)(ends || is_reset);
        reward[e] = (float)self->time[e];
        for (int w = 0; w < OBS_WORDS; w++)
            obs[e].words[w] = (self->name * ENVS + e) << 48 | self->episode[e] << 24 | self->time[e];
    }
    while (done < ENVS) {
        const void *in[] = {obs + done,       reward + done, terminated + done,
                            truncated + done, first + done,  self->last + done};
        const uint64_t now =
            shoal_ring_push(&self->ring, (shoal_columns){every, 6}, in, ENVS - done, ids + done);
        done += now;
        CHECK(now != 0 || shoal_ring_wait_for_room(&since));
    }
    shoal_links_set(&self->links, self->last, ids, ENVS);
    for (uint64_t e = 0; e < ENVS; e++)
        CHECK(self->last[e] == ids[e] + 1);
}

static void start(actor *self, uint64_t capacity, uint64_t name) {
    memset(self, 0, sizeof *self);
    self->ring = handle(capacity);
    self->links = make_links(&self->ring);
    self->name = name;
    memset(self->over, 1, sizeof self->over);
    CHECK(shoal_ring_register(&self->ring) == 0);
}

/* What a batch is drawn into. */
typedef struct batch {
    seen obs[ROWS * STACK], next[ROWS * STACK], all[ROWS * LENGTH];
    float reward[ROWS * LENGTH], discount[ROWS], weights[ROWS], drawn[ROWS];
    uint8_t terminated[ROWS * LENGTH], truncated[ROWS * LENGTH], first[ROWS * LENGTH], mask[ROWS * LENGTH];
    uint64_t ids[ROWS], slots[ROWS], places[ROWS], rounds;
} batch;

static uint64_t draw_rounds(batch *b, const shoal_links *links, uint64_t stack, uint64_t steps,
                            uint64_t length, int across, const shoal_tree *tree, shoal_rng *rng,
                            shoal_copy_threads threads, uint64_t rounds) {
    static const shoal_column obs = {OBS_AT, sizeof(seen)}, first = {FIRST_AT, 1};
    void *obs_out[] = {b->obs}, *next_out[] = {b->next}, *first_out[] = {b->first};
    void *steps_out[] = {b->reward, b->terminated, b->truncated};
    void *all_out[] = {b->all, b->reward, b->terminated, b->truncated, b->first};
    shoal_walk walk = {.links = links, .count = ROWS, .stack = stack, .steps = steps, .length = length};
    walk.gamma = 0.5;
    walk.across_episodes = across;
    walk.obs = (shoal_columns){&obs, length == 0};
    walk.rest = length == 0 ? (shoal_columns){&first, 1} : (shoal_columns){every, 5};
    walk.obs_out = obs_out;
    walk.next_out = next_out;
    walk.rest_out = length == 0 ? first_out : all_out;
    memcpy(walk.step_out, steps_out, sizeof walk.step_out);
    walk.discount = b->discount;
    walk.mask = b->mask;
    walk.ids = b->ids;
    walk.weights = b->weights;
    walk.slots = b->slots;
    walk.places = b->places;
    walk.drawn = b->drawn;
    uint64_t missing = ROWS;
    shoal_walk_begin(&walk);
    while (missing != 0 && walk.rounds < rounds && shoal_walk_draw(&walk, tree, rng))
        missing = shoal_walk_gather(&walk, threads);
    shoal_walk_end(&walk);
    b->rounds = walk.rounds;
    return ROWS - missing;
}

static uint64_t draw(batch *b, const shoal_links *links, uint64_t stack, uint64_t steps, uint64_t length,
                     int across, const shoal_tree *tree, shoal_rng *rng, shoal_copy_threads threads) {
    return draw_rounds(b, links, stack, steps, length, across, tree, rng, threads, UINT64_MAX);
}

static uint64_t time_of(seen o) { return o.words[0] & 0xffffff; }
static uint64_t episode_of(seen o) { return o.words[0] >> 24; } /* and environment */

static void check_whole(seen o) {
    for (int w = 1; w < OBS_WORDS; w++)
        CHECK(o.words[w] == o.words[0]);
}

/* A stack ends with `last`, and holds what came before it, the first of the episode repeated. */
static void check_stack(const seen *frames, uint64_t stack) {
    for (uint64_t k = 0; k < stack; k++) {
        const uint64_t back = stack - 1 - k, last = time_of(frames[stack - 1]);
        check_whole(frames[k]);
        CHECK(episode_of(frames[k]) == episode_of(frames[stack - 1]));
        CHECK(time_of(frames[k]) == (last > back ? last - back : 0));
    }
}

static void check_step(const batch *b, uint64_t i, uint64_t stack, uint64_t steps) {
    const seen from = b->obs[(i + 1) * stack - 1], to = b->next[(i + 1) * stack - 1];
    const uint64_t begin = time_of(from), taken = time_of(to) - begin, episode = episode_of(from);
    const uint64_t env = (episode >> 24) % ENVS, number = episode & 0xffffff;
    check_stack(b->obs + i * stack, stack);
    check_stack(b->next + i * stack, stack);
    CHECK(episode == episode_of(to) && taken >= 1 && taken <= steps && b->first[i] == 0);
    double total = 0;
    for (uint64_t k = 1; k <= taken; k++)
        total += pow(0.5, (double)k - 1) * (double)(begin + k);
    CHECK(b->reward[i] == (float)total && b->discount[i] == (float)pow(0.5, (double)taken));
    const int ends = time_of(to) == episode_length(env, number);
    CHECK(b->terminated[i] == (ends && number % 2 == 0) && b->truncated[i] == (ends && number % 2 == 1));
}

static void check_steps(const batch *b, uint64_t stack, uint64_t steps) {
    for (uint64_t i = 0; i < ROWS; i++)
        check_step(b, i, stack, steps);
}

static void check_sequences(const batch *b, int across) {
    for (uint64_t i = 0; i < ROWS; i++) {
        CHECK(b->mask[i * LENGTH]);
        for (uint64_t t = 0; t < LENGTH; t++) {
            const uint64_t at = i * LENGTH + t;
            const seen now = b->all[at];
            check_whole(now);
            if (!b->mask[at]) {
                CHECK(now.words[0] == 0 && b->reward[at] == 0 && b->first[at] == 0 && b->truncated[at] == 0);
                continue;
            }
            CHECK(b->first[at] == (time_of(now) == 0) && b->reward[at] == (float)time_of(now));
            if (t == 0)
                continue;
            const seen before = b->all[at - 1];
            CHECK(b->mask[at - 1]);
            CHECK(time_of(now) == 0
                      ? across && episode_of(now) == episode_of(before) + 1
                      : episode_of(now) == episode_of(before) && time_of(now) == time_of(before) + 1);
        }
    }
}

static void check_every_way(batch *b, const shoal_links *links, shoal_rng *rng, shoal_copy_threads threads) {
    for (uint64_t stack = 1; stack <= STACK; stack += STACK - 1)
        for (uint64_t steps = 1; steps <= 3; steps++)
            if (draw(b, links, stack, steps, 0, 0, NULL, rng, threads) == ROWS)
                check_steps(b, stack, steps);
    for (int across = 0; across < 2; across++)
        if (draw(b, links, 1, 1, LENGTH, across, NULL, rng, threads) == ROWS)
            check_sequences(b, across);
}

static void test_what_is_drawn_is_what_happened(void) {
    const uint64_t capacities[] = {37, 64, 300, 1000};
    batch *b = malloc(sizeof *b);
    memset(b->first, 1, sizeof b->first);
    for (int c = 0; c < 4; c++) {
        shoal_rng rng;
        actor one;
        begin();
        shoal_rng_seed(&rng, (uint64_t)c);
        start(&one, capacities[c], 1);
        for (int step = 0; step < 300; step++) {
            add_step(&one);
            if (step > 20 && step % 7 == 0) {
                check_every_way(b, &one.links, &rng, (shoal_copy_threads){0});
                CHECK(draw(b, &one.links, 1, 3, 0, 0, NULL, &rng, (shoal_copy_threads){0}) == ROWS);
            }
        }
        for (uint64_t slot = 0; slot < capacities[c]; slot++) /* links that lead anywhere are not believed */
            shared->next[slot] = shoal_random64(&rng) % (2 * capacities[c]);
        one.links.apart = capacities[c]; /* nor is there another way to guess */
        for (int i = 0; i < 50; i++)
            check_every_way(b, &one.links, &rng, (shoal_copy_threads){0});
        close(one.ring.lock_fd);
    }
    free(b);
}

static void test_a_row_that_is_being_written_is_in_no_batch(void) {
    enum { CAPACITY = 300 };
    batch *b = malloc(sizeof *b);
    shoal_rng rng;
    actor one;
    begin();
    shoal_rng_seed(&rng, 1);
    start(&one, CAPACITY, 1);
    for (int step = 0; step < CAPACITY; step++)
        add_step(&one);
    for (uint64_t slot = 5; slot < CAPACITY;
         slot += 11) { /* its links and its id are right, its rewards not */
        char *row = shared->rows + slot * STRIDE;
        uint64_t *word = (uint64_t *)(void *)row;
        *word = shoal_ring_word(shoal_ring_lap(*word), 1, SHOAL_RING_OPEN);
        memset(row + REWARD_AT, 0xee, 4);
    }
    for (int guess = 1; guess >= 0; guess--) {
        one.links.apart = guess ? one.links.apart : CAPACITY;
        for (int i = 0; i < 50; i++)
            check_every_way(b, &one.links, &rng, (shoal_copy_threads){0});
    }
    close(one.ring.lock_fd);
    free(b);
}

static uint64_t calls, torn_at, torn_slot;
static int is_reward_alone;

/* At one of the calls, overwrites the row whose word was loaded, or after copies the row in torn_slot. */
static void overwrite_row(const shoal_word64 *loaded) {
    if (calls++ != torn_at)
        return;
    char *row = loaded == NULL ? shared->rows + torn_slot * STRIDE
                               : shared->rows + ((const char *)loaded - shared->rows);
    const uint64_t lap = shoal_ring_lap(*(uint64_t *)(void *)row) + 1;
    if (is_reward_alone) /* as if the writer had not come to the flags and the link yet */
        memset(row + REWARD_AT, 0xee, 4);
    else
        memset(row, 0xee, STRIDE);
    *(uint64_t *)(void *)row = shoal_ring_word(lap, 1, is_reward_alone ? SHOAL_RING_OPEN : SHOAL_RING_FULL);
}

static void test_no_transition_has_a_row_that_was_overwritten_during_the_copy(void) {
    enum { CAPACITY = 40 };
    batch *b = malloc(sizeof *b);
    char *kept = malloc(CAPACITY * STRIDE);
    actor one;
    begin();
    start(&one, CAPACITY, 1);
    for (int step = 0; step < 40; step++)
        add_step(&one);
    memcpy(kept, shared->rows, CAPACITY * STRIDE);
    hook = overwrite_row;
    for (uint64_t stack = 1; stack <= STACK; stack += STACK - 1)
        for (uint64_t steps = 1; steps <= 3; steps++) {
            uint64_t delivered = 0, missing = 0, most = 1;
            for (torn_at = 0; torn_at < most; torn_at++)
                for (is_reward_alone = 0; is_reward_alone < 2; is_reward_alone++) {
                    shoal_rng rng;
                    shoal_rng_seed(&rng, torn_at);
                    torn_slot = torn_at % CAPACITY;
                    calls = 0;
                    draw_rounds(b, &one.links, stack, steps, 0, 0, NULL, &rng, (shoal_copy_threads){0}, 1);
                    most = calls > most ? calls : most;
                    for (uint64_t i = 0; i < ROWS; i++) {
                        missing += b->slots[i] == MISSING;
                        delivered += b->slots[i] != MISSING;
                        if (b->slots[i] != MISSING)
                            check_step(b, i, stack, steps);
                    }
                    memcpy(shared->rows, kept, CAPACITY * STRIDE);
                }
            CHECK(delivered > missing && missing != 0 && most > 2 * ROWS);
        }
    hook = NULL;
    close(one.ring.lock_fd);
    free(kept);
    free(b);
}

static void test_every_transition_comes_with_the_same_chance(void) {
    enum { CAPACITY = 60 };
    batch *b = malloc(sizeof *b);
    static uint64_t counts[2][1 << 12];
    shoal_rng rng;
    actor one;
    begin();
    shoal_rng_seed(&rng, 5);
    start(&one, CAPACITY, 0);
    for (int step = 0; step < 47; step++)
        add_step(&one);
    for (int listed = 0; listed < 2; listed++) { /* as drawn again, and as drawn from a list */
        uint64_t kinds = 0;
        double statistic = 0;
        for (int i = 0; i < BATCHES; i++) {
            CHECK(draw(b, &one.links, 1, 1, 0, 0, NULL, &rng, (shoal_copy_threads){0}) == ROWS);
            for (uint64_t r = 0; r < ROWS; r++)
                counts[listed][b->ids[r]]++;
        }
        for (int id = 0; id < 1 << 12; id++)
            kinds += counts[listed][id] != 0;
        const double expected = (double)BATCHES * ROWS / (double)kinds;
        for (int id = 0; id < 1 << 12; id++)
            if (counts[listed][id] != 0)
                statistic += pow((double)counts[listed][id] - expected, 2) / expected;
        CHECK(kinds > (listed ? 1 : 30) && statistic < (double)kinds + 6 * sqrt(2 * (double)kinds) + 10);
        /* Then all but two of the transitions are made firsts, so that nearly every draw fails. */
        uint64_t left = 2;
        for (uint64_t slot = 0; slot < CAPACITY; slot++) {
            char *first = shared->rows + slot * STRIDE + FIRST_AT;
            const uint64_t id = shoal_ring_id(&one.ring, slot, shoal_ring_load_full(&one.ring, slot));
            if (*first == 0 && counts[0][id] != 0 && left != 0)
                left--;
            else
                *first = 1;
        }
    }
    for (uint64_t slot = 0; slot < CAPACITY; slot++)
        shared->rows[slot * STRIDE + FIRST_AT] = 1;
    CHECK(draw(b, &one.links, 1, 1, 0, 0, NULL, &rng, (shoal_copy_threads){0}) == 0);
    CHECK(b->rounds < 200); /* a list of what can be drawn tells at once that there is nothing */
    CHECK(draw(b, &one.links, 1, 1, LENGTH, 0, NULL, &rng, (shoal_copy_threads){0}) == ROWS);
    close(one.ring.lock_fd);
    free(b);
}

static void test_transitions_are_drawn_by_weight(void) {
    batch *b = malloc(sizeof *b);
    shoal_tree tree;
    shoal_rng rng;
    actor one;
    begin();
    shoal_rng_seed(&rng, 6);
    start(&one, 100, 0);
    for (int step = 0; step < 30; step++)
        add_step(&one);
    const uint64_t bytes = (shoal_tree_floats(100) * sizeof(float) + 63) / 64 * 64;
    float *memory = aligned_alloc(64, bytes);
    memset(memory, 0, bytes);
    shoal_tree_init(&tree, 100, memory);
    CHECK(draw(b, &one.links, 1, 1, 0, 0, &tree, &rng, (shoal_copy_threads){0}) ==
          0); /* nothing weighs anything */
    uint64_t heavy[2], found = 0;
    CHECK(draw(b, &one.links, 1, 1, 0, 0, NULL, &rng, (shoal_copy_threads){0}) == ROWS);
    for (uint64_t i = 0; i < ROWS && found < 2; i++)
        if (found == 0 || b->ids[i] != heavy[0])
            heavy[found++] = b->ids[i];
    for (uint64_t slot = 0; slot < 90; slot++) /* rows that no transition leads to: drawn in vain */
        if (shared->rows[slot * STRIDE + FIRST_AT])
            shoal_tree_set(&tree, &slot, (const float[]){0.5}, 1);
    shoal_tree_set(&tree, (const uint64_t[]){heavy[0] % 100, heavy[1] % 100}, (const float[]){1, 3}, 2);
    uint64_t second = 0;
    for (int i = 0; i < 200; i++) {
        CHECK(draw(b, &one.links, 1, 2, 0, 0, &tree, &rng, (shoal_copy_threads){0}) == ROWS);
        for (uint64_t r = 0; r < ROWS; r++) {
            CHECK(b->ids[r] == heavy[0] || b->ids[r] == heavy[1]);
            CHECK(b->weights[r] == (b->ids[r] == heavy[1] ? 3 : 1));
            second += b->ids[r] == heavy[1];
        }
    }
    CHECK(fabs((double)second / (200 * ROWS) - 0.75) < 0.02);
    free(memory);
    close(one.ring.lock_fd);
    free(b);
}

typedef struct role {
    uint64_t capacity, name, steps;
} role;

static void *push_steps(void *argument) {
    const role *self = argument;
    actor one;
    start(&one, self->capacity, self->name);
    for (uint64_t i = 0; i < self->steps; i++) {
        add_step(&one);
        if (i % 8 == 0)
            sched_yield();
    }
    close(one.ring.lock_fd);
    return NULL;
}

static void *sample_all(void *argument) {
    const role *self = argument;
    shoal_ring ring = handle(self->capacity);
    shoal_links links = make_links(&ring);
    shoal_choice choice = {0};
    shoal_copy_threads threads = {.count = 2, .choice = &choice};
    shoal_rng rng;
    shoal_rng_seed(&rng, self->name);
    CHECK(shoal_pool_create(threads.count, 1, &threads.pool) == 0);
    batch *b = malloc(sizeof *b);
    while (!atomic_load(&stop)) {
        check_every_way(b, &links, &rng, threads);
        sched_yield();
    }
    free(b);
    shoal_pool_destroy(threads.pool);
    close(ring.lock_fd);
    return NULL;
}

static void check_threads(uint64_t capacity, uint64_t steps) {
    enum { WRITERS = 2, READERS = 2 };
    pthread_t threads[WRITERS + READERS];
    role roles[WRITERS + READERS];
    begin();
    for (int i = 0; i < WRITERS + READERS; i++) {
        roles[i] = (role){capacity, (uint64_t)i, steps};
        CHECK(pthread_create(&threads[i], NULL, i < WRITERS ? push_steps : sample_all, &roles[i]) == 0);
    }
    for (int i = 0; i < WRITERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    atomic_store(&stop, 1);
    for (int i = WRITERS; i < WRITERS + READERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static void test_what_is_drawn_while_others_push_into_a_small_ring_is_whole(void) {
    check_threads(48, PUSHED_STEPS);
}
static void test_what_is_drawn_while_others_push_into_a_large_ring_is_whole(void) {
    check_threads(1000, PUSHED_STEPS);
}

/* Rows that are put back by their ids are where they were, and the next ticket is the one that was given. */
static void test_rows_that_are_restored_are_drawn_as_before(void) {
    enum { CAPACITY = 50 };
    static uint64_t ids[CAPACITY];
    static uint8_t found[CAPACITY];
    batch *b = malloc(sizeof *b);
    actor one;
    begin();
    start(&one, CAPACITY, 0);
    for (int step = 0; step < 40; step++)
        add_step(&one);
    static seen obs[CAPACITY];
    static float reward[CAPACITY];
    static uint8_t terminated[CAPACITY], truncated[CAPACITY], first[CAPACITY];
    static uint64_t previous[CAPACITY];
    void *out[] = {obs, reward, terminated, truncated, first, previous};
    const shoal_columns columns = {every, 6};
    CHECK(shoal_ring_latest(&one.ring, CAPACITY, ids) == CAPACITY);
    CHECK(shoal_ring_fetch(&one.ring, columns, ids, CAPACITY, out, found) == CAPACITY);
    uint64_t expected[2][ROWS];
    for (int round = 0; round < 2; round++) {
        shoal_rng rng;
        shoal_rng_seed(&rng, 9);
        CHECK(draw(b, &one.links, 1, 3, 0, 0, NULL, &rng, (shoal_copy_threads){0}) == ROWS);
        memcpy(expected[round], b->ids, sizeof expected[round]);
        check_steps(b, 1, 3);
        if (round == 1)
            break;
        const uint64_t tail = atomic_load(one.ring.tail), total = shoal_ring_total(&one.ring);
        close(one.ring.lock_fd);
        begin();
        one.ring = handle(CAPACITY);
        one.links = make_links(&one.ring);
        CHECK(shoal_ring_register(&one.ring) == 0);
        shoal_ring_restore(&one.ring, columns, (const void *const *)out, ids, CAPACITY, tail, total);
        shoal_links_set(&one.links, previous, ids, CAPACITY);
        CHECK(atomic_load(one.ring.tail) == tail && shoal_ring_total(&one.ring) == total);
    }
    CHECK(memcmp(expected[0], expected[1], sizeof expected[0]) == 0);
    for (int step = 0; step < 40; step++)
        add_step(&one);
    close(one.ring.lock_fd);
    free(b);
}

int main(void) {
    RUN(test_what_is_drawn_is_what_happened);
    RUN(test_a_row_that_is_being_written_is_in_no_batch);
    RUN(test_no_transition_has_a_row_that_was_overwritten_during_the_copy);
    RUN(test_every_transition_comes_with_the_same_chance);
    RUN(test_transitions_are_drawn_by_weight);
    RUN(test_rows_that_are_restored_are_drawn_as_before);
    RUN(test_what_is_drawn_while_others_push_into_a_small_ring_is_whole);
    RUN(test_what_is_drawn_while_others_push_into_a_large_ring_is_whole);
    free(shared);
    return 0;
}
