/* What <numpy/arrayobject.h> is to a binding of contract 3.0. */
// SPDX-License-Identifier: MIT
#include <puffer/python.h>
