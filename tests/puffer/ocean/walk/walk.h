/* A walk along a line against contract 3.0: like PufferLib's environments it changes single cells of the
 * observation it wrote before, resets itself, and has every trap behind the option `trap`. */
// SPDX-License-Identifier: MIT
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "raylib.h"

typedef struct Log {
    float score;
    float episode_length;
    float n;
} Log;

typedef struct Walk {
    Log log;
    unsigned char *observations;
    int *actions;
    float *rewards;
    unsigned char *terminals;
    int size, at, tick, trap, seed, episodes;
    float bonus;
    const char *title;
    char *memory;
} Walk;

void c_reset(Walk *env) {
    memset(env->observations, 0, (size_t)env->size);
    if (env->trap == 12)
        srand(time(NULL) + clock());
    env->at = 1 + (rand() % 64 + env->episodes) % (env->size - 2); /* of all episodes since it was made */
    env->tick = 0;
    env->observations[env->at] = 1;
    env->episodes++;
}

void c_step(Walk *env) {
    if (env->trap == 7)
        exit(3);
    if (env->trap == 11 && env->terminals[0]) { /* resets itself one step later */
        env->terminals[0] = 0;
        env->rewards[0] = 0;
        c_reset(env);
        return;
    }
    env->rewards[0] = 0;
    env->terminals[0] = 0;
    env->tick++;
    env->observations[env->at] = 0;
    env->at += env->actions[0] == 1 ? 1 : -1;
    if (env->at <= 0 || env->at >= env->size - 1) {
        env->rewards[0] = env->at <= 0 ? -1 : 1 + env->bonus;
        env->terminals[0] = 1;
        env->log.score += env->rewards[0];
        env->log.episode_length += (float)env->tick;
        env->log.n++;
        if (env->trap != 11)
            c_reset(env);
        return;
    }
    env->observations[env->at] = 1;
    if (env->trap == 5)
        env->rewards[1] = 1; /* an agent more than there are rows */
}

void c_render(Walk *env) {
    if (!IsWindowReady())
        InitWindow(64 * env->size, 64, "walk");
    BeginDrawing();
    DrawRectangle(64 * env->at, 0, 64, 64, (Color){0, 187, 187, 255});
    EndDrawing();
}

void c_close(Walk *env) {
    free(env->memory);
    if (env->trap == 6)
        free(env); /* the binding does so too */
}
