/* rlights: the lights of raylib's examples, which light nothing here. */
// SPDX-License-Identifier: MIT
#ifndef RLIGHTS_H
#define RLIGHTS_H

#include "raylib.h"

#define MAX_LIGHTS 4

typedef struct Light {
    int type;
    bool enabled;
    Vector3 position, target;
    Color color;
    float attenuation;
    int enabledLoc, typeLoc, positionLoc, targetLoc, colorLoc, attenuationLoc;
} Light;

typedef enum { LIGHT_DIRECTIONAL, LIGHT_POINT } LightType;

#define CreateLight(...) ((Light){0})
#define UpdateLightValues(...) ((void)0)

#endif
