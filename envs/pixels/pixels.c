/* Pixels: stacked camera frames in which every byte changes at every step, written about as fast as memory
 * allows. It measures bandwidth with an environment that can still be learned.
 *
 * A diagonal grey gradient drifts over the picture at a random speed, and the agent can brake or push it. The
 * reward is 1 while the first pixel is mid-grey and falls to 0 at black and white, so a good policy brakes
 * near mid-grey and pushes elsewhere. An observation stacks the last `frames` pictures, the newest last; only
 * the time limit ends an episode. */
// SPDX-License-Identifier: MIT
#include <shoal/env.h>
#include <shoal/ext/checkpoint.h>
#include <shoal/ext/info.h>
#include <shoal/ext/observe.h>
#include <shoal/ext/render.h>
#include <string.h>

enum { MAX_FRAMES = 16, RUN = 64 }; /* RUN: pixels painted at once, a power of two */
enum { BRAKE = 0, COAST = 1, PUSH = 2, NUM_ACTIONS = 3 };
enum { MIN_DRIFT = 4, MAX_DRIFT = 8, THRUST = 3 }; /* THRUST < MIN_DRIFT: the picture always moves */

typedef struct Pixels {
    int32_t drift;             /* greys per step when coasting; its sign is the direction */
    uint8_t first[MAX_FRAMES]; /* the first pixel of each stacked picture, newest last */
} Pixels;

static const shoal_option OPTIONS[] = {
    {.name = "height", .help = "rows of pixels in a picture", .type = SHOAL_OPTION_INT, .value = {.i = 84}},
    {.name = "width", .help = "pixels in a row", .type = SHOAL_OPTION_INT, .value = {.i = 84}},
    {.name = "frames",
     .help = "number of pictures in an observation",
     .type = SHOAL_OPTION_INT,
     .value = {.i = 4}},
};

static const shoal_info_field OBSERVED[] = {
    {"The last `frames` pictures in shades of grey, the newest one last: [height, width, frames]. Every byte "
     "changes in every step.",
     0, 0, 0, 0},
};
static const shoal_info_field ACTED[] = {
    {"A diagonal grey gradient drifts over the picture; the action slows it down or speeds it up.", 0, 0,
     SHOAL_NAMES("brake", "coast", "push")},
};
static const shoal_info_v1 INFO = {
    .summary = "Slow down or speed up a drifting grey gradient to keep the first pixel near mid-grey",
    .reward = "1 while the first pixel is mid-grey (128), falling to 0 at black and at white.",
    .ending = "Only the time limit ends an episode.",
    .observations = OBSERVED,
    .num_observations = 1,
    .actions = ACTED,
    .num_actions = 1,
};

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    int64_t height = options[0].i, width = options[1].i, frames = options[2].i;
    if (height < 1 || height > 4096 || width < 1 || width > 4096)
        return "height and width must be from 1 to 4096";
    if (frames < 1 || frames > MAX_FRAMES)
        return "frames must be from 1 to 16";
    spec->instance_bytes = sizeof(Pixels);
    spec->max_episode_steps = 1000;
    shoal_field picture = {.dtype = SHOAL_UINT8, .kind = SHOAL_BOX, .ndim = 3, .low = 0, .high = 255};
    picture.shape[0] = height;
    picture.shape[1] = width;
    picture.shape[2] = frames;
    shoal_field thrust = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = NUM_ACTIONS - 1};
    spec->add_observation(spec->host, &picture);
    spec->add_action(spec->host, &thrust);
    return 0;
}

/* Greys from one pixel to the next: about 256 per line, so that lines nearly continue each other. */
static uint8_t slope(const shoal_envs *envs) {
    int64_t width = envs->options[1].i;
    return (uint8_t)(width < 256 ? 256 / width : 1);
}

/* Repeats `run` to the end of `out`, each time `lift` greys brighter. */
static void paint(uint8_t *restrict out, uint64_t bytes, const uint8_t *restrict run, uint64_t run_bytes,
                  uint8_t lift) {
    uint8_t level = 0;
    uint64_t done = 0;
    for (; done + run_bytes <= bytes; done += run_bytes, level = (uint8_t)(level + lift))
        for (uint64_t i = 0; i < run_bytes; i++)
            out[done + i] = (uint8_t)(run[i] + level);
    for (uint64_t i = 0; done + i < bytes; i++)
        out[done + i] = (uint8_t)(run[i] + level);
}

static void observe(const Pixels *self, shoal_envs *envs, uint64_t env) {
    uint64_t frames = (uint64_t)envs->options[2].i;
    uint8_t run[RUN * MAX_FRAMES], rise = slope(envs), lift = rise;
    memcpy(run, self->first, frames);
    for (uint64_t done = frames; done < RUN * frames; done *= 2, lift = (uint8_t)(2 * lift))
        for (uint64_t i = 0; i < done; i++)
            run[done + i] = (uint8_t)(run[i] + lift);
    paint(SHOAL_OBSERVATION(uint8_t, envs, 0, env), envs->observation_bytes[0], run, RUN * frames, lift);
}

/* The pictures before the first are as if the ramp had drifted without pushes. */
static void reset_one(Pixels *self, shoal_envs *envs, uint64_t env) {
    shoal_rng *rng = &envs->rng[env];
    int32_t frames = (int32_t)envs->options[2].i;
    self->drift = (int32_t)shoal_integers(rng, MIN_DRIFT, MAX_DRIFT + 1);
    if (shoal_integers(rng, 0, 2))
        self->drift = -self->drift;
    int32_t newest = (int32_t)shoal_integers(rng, 0, 256);
    for (int32_t i = 0; i < frames; i++)
        self->first[i] = (uint8_t)(newest - (frames - 1 - i) * self->drift);
    observe(self, envs, env);
}

static void step_one(Pixels *self, shoal_envs *envs, uint64_t env) {
    int64_t action = *SHOAL_ACTION(int64_t, envs, 0, env), last = envs->options[2].i - 1;
    int32_t thrust = THRUST * ((action == PUSH) - (action == BRAKE));
    uint8_t newest = (uint8_t)(self->first[last] + self->drift + (self->drift < 0 ? -thrust : thrust));
    memmove(self->first, self->first + 1, (size_t)last);
    self->first[last] = newest;
    int32_t off = newest - 128;
    envs->rewards[env] = 1.0 - (off < 0 ? -off : off) / 128.0;
    envs->terminated[env] = 0;
    observe(self, envs, env);
}

SHOAL_BATCH(Pixels, reset_one, step_one)
SHOAL_OBSERVE(Pixels, observe)

static void render_size(shoal_envs *envs, uint64_t env, uint32_t *height, uint32_t *width) {
    (void)env;
    *height = (uint32_t)envs->options[0].i;
    *width = (uint32_t)envs->options[1].i;
}

/* Draws the newest picture again, because observations belong to the host. */
static void render_draw(shoal_envs *envs, uint64_t env, uint8_t *rgb) {
    const Pixels *self = SHOAL_INSTANCE(const Pixels, envs, env);
    uint64_t pixels = (uint64_t)(envs->options[0].i * envs->options[1].i);
    uint8_t grey = self->first[envs->options[2].i - 1], rise = slope(envs);
    for (uint64_t i = 0; i < pixels; i++, grey = (uint8_t)(grey + rise))
        memset(rgb + 3 * i, grey, 3);
}

static const void *get_extension(const char *id) {
    static const shoal_checkpoint_v1 checkpoint = {0}; /* the host copies the instance */
    static const shoal_observe_v1 observer = {Pixels_observe};
    static const shoal_render_v1 render = {.fps = 60, .size = render_size, .draw = render_draw};
    if (strcmp(id, SHOAL_EXT_INFO) == 0)
        return &INFO;
    if (strcmp(id, SHOAL_EXT_CHECKPOINT) == 0)
        return &checkpoint;
    if (strcmp(id, SHOAL_EXT_OBSERVE) == 0)
        return &observer;
    return strcmp(id, SHOAL_EXT_RENDER) == 0 ? &render : 0;
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Pixels-v0",
    .options = OPTIONS,
    .num_options = sizeof OPTIONS / sizeof OPTIONS[0],
    .describe = describe,
    .reset = Pixels_reset,
    .step = Pixels_step,
    .get_extension = get_extension,
};
