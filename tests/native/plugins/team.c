/* Three agents. Action 0 goes on, 1 terminates the agent, 2 truncates it; observation {agent, episode, step};
 * reward agent + 1. */
// SPDX-License-Identifier: MIT
#include <shoal/env.h>

enum { AGENTS = 3 };

typedef struct Team {
    float episode, step;
} Team;

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    shoal_field seen = {.dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {3}, .low = 0, .high = 1e6};
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .high = 2};
    spec->instance_bytes = sizeof(Team);
    spec->agents = AGENTS;
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &move);
    return 0;
}

static void observe(const Team *self, shoal_envs *envs, uint64_t env) {
    for (uint64_t agent = 0; agent < AGENTS; agent++) {
        float *seen = SHOAL_OBSERVATION(float, envs, 0, env *AGENTS + agent);
        seen[0] = (float)agent;
        seen[1] = self->episode;
        seen[2] = self->step;
    }
}

static void reset_one(Team *self, shoal_envs *envs, uint64_t env) {
    self->episode++;
    self->step = 0;
    observe(self, envs, env);
}

static void step_one(Team *self, shoal_envs *envs, uint64_t env) {
    self->step++;
    for (uint64_t row = env * AGENTS; row < (env + 1) * AGENTS; row++) {
        int64_t action = *SHOAL_ACTION(int64_t, envs, 0, row);
        envs->rewards[row] = (double)(row % AGENTS + 1);
        envs->terminated[row] = action == 1;
        envs->truncated[row] = action == 2;
    }
    observe(self, envs, env);
}

SHOAL_BATCH(Team, reset_one, step_one)

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .name = "Team-v0",
    .describe = describe,
    .reset = Team_reset,
    .step = Team_step,
};
