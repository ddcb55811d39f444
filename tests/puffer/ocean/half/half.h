/* Contract 4.0 with observations of a trainer's choice, bfloat16; an asset it can do without; and what comes
 * with the headers it includes. */
// SPDX-License-Identifier: MIT
#include "bf16.h"
#include "raymath.h"

#include <stdio.h>

typedef struct Log {
    float n;
} Log;

typedef struct Half {
    Log log;
    bf16 *observations;
    float *actions, *rewards, *terminals;
    int num_agents;
    uint64_t rng;
    float kept, read;
} Half;

static float first_number(const char *path) {
    float number = -1;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return number;
    if (fscanf(file, "%f", &number) != 1)
        number = -2;
    fclose(file);
    return number;
}

void c_reset(Half *env) {
    const Quaternion turn = QuaternionFromVector3ToVector3((Vector3){1, 0, 0}, (Vector3){0, 1, 0});
    const Vector3 turned = Vector3RotateByQuaternion((Vector3){1, 0, 0}, turn);
    env->observations[0] = f32_to_bf16(roundf(turned.y));
    env->observations[1] = f32_to_bf16(env->read);
    env->observations[2] = f32_to_bf16((float)(env->rng % 64));
}

void c_step(Half *env) { env->rewards[0] = bf16_to_f32(env->observations[0]) + env->kept; }
void c_render(Half *env) { (void)env; }
void c_close(Half *env) { (void)env; }
