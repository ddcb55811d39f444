/* raymath: arithmetic of vectors, quaternions and matrices, which steps use; from raylib's documented
 * interface. */
// SPDX-License-Identifier: MIT
#ifndef RAYMATH_H
#define RAYMATH_H

#include "raylib.h"

#ifndef EPSILON
#define EPSILON 0.000001f
#endif
#define PUFFER_MATH static inline PUFFER_UNUSED

typedef struct float3 {
    float v[3];
} float3;
typedef struct float16 {
    float v[16];
} float16;

/* clang-format off */
PUFFER_MATH float Clamp(float v, float low, float high) { return v < low ? low : v > high ? high : v; }
PUFFER_MATH float Lerp(float a, float b, float t) { return a + t * (b - a); }
PUFFER_MATH float Normalize(float v, float a, float b) { return (v - a) / (b - a); }
PUFFER_MATH float Remap(float v, float a, float b, float c, float d) { return (v - a) / (b - a) * (d - c) + c; }
PUFFER_MATH float Wrap(float v, float low, float high) { return v - (high - low) * floorf((v - low) / (high - low)); }
PUFFER_MATH int FloatEquals(float x, float y) {
    return fabsf(x - y) <= EPSILON * fmaxf(1.0f, fmaxf(fabsf(x), fabsf(y)));
}

PUFFER_MATH Vector2 Vector2Zero(void) { return (Vector2){0, 0}; }
PUFFER_MATH Vector2 Vector2One(void) { return (Vector2){1, 1}; }
PUFFER_MATH Vector2 Vector2Add(Vector2 a, Vector2 b) { return (Vector2){a.x + b.x, a.y + b.y}; }
PUFFER_MATH Vector2 Vector2AddValue(Vector2 a, float s) { return (Vector2){a.x + s, a.y + s}; }
PUFFER_MATH Vector2 Vector2Subtract(Vector2 a, Vector2 b) { return (Vector2){a.x - b.x, a.y - b.y}; }
PUFFER_MATH Vector2 Vector2SubtractValue(Vector2 a, float s) { return (Vector2){a.x - s, a.y - s}; }
PUFFER_MATH Vector2 Vector2Scale(Vector2 a, float s) { return (Vector2){a.x * s, a.y * s}; }
PUFFER_MATH Vector2 Vector2Multiply(Vector2 a, Vector2 b) { return (Vector2){a.x * b.x, a.y * b.y}; }
PUFFER_MATH Vector2 Vector2Divide(Vector2 a, Vector2 b) { return (Vector2){a.x / b.x, a.y / b.y}; }
PUFFER_MATH Vector2 Vector2Negate(Vector2 a) { return (Vector2){-a.x, -a.y}; }
PUFFER_MATH Vector2 Vector2Lerp(Vector2 a, Vector2 b, float t) { return (Vector2){Lerp(a.x, b.x, t), Lerp(a.y, b.y, t)}; }
PUFFER_MATH Vector2 Vector2Min(Vector2 a, Vector2 b) { return (Vector2){fminf(a.x, b.x), fminf(a.y, b.y)}; }
PUFFER_MATH Vector2 Vector2Max(Vector2 a, Vector2 b) { return (Vector2){fmaxf(a.x, b.x), fmaxf(a.y, b.y)}; }
PUFFER_MATH Vector2 Vector2Clamp(Vector2 v, Vector2 a, Vector2 b) { return (Vector2){Clamp(v.x, a.x, b.x), Clamp(v.y, a.y, b.y)}; }
PUFFER_MATH float Vector2DotProduct(Vector2 a, Vector2 b) { return a.x * b.x + a.y * b.y; }
PUFFER_MATH float Vector2CrossProduct(Vector2 a, Vector2 b) { return a.x * b.y - a.y * b.x; }
PUFFER_MATH float Vector2LengthSqr(Vector2 a) { return Vector2DotProduct(a, a); }
PUFFER_MATH float Vector2Length(Vector2 a) { return sqrtf(Vector2LengthSqr(a)); }
PUFFER_MATH float Vector2DistanceSqr(Vector2 a, Vector2 b) { return Vector2LengthSqr(Vector2Subtract(a, b)); }
PUFFER_MATH float Vector2Distance(Vector2 a, Vector2 b) { return sqrtf(Vector2DistanceSqr(a, b)); }
PUFFER_MATH float Vector2Angle(Vector2 a, Vector2 b) { return atan2f(Vector2CrossProduct(a, b), Vector2DotProduct(a, b)); }
PUFFER_MATH float Vector2LineAngle(Vector2 a, Vector2 b) { return -atan2f(b.y - a.y, b.x - a.x); }
PUFFER_MATH int Vector2Equals(Vector2 a, Vector2 b) { return FloatEquals(a.x, b.x) && FloatEquals(a.y, b.y); }
PUFFER_MATH Vector2 Vector2Normalize(Vector2 a) {
    const float length = Vector2Length(a);
    return length > 0 ? Vector2Scale(a, 1.0f / length) : Vector2Zero();
}
PUFFER_MATH Vector2 Vector2ClampValue(Vector2 v, float low, float high) {
    const float length = Vector2Length(v);
    return length > 0 ? Vector2Scale(v, Clamp(length, low, high) / length) : v;
}
PUFFER_MATH Vector2 Vector2Rotate(Vector2 v, float angle) {
    const float c = cosf(angle), s = sinf(angle);
    return (Vector2){v.x * c - v.y * s, v.x * s + v.y * c};
}
PUFFER_MATH Vector2 Vector2Reflect(Vector2 v, Vector2 n) { return Vector2Subtract(v, Vector2Scale(n, 2 * Vector2DotProduct(v, n))); }
PUFFER_MATH Vector2 Vector2MoveTowards(Vector2 v, Vector2 to, float most) {
    const float far = Vector2Distance(v, to);
    return far == 0 || (most >= 0 && far <= most) ? to : Vector2Lerp(v, to, most / far);
}

PUFFER_MATH Vector3 Vector3Zero(void) { return (Vector3){0, 0, 0}; }
PUFFER_MATH Vector3 Vector3One(void) { return (Vector3){1, 1, 1}; }
PUFFER_MATH Vector3 Vector3Add(Vector3 a, Vector3 b) { return (Vector3){a.x + b.x, a.y + b.y, a.z + b.z}; }
PUFFER_MATH Vector3 Vector3AddValue(Vector3 a, float s) { return (Vector3){a.x + s, a.y + s, a.z + s}; }
PUFFER_MATH Vector3 Vector3Subtract(Vector3 a, Vector3 b) { return (Vector3){a.x - b.x, a.y - b.y, a.z - b.z}; }
PUFFER_MATH Vector3 Vector3SubtractValue(Vector3 a, float s) { return (Vector3){a.x - s, a.y - s, a.z - s}; }
PUFFER_MATH Vector3 Vector3Scale(Vector3 a, float s) { return (Vector3){a.x * s, a.y * s, a.z * s}; }
PUFFER_MATH Vector3 Vector3Multiply(Vector3 a, Vector3 b) { return (Vector3){a.x * b.x, a.y * b.y, a.z * b.z}; }
PUFFER_MATH Vector3 Vector3Divide(Vector3 a, Vector3 b) { return (Vector3){a.x / b.x, a.y / b.y, a.z / b.z}; }
PUFFER_MATH Vector3 Vector3Negate(Vector3 a) { return (Vector3){-a.x, -a.y, -a.z}; }
PUFFER_MATH Vector3 Vector3Lerp(Vector3 a, Vector3 b, float t) { return (Vector3){Lerp(a.x, b.x, t), Lerp(a.y, b.y, t), Lerp(a.z, b.z, t)}; }
PUFFER_MATH Vector3 Vector3Min(Vector3 a, Vector3 b) { return (Vector3){fminf(a.x, b.x), fminf(a.y, b.y), fminf(a.z, b.z)}; }
PUFFER_MATH Vector3 Vector3Max(Vector3 a, Vector3 b) { return (Vector3){fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z)}; }
PUFFER_MATH Vector3 Vector3Clamp(Vector3 v, Vector3 a, Vector3 b) { return Vector3Min(b, Vector3Max(a, v)); }
PUFFER_MATH Vector3 Vector3CrossProduct(Vector3 a, Vector3 b) {
    return (Vector3){a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}
PUFFER_MATH float Vector3DotProduct(Vector3 a, Vector3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
PUFFER_MATH float Vector3LengthSqr(Vector3 a) { return Vector3DotProduct(a, a); }
PUFFER_MATH float Vector3Length(Vector3 a) { return sqrtf(Vector3LengthSqr(a)); }
PUFFER_MATH float Vector3DistanceSqr(Vector3 a, Vector3 b) { return Vector3LengthSqr(Vector3Subtract(a, b)); }
PUFFER_MATH float Vector3Distance(Vector3 a, Vector3 b) { return sqrtf(Vector3DistanceSqr(a, b)); }
PUFFER_MATH float Vector3Angle(Vector3 a, Vector3 b) { return atan2f(Vector3Length(Vector3CrossProduct(a, b)), Vector3DotProduct(a, b)); }
PUFFER_MATH int Vector3Equals(Vector3 a, Vector3 b) { return FloatEquals(a.x, b.x) && FloatEquals(a.y, b.y) && FloatEquals(a.z, b.z); }
PUFFER_MATH Vector3 Vector3Normalize(Vector3 a) {
    const float length = Vector3Length(a);
    return length > 0 ? Vector3Scale(a, 1.0f / length) : a;
}
PUFFER_MATH Vector3 Vector3Project(Vector3 a, Vector3 b) { return Vector3Scale(b, Vector3DotProduct(a, b) / Vector3DotProduct(b, b)); }
PUFFER_MATH Vector3 Vector3Reject(Vector3 a, Vector3 b) { return Vector3Subtract(a, Vector3Project(a, b)); }
PUFFER_MATH Vector3 Vector3Reflect(Vector3 v, Vector3 n) { return Vector3Subtract(v, Vector3Scale(n, 2 * Vector3DotProduct(v, n))); }
PUFFER_MATH Vector3 Vector3Perpendicular(Vector3 v) {
    const Vector3 a = {fabsf(v.x), fabsf(v.y), fabsf(v.z)};
    const Vector3 axis = {a.x <= a.y && a.x <= a.z, a.y < a.x && a.y <= a.z, a.z < a.x && a.z < a.y};
    return Vector3CrossProduct(v, axis);
}
PUFFER_MATH Vector3 Vector3RotateByQuaternion(Vector3 v, Quaternion q) {
    const Vector3 u = {q.x, q.y, q.z};
    const Vector3 first = Vector3Scale(u, 2 * Vector3DotProduct(u, v));
    const Vector3 second = Vector3Scale(v, q.w * q.w - Vector3DotProduct(u, u));
    return Vector3Add(Vector3Add(first, second), Vector3Scale(Vector3CrossProduct(u, v), 2 * q.w));
}
PUFFER_MATH Vector3 Vector3Transform(Vector3 v, Matrix m) {
    return (Vector3){m.m0 * v.x + m.m4 * v.y + m.m8 * v.z + m.m12, m.m1 * v.x + m.m5 * v.y + m.m9 * v.z + m.m13,
                     m.m2 * v.x + m.m6 * v.y + m.m10 * v.z + m.m14};
}

PUFFER_MATH Quaternion QuaternionIdentity(void) { return (Quaternion){0, 0, 0, 1}; }
PUFFER_MATH Quaternion QuaternionAdd(Quaternion a, Quaternion b) { return (Quaternion){a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
PUFFER_MATH Quaternion QuaternionScale(Quaternion q, float s) { return (Quaternion){q.x * s, q.y * s, q.z * s, q.w * s}; }
PUFFER_MATH float QuaternionLength(Quaternion q) { return sqrtf(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w); }
PUFFER_MATH Quaternion QuaternionNormalize(Quaternion q) {
    const float length = QuaternionLength(q);
    return QuaternionScale(q, 1.0f / (length == 0 ? 1 : length));
}
PUFFER_MATH Quaternion QuaternionInvert(Quaternion q) {
    const float square = q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w;
    return square == 0 ? q : (Quaternion){-q.x / square, -q.y / square, -q.z / square, q.w / square};
}
PUFFER_MATH Quaternion QuaternionMultiply(Quaternion a, Quaternion b) {
    return (Quaternion){a.x * b.w + a.w * b.x + a.y * b.z - a.z * b.y, a.y * b.w + a.w * b.y + a.z * b.x - a.x * b.z,
                        a.z * b.w + a.w * b.z + a.x * b.y - a.y * b.x, a.w * b.w - a.x * b.x - a.y * b.y - a.z * b.z};
}
PUFFER_MATH Quaternion QuaternionFromAxisAngle(Vector3 axis, float angle) {
    const Vector3 unit = Vector3Scale(Vector3Normalize(axis), sinf(angle * 0.5f));
    return Vector3Length(axis) == 0 ? QuaternionIdentity()
                                    : QuaternionNormalize((Quaternion){unit.x, unit.y, unit.z, cosf(angle * 0.5f)});
}
/* The turn that takes one direction to another, by the shorter way. */
PUFFER_MATH Quaternion QuaternionFromVector3ToVector3(Vector3 from, Vector3 to) {
    const Vector3 axis = Vector3CrossProduct(from, to);
    return QuaternionNormalize((Quaternion){axis.x, axis.y, axis.z, 1.0f + Vector3DotProduct(from, to)});
}
PUFFER_MATH Quaternion QuaternionFromEuler(float pitch, float yaw, float roll) {
    const Quaternion x = {sinf(pitch / 2), 0, 0, cosf(pitch / 2)}, y = {0, sinf(yaw / 2), 0, cosf(yaw / 2)},
                     z = {0, 0, sinf(roll / 2), cosf(roll / 2)};
    return QuaternionMultiply(z, QuaternionMultiply(y, x));
}
PUFFER_MATH Matrix QuaternionToMatrix(Quaternion q) {
    const float xx = q.x * q.x, yy = q.y * q.y, zz = q.z * q.z, xy = q.x * q.y, xz = q.x * q.z, yz = q.y * q.z,
                wx = q.w * q.x, wy = q.w * q.y, wz = q.w * q.z;
    return (Matrix){1 - 2 * (yy + zz), 2 * (xy - wz), 2 * (xz + wy), 0, 2 * (xy + wz), 1 - 2 * (xx + zz), 2 * (yz - wx), 0,
                    2 * (xz - wy), 2 * (yz + wx), 1 - 2 * (xx + yy), 0, 0, 0, 0, 1};
}

PUFFER_MATH Matrix MatrixIdentity(void) { return (Matrix){1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}; }
PUFFER_MATH Matrix MatrixTranslate(float x, float y, float z) { return (Matrix){1, 0, 0, x, 0, 1, 0, y, 0, 0, 1, z, 0, 0, 0, 1}; }
PUFFER_MATH Matrix MatrixScale(float x, float y, float z) { return (Matrix){x, 0, 0, 0, 0, y, 0, 0, 0, 0, z, 0, 0, 0, 0, 1}; }
PUFFER_MATH Matrix MatrixMultiply(Matrix left, Matrix right) { /* left first, then right; rows lie one after another */
    const float *a = &right.m0, *b = &left.m0;
    Matrix out;
    float *to = &out.m0;
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++)
            to[4 * r + c] = a[4 * r] * b[c] + a[4 * r + 1] * b[4 + c] + a[4 * r + 2] * b[8 + c] + a[4 * r + 3] * b[12 + c];
    return out;
}
PUFFER_MATH Matrix MatrixRotate(Vector3 axis, float angle) { return QuaternionToMatrix(QuaternionFromAxisAngle(axis, angle)); }
PUFFER_MATH Matrix MatrixRotateX(float angle) { return MatrixRotate((Vector3){1, 0, 0}, angle); }
PUFFER_MATH Matrix MatrixRotateY(float angle) { return MatrixRotate((Vector3){0, 1, 0}, angle); }
PUFFER_MATH Matrix MatrixRotateZ(float angle) { return MatrixRotate((Vector3){0, 0, 1}, angle); }
PUFFER_MATH Matrix MatrixRotateXYZ(Vector3 angle) {
    return MatrixMultiply(MatrixMultiply(MatrixRotateX(angle.x), MatrixRotateY(angle.y)), MatrixRotateZ(angle.z));
}
PUFFER_MATH Vector3 Vector3RotateByAxisAngle(Vector3 v, Vector3 axis, float angle) {
    return Vector3RotateByQuaternion(v, QuaternionFromAxisAngle(axis, angle));
}
/* clang-format on */

#endif
