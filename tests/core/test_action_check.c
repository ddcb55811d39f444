/* Tests of core/action_check.c: one thread and a pool find the same first bad row and write the same bytes,
 * however the rows are divided. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "action_check.h"

#include "check.h"

#include <string.h>

enum { MOST_ROWS = 5000, ELEMENTS = 2, THREADS = 4, UNWRITTEN = 77 };

static const shoal_field FIELD = {.dtype = {SHOAL_CODE_INT, 64, 1},
                                  .kind = SHOAL_MULTI_DISCRETE,
                                  .ndim = 1,
                                  .shape = {ELEMENTS},
                                  .low = 0,
                                  .high = 9};

static int64_t actions[MOST_ROWS][ELEMENTS];
static uint8_t bytes[MOST_ROWS + 1][ELEMENTS]; /* the last one stays unwritten */

static shoal_action_check make_check(uint64_t rows, uint64_t block_rows) {
    memset(bytes, UNWRITTEN, sizeof bytes);
    for (int i = 0; i < MOST_ROWS; i++)
        for (int k = 0; k < ELEMENTS; k++)
            actions[i][k] = (7 * i + k) % 10;
    return (shoal_action_check){&FIELD, actions, rows, block_rows, bytes[0]};
}

static void check_bytes(uint64_t rows) {
    for (uint64_t i = 0; i < rows; i++)
        for (int k = 0; k < ELEMENTS; k++)
            if (bytes[i][k] != actions[i][k])
                CHECK_EQUAL(bytes[i][k], actions[i][k]);
    for (int k = 0; k < ELEMENTS; k++)
        CHECK_EQUAL(bytes[rows][k], UNWRITTEN);
}

static void every_row_is_checked_and_written_for_any_size(void) {
    shoal_pool *pool;
    CHECK_EQUAL(shoal_pool_create(THREADS, 0, &pool), 0);
    static const uint64_t SIZES[] = {1, 2, 15, 16, 17, 1000, 1023, 1024, 1025, MOST_ROWS},
                          BLOCKS[] = {1, 7, 64, 1024};
    for (size_t s = 0; s < sizeof SIZES / sizeof SIZES[0]; s++)
        for (size_t b = 0; b < sizeof BLOCKS / sizeof BLOCKS[0]; b++) {
            const uint64_t rows = SIZES[s];
            shoal_action_check check = make_check(rows, BLOCKS[b]);
            CHECK_EQUAL(shoal_action_check_run(&check, pool, THREADS, NULL), -1);
            check_bytes(rows);
            const uint64_t places[] = {0, rows / 2, rows - 1};
            for (int p = 0; p < 3; p++)
                for (int both = 0; both < 2; both++) {
                    actions[places[p]][1] = 10;
                    if (both) /* a later one does not hide it */
                        actions[rows - 1][0] = -1;
                    check.bytes = bytes[0];
                    CHECK_EQUAL(shoal_action_check_run(&check, pool, THREADS, NULL), places[p]);
                    check.bytes = NULL;
                    CHECK_EQUAL(shoal_action_check_run(&check, pool, THREADS, NULL), places[p]);
                    (void)make_check(rows, BLOCKS[b]);
                }
        }
    shoal_pool_destroy(pool);
}

static void a_check_gives_the_same_whichever_way_is_chosen(void) {
    shoal_pool *pool;
    shoal_choice choice = {0};
    CHECK_EQUAL(shoal_pool_create(THREADS, 0, &pool), 0);
    shoal_action_check check = make_check(MOST_ROWS, 64);
    for (int i = 0; i < 2000; i++) {
        const int is_bad = i % 3 == 0;
        actions[4321][0] = is_bad ? 10 : 5;
        CHECK_EQUAL(shoal_action_check_run(&check, pool, THREADS, &choice), is_bad ? 4321 : -1);
    }
    actions[4321][0] = 5;
    CHECK_EQUAL(shoal_action_check_run(&check, pool, THREADS, &choice), -1);
    check_bytes(MOST_ROWS);
    CHECK(choice.trials > 0); /* so both ways were used */
    CHECK_EQUAL(shoal_action_check_run(&check, NULL, 1, NULL), -1);
    actions[4321][0] = 10;
    CHECK_EQUAL(shoal_action_check_run(&check, NULL, 1, NULL), 4321);
    shoal_pool_destroy(pool);
}

int main(void) {
    RUN(every_row_is_checked_and_written_for_any_size);
    RUN(a_check_gives_the_same_whichever_way_is_chosen);
    return 0;
}
