/* Draws filled shapes into an RGB picture, for the draw function of shoal.render/1.
 *
 *   shoal_canvas canvas = {rgb, 400, 600};                        height and width in pixels
 *   shoal_draw_fill(&canvas, 0xffffff);                           colours are 0xRRGGBB
 *   shoal_draw_line(&canvas, 300, 290, 320, 170, 10, 0xca9865);   from, to, width
 *   shoal_draw_circle(&canvas, 300, 290, 5.5, 0x8184cb);          centre, radius
 *
 * Coordinates are in pixels. (0, 0) is the upper left corner of the picture, y grows downwards, and the
 * middle of the first pixel is (0.5, 0.5). Edges are smooth: a pixel that a shape covers by half gets half of
 * its colour. The parts of a shape outside the picture are not drawn. A shape with a coordinate that is NaN,
 * infinite or beyond SHOAL_DRAW_FAR is not drawn at all, so a broken state gives an incomplete picture and
 * never writes outside it.
 *
 * Each row of pixels is cut into SHOAL_DRAW_LINES lines. On a line, the covered part of a pixel is exact.
 * There is no memory to free and no limit to the number of points. The functions use only additions,
 * multiplications, divisions and comparisons, so the same numbers give the same bytes on every machine (with
 * -ffp-contract=off, as `shoal build` compiles). */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_DRAW_H
#define SHOAL_DRAW_H

#include <stdint.h>

typedef struct shoal_canvas {
    uint8_t *rgb; /* height * width * 3 bytes */
    uint32_t height, width;
} shoal_canvas;

#define SHOAL_DRAW_FAR 1e7

enum { SHOAL_DRAW_LINES = 4, SHOAL_DRAW_CHUNK = 256 };

/* ---- What the shapes are made of ---- */

/* A polygon; with one point, a circle around it. */
typedef struct shoal_draw_shape {
    const double *points; /* x and y of each point */
    uint64_t count;
    double radius;
} shoal_draw_shape;

static inline int shoal_draw_is_near(double x) { return x > -SHOAL_DRAW_FAR && x < SHOAL_DRAW_FAR; }

/* The square root by Newton's method, so that a program needs no -lm. */
static inline double shoal_draw_root(double x) {
    if (!(x > 0))
        return 0;
    double root = x < 1 ? 1 : x;
    for (int i = 0; i < 64; i++) {
        double next = (root + x / root) / 2;
        if (!(next < root))
            break;
        root = next;
    }
    return root;
}

/* Clips a coordinate to whole pixels from 0 to `most`. */
static inline uint32_t shoal_draw_clip(double x, uint32_t most) {
    return x > 0 ? x < most ? (uint32_t)x : most : 0;
}

/* Adds to `cover` how much of each of its `count` pixels lies between `begin` and `end`. */
static inline void shoal_draw_cover(double *cover, int count, double begin, double end) {
    begin = begin > 0 ? begin : 0;
    end = end < count ? end : count;
    if (!(begin < end))
        return;
    int first = (int)begin, last = (int)end;
    if (first == last) {
        cover[first] += end - begin;
        return;
    }
    cover[first] += first + 1 - begin;
    for (int i = first + 1; i < last; i++)
        cover[i] += 1;
    if (last < count)
        cover[last] += end - last;
}

/* Moves to the next crossing of a polygon with the line at `y`, from left to right; edges that cross at the
 * same place follow in their order. Returns 0 after the last one. */
static inline int shoal_draw_cross(const shoal_draw_shape *shape, double y, double *x, int64_t *edge) {
    double best_x = 0;
    int64_t best = -1;
    const double *from = shape->points + 2 * (shape->count - 1), *to = shape->points;
    for (uint64_t i = 0; i < shape->count; i++, from = to, to += 2) {
        if ((from[1] <= y) == (to[1] <= y))
            continue;
        double at = from[0] + (y - from[1]) / (to[1] - from[1]) * (to[0] - from[0]);
        int is_later = at > *x || (at == *x && (int64_t)i > *edge);
        if (is_later && (best < 0 || at < best_x)) {
            best_x = at;
            best = (int64_t)i;
        }
    }
    *x = best_x;
    *edge = best;
    return best >= 0;
}

/* Adds to `cover` what a shape covers of the `count` pixels from `left` on, on the line at `y`. */
static inline void shoal_draw_cover_line(const shoal_draw_shape *shape, double y, double left, double *cover,
                                         int count) {
    if (shape->count == 1) {
        double dy = y - shape->points[1];
        double half = shoal_draw_root(shape->radius * shape->radius - dy * dy);
        shoal_draw_cover(cover, count, shape->points[0] - half - left, shape->points[0] + half - left);
        return;
    }
    double x = -2 * SHOAL_DRAW_FAR;
    int64_t edge = -1;
    while (shoal_draw_cross(shape, y, &x, &edge)) {
        double begin = x;
        if (!shoal_draw_cross(shape, y, &x, &edge))
            return;
        shoal_draw_cover(cover, count, begin - left, x - left);
    }
}

static inline void shoal_draw_blend(uint8_t *pixel, double cover, uint32_t color) {
    double share = cover / SHOAL_DRAW_LINES;
    share = share < 1 ? share : 1;
    for (int i = 0; i < 3; i++) {
        double wanted = (double)(color >> (16 - 8 * i) & 255);
        pixel[i] = (uint8_t)(pixel[i] + (wanted - pixel[i]) * share + 0.5);
    }
}

/* Draws the part of a shape inside the picture. */
static inline void shoal_draw(const shoal_canvas *canvas, const shoal_draw_shape *shape, uint32_t color) {
    double low[2] = {SHOAL_DRAW_FAR, SHOAL_DRAW_FAR}, high[2] = {-SHOAL_DRAW_FAR, -SHOAL_DRAW_FAR};
    if (!(shape->radius >= 0 && shape->radius < SHOAL_DRAW_FAR))
        return;
    for (uint64_t i = 0; i < 2 * shape->count; i++) {
        double at = shape->points[i];
        if (!shoal_draw_is_near(at))
            return;
        low[i % 2] = at - shape->radius < low[i % 2] ? at - shape->radius : low[i % 2];
        high[i % 2] = at + shape->radius > high[i % 2] ? at + shape->radius : high[i % 2];
    }
    uint32_t left = shoal_draw_clip(low[0], canvas->width), top = shoal_draw_clip(low[1], canvas->height);
    uint32_t right = shoal_draw_clip(high[0] + 1, canvas->width);
    uint32_t bottom = shoal_draw_clip(high[1] + 1, canvas->height);
    for (uint32_t row = top; row < bottom; row++)
        for (uint32_t from = left; from < right; from += SHOAL_DRAW_CHUNK) {
            int count = right - from < SHOAL_DRAW_CHUNK ? (int)(right - from) : SHOAL_DRAW_CHUNK;
            double cover[SHOAL_DRAW_CHUNK];
            for (int i = 0; i < count; i++)
                cover[i] = 0;
            for (int line = 0; line < SHOAL_DRAW_LINES; line++)
                shoal_draw_cover_line(shape, row + (line + 0.5) / SHOAL_DRAW_LINES, from, cover, count);
            uint8_t *pixel = canvas->rgb + 3 * ((uint64_t)row * canvas->width + from);
            for (int i = 0; i < count; i++, pixel += 3)
                if (cover[i] > 0)
                    shoal_draw_blend(pixel, cover[i], color);
        }
}

/* ---- The functions for authors ---- */

/* Fills the whole picture. */
static inline void shoal_draw_fill(const shoal_canvas *canvas, uint32_t color) {
    uint64_t row = (uint64_t)canvas->width * 3;
    for (uint64_t i = 0; i < row && canvas->height > 0; i++)
        canvas->rgb[i] = (uint8_t)(color >> (16 - 8 * (i % 3)));
    for (uint32_t y = 1; y < canvas->height; y++)
        __builtin_memcpy(canvas->rgb + y * row, canvas->rgb, row);
}

/* Fills a polygon of `count` points, x and y of each. If its edges cross, the even-odd rule decides
 * which parts are filled. */
static inline void shoal_draw_polygon(const shoal_canvas *canvas, const double *points, uint64_t count,
                                      uint32_t color) {
    shoal_draw_shape shape = {points, count, 0};
    if (count > 2)
        shoal_draw(canvas, &shape, color);
}

/* Fills a rectangle; (x, y) is its upper left corner. */
static inline void shoal_draw_rectangle(const shoal_canvas *canvas, double x, double y, double width,
                                        double height, uint32_t color) {
    double points[8] = {x, y, x + width, y, x + width, y + height, x, y + height};
    shoal_draw_polygon(canvas, points, 4, color);
}

static inline void shoal_draw_circle(const shoal_canvas *canvas, double x, double y, double radius,
                                     uint32_t color) {
    double points[2] = {x, y};
    shoal_draw_shape shape = {points, 1, radius};
    shoal_draw(canvas, &shape, color);
}

/* Draws a line that ends squarely at both points; a line of length 0 is not drawn. */
static inline void shoal_draw_line(const shoal_canvas *canvas, double x0, double y0, double x1, double y1,
                                   double width, uint32_t color) {
    double dx = x1 - x0, dy = y1 - y0, length = shoal_draw_root(dx * dx + dy * dy);
    if (!(length > 0))
        return;
    double across = dx / length * width / 2, down = dy / length * width / 2; /* turned by 90 degrees below */
    double points[8] = {x0 - down, y0 + across, x1 - down, y1 + across,
                        x1 + down, y1 - across, x0 + down, y0 - across};
    shoal_draw_polygon(canvas, points, 4, color);
}

#endif
