/* A minimal host of a plug-in: a loop in C calls its step and restarts finished episodes, nothing else. A
 * step costs the environment's own work here; the difference to Python is the cost of the call.
 *
 * For plug-ins with one field each way, one agent and their default options. */
// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <shoal/env.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static void *zeroed(uint64_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    if (memory == NULL)
        abort(); /* enough for a benchmark */
    return memset(memory, 0, bytes);
}

typedef struct host {
    shoal_envs envs;
    const shoal_entry_v1 *entry;
    void *library;
    uint64_t rows, limit, num_actions, turn, observation_bytes, action_bytes;
    uint64_t num_observation_fields, num_action_fields;
    void *observations, *instances;
    uint8_t *reset;
    char *actions; /* [num_actions][rows] */
    const void *given;
    uint32_t *length;
    shoal_value options[8];
} host;

static uint64_t row_bytes(const shoal_field *field) {
    uint64_t bytes = field->dtype.bits / 8;
    for (uint32_t i = 0; i < field->ndim; i++)
        bytes *= (uint64_t)field->shape[i];
    return bytes;
}
static void add_observation(void *self, const shoal_field *field) {
    ((host *)self)->observation_bytes = row_bytes(field);
    ((host *)self)->num_observation_fields++;
}
static void add_action(void *self, const shoal_field *field) {
    ((host *)self)->action_bytes = row_bytes(field);
    ((host *)self)->num_action_fields++;
}

EXPORT void host_free(host *self) {
    void *all[] = {
        self->observations,    self->instances,      self->reset,        self->actions,  self->length,
        self->envs.terminated, self->envs.truncated, self->envs.rewards, self->envs.rng, self};
    dlclose(self->library);
    for (uint64_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* NULL if it is not such a plug-in. */
EXPORT host *host_create(const char *path, uint64_t num_envs, const void *actions, uint64_t num_actions) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const shoal_entry_v1 *entry = library == NULL ? NULL : dlsym(library, "shoal_entry");
    if (entry == NULL || entry->abi_major != SHOAL_ABI_MAJOR || entry->num_options > 8) {
        if (library != NULL)
            dlclose(library);
        return NULL;
    }
    host *self = zeroed(sizeof *self);
    self->library = library;
    for (uint64_t i = 0; i < entry->num_options; i++)
        self->options[i] = entry->options[i].value;
    shoal_spec spec = {
        .lanes = 1, .agents = 1, .host = self, .add_observation = add_observation, .add_action = add_action};
    if (entry->describe(self->options, &spec) != NULL || spec.agents != 1 ||
        self->num_observation_fields != 1 || self->num_action_fields != 1) {
        host_free(self);
        return NULL;
    }
    uint64_t rows = (num_envs + spec.lanes - 1) / spec.lanes * spec.lanes;
    self->entry = entry;
    self->rows = rows;
    self->limit = spec.max_episode_steps == 0 ? UINT32_MAX : (uint64_t)spec.max_episode_steps;
    self->num_actions = num_actions;
    self->actions = zeroed(num_actions * rows * self->action_bytes);
    for (uint64_t i = 0; i < num_actions; i++)
        memcpy(self->actions + i * rows * self->action_bytes,
               (const char *)actions + i * num_envs * self->action_bytes, num_envs * self->action_bytes);
    self->observations = zeroed(rows * self->observation_bytes);
    self->instances = zeroed(rows * spec.instance_bytes);
    self->length = zeroed(rows * sizeof *self->length);
    self->reset = zeroed(rows);
    self->envs = (shoal_envs){.num_envs = num_envs,
                              .options = self->options,
                              .instances = self->instances,
                              .instance_bytes = spec.instance_bytes,
                              .rng = zeroed(rows * sizeof(shoal_rng)),
                              .observations = &self->observations,
                              .observation_bytes = &self->observation_bytes,
                              .actions = &self->given,
                              .action_bytes = &self->action_bytes,
                              .rewards = zeroed(rows * sizeof(double)),
                              .terminated = zeroed(rows),
                              .truncated = zeroed(rows),
                              .reset = self->reset};
    for (uint64_t i = 0; i < num_envs; i++) {
        self->envs.rng[i] = (shoal_rng){.state_low = i * 0x9e3779b97f4a7c15u, .inc_low = 2 * i + 1};
        if (entry->init != NULL && entry->init(&self->envs, i) != NULL) {
            host_free(self);
            return NULL;
        }
    }
    entry->reset(&self->envs, 0, num_envs);
    return self;
}

static void settle(uint64_t count, uint64_t limit, uint32_t *restrict length, double *restrict rewards,
                   uint8_t *restrict terminated, uint8_t *restrict truncated, uint8_t *restrict reset) {
    for (uint64_t i = 0; i < count; i++)
        length[i] = reset[i] ? 0 : length[i] + 1;
    for (uint64_t i = 0; i < count; i++)
        truncated[i] |= length[i] >= limit;
    for (uint64_t i = 0; i < count; i++)
        rewards[i] = reset[i] ? 0 : rewards[i];
    for (uint64_t i = 0; i < count; i++) {
        terminated[i] &= (uint8_t)~reset[i];
        truncated[i] &= (uint8_t)~reset[i];
        reset[i] = terminated[i] | truncated[i];
    }
}

EXPORT void host_run(host *self, uint64_t steps) {
    shoal_envs *envs = &self->envs;
    for (uint64_t step = 0; step < steps; step++) {
        self->given = self->actions + self->turn++ % self->num_actions * self->rows * self->action_bytes;
        memset(envs->truncated, 0, envs->num_envs);
        self->entry->step(envs, 0, envs->num_envs);
        settle(envs->num_envs, self->limit, self->length, envs->rewards, envs->terminated, envs->truncated,
               self->reset);
    }
}
