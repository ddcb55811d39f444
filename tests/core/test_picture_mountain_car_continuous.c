/* The picture of envs/mountain_car_continuous in any state. */
// SPDX-License-Identifier: MIT
#include "../../envs/mountain_car_continuous/mountain_car_continuous.c"

#include "picture_world.h"
