/* The picture of envs/mountain_car in any state. */
// SPDX-License-Identifier: MIT
#include "../../envs/mountain_car/mountain_car.c"

#include "picture_world.h"
