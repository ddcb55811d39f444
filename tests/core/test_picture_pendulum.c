/* The picture of envs/pendulum in any state. */
// SPDX-License-Identifier: MIT
#include "../../envs/pendulum/pendulum.c"

#include "picture_world.h"
