/* The frozen numbers of include/shoal: every size, offset and constant that a compiled plug-in relies on. A
 * line that fails here breaks every plug-in in the world: undo the change, or raise SHOAL_ABI_MAJOR. For
 * 64-bit machines. */
#ifndef ABI_LAYOUT_H
#define ABI_LAYOUT_H

#include <shoal/env.h>
#include <shoal/ext/checkpoint.h>
#include <shoal/ext/info.h>
#include <shoal/ext/observe.h>
#include <shoal/ext/render.h>
#include <shoal/ext/state.h>
#include <stddef.h>

#ifdef __cplusplus
#define FROZEN(condition) static_assert(condition, #condition)
#else
#define FROZEN(condition) _Static_assert(condition, #condition)
#endif
#define SIZE(type, bytes) FROZEN(sizeof(type) == (bytes))
#define AT(type, member, offset, bytes)                                                                      \
    FROZEN(offsetof(type, member) == (offset) && sizeof(((type *)0)->member) == (bytes))

FROZEN(sizeof(void *) == 8);
FROZEN(SHOAL_ABI_MAJOR == 1 && SHOAL_ABI_MINOR == 0);
FROZEN(SHOAL_MAX_NDIM == 6);

FROZEN(SHOAL_CODE_INT == 0 && SHOAL_CODE_UINT == 1 && SHOAL_CODE_FLOAT == 2 && SHOAL_CODE_BOOL == 6);
FROZEN(SHOAL_BOX == 0 && SHOAL_DISCRETE == 1 && SHOAL_MULTI_DISCRETE == 2 && SHOAL_MULTI_BINARY == 3);
FROZEN(SHOAL_OPTION_INT == 0 && SHOAL_OPTION_FLOAT == 1 && SHOAL_OPTION_STRING == 2);

SIZE(shoal_dtype, 4);
AT(shoal_dtype, code, 0, 1);
AT(shoal_dtype, bits, 1, 1);
AT(shoal_dtype, lanes, 2, 2);

SIZE(shoal_field, 104);
AT(shoal_field, name, 0, 8);
AT(shoal_field, dtype, 8, 4);
AT(shoal_field, kind, 12, 4);
AT(shoal_field, ndim, 16, 4);
AT(shoal_field, reserved, 20, 4);
AT(shoal_field, shape, 24, 48);
AT(shoal_field, low, 72, 8);
AT(shoal_field, high, 80, 8);
AT(shoal_field, lows, 88, 8);
AT(shoal_field, highs, 96, 8);

SIZE(shoal_value, 8);
AT(shoal_value, i, 0, 8);
AT(shoal_value, f, 0, 8);
AT(shoal_value, s, 0, 8);

SIZE(shoal_option, 32);
AT(shoal_option, name, 0, 8);
AT(shoal_option, help, 8, 8);
AT(shoal_option, type, 16, 4);
AT(shoal_option, reserved, 20, 4);
AT(shoal_option, value, 24, 8);

SIZE(shoal_spec, 48);
AT(shoal_spec, instance_bytes, 0, 8);
AT(shoal_spec, lanes, 8, 4);
AT(shoal_spec, agents, 12, 4);
AT(shoal_spec, max_episode_steps, 16, 8);
AT(shoal_spec, host, 24, 8);
AT(shoal_spec, add_observation, 32, 8);
AT(shoal_spec, add_action, 40, 8);

SIZE(shoal_rng, 40);
AT(shoal_rng, state_high, 0, 8);
AT(shoal_rng, state_low, 8, 8);
AT(shoal_rng, inc_high, 16, 8);
AT(shoal_rng, inc_low, 24, 8);
AT(shoal_rng, half, 32, 4);
AT(shoal_rng, has_half, 36, 4);

SIZE(shoal_envs, 104);
AT(shoal_envs, num_envs, 0, 8);
AT(shoal_envs, options, 8, 8);
AT(shoal_envs, instances, 16, 8);
AT(shoal_envs, instance_bytes, 24, 8);
AT(shoal_envs, rng, 32, 8);
AT(shoal_envs, observations, 40, 8);
AT(shoal_envs, observation_bytes, 48, 8);
AT(shoal_envs, actions, 56, 8);
AT(shoal_envs, action_bytes, 64, 8);
AT(shoal_envs, rewards, 72, 8);
AT(shoal_envs, terminated, 80, 8);
AT(shoal_envs, truncated, 88, 8);
AT(shoal_envs, reset, 96, 8);

SIZE(shoal_entry_v1, 80);
AT(shoal_entry_v1, abi_major, 0, 4);
AT(shoal_entry_v1, abi_minor, 4, 4);
AT(shoal_entry_v1, name, 8, 8);
AT(shoal_entry_v1, options, 16, 8);
AT(shoal_entry_v1, num_options, 24, 8);
AT(shoal_entry_v1, describe, 32, 8);
AT(shoal_entry_v1, init, 40, 8);
AT(shoal_entry_v1, reset, 48, 8);
AT(shoal_entry_v1, step, 56, 8);
AT(shoal_entry_v1, close, 64, 8);
AT(shoal_entry_v1, get_extension, 72, 8);

SIZE(shoal_checkpoint_v1, 24);
AT(shoal_checkpoint_v1, size, 0, 8);
AT(shoal_checkpoint_v1, save, 8, 8);
AT(shoal_checkpoint_v1, restore, 16, 8);

SIZE(shoal_info_field, 40);
AT(shoal_info_field, text, 0, 8);
AT(shoal_info_field, elements, 8, 8);
AT(shoal_info_field, num_elements, 16, 8);
AT(shoal_info_field, values, 24, 8);
AT(shoal_info_field, num_values, 32, 8);

SIZE(shoal_info_v1, 56);
AT(shoal_info_v1, summary, 0, 8);
AT(shoal_info_v1, reward, 8, 8);
AT(shoal_info_v1, ending, 16, 8);
AT(shoal_info_v1, observations, 24, 8);
AT(shoal_info_v1, num_observations, 32, 8);
AT(shoal_info_v1, actions, 40, 8);
AT(shoal_info_v1, num_actions, 48, 8);

SIZE(shoal_observe_v1, 8);
AT(shoal_observe_v1, observe, 0, 8);

SIZE(shoal_render_v1, 24);
AT(shoal_render_v1, fps, 0, 4);
AT(shoal_render_v1, reserved, 4, 4);
AT(shoal_render_v1, size, 8, 8);
AT(shoal_render_v1, draw, 16, 8);

FROZEN(SHOAL_STATE_STABLE == 1);
FROZEN(SHOAL_ROLE_NONE == 0 && SHOAL_ROLE_GRID == 1 && SHOAL_ROLE_ENTITIES == 2 && SHOAL_ROLE_SCALAR == 3 &&
       SHOAL_ROLE_IMAGE == 4);

SIZE(shoal_category, 24);
AT(shoal_category, value, 0, 8);
AT(shoal_category, name, 8, 8);
AT(shoal_category, rgb, 16, 4);
AT(shoal_category, reserved, 20, 4);

SIZE(shoal_state_field, 112);
AT(shoal_state_field, name, 0, 8);
AT(shoal_state_field, dtype, 8, 4);
AT(shoal_state_field, ndim, 12, 4);
AT(shoal_state_field, shape, 16, 48);
AT(shoal_state_field, data, 64, 8);
AT(shoal_state_field, flags, 72, 4);
AT(shoal_state_field, role, 76, 4);
AT(shoal_state_field, columns, 80, 8);
AT(shoal_state_field, num_columns, 88, 8);
AT(shoal_state_field, categories, 96, 8);
AT(shoal_state_field, num_categories, 104, 8);

SIZE(shoal_state_v1, 8);
AT(shoal_state_v1, fields, 0, 8);

/* The functions a plug-in defines, with the types they have for ever. Also a plug-in that runs. */
static const char *describe(const shoal_value *options, shoal_spec *spec) {
    const shoal_field number = {0, SHOAL_INT64, SHOAL_DISCRETE, 0, 0, {0}, 0, 1, 0, 0};
    (void)options;
    spec->instance_bytes = sizeof(shoal_dtype);
    spec->add_observation(spec->host, &number);
    spec->add_action(spec->host, &number);
    return 0;
}
static const char *init(shoal_envs *envs, uint64_t env) {
    (void)envs, (void)env;
    return 0;
}
static void finish(shoal_envs *envs, uint64_t env) { (void)envs, (void)env; }
static void observe_one(const shoal_dtype *self, shoal_envs *envs, uint64_t env) {
    *SHOAL_OBSERVATION(int64_t, envs, 0, env) = self->code;
}
static void reset_one(shoal_dtype *self, shoal_envs *envs, uint64_t env) {
    self->code = (uint8_t)shoal_integers(&envs->rng[env], 0, 2);
    observe_one(self, envs, env);
}
static void step_one(shoal_dtype *self, shoal_envs *envs, uint64_t env) {
    self->code = (uint8_t)*SHOAL_ACTION(int64_t, envs, 0, env);
    observe_one(self, envs, env);
    envs->rewards[env] = shoal_uniform(&envs->rng[env], 0, 1);
    envs->terminated[env] = 0;
}
SHOAL_BATCH(shoal_dtype, reset_one, step_one)
SHOAL_OBSERVE(shoal_dtype, observe_one)

static uint64_t save_size(shoal_envs *envs, uint64_t env) { return (void)env, envs->instance_bytes; }
static void save(shoal_envs *envs, uint64_t env, void *out) { (void)envs, (void)env, (void)out; }
static const char *restore(shoal_envs *envs, uint64_t env, const void *in, uint64_t bytes) {
    return (void)envs, (void)env, (void)in, bytes == 4 ? 0 : "wrong size";
}
static void draw_size(shoal_envs *envs, uint64_t env, uint32_t *height, uint32_t *width) {
    (void)envs, (void)env;
    *height = *width = 1;
}
static void draw(shoal_envs *envs, uint64_t env, uint8_t *rgb) { (void)envs, (void)env, rgb[0] = 0; }

static const shoal_checkpoint_v1 checkpoint = {save_size, save, restore};
static const shoal_observe_v1 observer = {shoal_dtype_observe};
static const shoal_render_v1 render = {30, 0, draw_size, draw};

static void add_fields(shoal_envs *envs, uint64_t env, void *host,
                       void (*add)(void *host, const shoal_state_field *field)) {
    const shoal_category kind = {1, "a kind", 0xffffff, 0};
    const char *const column = "a column";
    const shoal_state_field field = {"x",     SHOAL_INT64, 1,     {1}, &envs->num_envs, 0, SHOAL_ROLE_GRID,
                                     &column, 1,           &kind, 1};
    (void)env;
    add(host, &field);
}
static const shoal_state_v1 state = {add_fields};

/* The ids are letters in every compiled plug-in. */
FROZEN(sizeof(SHOAL_EXT_CHECKPOINT) == sizeof("shoal.checkpoint/1"));
FROZEN(sizeof(SHOAL_EXT_INFO) == sizeof("shoal.info/1"));
FROZEN(sizeof(SHOAL_EXT_OBSERVE) == sizeof("shoal.observe/1"));
FROZEN(sizeof(SHOAL_EXT_RENDER) == sizeof("shoal.render/1"));
FROZEN(sizeof(SHOAL_EXT_STATE) == sizeof("shoal.state/1"));
static const void *get_extension(const char *id) {
    return id[6] == 'c'   ? (const void *)&checkpoint
           : id[6] == 'o' ? (const void *)&observer
           : id[6] == 's' ? (const void *)&state
           : id[6] == 'r' ? (const void *)&render
                          : 0;
}

static const shoal_option OPTIONS[] = {{"pace", "an option", SHOAL_OPTION_FLOAT, 0, {0}}};

#endif
