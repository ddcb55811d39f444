/* raylib for environments that nobody looks at: its types and constants, and drawing that draws nothing,
 * since they are stepped on machines without a screen. Used where there is no raylib; collisions, colours and
 * random numbers, which a step may ask for, are computed. Written from raylib's documented interface (5.5).
 */
// SPDX-License-Identifier: MIT
#ifndef RAYLIB_H
#define RAYLIB_H
#define SHOAL_PUFFER_NO_RAYLIB

#include <puffer/prelude.h>

#ifndef PI
#define PI 3.14159265358979323846f
#endif
#ifndef DEG2RAD
#define DEG2RAD (PI / 180.0f)
#endif
#ifndef RAD2DEG
#define RAD2DEG (180.0f / PI)
#endif
#define RAYLIB_VERSION "5.5"
#define RAYLIB_VERSION_MAJOR 5
#define RAYLIB_VERSION_MINOR 5
#define CLITERAL(type) (type)
#define RL_MALLOC(size) malloc(size)
#define RL_CALLOC(count, size) calloc(count, size)
#define RL_REALLOC(at, size) realloc(at, size)
#define RL_FREE(at) free(at)

/* ---- Types ---- */

/* clang-format off */
typedef struct Vector2 { float x, y; } Vector2;
typedef struct Vector3 { float x, y, z; } Vector3;
typedef struct Vector4 { float x, y, z, w; } Vector4;
typedef Vector4 Quaternion;
typedef struct Matrix { float m0, m4, m8, m12, m1, m5, m9, m13, m2, m6, m10, m14, m3, m7, m11, m15; } Matrix;
typedef struct Color { unsigned char r, g, b, a; } Color;
typedef struct Rectangle { float x, y, width, height; } Rectangle;
typedef struct Image { void *data; int width, height, mipmaps, format; } Image;
typedef struct Texture { unsigned int id; int width, height, mipmaps, format; } Texture;
typedef Texture Texture2D;
typedef Texture TextureCubemap;
typedef struct RenderTexture { unsigned int id; Texture texture, depth; } RenderTexture;
typedef RenderTexture RenderTexture2D;
typedef struct NPatchInfo { Rectangle source; int left, top, right, bottom, layout; } NPatchInfo;
typedef struct GlyphInfo { int value, offsetX, offsetY, advanceX; Image image; } GlyphInfo;
typedef struct Font { int baseSize, glyphCount, glyphPadding; Texture2D texture; Rectangle *recs; GlyphInfo *glyphs; } Font;
typedef struct Camera3D { Vector3 position, target, up; float fovy; int projection; } Camera3D;
typedef Camera3D Camera;
typedef struct Camera2D { Vector2 offset, target; float rotation, zoom; } Camera2D;
typedef struct Mesh {
    int vertexCount, triangleCount;
    float *vertices, *texcoords, *texcoords2, *normals, *tangents;
    unsigned char *colors; unsigned short *indices;
    float *animVertices, *animNormals; unsigned char *boneIds; float *boneWeights;
    Matrix *boneMatrices; int boneCount; unsigned int vaoId, *vboId;
} Mesh;
typedef struct Shader { unsigned int id; int *locs; } Shader;
typedef struct MaterialMap { Texture2D texture; Color color; float value; } MaterialMap;
typedef struct Material { Shader shader; MaterialMap *maps; float params[4]; } Material;
typedef struct Transform { Vector3 translation; Quaternion rotation; Vector3 scale; } Transform;
typedef struct BoneInfo { char name[32]; int parent; } BoneInfo;
typedef struct Model {
    Matrix transform; int meshCount, materialCount; Mesh *meshes; Material *materials; int *meshMaterial;
    int boneCount; BoneInfo *bones; Transform *bindPose;
} Model;
typedef struct ModelAnimation { int boneCount, frameCount; BoneInfo *bones; Transform **framePoses; char name[32]; } ModelAnimation;
typedef struct Ray { Vector3 position, direction; } Ray;
typedef struct RayCollision { bool hit; float distance; Vector3 point, normal; } RayCollision;
typedef struct BoundingBox { Vector3 min, max; } BoundingBox;
typedef struct Wave { unsigned int frameCount, sampleRate, sampleSize, channels; void *data; } Wave;
typedef struct AudioStream { void *buffer, *processor; unsigned int sampleRate, sampleSize, channels; } AudioStream;
typedef struct Sound { AudioStream stream; unsigned int frameCount; } Sound;
typedef struct Music { AudioStream stream; unsigned int frameCount; bool looping; int ctxType; void *ctxData; } Music;
typedef struct FilePathList { unsigned int capacity, count; char **paths; } FilePathList;

/* ---- Constants ---- */

#define PUFFER_COLOR(r, g, b) ((Color){r, g, b, 255})
#define LIGHTGRAY PUFFER_COLOR(200, 200, 200)
#define GRAY PUFFER_COLOR(130, 130, 130)
#define DARKGRAY PUFFER_COLOR(80, 80, 80)
#define YELLOW PUFFER_COLOR(253, 249, 0)
#define GOLD PUFFER_COLOR(255, 203, 0)
#define ORANGE PUFFER_COLOR(255, 161, 0)
#define PINK PUFFER_COLOR(255, 109, 194)
#define RED PUFFER_COLOR(230, 41, 55)
#define MAROON PUFFER_COLOR(190, 33, 55)
#define GREEN PUFFER_COLOR(0, 228, 48)
#define LIME PUFFER_COLOR(0, 158, 47)
#define DARKGREEN PUFFER_COLOR(0, 117, 44)
#define SKYBLUE PUFFER_COLOR(102, 191, 255)
#define BLUE PUFFER_COLOR(0, 121, 241)
#define DARKBLUE PUFFER_COLOR(0, 82, 172)
#define PURPLE PUFFER_COLOR(200, 122, 255)
#define VIOLET PUFFER_COLOR(135, 60, 190)
#define DARKPURPLE PUFFER_COLOR(112, 31, 126)
#define BEIGE PUFFER_COLOR(211, 176, 131)
#define BROWN PUFFER_COLOR(127, 106, 79)
#define DARKBROWN PUFFER_COLOR(76, 63, 47)
#define WHITE PUFFER_COLOR(255, 255, 255)
#define BLACK PUFFER_COLOR(0, 0, 0)
#define BLANK ((Color){0, 0, 0, 0})
#define MAGENTA PUFFER_COLOR(255, 0, 255)
#define RAYWHITE PUFFER_COLOR(245, 245, 245)

typedef enum { FLAG_VSYNC_HINT = 64, FLAG_FULLSCREEN_MODE = 2, FLAG_WINDOW_RESIZABLE = 4, FLAG_WINDOW_UNDECORATED = 8,
    FLAG_WINDOW_HIDDEN = 128, FLAG_WINDOW_MINIMIZED = 512, FLAG_WINDOW_MAXIMIZED = 1024, FLAG_WINDOW_UNFOCUSED = 2048,
    FLAG_WINDOW_TOPMOST = 4096, FLAG_WINDOW_ALWAYS_RUN = 256, FLAG_WINDOW_TRANSPARENT = 16, FLAG_WINDOW_HIGHDPI = 8192,
    FLAG_BORDERLESS_WINDOWED_MODE = 32768, FLAG_MSAA_4X_HINT = 32, FLAG_INTERLACED_HINT = 65536 } ConfigFlags;
typedef enum { LOG_ALL, LOG_TRACE, LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR, LOG_FATAL, LOG_NONE } TraceLogLevel;
typedef enum { KEY_NULL = 0, KEY_APOSTROPHE = 39, KEY_COMMA = 44, KEY_MINUS, KEY_PERIOD, KEY_SLASH, KEY_ZERO, KEY_ONE,
    KEY_TWO, KEY_THREE, KEY_FOUR, KEY_FIVE, KEY_SIX, KEY_SEVEN, KEY_EIGHT, KEY_NINE, KEY_SEMICOLON = 59, KEY_EQUAL = 61,
    KEY_A = 65, KEY_B, KEY_C, KEY_D, KEY_E, KEY_F, KEY_G, KEY_H, KEY_I, KEY_J, KEY_K, KEY_L, KEY_M, KEY_N, KEY_O, KEY_P,
    KEY_Q, KEY_R, KEY_S, KEY_T, KEY_U, KEY_V, KEY_W, KEY_X, KEY_Y, KEY_Z, KEY_LEFT_BRACKET, KEY_BACKSLASH,
    KEY_RIGHT_BRACKET, KEY_GRAVE = 96, KEY_SPACE = 32, KEY_ESCAPE = 256, KEY_ENTER, KEY_TAB, KEY_BACKSPACE, KEY_INSERT,
    KEY_DELETE, KEY_RIGHT, KEY_LEFT, KEY_DOWN, KEY_UP, KEY_PAGE_UP, KEY_PAGE_DOWN, KEY_HOME, KEY_END, KEY_CAPS_LOCK = 280,
    KEY_SCROLL_LOCK, KEY_NUM_LOCK, KEY_PRINT_SCREEN, KEY_PAUSE, KEY_F1 = 290, KEY_F2, KEY_F3, KEY_F4, KEY_F5, KEY_F6,
    KEY_F7, KEY_F8, KEY_F9, KEY_F10, KEY_F11, KEY_F12, KEY_KP_0 = 320, KEY_KP_1, KEY_KP_2, KEY_KP_3, KEY_KP_4, KEY_KP_5,
    KEY_KP_6, KEY_KP_7, KEY_KP_8, KEY_KP_9, KEY_KP_DECIMAL, KEY_KP_DIVIDE, KEY_KP_MULTIPLY, KEY_KP_SUBTRACT, KEY_KP_ADD,
    KEY_KP_ENTER, KEY_KP_EQUAL, KEY_LEFT_SHIFT = 340, KEY_LEFT_CONTROL, KEY_LEFT_ALT, KEY_LEFT_SUPER, KEY_RIGHT_SHIFT,
    KEY_RIGHT_CONTROL, KEY_RIGHT_ALT, KEY_RIGHT_SUPER, KEY_KB_MENU } KeyboardKey;
typedef enum { MOUSE_BUTTON_LEFT, MOUSE_BUTTON_RIGHT, MOUSE_BUTTON_MIDDLE, MOUSE_BUTTON_SIDE, MOUSE_BUTTON_EXTRA,
    MOUSE_BUTTON_FORWARD, MOUSE_BUTTON_BACK } MouseButton;
#define MOUSE_LEFT_BUTTON MOUSE_BUTTON_LEFT
#define MOUSE_RIGHT_BUTTON MOUSE_BUTTON_RIGHT
#define MOUSE_MIDDLE_BUTTON MOUSE_BUTTON_MIDDLE
typedef enum { MOUSE_CURSOR_DEFAULT, MOUSE_CURSOR_ARROW, MOUSE_CURSOR_IBEAM, MOUSE_CURSOR_CROSSHAIR,
    MOUSE_CURSOR_POINTING_HAND, MOUSE_CURSOR_RESIZE_EW, MOUSE_CURSOR_RESIZE_NS, MOUSE_CURSOR_RESIZE_NWSE,
    MOUSE_CURSOR_RESIZE_NESW, MOUSE_CURSOR_RESIZE_ALL, MOUSE_CURSOR_NOT_ALLOWED } MouseCursor;
typedef enum { GAMEPAD_BUTTON_UNKNOWN, GAMEPAD_BUTTON_LEFT_FACE_UP, GAMEPAD_BUTTON_LEFT_FACE_RIGHT,
    GAMEPAD_BUTTON_LEFT_FACE_DOWN, GAMEPAD_BUTTON_LEFT_FACE_LEFT, GAMEPAD_BUTTON_RIGHT_FACE_UP,
    GAMEPAD_BUTTON_RIGHT_FACE_RIGHT, GAMEPAD_BUTTON_RIGHT_FACE_DOWN, GAMEPAD_BUTTON_RIGHT_FACE_LEFT,
    GAMEPAD_BUTTON_LEFT_TRIGGER_1, GAMEPAD_BUTTON_LEFT_TRIGGER_2, GAMEPAD_BUTTON_RIGHT_TRIGGER_1,
    GAMEPAD_BUTTON_RIGHT_TRIGGER_2, GAMEPAD_BUTTON_MIDDLE_LEFT, GAMEPAD_BUTTON_MIDDLE, GAMEPAD_BUTTON_MIDDLE_RIGHT,
    GAMEPAD_BUTTON_LEFT_THUMB, GAMEPAD_BUTTON_RIGHT_THUMB } GamepadButton;
typedef enum { GAMEPAD_AXIS_LEFT_X, GAMEPAD_AXIS_LEFT_Y, GAMEPAD_AXIS_RIGHT_X, GAMEPAD_AXIS_RIGHT_Y,
    GAMEPAD_AXIS_LEFT_TRIGGER, GAMEPAD_AXIS_RIGHT_TRIGGER } GamepadAxis;
typedef enum { MATERIAL_MAP_ALBEDO, MATERIAL_MAP_METALNESS, MATERIAL_MAP_NORMAL, MATERIAL_MAP_ROUGHNESS,
    MATERIAL_MAP_OCCLUSION, MATERIAL_MAP_EMISSION, MATERIAL_MAP_HEIGHT, MATERIAL_MAP_CUBEMAP } MaterialMapIndex;
#define MATERIAL_MAP_DIFFUSE MATERIAL_MAP_ALBEDO
#define MATERIAL_MAP_SPECULAR MATERIAL_MAP_METALNESS
typedef enum { SHADER_LOC_VERTEX_POSITION, SHADER_LOC_VERTEX_TEXCOORD01, SHADER_LOC_VERTEX_TEXCOORD02,
    SHADER_LOC_VERTEX_NORMAL, SHADER_LOC_VERTEX_TANGENT, SHADER_LOC_VERTEX_COLOR, SHADER_LOC_MATRIX_MVP,
    SHADER_LOC_MATRIX_VIEW, SHADER_LOC_MATRIX_PROJECTION, SHADER_LOC_MATRIX_MODEL, SHADER_LOC_MATRIX_NORMAL,
    SHADER_LOC_VECTOR_VIEW, SHADER_LOC_COLOR_DIFFUSE, SHADER_LOC_COLOR_SPECULAR, SHADER_LOC_COLOR_AMBIENT,
    SHADER_LOC_MAP_ALBEDO } ShaderLocationIndex;
typedef enum { SHADER_UNIFORM_FLOAT, SHADER_UNIFORM_VEC2, SHADER_UNIFORM_VEC3, SHADER_UNIFORM_VEC4, SHADER_UNIFORM_INT,
    SHADER_UNIFORM_IVEC2, SHADER_UNIFORM_IVEC3, SHADER_UNIFORM_IVEC4, SHADER_UNIFORM_SAMPLER2D } ShaderUniformDataType;
typedef enum { PIXELFORMAT_UNCOMPRESSED_GRAYSCALE = 1, PIXELFORMAT_UNCOMPRESSED_GRAY_ALPHA, PIXELFORMAT_UNCOMPRESSED_R5G6B5,
    PIXELFORMAT_UNCOMPRESSED_R8G8B8, PIXELFORMAT_UNCOMPRESSED_R5G5B5A1, PIXELFORMAT_UNCOMPRESSED_R4G4B4A4,
    PIXELFORMAT_UNCOMPRESSED_R8G8B8A8, PIXELFORMAT_UNCOMPRESSED_R32, PIXELFORMAT_UNCOMPRESSED_R32G32B32,
    PIXELFORMAT_UNCOMPRESSED_R32G32B32A32 } PixelFormat;
typedef enum { TEXTURE_FILTER_POINT, TEXTURE_FILTER_BILINEAR, TEXTURE_FILTER_TRILINEAR, TEXTURE_FILTER_ANISOTROPIC_4X,
    TEXTURE_FILTER_ANISOTROPIC_8X, TEXTURE_FILTER_ANISOTROPIC_16X } TextureFilter;
typedef enum { TEXTURE_WRAP_REPEAT, TEXTURE_WRAP_CLAMP, TEXTURE_WRAP_MIRROR_REPEAT, TEXTURE_WRAP_MIRROR_CLAMP } TextureWrap;
typedef enum { BLEND_ALPHA, BLEND_ADDITIVE, BLEND_MULTIPLIED, BLEND_ADD_COLORS, BLEND_SUBTRACT_COLORS,
    BLEND_ALPHA_PREMULTIPLY, BLEND_CUSTOM, BLEND_CUSTOM_SEPARATE } BlendMode;
typedef enum { CAMERA_CUSTOM, CAMERA_FREE, CAMERA_ORBITAL, CAMERA_FIRST_PERSON, CAMERA_THIRD_PERSON } CameraMode;
typedef enum { CAMERA_PERSPECTIVE, CAMERA_ORTHOGRAPHIC } CameraProjection;

/* clang-format on */
#include "nothing.h"

/* ---- What a step may ask for ---- */

static PUFFER_UNUSED const char *TextFormat(const char *format, ...) {
    static char puffer_text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(puffer_text, sizeof puffer_text, format, arguments);
    va_end(arguments);
    return puffer_text;
}

static PUFFER_UNUSED void SetRandomSeed(unsigned int seed) { puffer_srand("", seed); }

static PUFFER_UNUSED int GetRandomValue(int low, int high) {
    const int from = low < high ? low : high, to = low < high ? high : low;
    return from + (int)((unsigned)puffer_rand() % ((unsigned)(to - from) + 1u));
}

static PUFFER_UNUSED Color Fade(Color color, float alpha) {
    const float kept = alpha < 0 ? 0 : alpha > 1 ? 1 : alpha;
    return (Color){color.r, color.g, color.b, (unsigned char)(255.0f * kept)};
}
#define ColorAlpha Fade

static PUFFER_UNUSED Color ColorLerp(Color a, Color b, float t) {
    const float part = t < 0 ? 0 : t > 1 ? 1 : t;
    return (Color){(unsigned char)(a.r + (b.r - a.r) * part), (unsigned char)(a.g + (b.g - a.g) * part),
                   (unsigned char)(a.b + (b.b - a.b) * part), (unsigned char)(a.a + (b.a - a.a) * part)};
}

static PUFFER_UNUSED Color ColorFromHSV(float hue, float saturation, float value) {
    Color out = {0, 0, 0, 255};
    unsigned char *const parts[] = {&out.r, &out.g, &out.b};
    for (int i = 0; i < 3; i++) {
        const float at = fmodf((float)(5 - 2 * i) + hue / 60.0f, 6), least = fminf(fminf(at, 4 - at), 1);
        *parts[i] = (unsigned char)(255 * (value - value * saturation * fmaxf(least, 0)));
    }
    return out;
}

static PUFFER_UNUSED Color ColorBrightness(Color color, float factor) {
    return ColorLerp(color, factor < 0 ? (Color){0, 0, 0, color.a} : (Color){255, 255, 255, color.a},
                     fabsf(factor));
}

static PUFFER_UNUSED Color GetColor(unsigned int rgba) {
    return (Color){(unsigned char)(rgba >> 24), (unsigned char)(rgba >> 16), (unsigned char)(rgba >> 8),
                   (unsigned char)rgba};
}

static PUFFER_UNUSED bool CheckCollisionRecs(Rectangle a, Rectangle b) {
    return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

static PUFFER_UNUSED bool CheckCollisionPointRec(Vector2 point, Rectangle rectangle) {
    return point.x >= rectangle.x && point.x < rectangle.x + rectangle.width && point.y >= rectangle.y &&
           point.y < rectangle.y + rectangle.height;
}

static PUFFER_UNUSED bool CheckCollisionPointCircle(Vector2 point, Vector2 center, float radius) {
    const float dx = point.x - center.x, dy = point.y - center.y;
    return dx * dx + dy * dy <= radius * radius;
}

static PUFFER_UNUSED bool CheckCollisionCircles(Vector2 a, float radius_a, Vector2 b, float radius_b) {
    return CheckCollisionPointCircle(a, b, radius_a + radius_b);
}

static PUFFER_UNUSED bool CheckCollisionCircleRec(Vector2 center, float radius, Rectangle rectangle) {
    const Vector2 nearest = {fmaxf(rectangle.x, fminf(center.x, rectangle.x + rectangle.width)),
                             fmaxf(rectangle.y, fminf(center.y, rectangle.y + rectangle.height))};
    return CheckCollisionPointCircle(nearest, center, radius);
}

static PUFFER_UNUSED Rectangle GetCollisionRec(Rectangle a, Rectangle b) {
    const float left = fmaxf(a.x, b.x), top = fmaxf(a.y, b.y);
    const float width = fminf(a.x + a.width, b.x + b.width) - left;
    const float height = fminf(a.y + a.height, b.y + b.height) - top;
    return width > 0 && height > 0 ? (Rectangle){left, top, width, height} : (Rectangle){0};
}

static PUFFER_UNUSED bool CheckCollisionSpheres(Vector3 a, float radius_a, Vector3 b, float radius_b) {
    const float dx = a.x - b.x, dy = a.y - b.y, dz = a.z - b.z, reach = radius_a + radius_b;
    return dx * dx + dy * dy + dz * dz <= reach * reach;
}

static PUFFER_UNUSED bool CheckCollisionBoxes(BoundingBox a, BoundingBox b) {
    return a.max.x >= b.min.x && a.min.x <= b.max.x && a.max.y >= b.min.y && a.min.y <= b.max.y &&
           a.max.z >= b.min.z && a.min.z <= b.max.z;
}

static PUFFER_UNUSED Vector2 GetSplinePointBezierQuad(Vector2 a, Vector2 b, Vector2 c, float t) {
    const float s = 1 - t;
    return (Vector2){s * s * a.x + 2 * s * t * b.x + t * t * c.x,
                     s * s * a.y + 2 * s * t * b.y + t * t * c.y};
}

#endif
