/* Draws MountainCar-v0 and MountainCarContinuous-v0: the mountain, the flag at the goal, and the car. */
// SPDX-License-Identifier: MIT
#ifndef MOUNTAIN_CAR_PICTURE_H
#define MOUNTAIN_CAR_PICTURE_H

#include "../lanes_view.h"

enum { PICTURE_HIGH = 400, PICTURE_WIDE = 600, PIECE = 6 };

/* Pixels from the left edge, and from the upper edge, of a position on the mountain. */
static double ridge_x(double position) { return (position + 1.2) * (PICTURE_WIDE / 1.8); }
static double ridge_y(double position) {
    return PICTURE_HIGH - (0.45 * lanes_sin_double(3 * position) + 0.55) * (PICTURE_WIDE / 1.8);
}

/* A line that is 1 pixel thick, in pieces that meet between two columns of pixels. */
static void draw_mountain(const shoal_canvas *canvas) {
    double last[2] = {0};
    for (int x = 0; x <= PICTURE_WIDE; x += PIECE) {
        double position = (x - 0.5) * (1.8 / PICTURE_WIDE) - 1.2;
        double slope = 1.35 * lanes_cos_double(3 * position), half = shoal_draw_root(1 + slope * slope) / 2;
        double edges[2] = {ridge_y(position) - 0.5 - half, ridge_y(position) - 0.5 + half};
        double piece[8] = {x - PIECE, last[0], x, edges[0], x, edges[1], x - PIECE, last[1]};
        if (x > 0)
            shoal_draw_polygon(canvas, piece, 4, 0x000000);
        last[0] = edges[0];
        last[1] = edges[1];
    }
}

static void draw_flag(const shoal_canvas *canvas, double goal) {
    double x = (double)(int)(ridge_x(goal) + 0.001), foot = ridge_y(goal), top = foot - 50;
    double cloth[] = {x, top - 0.5, x, top + 10.5, x + 26.5, top + 5};
    shoal_draw_rectangle(canvas, x, top, 1, 50, 0x000000);
    shoal_draw_polygon(canvas, cloth, 3, 0xcccc00);
}

/* The car is 40 pixels long and 20 high, 10 above the ground, and stands as steep as Gymnasium draws it. */
static void draw_car(const shoal_canvas *canvas, double position) {
    double tilt = lanes_cos_double(3 * position), ahead = lanes_cos_double(tilt),
           aloft = lanes_sin_double(tilt);
    double x = ridge_x(position), y = ridge_y(position) - 10;
    double middle_x = x - 10 * aloft, middle_y = y - 10 * ahead;
    shoal_draw_line(canvas, middle_x - 20.5 * ahead, middle_y + 20.5 * aloft, middle_x + 20.5 * ahead,
                    middle_y - 20.5 * aloft, 21, 0x000000);
    for (int side = -1; side <= 1; side += 2)
        shoal_draw_circle(canvas, x + 10 * side * ahead, y - 10 * side * aloft, 8.5, 0x808080);
}

static void draw_mountain_car(const shoal_canvas *canvas, double goal, double position) {
    draw_mountain(canvas);
    draw_car(canvas, position);
    draw_flag(canvas, goal);
}

#endif
