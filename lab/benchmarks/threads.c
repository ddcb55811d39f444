/* Where the time of a threaded step goes: steps one plug-in in C, without Python, in turns
 *
 *   1 thread  |  T threads, one engine  |  T processes of one thread, started together: the limit
 *
 * and prints rates, and for the threads a timeline per step: when a thread saw the step, how long its own
 * part took, how much later the last thread was done, and when the caller returned.
 *
 *   cc -O3 -DSHOAL_POOL_TRACE -Icore -Iinclude lab/benchmarks/threads.c core/[a-z]*.c -pthread -lm -ldl -o
 * threads
 *   ./threads /path/to/cartpole.so 262144 16 [seconds per turn] [turns] [gap between steps, us] */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "engine.h"
#include "platform.h"
#include "pool.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 2, ACTION_SETS = 4, MOST_FIELDS = 16, MOST_THREADS = 256, MOST_RUNS = 4096 };

/* ---- The timeline */

enum { POST, SEEN, PART_DONE, STOLE, ALL_DONE, READ, EVENTS };
static struct line {
    _Alignas(128) uint64_t at[EVENTS], stolen;
    double own;
    uint64_t moves;
    int cpu;
} lines[MOST_THREADS];
static uint64_t posted_at;

void shoal_pool_trace(uint32_t thread, int event) {
    lines[thread].at[event] = shoal_now_ns();
    lines[thread].stolen += event == STOLE;
    if (event == PART_DONE) {
        const int cpu = shoal_cpu();
        lines[thread].moves += cpu != lines[thread].cpu;
        lines[thread].cpu = cpu;
    }
}

static double spans, latest, returns, starts, late_starts;
static uint64_t runs;

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double worst[MOST_RUNS];
static double seen_of[MOST_RUNS], own_of[MOST_RUNS]; /* of one thread per run, in turns */

/* After a run on the pool: adds its times. */
static void add_run(uint32_t threads) {
    posted_at = lines[0].at[POST];
    if (posted_at == 0 || lines[0].at[ALL_DONE] < posted_at)
        return;
    double see = 0, last_see = 0, own = 0, last = 0;
    for (uint32_t i = 0; i < threads; i++) {
        const double seen = i == 0 ? 0 : (double)lines[i].at[SEEN] - (double)posted_at;
        const double done = (double)lines[i].at[PART_DONE] - (double)posted_at;
        if (seen < 0 || done < seen)
            return; /* a thread that did not take part, or is only now about to */
        see += seen;
        own += done - seen;
        if (i == 1 + runs % (threads - 1)) {
            seen_of[runs % MOST_RUNS] = seen;
            own_of[runs % MOST_RUNS] = done - seen;
        }
        last_see = seen > last_see ? seen : last_see;
        last = done > last ? done : last;
    }
    for (uint32_t i = 0; i < threads; i++)
        lines[i].own += (double)lines[i].at[PART_DONE] - (double)(i == 0 ? posted_at : lines[i].at[SEEN]);
    worst[runs % MOST_RUNS] = last;
    starts += see / threads;
    late_starts += last_see;
    spans += own / threads;
    latest += last;
    returns += (double)(lines[0].at[ALL_DONE] - posted_at);
    runs++;
    lines[0].at[POST] = 0;
}

static void clear_timeline(void) {
    spans = latest = returns = starts = late_starts = 0;
    runs = 0;
    memset(lines, 0, sizeof lines);
}

static void print_percentiles(const char *what, double *all, size_t count) {
    qsort(all, count, sizeof *all, compare);
    printf("    %s, us: p10 %.2f, median %.2f, p90 %.2f, p99 %.2f\n", what, all[count / 10] / 1e3,
           all[count / 2] / 1e3, all[count * 9 / 10] / 1e3, all[count * 99 / 100] / 1e3);
}

static void print_timeline(uint32_t threads) {
    uint64_t stolen = 0;
    for (uint32_t i = 0; i < threads; i++) {
        stolen += lines[i].stolen;
    }
    if (runs == 0) {
        printf("    timeline: no run in which all threads took part\n");
        return;
    }
    const double n = (double)runs * 1e3;
    const size_t kept = runs < MOST_RUNS ? runs : MOST_RUNS;
    qsort(worst, kept, sizeof *worst, compare);
    printf("    timeline us: seen mean %.2f last %.2f | own part %.2f | last part done %.2f (median %.2f p99 "
           "%.2f) "
           "| return %.2f | stolen/run %.2f runs %llu\n",
           starts / n, late_starts / n, spans / n, latest / n, worst[kept / 2] / 1e3,
           worst[kept * 99 / 100] / 1e3, returns / n, (double)stolen / (double)runs,
           (unsigned long long)runs);
    print_percentiles("time until a thread saw the step", seen_of, kept);
    print_percentiles("time of its own part", own_of, kept);
    printf("    own part us, mean by thread (cpu now, moves):");
    for (uint32_t i = 0; i < threads; i++)
        printf(" %.1f (%d, %llu)", lines[i].own / n, lines[i].cpu, (unsigned long long)lines[i].moves);
    printf("\n");
    clear_timeline();
}

/* ---- A vector environment without Python */

typedef struct world {
    shoal_plugin plugin;
    shoal_description description;
    shoal_engine *engine;
    shoal_engine_arrays arrays;
    shoal_targets targets[SLOTS];
    void *observations[SLOTS][MOST_FIELDS];
    const void *actions[ACTION_SETS][MOST_FIELDS];
    shoal_value values[32];
    uint64_t turn, rows;
} world;

static void fail(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void *zeroed(uint64_t bytes) {
    const uint64_t align = bytes >= 2 << 20 ? 2 << 20 : 4096;
    char *memory = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("out of memory");
    memory += -(uintptr_t)memory & (align - 1);
    (void)shoal_huge_pages(memory, bytes, 0);
    return memset(memory, 0, bytes);
}

static void fill_actions(const shoal_field *field, char *rows, uint64_t count, shoal_rng *rng) {
    const uint64_t all = count * shoal_field_elements(field), bytes = field->dtype.bits / 8;
    for (uint64_t i = 0; i < all; i++) {
        if (field->dtype.code == SHOAL_CODE_FLOAT) {
            double drawn = shoal_random(rng) * 2 - 1;
            float single = (float)drawn;
            memcpy(rows + i * bytes, bytes == 8 ? (void *)&drawn : (void *)&single, bytes);
        } else {
            const int64_t low = field->lows == NULL ? (int64_t)field->low : 0;
            const int64_t high = field->highs == NULL ? (int64_t)field->high : 0;
            const int64_t drawn = low + (int64_t)(shoal_random64(rng) % (uint64_t)(high - low + 1));
            memcpy(rows + i * bytes, &drawn, bytes);
        }
    }
}

static world *open_world(const char *path, uint64_t num_envs, uint32_t threads) {
    world *w = calloc(1, sizeof *w);
    shoal_message why;
    if (shoal_plugin_open(path, &w->plugin, &why) != 0)
        fail(why.text);
    for (uint64_t i = 0; i < w->plugin.entry->num_options && i < 32; i++)
        w->values[i] = w->plugin.entry->options[i].value;
    if (shoal_plugin_describe(&w->plugin, w->values, &w->description, &why) != 0)
        fail(why.text);
    const shoal_spec *spec = &w->description.spec;
    const uint64_t envs = (num_envs + spec->lanes - 1) / spec->lanes * spec->lanes,
                   rows = envs * spec->agents;
    w->rows = num_envs * spec->agents;
    w->arrays = (shoal_engine_arrays){.instances = zeroed(envs * spec->instance_bytes),
                                      .rng = zeroed(envs * sizeof(shoal_rng)),
                                      .reset = zeroed(envs),
                                      .elapsed = zeroed(envs * 4),
                                      .total = zeroed(rows * 8),
                                      .length = zeroed(rows * 4),
                                      .last_return = zeroed(rows * 8),
                                      .last_length = zeroed(rows * 4),
                                      .episode = zeroed(envs * 4)};
    shoal_rng rng;
    shoal_rng_seed(&rng, 7);
    for (int s = 0; s < SLOTS; s++) {
        for (uint64_t f = 0; f < w->description.observations.count; f++)
            w->observations[s][f] = zeroed(rows * shoal_field_bytes(&w->description.observations.items[f]));
        w->targets[s] =
            (shoal_targets){w->observations[s], zeroed(rows * 8), zeroed(rows), zeroed(rows), NULL};
    }
    for (int a = 0; a < ACTION_SETS; a++)
        for (uint64_t f = 0; f < w->description.actions.count; f++) {
            const shoal_field *field = &w->description.actions.items[f];
            char *memory = zeroed(rows * shoal_field_bytes(field));
            fill_actions(field, memory, rows, &rng);
            w->actions[a][f] = memory;
        }
    if (shoal_engine_create(&w->plugin, &w->description, w->values, num_envs, threads, SHOAL_NEXT_STEP,
                            spec->max_episode_steps > 0 ? (uint64_t)spec->max_episode_steps : 0, &w->arrays,
                            &w->engine, &why) != 0)
        fail(why.text);
    for (uint64_t i = 0; i < num_envs; i++)
        shoal_rng_seed(&w->arrays.rng[i], i);
    shoal_engine_reset(w->engine, NULL, &w->targets[0]);
    return w;
}

static void step(world *w) {
    const void *const *actions = w->actions[w->turn % ACTION_SETS];
    for (uint64_t f = 0; f < w->description.actions.count; f++)
        if (shoal_engine_check_actions(w->engine, &w->description.actions.items[f], actions[f]) >= 0)
            fail("a bad action");
    shoal_engine_step(w->engine, actions, &w->targets[w->turn % SLOTS]);
    w->turn++;
}

static double gap_us;

/* Vector steps per second over `seconds`. */
static double measure(world *w, double seconds, uint32_t traced) {
    const uint64_t begin = shoal_now_ns(), limit = begin + (uint64_t)(seconds * 1e9);
    uint64_t steps = 0, now = begin, idle = 0;
    while (now < limit) {
        step(w);
        if (traced > 1)
            add_run(traced);
        steps++;
        now = shoal_now_ns();
        for (uint64_t start = now; gap_us > 0 && now - start < (uint64_t)(gap_us * 1e3); now = shoal_now_ns())
            idle += 0;
        idle += (uint64_t)(gap_us * 1e3);
    }
    return (double)steps / (double)(now - begin - idle) * 1e9;
}

/* ---- Processes that start each turn together */

typedef struct board {
    _Atomic int turn, ready, done;
    double rates[MOST_THREADS];
} board;

static void serve(board *board, int index, const char *path, uint64_t num_envs, double seconds, int turns) {
    world *w = open_world(path, num_envs, 1);
    for (int i = 0; i < 50; i++)
        step(w);
    atomic_fetch_add(&board->ready, 1);
    for (int turn = 1; turn <= turns; turn++) {
        while (atomic_load(&board->turn) < turn)
            usleep(500);
        const uint64_t start = shoal_now_ns(); /* all awake before it counts */
        while (shoal_now_ns() - start < 3000000)
            continue;
        board->rates[index] = measure(w, seconds, 0);
        atomic_fetch_add(&board->done, 1);
    }
    _exit(0);
}

/* ---- The pool alone */

static uint64_t run_nothing(void *context, uint32_t chunk) {
    (void)context, (void)chunk;
    return 0;
}

/* Runs of empty chunks with short gaps, then the CPU time of an idle second. */
static int measure_hand_off(uint32_t threads) {
    shoal_pool *pool;
    if (shoal_pool_create(threads, 1, &pool) != 0)
        fail("cannot create the pool");
    const uint64_t created = shoal_now_ns(), warm = 500000000; /* new threads have to find a core each */
    for (double gap = 0; gap <= 20; gap = gap == 0 ? 5 : 2 * gap) {
        for (int i = 0; i < MOST_RUNS + 1000; i++) {
            const uint64_t begin = shoal_now_ns();
            if (begin - created < warm)
                i = 0;
            (void)shoal_pool_run(pool, &(shoal_pool_job){run_nothing, NULL, NULL, threads, 0, 0});
            const uint64_t end = shoal_now_ns();
            if (i >= 1000)
                worst[i - 1000] = (double)(end - begin) / 1e3;
            while (gap > 0 && shoal_now_ns() - end < (uint64_t)(gap * 1e3))
                continue;
        }
        double sum = 0;
        for (int i = 0; i < MOST_RUNS; i++)
            sum += worst[i];
        qsort(worst, MOST_RUNS, sizeof *worst, compare);
        printf("hand-off to %u threads, gap %4.0f us: mean %.2f us, median %.2f, p90 %.2f, p99 %.2f\n",
               threads - 1, gap, sum / MOST_RUNS, worst[MOST_RUNS / 2], worst[MOST_RUNS * 9 / 10],
               worst[MOST_RUNS * 99 / 100]);
    }
    struct timespec before, after;
    usleep(2000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(1000000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    printf("CPU time of an idle second, from 2 ms after the last run: %.1f us\n",
           (double)(after.tv_sec - before.tv_sec) * 1e6 + (double)(after.tv_nsec - before.tv_nsec) / 1e3);
    shoal_pool_destroy(pool);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4)
        fail("usage: threads PLUGIN NUM_ENVS THREADS [SECONDS] [TURNS] [GAP_US]");
    const uint64_t num_envs = strtoull(argv[2], NULL, 10);
    const uint32_t threads = (uint32_t)strtoul(argv[3], NULL, 10);
    const double seconds = argc > 4 ? atof(argv[4]) : 0.3;
    const int turns = argc > 5 ? atoi(argv[5]) : 3;
    gap_us = argc > 6 ? atof(argv[6]) : 0;
    if (threads < 1 || threads > MOST_THREADS)
        fail("1 to 256 threads");
    if (strcmp(argv[1], "hand-off") == 0)
        return measure_hand_off(threads);
    if (argv[1][0] != '/' || access(argv[1], R_OK) != 0)
        fail("PLUGIN must be the absolute path of a plug-in"); /* the processes could not say so */
    board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (uint32_t i = 0; i < threads; i++)
        if (fork() == 0)
            serve(board, (int)i, argv[1], num_envs / threads, seconds, turns);
    while (atomic_load(&board->ready) < (int)threads)
        usleep(1000);
    world *one = open_world(argv[1], num_envs, 1), *many = open_world(argv[1], num_envs, threads);
    (void)measure(one, 0.1, 0);
    (void)measure(many, 0.3, threads);
    clear_timeline();
    double best_share = 0, sums[3] = {0};
    for (int turn = 1; turn <= turns; turn++) {
        const double single = measure(one, seconds / 2, 0) * (double)num_envs;
        const double ours = measure(many, seconds, threads) * (double)num_envs;
        usleep(2000);
        atomic_store(&board->turn, turn);
        while (atomic_load(&board->done) < turn * (int)threads)
            usleep(1000);
        double limit = 0;
        for (uint32_t i = 0; i < threads; i++)
            limit += board->rates[i] * (double)(num_envs / threads);
        best_share = fmax(best_share, ours / limit);
        sums[0] += single, sums[1] += ours, sums[2] += limit;
    }
    printf("%-14s %8llu x %2u: 1 thread %8.2f M  threads %8.2f M  processes %8.2f M  share %.3f (best %.3f)  "
           "x%.2f\n",
           strrchr(argv[1], '/') + 1, (unsigned long long)num_envs, threads, sums[0] / turns / 1e6,
           sums[1] / turns / 1e6, sums[2] / turns / 1e6, sums[1] / sums[2], best_share, sums[1] / sums[0]);
    print_timeline(threads);
    shoal_engine_destroy(many->engine);
    while (wait(NULL) > 0)
        continue;
    return 0;
}
