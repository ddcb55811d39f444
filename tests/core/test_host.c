/* Tests of core/host.c: watchers come and go while others step. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "host.h"

#include "check.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static shoal_watched watched[SHOAL_WATCHED_ENTRIES];
static _Alignas(64) char due[2 * SHOAL_DUE_BYTES];
static char path[100];
static shoal_host *host;
static shoal_history history;
static const double last_return[] = {-3, 9, 1e9, 8.9, 0.0 / 0.0};
static const uint32_t last_length[] = {4, 2, 0, 1, 1}; /* the third has not finished an episode */

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static shoal_statistics counted = {.episodes = 2, .length_sum = 3, .odd_returns = 4, .return_sum = 1.5};

static void count(void *context, shoal_statistics *sum) {
    pthread_mutex_lock(&counting); /* only for the thread sanitizer: an engine is read as it counts */
    *sum = counted;
    sum->steps = *(uint64_t *)context;
    pthread_mutex_unlock(&counting);
}

static uint64_t steps = 77;

static void start(void) {
    memset(due, 0, sizeof due);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(path, sizeof path, "/tmp/shoal-host-%d", (int)getpid());
    strcpy(address.sun_path, path);
    unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_EQUAL(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    CHECK_EQUAL(listen(fd, 64), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    int facts = open("/dev/null", O_RDONLY);
    memset((void *)&history, 0, sizeof history);
    shoal_host_plan plan = {.listen_fd = fd,
                            .facts_fd = facts,
                            .num_envs = 100,
                            .watched = watched,
                            .due = due,
                            .lines = 2,
                            .count = count,
                            .context = &steps,
                            .history = &history,
                            .history_fd = open("/dev/zero", O_RDONLY),
                            .last_return = last_return,
                            .last_length = last_length,
                            .rows = 5};
    CHECK_EQUAL(shoal_host_start(&plan, &host), 0);
}

static void end(void) {
    shoal_host_stop(host);
    unlink(path);
}

static int client(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_EQUAL(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static shoal_note hear(int fd) {
    shoal_note note;
    struct pollfd one = {fd, POLLIN, 0};
    CHECK(poll(&one, 1, 5000) > 0);
    CHECK_EQUAL(recv(fd, &note, sizeof note, MSG_WAITALL), sizeof note);
    return note;
}

static shoal_note ask(int fd, shoal_note note) {
    CHECK_EQUAL(shoal_note_send(fd, &note, -1), 0);
    return hear(fd);
}

static int64_t watched_at(int i) { return __atomic_load_n(&watched[i].env, __ATOMIC_ACQUIRE); }

static shoal_word *line(int i) { return (shoal_word *)(due + i * SHOAL_DUE_BYTES); }

/* A run that steps: whenever it is due, it says so no more. */
static int times_due(int i, uint64_t during_ns) {
    int times = 0;
    for (const uint64_t begin = shoal_now_ns(); shoal_now_ns() - begin < during_ns; usleep(200))
        times += (int)atomic_exchange(line(i), 0);
    return times;
}

static void counters_are_read_while_they_are_counted(void) {
    start();
    int fd = client();
    shoal_note answer = ask(fd, (shoal_note){.kind = SHOAL_COUNTERS});
    double returns;
    memcpy(&returns, &answer.values[4], sizeof returns);
    CHECK(answer.values[5] == 4);
    CHECK(answer.values[1] == 77 && answer.values[2] == 2 && answer.values[3] == 3 && returns == 1.5);
    close(fd);
    end();
}

/* The note, and the descriptor that came with it (-1: none). */
static shoal_note hear_with_fd(int fd, int *passed) {
    shoal_note note;
    struct iovec part = {&note, sizeof note};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct pollfd one = {fd, POLLIN, 0};
    CHECK(poll(&one, 1, 5000) > 0);
    CHECK_EQUAL(recvmsg(fd, &message, MSG_WAITALL), sizeof note);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *passed = -1;
    if (head != NULL)
        memcpy(passed, CMSG_DATA(head), sizeof *passed);
    return note;
}

static int64_t record_number(void) {
    return (int64_t)__atomic_load_n(&watched[SHOAL_RECORD_ENTRY].generation, __ATOMIC_RELAXED);
}

static shoal_note request(int64_t env) { return (shoal_note){.kind = SHOAL_RECORD, .number = env}; }

static void one_watcher_at_a_time_gets_the_recording_it_asked_for(void) {
    start();
    int first = client(), second = client(), publisher = client();
    CHECK_EQUAL(watched_at(SHOAL_RECORD_ENTRY), -1);
    CHECK_EQUAL(ask(first, request(100)).count, 0); /* there is no such environment */
    CHECK_EQUAL(ask(first, request(7)).count, 1);
    CHECK(watched_at(SHOAL_RECORD_ENTRY) == 7 && times_due(0, 600000000) >= 2);
    CHECK_EQUAL(ask(second, request(8)).count, 0);
    CHECK_EQUAL(ask(second, request(-1)).count, 0);
    CHECK_EQUAL(watched_at(SHOAL_RECORD_ENTRY), 7); /* only its own watcher takes a request back */

    shoal_note late = {.kind = SHOAL_RECORDED, .number = 7, .values = {record_number() - 1}};
    shoal_note answer = {.kind = SHOAL_RECORDED, .number = 7, .values = {record_number()}};
    int file = open("/dev/null", O_RDONLY), passed;
    CHECK_EQUAL(shoal_note_send(publisher, &late, file), 0); /* of an older request: dropped */
    hear(publisher);
    CHECK_EQUAL(watched_at(SHOAL_RECORD_ENTRY), 7);
    CHECK_EQUAL(shoal_note_send(publisher, &answer, file), 0);
    hear(publisher);
    shoal_note got = hear_with_fd(first, &passed);
    CHECK(got.kind == SHOAL_RECORDED && got.number == 7 && passed >= 0);
    close(passed);
    CHECK_EQUAL(watched_at(SHOAL_RECORD_ENTRY), -1);
    usleep(50000);
    times_due(0, 1000000);
    CHECK_EQUAL(times_due(0, 400000000), 0); /* nothing is due any more */

    CHECK_EQUAL(ask(second, request(8)).count, 1);
    answer = (shoal_note){.kind = SHOAL_RECORDED, .number = 8, .values = {record_number()}};
    CHECK_EQUAL(shoal_note_send(publisher, &answer, -1), 0); /* there is none */
    got = hear_with_fd(second, &passed);
    CHECK(got.kind == SHOAL_RECORDED && passed == -1);
    hear(publisher);

    CHECK_EQUAL(ask(second, request(9)).count, 1);
    close(second); /* the request goes with its watcher */
    for (int i = 0; i < 500 && watched_at(SHOAL_RECORD_ENTRY) != -1; i++)
        usleep(10000);
    CHECK_EQUAL(watched_at(SHOAL_RECORD_ENTRY), -1);
    CHECK_EQUAL(ask(first, request(3)).count, 1);
    close(first);
    close(publisher);
    close(file);
    end();
}

static void due_follows_the_fastest_watcher_and_stops_with_the_last(void) {
    start();
    CHECK_EQUAL(times_due(0, 100000000), 0);
    int slow = client(), quick = client();
    CHECK_EQUAL(ask(slow, (shoal_note){.kind = SHOAL_WATCH, .count = 1, .number = 1000, .values = {5}}).count,
                1);
    CHECK_EQUAL(watched_at(0), 5);
    CHECK_EQUAL(
        ask(quick, (shoal_note){.kind = SHOAL_WATCH, .count = 2, .number = 50000, .values = {5, 6}}).count,
        2);
    const int often = times_due(1, 500000000);
    CHECK(often >= 8 && often <= 40);
    close(quick);
    usleep(50000);
    times_due(1, 1000000);
    CHECK(times_due(1, 500000000) <= 2);
    CHECK(watched_at(0) == 5 && watched_at(1) == -1);
    close(slow);
    for (int i = 0; i < 5000 && watched_at(0) != -1; i++)
        usleep(1000);
    CHECK_EQUAL(watched_at(0), -1);
    times_due(0, 1000000);
    CHECK_EQUAL(times_due(0, 200000000), 0);
    end();
}

static void windows_reach_current_and_later_watchers(void) {
    start();
    int first = client(), publisher = client(), later = client(), other = client();
    const shoal_note watch = {.kind = SHOAL_WATCH, .count = 1, .number = 1000, .values = {9}};
    CHECK_EQUAL(ask(first, watch).count, 1);
    int some[2];
    CHECK_EQUAL(pipe(some), 0);
    const shoal_note window = {.kind = SHOAL_PUBLISH, .number = 9};
    CHECK_EQUAL(shoal_note_send(publisher, &window, some[0]), 0);
    CHECK_EQUAL(hear(publisher).kind, SHOAL_PUBLISH);
    shoal_note heard = hear(first);
    CHECK(heard.kind == SHOAL_WINDOW && heard.number == 9);
    CHECK_EQUAL(ask(later, watch).kind, SHOAL_WATCH);
    CHECK_EQUAL(hear(later).kind, SHOAL_WINDOW);
    CHECK_EQUAL(ask(other, (shoal_note){.kind = SHOAL_COUNTERS}).kind, SHOAL_COUNTERS);
    struct pollfd quiet = {other, POLLIN, 0};
    CHECK_EQUAL(poll(&quiet, 1, 50), 0); /* it watches nothing */
    close(first), close(publisher), close(later), close(other), close(some[0]), close(some[1]);
    end();
}

static void environments_out_of_range_are_not_watched(void) {
    start();
    int fd = client();
    shoal_note bad = {.kind = SHOAL_WATCH, .count = UINT32_MAX, .number = INT64_MIN};
    for (int i = 0; i < SHOAL_MAX_WATCHED; i++)
        bad.values[i] = i % 2 ? -1 - i : 100 + i;
    CHECK_EQUAL(ask(fd, bad).count, 0);
    for (int i = 0; i < SHOAL_MAX_WATCHED; i++)
        CHECK_EQUAL(watched_at(i), -1);
    close(fd);
    end();
}

static _Atomic int going;
static void *come_and_go(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    while (atomic_load(&going)) {
        int fd = client();
        for (int i = 0; i < 3; i++) {
            shoal_note note = {.kind = SHOAL_WATCH, .count = 4, .number = 60000};
            for (int j = 0; j < 4; j++)
                note.values[j] = rand_r(&seed) % 30;
            if (shoal_note_send(fd, &note, -1) != 0 || recv(fd, &note, sizeof note, MSG_WAITALL) <= 0)
                break;
        }
        close(fd);
    }
    return NULL;
}

static void watchers_come_and_go_while_environments_step(void) {
    start();
    atomic_store(&going, 1);
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, come_and_go, (void *)(i + 1)), 0);
    int seen = 0;
    for (const uint64_t begin = shoal_now_ns(); shoal_now_ns() - begin < 1000000000;) {
        seen += (int)atomic_exchange(line(0), 0);
        for (int i = 0; i < SHOAL_MAX_WATCHED; i++)
            CHECK(watched_at(i) < 30);
    }
    atomic_store(&going, 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK(seen > 3);
    int fd = client();
    CHECK_EQUAL(ask(fd, (shoal_note){.kind = SHOAL_COUNTERS}).values[1], 77);
    close(fd);
    end();
}

static void stopping_ends_every_connection(void) {
    start();
    int fd = client();
    ask(fd, (shoal_note){.kind = SHOAL_COUNTERS});
    end();
    char byte;
    CHECK_EQUAL(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* The stepping side of an episode, in this process. */
static void finish_episode(double episode_return, uint32_t length) {
    pthread_mutex_lock(&counting);
    steps += 8;
    counted.episodes++;
    if (isfinite(episode_return))
        counted.return_sum += episode_return;
    else
        counted.odd_returns++;
    counted.length_sum += length;
    shoal_range_add(counted.ranges, atomic_load(line(1) + 1), episode_return, length);
    pthread_mutex_unlock(&counting);
}

static void the_history_has_all_episodes_and_their_range(void) {
    const shoal_statistics before = counted;
    const uint64_t steps_before = steps;
    start();
    finish_episode(-5, 7);
    finish_episode(0.0 / 0.0, 1);               /* is an episode of the length alone */
    for (int i = 0; i < 200; i++, usleep(5000)) /* about four epochs */
        finish_episode(10 + i % 3, 2);
    finish_episode(1000, 3);
    finish_episode(1 / 0.0, 2);
    end(); /* adds the last epochs */
    static shoal_bin bins[SHOAL_HISTORY_LEVELS * SHOAL_HISTORY_BINS];
    const int64_t read = shoal_history_read(&history, bins, 0);
    CHECK(read >= 4);
    shoal_bin all = bins[0];
    for (int64_t i = 1; i < read; i++) {
        CHECK(bins[i].begin == bins[i - 1].end);
        shoal_bin_merge(&all, &bins[i]);
    }
    const shoal_curve *returns = &all.curves[SHOAL_CURVE_RETURN], *lengths = &all.curves[SHOAL_CURVE_LENGTH];
    CHECK(returns->weight == 202 && returns->low == -5 && returns->high == 1000);
    CHECK(lengths->weight == 204 && lengths->low == 1 && lengths->high == 7);
    CHECK(all.begin == 0 && all.steps == steps_before + 204 * 8 && all.episodes == before.episodes + 204);
    const shoal_curve *rate = &all.curves[SHOAL_CURVE_RATE];
    CHECK(rate->low <= rate->mean && rate->mean <= rate->high && rate->mean > 0);
    counted = before;
    steps = steps_before;
}

static void the_history_and_the_returns_are_answered(void) {
    start();
    int fd = client();
    char bytes[CMSG_SPACE(sizeof(int))] = {0};
    shoal_note note = {.kind = SHOAL_HISTORY};
    CHECK_EQUAL(shoal_note_send(fd, &note, -1), 0);
    struct iovec part = {&note, sizeof note};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = bytes, .msg_controllen = sizeof bytes};
    CHECK_EQUAL(recvmsg(fd, &message, MSG_WAITALL), sizeof note);
    CHECK(note.kind == SHOAL_HISTORY && CMSG_FIRSTHDR(&message) != NULL);
    int passed;
    memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof passed);
    close(passed);
    shoal_note answer = ask(fd, (shoal_note){.kind = SHOAL_RETURNS});
    double low, high;
    memcpy(&low, &answer.values[1], sizeof low);
    memcpy(&high, &answer.values[2], sizeof high);
    CHECK(answer.values[0] == 3 && low == -3 && high == 9);
    CHECK(answer.values[3] == 1 && answer.values[3 + SHOAL_RETURN_BINS - 1] == 2);
    close(fd);
    end();
}

int main(void) {
    RUN(counters_are_read_while_they_are_counted);
    RUN(due_follows_the_fastest_watcher_and_stops_with_the_last);
    RUN(one_watcher_at_a_time_gets_the_recording_it_asked_for);
    RUN(windows_reach_current_and_later_watchers);
    RUN(environments_out_of_range_are_not_watched);
    RUN(watchers_come_and_go_while_environments_step);
    RUN(stopping_ends_every_connection);
    RUN(the_history_has_all_episodes_and_their_range);
    RUN(the_history_and_the_returns_are_answered);
    return 0;
}
