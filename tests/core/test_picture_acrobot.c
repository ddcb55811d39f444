/* The picture of envs/acrobot in any state. */
// SPDX-License-Identifier: MIT
#include "../../envs/acrobot/acrobot.c"

#include "picture_world.h"
