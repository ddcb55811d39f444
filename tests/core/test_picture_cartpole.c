/* The picture of envs/cartpole in any state. */
// SPDX-License-Identifier: MIT
#include "../../envs/cartpole/cartpole.c"

#include "picture_world.h"
