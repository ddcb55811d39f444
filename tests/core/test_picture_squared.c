/* The picture of envs/squared in any state. */
// SPDX-License-Identifier: MIT
#include "../../envs/squared/squared.c"

#include "picture_world.h"
