/* What <Python.h> is to a binding of contract 3.0. */
// SPDX-License-Identifier: MIT
#include <shoal/compat/puffer/python.h>
