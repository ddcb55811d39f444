/* <time.h> on a GPU: declarations alone. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GRID_TIME_H
#define SHOAL_GRID_TIME_H

typedef long long time_t;
time_t time(time_t *now);

#endif
