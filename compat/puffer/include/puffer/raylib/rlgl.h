/* rlgl: raylib's layer over OpenGL, of which nothing is drawn. */
// SPDX-License-Identifier: MIT
#ifndef RLGL_H
#define RLGL_H

#include "raylib.h"

/* clang-format off */
#define rlActiveTextureSlot(...) ((void)0)
#define rlBegin(...) ((void)0)
#define rlBlitFramebuffer(...) ((void)0)
#define rlClearColor(...) ((void)0)
#define rlClearScreenBuffers(...) ((void)0)
#define rlColor3f(...) ((void)0)
#define rlColor4f(...) ((void)0)
#define rlColor4ub(...) ((void)0)
#define rlDisableBackfaceCulling(...) ((void)0)
#define rlDisableColorBlend(...) ((void)0)
#define rlDisableDepthMask(...) ((void)0)
#define rlDisableDepthTest(...) ((void)0)
#define rlDisableFramebuffer(...) ((void)0)
#define rlDisableScissorTest(...) ((void)0)
#define rlDisableShader(...) ((void)0)
#define rlDisableTexture(...) ((void)0)
#define rlDisableVertexArray(...) ((void)0)
#define rlDisableWireMode(...) ((void)0)
#define rlDrawRenderBatchActive(...) ((void)0)
#define rlEnableBackfaceCulling(...) ((void)0)
#define rlEnableColorBlend(...) ((void)0)
#define rlEnableDepthMask(...) ((void)0)
#define rlEnableDepthTest(...) ((void)0)
#define rlEnableFramebuffer(...) ((void)0)
#define rlEnableShader(...) ((void)0)
#define rlEnableTexture(...) ((void)0)
#define rlEnableVertexArray(...) ((void)0)
#define rlEnableWireMode(...) ((void)0)
#define rlEnd(...) ((void)0)
#define rlFrustum(...) ((void)0)
#define rlLoadIdentity(...) ((void)0)
#define rlMatrixMode(...) ((void)0)
#define rlMultMatrixf(...) ((void)0)
#define rlNormal3f(...) ((void)0)
#define rlOrtho(...) ((void)0)
#define rlPopMatrix(...) ((void)0)
#define rlPushMatrix(...) ((void)0)
#define rlRotatef(...) ((void)0)
#define rlScalef(...) ((void)0)
#define rlSetBlendFactors(...) ((void)0)
#define rlSetBlendFactorsSeparate(...) ((void)0)
#define rlSetBlendMode(...) ((void)0)
#define rlSetCullFace(...) ((void)0)
#define rlSetLineWidth(...) ((void)0)
#define rlSetMatrixModelview(...) ((void)0)
#define rlSetMatrixProjection(...) ((void)0)
#define rlSetTexture(...) ((void)0)
#define rlSetUniform(...) ((void)0)
#define rlSetUniformMatrix(...) ((void)0)
#define rlTexCoord2f(...) ((void)0)
#define rlTranslatef(...) ((void)0)
#define rlUnloadTexture(...) ((void)0)
#define rlUnloadVertexArray(...) ((void)0)
#define rlUnloadVertexBuffer(...) ((void)0)
#define rlUpdateVertexBuffer(...) ((void)0)
#define rlVertex2f(...) ((void)0)
#define rlVertex2i(...) ((void)0)
#define rlVertex3f(...) ((void)0)
#define rlViewport(...) ((void)0)
#define rlDisableSmoothLines(...) ((void)0)
#define rlEnableSmoothLines(...) ((void)0)
#define rlTextureParameters(...) ((void)0)
#define rlSetClipPlanes(...) ((void)0)
#define rlCheckRenderBatchLimit(...) (false)
#define rlGetVersion(...) (0)
#define rlGetTextureIdDefault(...) (0u)
#define rlGetShaderIdDefault(...) (0u)
#define rlLoadTexture(...) (0u)
#define rlLoadVertexArray(...) (0u)
#define rlLoadVertexBuffer(...) (0u)
#define rlGetMatrixModelview(...) ((Matrix){0})
#define rlGetMatrixProjection(...) ((Matrix){0})

#define RL_LINES 1
#define RL_TRIANGLES 4
#define RL_QUADS 7
#define RL_MODELVIEW 0x1700
#define RL_PROJECTION 0x1701
#define RL_TEXTURE 0x1702
#define RL_ZERO 0
#define RL_ONE 1
#define RL_SRC_COLOR 0x300
#define RL_ONE_MINUS_SRC_COLOR 0x301
#define RL_SRC_ALPHA 0x302
#define RL_ONE_MINUS_SRC_ALPHA 0x303
#define RL_DST_ALPHA 0x304
#define RL_ONE_MINUS_DST_ALPHA 0x305
#define RL_DST_COLOR 0x306
#define RL_ONE_MINUS_DST_COLOR 0x307
#define RL_FUNC_ADD 0x8006
#define RL_MIN 0x8007
#define RL_MAX 0x8008
#define RL_FUNC_SUBTRACT 0x800A
#define RL_FUNC_REVERSE_SUBTRACT 0x800B
#define RL_CULL_FACE_FRONT 0
#define RL_CULL_FACE_BACK 1
/* clang-format on */

#endif
