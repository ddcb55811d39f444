/* <math.h> on a GPU: what is exact is the compiler's, the rest is NVIDIA's libdevice. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GRID_MATH_H
#define SHOAL_GRID_MATH_H

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VAL __builtin_huge_val()
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_E 2.7182818284590452354
#define M_SQRT2 1.41421356237309504880

#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)

#define GRID_LIBM static inline __attribute__((always_inline, unused))
#define GRID_EXACT_1(name)                                                                                   \
    GRID_LIBM double name(double x) { return __builtin_##name(x); }                                          \
    GRID_LIBM float name##f(float x) { return __builtin_##name##f(x); }
#define GRID_EXACT_2(name)                                                                                   \
    GRID_LIBM double name(double x, double y) { return __builtin_##name(x, y); }                             \
    GRID_LIBM float name##f(float x, float y) { return __builtin_##name##f(x, y); }
#define GRID_LIBDEVICE_1(name)                                                                               \
    double __nv_##name(double x);                                                                            \
    float __nv_##name##f(float x);                                                                           \
    GRID_LIBM double name(double x) { return __nv_##name(x); }                                               \
    GRID_LIBM float name##f(float x) { return __nv_##name##f(x); }
#define GRID_LIBDEVICE_2(name)                                                                               \
    double __nv_##name(double x, double y);                                                                  \
    float __nv_##name##f(float x, float y);                                                                  \
    GRID_LIBM double name(double x, double y) { return __nv_##name(x, y); }                                  \
    GRID_LIBM float name##f(float x, float y) { return __nv_##name##f(x, y); }

GRID_EXACT_1(fabs)
GRID_EXACT_1(floor)
GRID_EXACT_1(ceil)
GRID_EXACT_1(trunc)
GRID_EXACT_1(sqrt)
GRID_EXACT_2(copysign)
GRID_EXACT_2(fmin)
GRID_EXACT_2(fmax)

GRID_LIBDEVICE_1(acos)
GRID_LIBDEVICE_1(acosh)
GRID_LIBDEVICE_1(asin)
GRID_LIBDEVICE_1(asinh)
GRID_LIBDEVICE_1(atan)
GRID_LIBDEVICE_1(atanh)
GRID_LIBDEVICE_1(cbrt)
GRID_LIBDEVICE_1(cos)
GRID_LIBDEVICE_1(cosh)
GRID_LIBDEVICE_1(erf)
GRID_LIBDEVICE_1(exp)
GRID_LIBDEVICE_1(exp2)
GRID_LIBDEVICE_1(expm1)
GRID_LIBDEVICE_1(log)
GRID_LIBDEVICE_1(log10)
GRID_LIBDEVICE_1(log1p)
GRID_LIBDEVICE_1(log2)
GRID_LIBDEVICE_1(rint)
GRID_LIBDEVICE_1(round)
GRID_LIBDEVICE_1(sin)
GRID_LIBDEVICE_1(sinh)
GRID_LIBDEVICE_1(tan)
GRID_LIBDEVICE_1(tanh)
GRID_LIBDEVICE_2(atan2)
GRID_LIBDEVICE_2(fdim)
GRID_LIBDEVICE_2(fmod)
GRID_LIBDEVICE_2(hypot)
GRID_LIBDEVICE_2(pow)
GRID_LIBDEVICE_2(remainder)

#define nearbyint rint
#define nearbyintf rintf

#endif
