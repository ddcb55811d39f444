/* Draws Reef-v0: blended waters, food as specks, and the entities. */
// SPDX-License-Identifier: MIT
#ifndef REEF_PICTURE_H
#define REEF_PICTURE_H

#include "world.h"

typedef struct Picture {
    uint8_t *rgb;
    int32_t height, width; /* in pixels */
} Picture;

/* Pixels along an edge of a cell: fewer on a large map. */
static int32_t pixels(int64_t height, int64_t width) {
    int64_t most = 960 / (height > width ? height : width);
    return most < 3 ? 3 : most > 15 ? 15 : (int32_t)most;
}

static void render_size(shoal_envs *envs, uint64_t env, uint32_t *height, uint32_t *width) {
    (void)env;
    int64_t lines = envs->options[HEIGHT].i, columns = envs->options[WIDTH].i;
    *height = (uint32_t)(pixels(lines, columns) * lines);
    *width = (uint32_t)(pixels(lines, columns) * columns);
}

static double channel(uint32_t rgb, int i) { return rgb >> (16 - 8 * i) & 255; }

/* Blends a colour over a pixel with this opacity. */
static void tint(Picture *picture, int32_t y, int32_t x, uint32_t colour, double opaque) {
    if (y < 0 || x < 0 || y >= picture->height || x >= picture->width || opaque <= 0)
        return;
    uint8_t *pixel = &picture->rgb[3 * ((int64_t)y * picture->width + x)];
    opaque = opaque < 1 ? opaque : 1;
    for (int i = 0; i < 3; i++)
        pixel[i] = (uint8_t)(pixel[i] + (channel(colour, i) - pixel[i]) * opaque + 0.5);
}

/* A disc with a soft rim; centre and radius in pixels. */
static void disc(Picture *picture, double y, double x, double radius, uint32_t colour, double opaque) {
    for (int32_t i = (int32_t)(y - radius - 1); i <= (int32_t)(y + radius + 1); i++)
        for (int32_t j = (int32_t)(x - radius - 1); j <= (int32_t)(x + radius + 1); j++) {
            double dy = i + 0.5 - y, dx = j + 0.5 - x;
            double inside =
                (radius * radius - dy * dy - dx * dx) / (2 * radius) + 0.5; /* about the distance */
            tint(picture, i, j, colour, inside < 1 ? inside * opaque : opaque);
        }
}

/* The share of the next cell's colour in a pixel between the centres of two cells; it changes mostly at the
 * border. */
static double across(double position) {
    double at = 1.4 * position - 0.2;
    at = at < 0 ? 0 : at > 1 ? 1 : at;
    return at * at * (3 - 2 * at);
}

static void draw_ground(const Reef *self, Picture *picture, double edge) {
    const int8_t *terrain = terrain_of(self);
    uint8_t *pixel = picture->rgb;
    for (int32_t y = 0; y < picture->height; y++)
        for (int32_t x = 0; x < picture->width; x++, pixel += 3) {
            double r = (y + 0.5) / edge - 0.5, c = (x + 0.5) / edge - 0.5;
            int32_t above = r < 0 ? 0 : (int32_t)r, left = c < 0 ? 0 : (int32_t)c;
            int32_t below = above + (above + 1 < self->height), right = left + (left + 1 < self->width);
            double v = across(r - above), u = across(c - left);
            double shares[4] = {(1 - v) * (1 - u), (1 - v) * u, v * (1 - u), v * u}, mixed[3] = {0};
            int32_t cells[4] = {above * self->width + left, above * self->width + right,
                                below * self->width + left, below * self->width + right};
            for (int k = 0; k < 4; k++) {
                /* Each cell gets a slightly different brightness. */
                double light = shares[k] * (0.95 + 0.1 * terrain_corner(0, cells[k], terrain[cells[k]]));
                for (int i = 0; i < 3; i++)
                    mixed[i] += light * channel(TERRAINS[terrain[cells[k]]].rgb, i);
            }
            for (int i = 0; i < 3; i++)
                pixel[i] = (uint8_t)(mixed[i] < 255 ? mixed[i] : 255);
        }
}

static void draw_entity(const Entity *entity, Picture *picture, double edge) {
    static const double sizes[NUM_KINDS] = {[FISH] = 0.40, [CRAB] = 0.36, [EEL] = 0.40, [SHARK] = 0.55};
    double y = (entity->r + 0.5) * edge, x = (entity->c + 0.5) * edge, size = sizes[entity->kind] * edge;
    double ahead = ((entity->dir == DOWN) - (entity->dir == UP)) * size;
    double aside = ((entity->dir == RIGHT) - (entity->dir == LEFT)) * size;
    uint32_t colour = KINDS[entity->kind].rgb;
    disc(picture, y + 0.15 * edge, x, 1.1 * size, 0x04121f, 0.35); /* its shadow */
    if (entity->kind != CRAB)                                      /* its tail */
        disc(picture, y - 0.8 * ahead, x - 0.8 * aside, 0.6 * size, colour, 0.9);
    disc(picture, y, x, size + 0.08 * edge, 0x0a1a2a, 0.8);
    disc(picture, y, x, size, colour, 1);
    disc(picture, y + 0.5 * ahead, x + 0.5 * aside, 0.25 * size, 0x0a1a2a, 1); /* its eye */
    if (entity->hp == entity->hp_max || edge < 6)
        return;
    int32_t length = (int32_t)edge, healthy = entity->hp * length / entity->hp_max;
    for (int32_t i = 0; i < 2 * length; i++)
        tint(picture, (int32_t)(entity->r * edge) - 3 + i / length, (int32_t)(entity->c * edge) + i % length,
             i % length < healthy ? 0x7cf29a : 0xb0203a, 1);
}

static void render_draw(shoal_envs *envs, uint64_t env, uint8_t *rgb) {
    const Reef *self = SHOAL_INSTANCE(const Reef, envs, env);
    int32_t edge = pixels(self->height, self->width);
    Picture picture = {rgb, edge * self->height, edge * self->width};
    draw_ground(self, &picture, edge);
    for (int32_t cell = 0; cell < self->cells; cell++)
        if (food_of(self)[cell])
            disc(&picture, (cell / self->width + 0.5) * edge, (cell % self->width + 0.5) * edge, 0.17 * edge,
                 0xe9ffb0, 0.9);
    for (int32_t i = 0; i < self->num_entities; i++)
        if (entities_of(self)[i].r >= 0)
            draw_entity(&entities_of(self)[i], &picture, edge);
}

#endif
