/* Tests of core/engine.c: what a step returns in every autoreset mode, time limit, episode statistics. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "counting.h"

static const setting FOUR = {.num_envs = 4, .lanes = 1, .agents = 1, .threads = 1, .fails = -1};
static const setting THREE_AGENTS = {.num_envs = 2, .lanes = 1, .agents = 3, .threads = 1, .fails = -1};

static void open_and_reset(world *world, setting wanted, enum shoal_autoreset autoreset, uint64_t limit) {
    wanted.autoreset = autoreset;
    wanted.limit = limit;
    CHECK_EQUAL(open_world(world, wanted), 0);
    shoal_engine_reset(world->engine, NULL, &world->targets);
}

static void expect_observation(void *const *observations, uint64_t row, int episode, int step, int line) {
    const int32_t *where = (const int32_t *)observations[0] + 3 * row;
    if (where[0] != (int32_t)row || where[1] != episode || where[2] != step) {
        fprintf(stderr, "%s:%d: row %d: expected episode %d step %d, found row %d episode %d step %d\n",
                __FILE__, line, (int)row, episode, step, where[0], where[1], where[2]);
        exit(1);
    }
}
#define OBSERVED(row, episode, step) expect_observation(w.observations, row, episode, step, __LINE__)
#define FINAL(row, episode, step) expect_observation(w.finals, row, episode, step, __LINE__)
#define RESULT(row, reward, terminates, truncates)                                                           \
    do {                                                                                                     \
        CHECK(w.targets.rewards[row] == (reward));                                                           \
        CHECK_EQUAL(w.targets.terminated[row], terminates);                                                  \
        CHECK_EQUAL(w.targets.truncated[row], truncates);                                                    \
    } while (0)
#define LAST(row, total, steps)                                                                              \
    do {                                                                                                     \
        CHECK(w.arrays.last_return[row] == (total));                                                         \
        CHECK_EQUAL(w.arrays.last_length[row], steps);                                                       \
    } while (0)
#define STATISTICS(num_steps, num_episodes, lengths, returns)                                                \
    do {                                                                                                     \
        shoal_statistics sum_;                                                                               \
        shoal_engine_statistics(w.engine, &sum_);                                                            \
        CHECK_EQUAL(sum_.steps, num_steps);                                                                  \
        CHECK_EQUAL(sum_.episodes, num_episodes);                                                            \
        CHECK_EQUAL(sum_.length_sum, lengths);                                                               \
        CHECK(sum_.return_sum == (returns));                                                                 \
    } while (0)

static void next_step_returns_the_end_and_resets_in_the_step_after(void) {
    world w;
    open_and_reset(&w, FOUR, SHOAL_NEXT_STEP, 0);
    for (int row = 0; row < 4; row++)
        OBSERVED(row, 1, 0);
    CHECK_EQUAL(step_world(&w), 0);
    w.actions[1] = TERMINATE;
    w.actions[2] = TRUNCATE;
    CHECK_EQUAL(step_world(&w), 2);
    OBSERVED(1, 1, 2);
    RESULT(0, 0.5, 0, 0);
    RESULT(1, 1.5, 1, 0);
    RESULT(2, 2.5, 0, 1);
    /* Actions of environments that are being reset are not heeded. */
    CHECK_EQUAL(step_world(&w), 0);
    OBSERVED(0, 1, 3);
    OBSERVED(1, 2, 0);
    OBSERVED(2, 2, 0);
    RESULT(0, 0.75, 0, 0);
    RESULT(1, 0, 0, 0);
    RESULT(2, 0, 0, 0);
    w.actions[1] = w.actions[2] = GO_ON;
    CHECK_EQUAL(step_world(&w), 0);
    OBSERVED(1, 2, 1);
    RESULT(1, 1.25, 0, 0);
    STATISTICS(4 * 4 - 2, 2, 4, 1.25 + 1.5 + 2.25 + 2.5);
    close_world(&w);
}

static void same_step_returns_the_new_episode_and_keeps_the_final_observation(void) {
    world w;
    open_and_reset(&w, FOUR, SHOAL_SAME_STEP, 0);
    memset(w.finals[0], 0x77, w.rows * 12);
    step_world(&w);
    w.actions[1] = TERMINATE;
    CHECK_EQUAL(step_world(&w), 1);
    OBSERVED(0, 1, 2);
    OBSERVED(1, 2, 0);
    FINAL(1, 1, 2);
    CHECK(((double *)w.finals[1])[1] != ((double *)w.observations[1])[1]);
    for (int row = 0; row < 4; row++)
        CHECK_EQUAL(((int32_t *)w.finals[0])[3 * row] == 0x77777777, row != 1);
    RESULT(1, 1.5, 1, 0);
    LAST(1, 1.25 + 1.5, 2);
    CHECK_EQUAL(step_world(&w), 1); /* the action still terminates: an episode of one step */
    OBSERVED(1, 3, 0);
    FINAL(1, 2, 1);
    RESULT(1, 1.25, 1, 0);
    LAST(1, 1.25, 1);
    STATISTICS(4 * 3, 2, 3, 1.25 + 1.5 + 1.25);
    close_world(&w);
}

static void disabled_mode_resets_only_on_request(void) {
    world w;
    open_and_reset(&w, FOUR, SHOAL_DISABLED, 0);
    w.actions[1] = TERMINATE;
    CHECK_EQUAL(step_world(&w), 1);
    RESULT(1, 1.25, 1, 0);
    LAST(1, 1.25, 1);
    w.actions[1] = GO_ON;
    CHECK_EQUAL(step_world(&w), 0);
    OBSERVED(1, 1, 2);
    for (int env = 0; env < 4; env++)
        CHECK_EQUAL(w.arrays.reset[env], 0);
    uint8_t mask[4] = {0, 1, 0, 0};
    shoal_engine_reset(w.engine, mask, &w.targets);
    OBSERVED(0, 1, 2);
    OBSERVED(1, 2, 0);
    step_world(&w);
    OBSERVED(0, 1, 3);
    OBSERVED(1, 2, 1);
    w.actions[1] = TERMINATE;
    step_world(&w);
    LAST(1, 1.25 + 1.5, 2);
    close_world(&w);
}

static void pending_reset_happens_once_in_every_mode(void) {
    for (int mode = SHOAL_NEXT_STEP; mode <= SHOAL_DISABLED; mode++)
        for (int agents = 1; agents <= 3; agents += 2) {
            world w;
            open_and_reset(&w, agents == 1 ? FOUR : THREE_AGENTS, (enum shoal_autoreset)mode, 0);
            step_world(&w);
            w.arrays.reset[1] = 1; /* as a restored environment has it */
            CHECK_EQUAL(step_world(&w), 0);
            OBSERVED(agents, 2, 0);
            RESULT(agents, 0, 0, 0);
            step_world(&w);
            OBSERVED(agents, 2, 1);
            OBSERVED(0, 1, 3);
            close_world(&w);
        }
}

static void time_limit_truncates_and_restarts_with_each_episode(void) {
    world w;
    open_and_reset(&w, FOUR, SHOAL_NEXT_STEP, 3);
    CHECK_EQUAL(step_world(&w), 0);
    w.actions[3] = TERMINATE;
    CHECK_EQUAL(step_world(&w), 1);
    w.actions[3] = GO_ON;
    w.actions[1] = TERMINATE;
    w.actions[2] = TRUNCATE;
    CHECK_EQUAL(step_world(&w), 3); /* 3 is being reset */
    RESULT(0, 0.75, 0, 1);
    RESULT(1, 1.75, 1, 1); /* both, as in Gymnasium */
    RESULT(2, 2.75, 0, 1);
    RESULT(3, 0, 0, 0);
    w.actions[1] = w.actions[2] = GO_ON;
    CHECK_EQUAL(step_world(&w), 0);
    CHECK_EQUAL(step_world(&w), 0);
    CHECK_EQUAL(step_world(&w), 1);
    RESULT(3, 3.75, 0, 1);
    LAST(3, 3.25 + 3.5 + 3.75, 3);
    CHECK_EQUAL(step_world(&w), 3);
    STATISTICS(7 * 4 - 5, 1 + 3 + 1 + 3, 2 + 3 * 7,
               w.arrays.last_return[0] * 2 + w.arrays.last_return[1] * 2 + w.arrays.last_return[2] * 2 +
                   3.25 + 3.5 + 10.5);
    close_world(&w);
}

static void episode_without_time_limit_continues(void) {
    world w;
    open_and_reset(&w, FOUR, SHOAL_NEXT_STEP, 0);
    for (int i = 1; i <= 3000; i++)
        CHECK_EQUAL(step_world(&w), 0);
    OBSERVED(2, 1, 3000);
    CHECK_EQUAL(w.arrays.length[2], 3000);
    STATISTICS(3000 * 4, 0, 0, 0);
    close_world(&w);
}

static void a_masked_reset_touches_only_those_environments(void) {
    world w;
    open_and_reset(&w, FOUR, SHOAL_NEXT_STEP, 3);
    w.actions[0] = w.actions[1] = TERMINATE;
    step_world(&w);
    w.actions[0] = w.actions[1] = GO_ON;
    /* 0 ended and is reset by hand, 1 ended and is not, 2 is in the middle and is, 3 is not. */
    uint8_t mask[4] = {1, 0, 255, 0};
    memset(w.observations[0], 0, w.rows * 12);
    shoal_engine_reset(w.engine, mask, &w.targets);
    OBSERVED(0, 2, 0);
    OBSERVED(2, 2, 0);
    for (int row = 1; row < 4; row += 2)
        for (int k = 0; k < 3; k++)
            CHECK_EQUAL(((int32_t *)w.observations[0])[3 * row + k], 0);
    LAST(0, 0.25, 1); /* of the episode that ended; one cut off in the middle leaves no trace */
    LAST(2, 0, 0);
    step_world(&w);
    OBSERVED(0, 2, 1);
    OBSERVED(1, 2, 0);
    OBSERVED(2, 2, 1);
    OBSERVED(3, 1, 2);
    CHECK_EQUAL(step_world(&w), 1);
    RESULT(3, 3.75, 0, 1);
    CHECK_EQUAL(step_world(&w), 2);
    RESULT(2, 2.75, 0, 1);
    LAST(2, 2.25 + 2.5 + 2.75, 3);
    close_world(&w);
}

/* ---- Several agents: rows 0, 1, 2 are environment 0, rows 3, 4, 5 environment 1 */

static void environment_continues_if_only_some_rows_end(void) {
    for (int mode = SHOAL_NEXT_STEP; mode <= SHOAL_DISABLED; mode++) {
        world w;
        open_and_reset(&w, THREE_AGENTS, (enum shoal_autoreset)mode, 0);
        step_world(&w);
        w.actions[1] = TERMINATE;
        CHECK_EQUAL(step_world(&w), 1);
        w.actions[1] = GO_ON;
        RESULT(0, 0.5, 0, 0);
        RESULT(1, 1.5, 1, 0);
        LAST(1, 1.25 + 1.5, 2);
        LAST(0, 0, 0);
        if (mode == SHOAL_SAME_STEP)
            FINAL(1, 1, 2);
        w.actions[2] = w.actions[4] = TRUNCATE;
        CHECK_EQUAL(step_world(&w), 2); /* not all rows of an environment in the same step */
        CHECK_EQUAL(step_world(&w), 2);
        for (int row = 0; row < 6; row++)
            OBSERVED(row, 1, 4);
        w.actions[1] = TERMINATE;
        CHECK_EQUAL(step_world(&w), 3);
        LAST(1, 1.75 + 2 + 2.25, 3);
        LAST(2, 3.25, 1);
        STATISTICS(6 * 5, 1 + 2 + 2 + 3, 2 + 6 + 2 + 5,
                   2.75 + (2.25 + 2.5 + 2.75) + (4.25 + 4.5 + 4.75) + 3 + 5 + 6 + 3.25 + 5.25);
        close_world(&w);
    }
}

static void when_all_rows_end_at_once_the_environment_is_over(void) {
    world w;
    open_and_reset(&w, THREE_AGENTS, SHOAL_NEXT_STEP, 0);
    w.actions[0] = w.actions[1] = TERMINATE;
    w.actions[2] = TRUNCATE;
    CHECK_EQUAL(step_world(&w), 3);
    CHECK_EQUAL(step_world(&w), 0);
    for (int row = 0; row < 6; row++) {
        OBSERVED(row, row < 3 ? 2 : 1, row < 3 ? 0 : 2);
        RESULT(row, row < 3 ? 0 : row + 0.5, 0, 0);
    }
    STATISTICS(3 + 3 + 3, 3, 3, 0.25 + 1.25 + 2.25);
    memset(w.actions, 0, w.rows * 8);
    step_world(&w);
    OBSERVED(0, 2, 1);
    close_world(&w);

    open_and_reset(&w, THREE_AGENTS, SHOAL_SAME_STEP, 0);
    w.actions[3] = w.actions[4] = w.actions[5] = TERMINATE;
    step_world(&w);
    for (int row = 3; row < 6; row++) {
        OBSERVED(row, 2, 0);
        FINAL(row, 1, 1);
        RESULT(row, row + 0.25, 1, 0);
    }
    OBSERVED(0, 1, 1);
    close_world(&w);

    open_and_reset(&w, THREE_AGENTS, SHOAL_DISABLED, 0);
    w.actions[3] = w.actions[4] = w.actions[5] = TERMINATE;
    step_world(&w);
    step_world(&w);
    OBSERVED(3, 1, 2);
    close_world(&w);
}

static void time_limit_of_an_environment_truncates_every_row(void) {
    world w;
    open_and_reset(&w, THREE_AGENTS, SHOAL_NEXT_STEP, 3);
    w.actions[1] = TERMINATE;
    step_world(&w);
    w.actions[1] = GO_ON;
    CHECK_EQUAL(step_world(&w), 0);
    CHECK_EQUAL(step_world(&w), 6);
    for (int row = 0; row < 6; row++)
        RESULT(row, row + 0.75, 0, 1);
    LAST(0, 0.25 + 0.5 + 0.75, 3);
    LAST(1, 1.5 + 1.75, 2); /* since it ended */
    CHECK_EQUAL(step_world(&w), 0);
    OBSERVED(5, 2, 0);
    uint8_t mask[2] = {0, 1};
    step_world(&w);
    shoal_engine_reset(w.engine, mask, &w.targets);
    step_world(&w);
    CHECK_EQUAL(step_world(&w), 3); /* environment 1 began its time again */
    RESULT(2, 2.75, 0, 1);
    RESULT(3, 3.5, 0, 0);
    close_world(&w);
}

int main(void) {
    RUN(next_step_returns_the_end_and_resets_in_the_step_after);
    RUN(same_step_returns_the_new_episode_and_keeps_the_final_observation);
    RUN(disabled_mode_resets_only_on_request);
    RUN(pending_reset_happens_once_in_every_mode);
    RUN(time_limit_truncates_and_restarts_with_each_episode);
    RUN(episode_without_time_limit_continues);
    RUN(a_masked_reset_touches_only_those_environments);
    RUN(environment_continues_if_only_some_rows_end);
    RUN(when_all_rows_end_at_once_the_environment_is_over);
    RUN(time_limit_of_an_environment_truncates_every_row);
    return 0;
}
