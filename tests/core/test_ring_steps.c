/* A writer killed at each named step of the protocol: nothing acknowledged is lost, nothing torn is read, and
 * the others go on at once. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#define SHOAL_RING_STEP die_at
/* A second copy of the pushes and reads, under other names, with the steps called. */
#define shoal_ring_push steps_push
#define shoal_ring_wait_for_room steps_wait_for_room
#define shoal_ring_fetch steps_fetch
#define shoal_ring_draw steps_draw
#define shoal_ring_gather steps_gather
#define shoal_ring_redraw steps_redraw
#define shoal_ring_set_new_weights steps_set_new_weights
#define shoal_ring_set_weights steps_set_weights
#define shoal_ring_latest steps_latest
#define shoal_ring_ids steps_ids
#define shoal_ring_restore steps_restore
#include "../../core/gather.c"

#include "check.h"
#include "seed.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 100, STRIDE = 8 * WORDS + 64, CAPACITY = 5, MOST = 8, BATCH = 3, BATCHES = 6 };

typedef struct memory {
    shoal_word64 tail, numbers_used;
    shoal_ring_writer writers[SHOAL_RING_WRITERS];
    _Alignas(64) char rows[MOST * STRIDE];
    uint64_t acknowledged[BATCH * BATCHES]; /* the child's ids */
    shoal_word64 number;                    /* how many of them */
} memory;

static memory *shared;
static int shared_fd;
static const shoal_column column = {8, WORDS * 8};
static const shoal_columns columns = {&column, 1};
static const char *fatal;
static int turns_left;
static _Thread_local uint64_t stalls; /* a thread's own random state; 0: it does not stall */

void die_at(const char *name) {
    if (stalls != 0) {
        stalls = stalls * 6364136223846793005u + 1442695040888963407u;
        if (stalls >> 60 == 0)
            usleep((unsigned)(stalls >> 40 & 127));
        else if (stalls >> 62 == 1)
            sched_yield();
    }
    if (fatal != NULL && strcmp(name, fatal) == 0 && turns_left-- == 0)
        kill(getpid(), SIGKILL);
}

static uint64_t capacity = CAPACITY;

static shoal_ring handle(void) {
    return (shoal_ring){.tail = &shared->tail,
                        .numbers_used = &shared->numbers_used,
                        .writers = shared->writers,
                        .rows = shared->rows,
                        .capacity = capacity,
                        .stride = STRIDE,
                        .lock_fd = shoal_reopen(shared_fd, 1),
                        .writer = SHOAL_RING_WRITERS};
}

/* A row is its writer's number and its own in every word. */
static void push(shoal_ring *ring, uint64_t name, uint64_t first, uint64_t *ids) {
    uint64_t rows[BATCH][WORDS];
    for (uint64_t i = 0; i < BATCH; i++)
        for (int w = 0; w < WORDS; w++)
            rows[i][w] = name << 32 | (first + i);
    uint64_t done = 0, since = 0;
    while (done < BATCH) {
        const void *in[] = {rows[done]};
        done += shoal_ring_push(ring, columns, in, BATCH - done, ids + done);
        CHECK(done == BATCH || shoal_ring_wait_for_room(&since));
    }
}

static void write_and_die(const char *name, int turn) {
    fatal = name;
    turns_left = turn;
    shoal_ring ring = handle();
    CHECK(shoal_ring_register(&ring) == 0);
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        push(&ring, 1, batch * BATCH, &shared->acknowledged[batch * BATCH]);
        atomic_store(&shared->number, (batch + 1) * BATCH);
    }
    _exit(0);
}

/* Whether the row is there; if so it is whole, and the one that was pushed. */
static int there(const shoal_ring *ring, uint64_t id, uint64_t expected) {
    uint64_t row[WORDS];
    void *out[] = {row};
    uint8_t found;
    if (shoal_ring_fetch(ring, columns, &id, 1, out, &found) == 0)
        return 0;
    for (int w = 0; w < WORDS; w++)
        CHECK_EQUAL(row[w], expected);
    return 1;
}

static int died_at(const char *name, int turn) {
    memset(shared, 0, sizeof *shared);
    shared_fd = shoal_memory_create();
    CHECK(shared_fd >= 0);
    const pid_t pid = fork();
    if (pid == 0)
        write_and_die(name, turn);
    int status;
    CHECK_EQUAL(waitpid(pid, &status, 0), pid);
    shoal_ring ring = handle();
    const uint64_t tail = atomic_load(&shared->tail), number = atomic_load(&shared->number);
    for (uint64_t i = 0; i < number; i++) { /* overwritten by capacity alone, if at all */
        const uint64_t id = shared->acknowledged[i];
        CHECK(there(&ring, id, 1ull << 32 | i) || id + CAPACITY < tail);
    }
    CHECK(shoal_ring_register(&ring) == 0); /* under the dead one's number */
    CHECK(ring.writer == 0 && atomic_load(&shared->writers[0].held_count) == 0);
    for (uint64_t slot = 0; slot < CAPACITY; slot++)
        CHECK(shoal_ring_state(atomic_load(shoal_ring_at(&ring, slot))) != SHOAL_RING_OPEN);
    uint64_t ids[BATCH], before = tail, full = 0;
    for (uint64_t batch = 0; batch < 2 * CAPACITY; batch++) { /* it neither waits nor loses a turn */
        push(&ring, 2, batch * BATCH, ids);
        for (uint64_t i = 0; i < BATCH; i++) {
            CHECK_EQUAL(ids[i], before + batch * BATCH + i);
            CHECK(there(&ring, ids[i], 2ull << 32 | (batch * BATCH + i)));
        }
    }
    for (uint64_t slot = 0; slot < CAPACITY; slot++)
        full += shoal_ring_load_full(&ring, slot) != 0;
    CHECK_EQUAL(full, CAPACITY);
    close(ring.lock_fd);
    close(shared_fd);
    return WIFSIGNALED(status);
}

static void a_writer_killed_at_any_step_loses_nothing_acknowledged_and_stops_nobody(void) {
    const char *names[] = {"announced", "taken", "claimed", "written", "committed"};
    int deaths = 0;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        int turn = 0;
        while (died_at(names[n], turn))
            turn++;
        CHECK_EQUAL(turn, (n < 2 ? 2 : BATCH) * BATCHES); /* every time: twice a batch, or for each row */
        deaths += turn;
    }
    printf("   %d deaths\n", deaths);
}

/* -- threads that stall between the steps
 * -------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = UNDER_SANITIZERS ? 400 : 150 };
static uint64_t pushed[THREADS][ROUNDS * BATCH];
static shoal_word ended;

static void *push_and_stall(void *number) {
    const uint64_t me = (uint64_t)(uintptr_t)number;
    shoal_ring ring = handle();
    CHECK(shoal_ring_register(&ring) == 0);
    stalls = me + 1;
    for (uint64_t round = 0; round < ROUNDS; round++)
        push(&ring, me, round * BATCH, &pushed[me][round * BATCH]);
    close(ring.lock_fd);
    return NULL;
}

static void *read_and_stall(void *number) {
    shoal_ring ring = handle();
    uint64_t row[WORDS], read = 0, laps[MOST] = {0};
    void *out[] = {row};
    uint8_t found;
    stalls = 100 + (uint64_t)(uintptr_t)number;
    while (!atomic_load(&ended) || read == 0) {
        const uint64_t tail = atomic_load(&shared->tail), id = tail == 0 ? 0 : tail - 1 - stalls % 5 % tail;
        if (shoal_ring_fetch(&ring, columns, &id, 1, out, &found) == 1)
            for (int w = 1; w < WORDS; w++)
                CHECK_EQUAL(row[w], row[0]); /* whole */
        read += found;
        for (uint64_t slot = 0; slot < capacity; slot++) { /* nobody writes where a later one has been */
            const uint64_t lap = shoal_ring_lap(atomic_load(shoal_ring_at(&ring, slot)));
            CHECK(lap >= laps[slot]);
            laps[slot] = lap;
        }
        stalls++;
        sched_yield();
    }
    close(ring.lock_fd);
    return NULL;
}

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void stress(uint64_t writers, uint64_t readers, uint64_t slots) {
    pthread_t threads[2 * THREADS];
    memset(shared, 0, sizeof *shared);
    shared_fd = shoal_memory_create();
    CHECK(shared_fd >= 0);
    capacity = slots;
    atomic_store(&ended, 0);
    for (uint64_t i = 0; i < writers + readers; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, i < writers ? push_and_stall : read_and_stall,
                                   (void *)(uintptr_t)(i < writers ? i : i - writers)),
                    0);
    for (uint64_t i = 0; i < writers + readers; i++) {
        if (i == writers)
            atomic_store(&ended, 1);
        pthread_join(threads[i], NULL);
    }
    shoal_ring ring = handle();
    uint64_t newest[MOST] = {0}, row[MOST] = {0}, all[THREADS * ROUNDS * BATCH], count = 0;
    for (uint64_t w = 0; w < writers; w++)
        for (uint64_t i = 0; i < ROUNDS * BATCH; i++) {
            const uint64_t id = pushed[w][i];
            all[count++] = id;
            if (id + 1 > newest[id % slots]) {
                newest[id % slots] = id + 1;
                row[id % slots] = w << 32 | i;
            }
        }
    for (uint64_t slot = 0; slot < slots; slot++) /* nothing committed is lost */
        CHECK(newest[slot] != 0 && there(&ring, newest[slot] - 1, row[slot]));
    qsort(all, count, sizeof *all, by_value);
    for (uint64_t i = 1; i < count; i++)
        CHECK(all[i] != all[i - 1]); /* no id twice */
    CHECK_EQUAL(shoal_ring_total(&ring), count);
    close(ring.lock_fd);
    close(shared_fd);
    capacity = CAPACITY;
}

static void rows_are_whole_and_none_is_lost_however_writers_and_readers_stall(void) {
    for (uint64_t slots = 1; slots <= MOST; slots++)
        for (uint64_t writers = 1; writers <= THREADS; writers++)
            stress(writers, 1 + (writers + slots) % THREADS, slots);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0); /* children are forked */
    alarm(300);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    RUN(rows_are_whole_and_none_is_lost_however_writers_and_readers_stall);
    RUN(a_writer_killed_at_any_step_loses_nothing_acknowledged_and_stops_nobody);
    return 0;
}
