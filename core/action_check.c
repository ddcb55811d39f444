/* Checks of all actions as a job of a pool: see action_check.h. */
// SPDX-License-Identifier: MIT
#include "action_check.h"

#include "engine.h"

#include <stdatomic.h>

enum { CHUNKS_PER_THREAD = 4 };

typedef struct job {
    const shoal_action_check *check;
    uint32_t num_chunks;
    _Atomic(uint64_t) first_bad;
} job;

/* Checks rows begin .. end. Returns 1 if one of them is bad. */
static uint64_t check_range(job *job, uint64_t begin, uint64_t end) {
    const shoal_action_check *check = job->check;
    const shoal_field *field = check->field;
    const char *rows = (const char *)check->rows + begin * shoal_field_bytes(field);
    const int64_t bad =
        check->bytes == NULL
            ? shoal_engine_bad_action(field, rows, end - begin, 1)
            : shoal_engine_actions_to_bytes(field, rows, end - begin,
                                            check->bytes + begin * shoal_field_elements(field));
    if (bad < 0)
        return 0;
    const uint64_t row = begin + (uint64_t)bad;
    uint64_t first = atomic_load(&job->first_bad);
    while (row < first && !atomic_compare_exchange_weak(&job->first_bad, &first, row))
        continue;
    return 1;
}

static uint64_t check_chunk(void *context, uint32_t chunk) {
    job *job = context;
    const shoal_action_check *check = job->check;
    const uint64_t num_blocks = (check->num_rows + check->block_rows - 1) / check->block_rows;
    const uint64_t begin = num_blocks * chunk / job->num_chunks * check->block_rows,
                   next = num_blocks * (chunk + 1) / job->num_chunks * check->block_rows;
    return check_range(job, begin, next < check->num_rows ? next : check->num_rows);
}

static uint64_t check_all(void *context) {
    job *job = context;
    return check_range(job, 0, job->check->num_rows);
}

int64_t shoal_action_check_run(const shoal_action_check *check, shoal_pool *pool, uint32_t num_threads,
                               shoal_choice *choice) {
    job job = {check, num_threads * CHUNKS_PER_THREAD, UINT64_MAX};
    const shoal_pool_job all = {.run_chunk = check_chunk,
                                .run_all = check_all,
                                .context = &job,
                                .chunks = job.num_chunks,
                                .is_only_reading = check->bytes == NULL};
    if (pool == NULL)
        return check_all(&job) == 0 ? -1 : (int64_t)atomic_load(&job.first_bad);
    const double bytes = (double)(check->num_rows * shoal_field_bytes(check->field) + 1);
    const uint64_t bad =
        choice == NULL ? shoal_pool_run(pool, &all) : shoal_choice_run(choice, pool, &all, 1e6 / bytes);
    return bad == 0 ? -1 : (int64_t)atomic_load(&job.first_bad);
}
