/* Draws the plug-in that the including file contains, in sane and in broken states. For the sanitizers: every
 * block of memory has exactly the size that the plug-in may use. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_TEST_PICTURE_WORLD_H
#define SHOAL_TEST_PICTURE_WORLD_H

#include "check.h"
#include "seed.h"

#include <float.h>
#include <math.h>
#include <string.h>

static shoal_value world_options[8];
static shoal_spec world_spec;

static void ignore_field(void *host, const shoal_field *field) { (void)host, (void)field; }

static void describe_world(void) {
    world_spec = (shoal_spec){.add_observation = ignore_field, .add_action = ignore_field};
    CHECK(shoal_entry.describe(world_options, &world_spec) == NULL);
    world_spec.lanes = world_spec.lanes ? world_spec.lanes : 1;
}

/* Draws one environment twice into different bytes: a picture is written whole, depends on the state alone,
 * and leaves it as it was. Returns the picture. */
static uint8_t *draw_world(const void *block, uint64_t env, uint32_t *height, uint32_t *width) {
    const shoal_render_v1 *render = shoal_entry.get_extension(SHOAL_EXT_RENDER);
    const uint64_t bytes = world_spec.instance_bytes * world_spec.lanes;
    void *instances = malloc(bytes);
    CHECK(render != NULL && instances != NULL);
    memcpy(instances, block, bytes);
    shoal_envs envs = {.num_envs = world_spec.lanes,
                       .options = world_options,
                       .instances = instances,
                       .instance_bytes = world_spec.instance_bytes};
    uint8_t *pictures[2];
    for (int i = 0; i < 2; i++) {
        render->size(&envs, env, height, width);
        CHECK(*height > 0 && *width > 0);
        const uint64_t size = (uint64_t)*height * *width * 3;
        pictures[i] = malloc(size);
        CHECK(pictures[i] != NULL);
        memset(pictures[i], i ? 0x5a : 0xa5, size);
        render->draw(&envs, env, pictures[i]);
        CHECK(i == 0 || memcmp(pictures[0], pictures[1], size) == 0);
    }
    CHECK(memcmp(instances, block, bytes) == 0);
    free(instances);
    free(pictures[1]);
    return pictures[0];
}

static void draw_any_states(void) {
    static const double odd[] = {0.0,      -0.0,    NAN,    INFINITY, -INFINITY, DBL_MAX,
                                 -DBL_MAX, DBL_MIN, 5e-324, 1e9,      -3};
    const uint64_t bytes = world_spec.instance_bytes * world_spec.lanes;
    char *block = malloc(bytes);
    CHECK(block != NULL);
    uint32_t height, width;
    shoal_rng rng;
    shoal_rng_seed(&rng, 11);
    for (int round = 0; round < 60; round++) {
        for (uint64_t at = 0; at < bytes; at += 4) { /* bits of any number, as double, float and int */
            uint32_t word = (uint32_t)(shoal_random(&rng) * 4294967296.0);
            memcpy(block + at, &word, 4);
        }
        for (uint64_t at = 0; round % 2 && at + 8 <= bytes; at += 8) {
            double value = odd[(uint64_t)(shoal_random(&rng) * 11)];
            float single[2] = {(float)(fabs(value) < FLT_MAX ? value : 1e30), NAN};
            memcpy(block + at, round % 4 == 1 ? (void *)&value : (void *)single, 8);
        }
        free(draw_world(block, (uint64_t)round % world_spec.lanes, &height, &width));
    }
    memset(block, 0, bytes);
    free(draw_world(block, world_spec.lanes - 1, &height, &width)); /* before the first reset */
    free(block);
}

static void any_state_is_drawn_inside_the_picture(void) {
    for (uint64_t i = 0; i < shoal_entry.num_options; i++)
        world_options[i] = shoal_entry.options[i].value;
    describe_world();
    draw_any_states();
    if (strcmp(shoal_entry.options[0].name, "precision") == 0) {
        world_options[0].s = "float";
        describe_world();
        draw_any_states();
    } else {
        world_options[0].i = 255; /* the largest board, with cells of two pixels */
        describe_world();
        draw_any_states();
        world_options[0].i = 3;
        describe_world();
        draw_any_states();
    }
}

int main(void) {
    RUN(any_state_is_drawn_inside_the_picture);
    return 0;
}

#endif
