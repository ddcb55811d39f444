/* Tests of include/shoal/draw.h: exact cover, smooth edges, and no byte outside the picture. */
// SPDX-License-Identifier: MIT
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* as `shoal build` compiles; GCC does it with -std=c11 */
#endif
#include <shoal/draw.h>

#include "check.h"
#include "seed.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* A black picture, allocated to the byte, so that the address sanitizer sees every byte beside it. */
static shoal_canvas make(uint32_t height, uint32_t width) {
    uint64_t bytes = (uint64_t)height * width * 3;
    shoal_canvas canvas = {malloc(bytes ? bytes : 1), height, width};
    CHECK(canvas.rgb != NULL);
    shoal_draw_fill(&canvas, 0x000000);
    return canvas;
}

static int red_at(const shoal_canvas *canvas, uint32_t y, uint32_t x) {
    return canvas->rgb[3 * ((uint64_t)y * canvas->width + x)];
}

/* The area of what was drawn in white on black, in pixels. */
static double area_of(const shoal_canvas *canvas) {
    double sum = 0;
    for (uint64_t i = 0; i < (uint64_t)canvas->height * canvas->width; i++)
        sum += canvas->rgb[3 * i] / 255.0;
    return sum;
}

static int is_black(const shoal_canvas *canvas) { return area_of(canvas) == 0; }

static void a_fill_sets_every_byte_to_the_colour(void) {
    shoal_canvas canvas = make(3, 5);
    shoal_draw_fill(&canvas, 0x123456);
    for (int i = 0; i < 15; i++) {
        CHECK_EQUAL(canvas.rgb[3 * i], 0x12);
        CHECK_EQUAL(canvas.rgb[3 * i + 1], 0x34);
        CHECK_EQUAL(canvas.rgb[3 * i + 2], 0x56);
    }
    free(canvas.rgb);
}

static void whole_pixels_get_the_colour_and_halves_get_half_of_it(void) {
    shoal_canvas canvas = make(8, 600);
    shoal_draw_rectangle(&canvas, 2.5, 2, 590, 3.5, 0xffffff);
    CHECK_EQUAL(red_at(&canvas, 2, 1), 0);
    CHECK_EQUAL(red_at(&canvas, 2, 2), 128); /* half of the pixel */
    CHECK_EQUAL(red_at(&canvas, 2, 3), 255);
    CHECK_EQUAL(red_at(&canvas, 2, 256), 255); /* the first pixel of another chunk */
    CHECK_EQUAL(red_at(&canvas, 2, 591), 255);
    CHECK_EQUAL(red_at(&canvas, 2, 592), 128);
    CHECK_EQUAL(red_at(&canvas, 2, 593), 0);
    CHECK_EQUAL(red_at(&canvas, 1, 300), 0);
    CHECK_EQUAL(red_at(&canvas, 4, 300), 255);
    CHECK_EQUAL(red_at(&canvas, 5, 300), 128);
    CHECK_EQUAL(red_at(&canvas, 6, 300), 0);
    free(canvas.rgb);
}

static void shapes_have_their_area(void) {
    shoal_canvas canvas = make(300, 700);
    shoal_draw_circle(&canvas, 350.2, 150.7, 97.5, 0xffffff);
    CHECK(fabs(area_of(&canvas) - 3.14159265 * 97.5 * 97.5) < 30);
    shoal_draw_fill(&canvas, 0);
    shoal_draw_line(&canvas, 20, 30, 620, 250, 11, 0xffffff);
    CHECK(fabs(area_of(&canvas) - 11 * sqrt(600 * 600 + 220 * 220)) < 30);
    CHECK_EQUAL(red_at(&canvas, 140, 320), 255); /* the middle of the line */
    CHECK_EQUAL(red_at(&canvas, 132, 320), 0);
    CHECK_EQUAL(red_at(&canvas, 148, 320), 0);
    shoal_draw_fill(&canvas, 0);
    double triangle[] = {10, 10, 650, 20, 300, 290};
    shoal_draw_polygon(&canvas, triangle, 3, 0xffffff);
    CHECK(fabs(area_of(&canvas) - 0.5 * fabs(640.0 * 280 - 290.0 * 10)) < 30);
    free(canvas.rgb);
}

/* A square with a square hole, joined by an edge in both directions, and a polygon of very many points. */
static void holes_stay_empty_and_any_number_of_points_is_drawn(void) {
    shoal_canvas canvas = make(100, 100);
    double twice[] = {10, 10, 90, 10, 90, 90, 10, 90, 10, 10, 30, 30, 70, 30, 70, 70, 30, 70, 30, 30};
    shoal_draw_polygon(&canvas, twice, 10, 0xffffff);
    CHECK_EQUAL(red_at(&canvas, 20, 50), 255);
    CHECK_EQUAL(red_at(&canvas, 50, 50), 0);
    CHECK_EQUAL(red_at(&canvas, 50, 80), 255);
    CHECK(fabs(area_of(&canvas) - (80 * 80 - 40 * 40)) < 2);
    shoal_draw_fill(&canvas, 0);
    static double ring[2 * 20000];
    for (int i = 0; i < 20000; i++) {
        ring[2 * i] = 50 + 40 * cos(i * 6.283185307179586 / 20000);
        ring[2 * i + 1] = 50 + 40 * sin(i * 6.283185307179586 / 20000);
    }
    shoal_draw_polygon(&canvas, ring, 20000, 0xffffff);
    CHECK(fabs(area_of(&canvas) - 3.14159265 * 40 * 40) < 10);
    free(canvas.rgb);
}

static void a_shape_that_is_not_finite_or_far_away_is_not_drawn(void) {
    const double bad[] = {NAN, INFINITY, -INFINITY, DBL_MAX, -DBL_MAX, 1e18, -1e18, 3e7};
    shoal_canvas canvas = make(40, 40);
    for (uint64_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        double points[] = {5, 5, bad[i], 6, 30, 30, 5, 30};
        shoal_draw_polygon(&canvas, points, 4, 0xffffff);
        shoal_draw_circle(&canvas, bad[i], 20, 9, 0xffffff);
        shoal_draw_circle(&canvas, 20, 20, bad[i], 0xffffff);
        shoal_draw_line(&canvas, 5, 5, 30, bad[i], 3, 0xffffff);
        shoal_draw_line(&canvas, 5, 5, 30, 30, bad[i], 0xffffff);
        shoal_draw_rectangle(&canvas, 5, 5, bad[i], 9, 0xffffff);
    }
    shoal_draw_line(&canvas, 5, 5, 5, 5, 3, 0xffffff); /* it has no direction */
    shoal_draw_circle(&canvas, 20, 20, -3, 0xffffff);
    double two[] = {1, 1, 30, 30};
    for (uint64_t points = 0; points < 3; points++)
        shoal_draw_polygon(&canvas, two, points, 0xffffff);
    CHECK(is_black(&canvas));
    free(canvas.rgb);
}

static void a_shape_partly_outside_is_cut_at_the_edges(void) {
    shoal_canvas canvas = make(50, 60);
    shoal_draw_rectangle(&canvas, -1000, -1000, 1010, 1020, 0xffffff);
    CHECK(fabs(area_of(&canvas) - 10 * 20) < 1e-6);
    shoal_draw_circle(&canvas, -300, -300, 50, 0xffffff);
    shoal_draw_circle(&canvas, 1000, 20, 50, 0xffffff);
    CHECK(fabs(area_of(&canvas) - 10 * 20) < 1e-6);
    shoal_draw_circle(&canvas, 30, 25, 1e6, 0xffffff);
    CHECK(fabs(area_of(&canvas) - 50 * 60) < 1e-6);
    free(canvas.rgb);
}

/* Any numbers, on pictures of any shape: for the sanitizers. */
static void any_numbers_stay_inside_any_picture(void) {
    static const uint32_t sizes[][2] = {{0, 0},   {0, 9},   {9, 0},   {1, 1},
                                        {1, 700}, {700, 1}, {2, 257}, {13, 31}};
    static const double odd[] = {NAN,  INFINITY, -INFINITY, DBL_MAX, -DBL_MAX, DBL_MIN, 5e-324, 0.0,
                                 -0.0, 1e7,      -1e7,      255.999, 256,      257,     0.5,    9999999.9};
    shoal_rng rng;
    shoal_rng_seed(&rng, 5);
    for (int i = 0; i < 4000; i++) {
        const uint32_t *size = sizes[(uint64_t)(shoal_random(&rng) * 8)];
        shoal_canvas canvas = make(size[0], size[1]);
        double numbers[10];
        for (int k = 0; k < 10; k++) {
            double drawn = shoal_random(&rng);
            numbers[k] = drawn < 0.2   ? odd[(int)(shoal_random(&rng) * 16)]
                         : drawn < 0.6 ? shoal_uniform(&rng, -20, 320)
                                       : shoal_uniform(&rng, -1e4, 1e4);
        }
        shoal_draw_polygon(&canvas, numbers, 5, 0xff8000);
        shoal_draw_line(&canvas, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], 0x0080ff);
        shoal_draw_circle(&canvas, numbers[5], numbers[6], numbers[7], 0x00ff80);
        shoal_draw_rectangle(&canvas, numbers[6], numbers[7], numbers[8], numbers[9], 0x80ff00);
        free(canvas.rgb);
    }
}

/* The picture is part of videos and documents that are compared byte by byte. */
static void a_drawing_has_the_same_bytes_everywhere(void) {
    shoal_canvas canvas = make(120, 300);
    shoal_draw_fill(&canvas, 0xffffff);
    shoal_draw_line(&canvas, 10.3, 100.7, 280.1, 20.9, 7.5, 0xca9865);
    shoal_draw_circle(&canvas, 150.25, 60.125, 33.3, 0x8184cb);
    double star[] = {150, 5, 180, 115, 60, 45, 240, 45, 120, 115};
    shoal_draw_polygon(&canvas, star, 5, 0xcc4d4d);
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (uint64_t i = 0; i < (uint64_t)120 * 300 * 3; i++)
        hash = (hash ^ canvas.rgb[i]) * 1099511628211u;
    CHECK_EQUAL(hash, -6547590501085690506);
    free(canvas.rgb);
}

int main(void) {
    RUN(a_fill_sets_every_byte_to_the_colour);
    RUN(whole_pixels_get_the_colour_and_halves_get_half_of_it);
    RUN(shapes_have_their_area);
    RUN(holes_stay_empty_and_any_number_of_points_is_drawn);
    RUN(a_shape_that_is_not_finite_or_far_away_is_not_drawn);
    RUN(a_shape_partly_outside_is_cut_at_the_edges);
    RUN(any_numbers_stay_inside_any_picture);
    RUN(a_drawing_has_the_same_bytes_everywhere);
    return 0;
}
