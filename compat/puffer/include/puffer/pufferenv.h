/* Contract 5.0: an environment's header says obs_t, OBS_SIZE, NUM_ATNS and ACT_SIZES, includes this, and
 * defines struct Log, struct Env with its agents, and the puf_ functions. pufferenv.c makes it a plug-in. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_PUFFERENV_H
#define SHOAL_PUFFER_PUFFERENV_H

#include <puffer/bf16.h>
#include <puffer/ini.h>
#include <puffer/settings.h>

#include "raylib.h"

#define PUF_CPU 0
#define PUF_GPU 1
#ifndef PUF_BACKEND
#define PUF_BACKEND PUF_CPU
#endif
#if PUF_BACKEND != PUF_CPU
#error "this environment steps on a GPU (PUF_BACKEND); Shoal runs those that step on a CPU"
#endif

typedef struct Env Env;
typedef struct Log Log;

typedef struct Agent {
#ifdef PUFFER_OBS_LATE /* obs_t is said below */
    void *observations;
#else
    obs_t *observations;
#endif
    float *actions, *rewards, *terminals;
    unsigned char *action_mask;
    int policy;
} Agent;

void puf_init(Env *env, Dict *kwargs);
void puf_reset(Env *env);
void puf_step(Env *env);
void puf_render(Env *env);
void puf_close(Env *env);
void puf_log(Log *log, Dict *out);

static PUFFER_UNUSED void puf_web_vsync(void) {}
#ifndef PUF_HAS_BOT_POLICY
static PUFFER_UNUSED void puf_set_bot_policy(Env *env, int policy) { (void)env, (void)policy; }
#endif

/* A mascot that some draw: there is none. */
typedef struct PvaClip {
    Model model;
    int frame_count, frame_start, frame_end, mesh_count;
    float fps;
    unsigned int flags;
} PvaClip;
#define pva_load_clip(path) ((PvaClip *)NULL)
#define pva_unload_clip(clip) ((void)(clip))
#define pva_update_clip(clip, frame) ((void)(clip))
#define pva_use_flat_albedo(clip) ((void)(clip))
#define pva_frame_at_time(clip, seconds) (0)

#endif
