/* Tests of core/checkpoint.c: the frozen format byte for byte, a way back for every part of it, and no bytes
 * that are shorter, longer or damaged pass. */
// SPDX-License-Identifier: MIT
#include "check.h"
#include "checkpoint.h"
#include "durable.h"

#include <stddef.h>
#include <string.h>

enum { ENVS = 3, AGENTS = 2, INSTANCE = 24, PART = 5, FIXED = 88 + AGENTS * 12, MOST = 256 };

typedef struct world {
    char instances[ENVS * INSTANCE];
    shoal_rng rng[ENVS];
    uint8_t reset[ENVS], over[ENVS];
    uint32_t elapsed[ENVS], length[ENVS * AGENTS];
    double total[ENVS * AGENTS];
} world;

static const char *refusal;

static uint64_t part_size(shoal_envs *envs, uint64_t env) {
    (void)envs, (void)env;
    return PART;
}
static void part_save(shoal_envs *envs, uint64_t env, void *out) {
    memcpy(out, (char *)envs->instances + env * INSTANCE, PART - 1); /* one byte is left out */
}
static const char *part_restore(shoal_envs *envs, uint64_t env, const void *in, uint64_t bytes) {
    CHECK_EQUAL(bytes, PART);
    if (refusal == NULL)
        memcpy((char *)envs->instances + env * INSTANCE, in, PART - 1);
    return refusal;
}

static const shoal_checkpoint_v1 PLAIN = {NULL, NULL, NULL}, OWN = {part_size, part_save, part_restore};
static const shoal_spec SPEC = {.instance_bytes = INSTANCE, .lanes = 1, .agents = AGENTS};

typedef struct fixture {
    world w;
    shoal_envs envs;
    shoal_engine_arrays arrays;
    shoal_checkpoints of;
} fixture;

static void open_fixture(fixture *f, const shoal_checkpoint_v1 *extension, int is_disabled) {
    memset(f, 0, sizeof *f);
    for (uint64_t env = 0; env < ENVS; env++) {
        memset(f->w.instances + env * INSTANCE, (int)(65 + env), INSTANCE);
        f->w.rng[env] = (shoal_rng){11 + env, 12, 13, 2 * env + 1, (uint32_t)env, (uint32_t)env % 2};
        f->w.elapsed[env] = (uint32_t)(100 + env);
        for (uint64_t agent = 0; agent < AGENTS; agent++) {
            f->w.total[env * AGENTS + agent] = 0.5 * (double)env + (double)agent;
            f->w.length[env * AGENTS + agent] = (uint32_t)(10 * env + agent);
        }
    }
    f->envs = (shoal_envs){.num_envs = ENVS, .instances = f->w.instances, .instance_bytes = INSTANCE};
    f->arrays = (shoal_engine_arrays){.instances = f->w.instances,
                                      .rng = f->w.rng,
                                      .reset = f->w.reset,
                                      .elapsed = f->w.elapsed,
                                      .total = f->w.total,
                                      .length = f->w.length};
    f->of = (shoal_checkpoints){"walk", &SPEC, extension, &f->envs, &f->arrays, f->w.over, is_disabled};
}

static uint64_t save(const fixture *f, uint64_t env, char *data) {
    const uint64_t bytes = shoal_checkpoint_bytes(&f->of, env);
    CHECK(bytes <= MOST);
    memset(data, 0x5a, MOST); /* what was in the memory before does not matter */
    shoal_checkpoint_write(&f->of, env, data, bytes);
    return bytes;
}

static uint64_t word_at(const char *data, size_t offset) {
    uint64_t word;
    memcpy(&word, data + offset, sizeof word);
    return word;
}

/* Makes the check agree with the bytes again, as one does who means to. */
static void sign(char *data, uint64_t bytes) {
    const uint64_t check = shoal_hash(data + 16, bytes - 16) ^ shoal_hash("walk", 4);
    memcpy(data + 8, &check, sizeof check);
}

static void field_offsets_are_frozen(void) {
    fixture f;
    char data[MOST];
    open_fixture(&f, &PLAIN, 0);
    f.w.reset[1] = 1;
    const uint64_t bytes = save(&f, 1, data);
    CHECK_EQUAL(bytes, FIXED + INSTANCE);
    CHECK(memcmp(data, "SHOALENV", 8) == 0);
    CHECK(word_at(data, 8) == (shoal_hash(data + 16, bytes - 16) ^ shoal_hash("walk", 4)));
    CHECK_EQUAL(word_at(data, 16), INSTANCE);
    CHECK_EQUAL(word_at(data, 24), AGENTS);
    CHECK_EQUAL(word_at(data, 32), INSTANCE);
    CHECK(memcmp(data + 40, &f.w.rng[1], 40) == 0);
    CHECK_EQUAL(word_at(data, 80), 1 | 101ull << 32);
    CHECK(memcmp(data + 88, f.w.total + AGENTS, 16) == 0);
    CHECK(memcmp(data + 104, f.w.length + AGENTS, 8) == 0);
    CHECK(memcmp(data + FIXED, f.w.instances + INSTANCE, INSTANCE) == 0);
}

static void a_restored_environment_is_the_saved_one_and_the_others_are_untouched(void) {
    for (int own = 0; own < 2; own++) {
        fixture from, to;
        char data[MOST], again[MOST];
        open_fixture(&from, own ? &OWN : &PLAIN, 0);
        open_fixture(&to, own ? &OWN : &PLAIN, 0);
        from.w.reset[1] = 1;
        const uint64_t bytes = save(&from, 1, data);
        CHECK_EQUAL(bytes, FIXED + (own ? PART : INSTANCE));
        CHECK(!own || data[bytes - 1] == 0);
        CHECK(shoal_checkpoint_verify(&to.of, data, bytes));
        const world before = to.w;
        CHECK(shoal_checkpoint_read(&to.of, 2, data, bytes) == NULL);
        CHECK_EQUAL(save(&to, 2, again), bytes);
        CHECK(memcmp(data, again, bytes) == 0);
        CHECK_EQUAL(to.w.reset[2], 1);
        CHECK(memcmp(to.w.instances, before.instances, 2 * INSTANCE) == 0);
        CHECK(memcmp(to.w.total, before.total, 2 * AGENTS * sizeof(double)) == 0);
        CHECK(memcmp(to.w.rng, before.rng, 2 * sizeof(shoal_rng)) == 0);
    }
}

static void end_of_episode_is_restored_according_to_the_mode(void) {
    fixture disabled, other;
    char data[MOST];
    open_fixture(&disabled, &PLAIN, 1);
    open_fixture(&other, &PLAIN, 0);
    disabled.w.over[0] = 1; /* it ended and waits for a reset */
    const uint64_t bytes = save(&disabled, 0, data);
    CHECK_EQUAL((uint32_t)word_at(data, 80), 1);
    CHECK(shoal_checkpoint_read(&other.of, 1, data, bytes) == NULL);
    CHECK(other.w.reset[1] == 1 && other.w.over[1] == 0);
    CHECK(shoal_checkpoint_read(&disabled.of, 1, data, bytes) == NULL);
    CHECK(disabled.w.reset[1] == 0 && disabled.w.over[1] == 1);
}

static void bytes_that_are_cut_off_or_too_many_are_refused(void) {
    for (int own = 0; own < 2; own++) {
        fixture f;
        char data[MOST];
        open_fixture(&f, own ? &OWN : &PLAIN, 0);
        const uint64_t bytes = save(&f, 1, data);
        for (uint64_t length = 0; length < bytes; length++) {
            char *cut = malloc(length + 1); /* its end is where the sanitizer looks */
            memcpy(cut, data, length);
            const uint64_t part_bytes = length - FIXED; /* wraps around, as it would in a reader's sum */
            if (length >= 40 && length < FIXED)
                memcpy(cut + 32, &part_bytes, sizeof part_bytes);
            if (length >= 16)
                sign(cut, length); /* the length is wrong all the same */
            char *exact = realloc(cut, length > 0 ? length : 1);
            CHECK(!shoal_checkpoint_verify(&f.of, exact, length));
            free(exact);
        }
        data[bytes] = 0;
        sign(data, bytes + 1);
        CHECK(!shoal_checkpoint_verify(&f.of, data, bytes + 1));
    }
}

static void a_change_of_any_bit_is_refused(void) {
    fixture f;
    char data[MOST];
    open_fixture(&f, &PLAIN, 0);
    const uint64_t bytes = save(&f, 1, data);
    for (uint64_t bit = 0; bit < 8 * bytes; bit++) {
        data[bit / 8] ^= (char)(1 << bit % 8);
        CHECK(!shoal_checkpoint_verify(&f.of, data, bytes));
        data[bit / 8] ^= (char)(1 << bit % 8);
    }
    CHECK(shoal_checkpoint_verify(&f.of, data, bytes));
}

static void impossible_values_are_rejected_even_with_a_matching_check(void) {
    const struct {
        size_t offset;
        uint64_t value;
    } wrong[] = {{0, 0}, {16, INSTANCE + 1}, {24, 1}, {32, INSTANCE - 1}, {64, 2}, {72, 2ull << 32}, {80, 2}};
    fixture f;
    char data[MOST];
    open_fixture(&f, &PLAIN, 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const uint64_t bytes = save(&f, 1, data);
        memcpy(data + wrong[i].offset, &wrong[i].value, sizeof wrong[i].value);
        sign(data, bytes);
        CHECK(!shoal_checkpoint_verify(&f.of, data, bytes));
    }
    const uint64_t bytes = save(&f, 1, data);
    f.of.name = "talk"; /* another plug-in */
    CHECK(!shoal_checkpoint_verify(&f.of, data, bytes));
}

static void a_part_of_another_size_passes_only_if_the_plugin_restores_it(void) {
    fixture own, plain;
    char data[MOST];
    open_fixture(&own, &OWN, 0);
    open_fixture(&plain, &PLAIN, 0);
    const uint64_t bytes = save(&own, 1, data);
    CHECK(shoal_checkpoint_verify(&own.of, data, bytes));
    CHECK(!shoal_checkpoint_verify(&plain.of, data, bytes));
}

static void environment_is_unchanged_if_the_plugin_rejects_a_checkpoint(void) {
    fixture f;
    char data[MOST];
    open_fixture(&f, &OWN, 0);
    const uint64_t bytes = save(&f, 1, data);
    const world before = f.w;
    refusal = "not mine";
    CHECK(shoal_checkpoint_read(&f.of, 2, data, bytes) == refusal);
    refusal = NULL;
    CHECK(memcmp(&before, &f.w, sizeof before) == 0);
}

int main(void) {
    RUN(field_offsets_are_frozen);
    RUN(a_restored_environment_is_the_saved_one_and_the_others_are_untouched);
    RUN(end_of_episode_is_restored_according_to_the_mode);
    RUN(bytes_that_are_cut_off_or_too_many_are_refused);
    RUN(a_change_of_any_bit_is_refused);
    RUN(impossible_values_are_rejected_even_with_a_matching_check);
    RUN(a_part_of_another_size_passes_only_if_the_plugin_restores_it);
    RUN(environment_is_unchanged_if_the_plugin_rejects_a_checkpoint);
    return 0;
}
