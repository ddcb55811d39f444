/* The host's thread: see host.h. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_WATCHERS = 32, MAX_CLIENTS = 40, MOST_MILLIHERTZ = 60000 }; /* publishers find a place, too */
enum { ACCEPT_PAUSE_MS = 50 };
enum { RECORD_MILLIHERTZ = 4000 }; /* how often a publisher looks whether it can begin a recording */
static const uint64_t EPOCH_NS = SHOAL_HISTORY_PERIOD_MS * (uint64_t)1000000;

typedef struct client {
    int fd;         /* -1: unused */
    int passed_fd;  /* came with the note that is being read; -1: none */
    uint32_t got;   /* bytes of that note */
    int is_watcher; /* it has sent a request */
    shoal_note note;
    uint32_t count, millihertz; /* what it watches, and how often */
    int64_t envs[SHOAL_MAX_WATCHED];
} client;

/* The counters at one moment. */
typedef struct counted {
    uint64_t time_ns; /* 0: not counted yet */
    shoal_statistics sum;
} counted;

struct shoal_host {
    shoal_host_plan plan;
    int sleep_fd, wake_fd; /* ends the thread */
    pthread_t thread;
    client clients[MAX_CLIENTS];
    int window_fds[SHOAL_MAX_WATCHED];
    uint64_t no_accept_until; /* no connection is accepted before this time */
    uint64_t began_ns;
    int recorder;    /* the client that asked for a recording; -1: none */
    counted ends[2]; /* the counters at the ends of the last two epochs, the newer one last */
};

static void close_fd(int *fd) {
    const int old = *fd;
    *fd = -1;
    if (old >= 0)
        close(old);
}

int shoal_note_send(int fd, const shoal_note *note, int passed_fd) {
    struct iovec part = {(void *)(uintptr_t)note, sizeof *note};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (passed_fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &passed_fd, sizeof passed_fd);
    }
    const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | SHOAL_MSG_NOSIGNAL);
    if (sent < 0)
        return -errno;
    return sent == (ssize_t)sizeof *note ? 0 : -EAGAIN; /* the buffer is full: the client does not read */
}

static int is_watched_by(const client *c, int64_t env) {
    for (uint32_t i = 0; i < c->count; i++)
        if (c->envs[i] == env)
            return 1;
    return 0;
}

static int is_watched(const shoal_host *host, int64_t env) {
    for (int i = 0; i < MAX_CLIENTS; i++)
        if (host->clients[i].fd >= 0 && is_watched_by(&host->clients[i], env))
            return 1;
    return 0;
}

static int find_place(const shoal_host *host, int64_t env) {
    for (int i = 0; i < SHOAL_MAX_WATCHED; i++)
        if (host->plan.watched[i].env == env)
            return i;
    return -1;
}

static void set_watched(shoal_host *host, int place, int64_t env) {
    shoal_watched *watched = &host->plan.watched[place];
    close_fd(&host->window_fds[place]);
    if (env >= 0)
        __atomic_store_n(&watched->generation, watched->generation + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&watched->env, env, __ATOMIC_RELEASE); /* partner: the stepping thread, after `due` */
}

static void set_due(shoal_host *host) {
    for (uint32_t i = 0; i < host->plan.lines; i++)
        atomic_store_explicit((shoal_word *)(host->plan.due + (size_t)i * SHOAL_DUE_BYTES), 1,
                              memory_order_release);
}

/* After a watcher changed its environments or disconnected: drops environments that nobody watches. Sets
 * `due`, so that publishers release their windows. */
static void forget_unwatched(shoal_host *host) {
    for (int i = 0; i < SHOAL_MAX_WATCHED; i++)
        if (host->plan.watched[i].env >= 0 && !is_watched(host, host->plan.watched[i].env))
            set_watched(host, i, -1);
    set_due(host);
}

static void end_recording(shoal_host *host) {
    __atomic_store_n(&host->plan.watched[SHOAL_RECORD_ENTRY].env, -1, __ATOMIC_RELAXED);
    host->recorder = -1;
}

static void drop(shoal_host *host, client *c) {
    close_fd(&c->passed_fd);
    close_fd(&c->fd);
    if (host->recorder == c - host->clients)
        end_recording(host);
    if (c->count != 0) {
        c->count = 0;
        forget_unwatched(host);
    }
}

static void watch(shoal_host *host, client *c) {
    const shoal_note request = c->note;
    c->count = 0;
    for (uint32_t i = 0; i < request.count && i < SHOAL_MAX_WATCHED; i++)
        if (request.values[i] >= 0 && (uint64_t)request.values[i] < host->plan.num_envs)
            c->envs[c->count++] = request.values[i];
    const int64_t most = MOST_MILLIHERTZ;
    c->millihertz = (uint32_t)(request.number < 100 ? 100 : request.number > most ? most : request.number);
    forget_unwatched(host);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        int place = find_place(host, c->envs[i]);
        if (place < 0 && (place = find_place(host, -1)) >= 0)
            set_watched(host, place, c->envs[i]);
        if (place >= 0) /* otherwise other watchers use all places */
            c->envs[kept++] = c->envs[i];
    }
    c->count = kept;
    set_due(host);
    shoal_note answer = {.kind = SHOAL_WATCH, .count = kept};
    int error = shoal_note_send(c->fd, &answer, -1);
    for (uint32_t i = 0; i < kept && error == 0; i++) {
        const int window_fd = host->window_fds[find_place(host, c->envs[i])];
        shoal_note note = {.kind = SHOAL_WINDOW, .number = c->envs[i]};
        if (window_fd >= 0)
            error = shoal_note_send(c->fd, &note, window_fd);
    }
    if (error != 0)
        drop(host, c);
}

/* A publisher has a new window: keeps it for later watchers, and sends it to all that watch the environment.
 */
static void publish(shoal_host *host, client *from) {
    const int64_t env = from->note.number;
    const int place = env < 0 ? -1 : find_place(host, env);
    if (place < 0 || from->passed_fd < 0)
        return;
    close_fd(&host->window_fds[place]);
    host->window_fds[place] = from->passed_fd;
    from->passed_fd = -1;
    shoal_note note = {.kind = SHOAL_WINDOW, .number = env};
    for (int i = 0; i < MAX_CLIENTS; i++) {
        client *c = &host->clients[i];
        if (c->fd >= 0 && is_watched_by(c, env) &&
            shoal_note_send(c->fd, &note, host->window_fds[place]) != 0)
            drop(host, c);
    }
}

/* Asks the publisher of an environment for a recording, or takes the request back; returns whether this
 * client is the one that records. */
static uint32_t record(shoal_host *host, const client *c) {
    const int self = (int)(c - host->clients);
    const int64_t env = c->note.number;
    if (host->recorder >= 0 && host->recorder != self)
        return 0;
    end_recording(host);
    if (env < 0 || (uint64_t)env >= host->plan.num_envs)
        return 0;
    shoal_watched *entry = &host->plan.watched[SHOAL_RECORD_ENTRY];
    __atomic_store_n(&entry->generation, entry->generation + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->env, env, __ATOMIC_RELEASE); /* partner: the stepping thread, after `due` */
    host->recorder = self;
    set_due(host);
    return 1;
}

/* A publisher has answered a request for a recording: passes the answer on. The answer to a request that was
 * taken back is dropped. */
static void pass_recording(shoal_host *host, const client *from) {
    const shoal_watched *entry = &host->plan.watched[SHOAL_RECORD_ENTRY];
    if (host->recorder < 0 || from->note.number != entry->env ||
        (uint64_t)from->note.values[0] != entry->generation)
        return;
    client *to = &host->clients[host->recorder];
    const shoal_note note = {.kind = SHOAL_RECORDED, .number = from->note.number};
    end_recording(host);
    if (shoal_note_send(to->fd, &note, from->passed_fd) != 0)
        drop(host, to);
}

/* A mean with the range around it. A range that was not read in time, or in the middle of a change, may miss
 * the mean; it is widened. */
static shoal_curve make_curve(double mean, double low, double high, double weight) {
    if (!(weight > 0) || mean != mean)
        return (shoal_curve){0};
    return (shoal_curve){(float)mean, (float)(low < mean ? low : mean), (float)(high > mean ? high : mean),
                         (float)weight};
}

/* The bin between two counts; `range` is that of the epoch between them. */
static shoal_bin make_bin(const shoal_host *host, const counted *from, const counted *to,
                          const shoal_range *range) {
    const double seconds = (double)(to->time_ns - from->time_ns) / 1e9;
    const double episodes = (double)(to->sum.episodes - from->sum.episodes);
    const double counted_returns = episodes - (double)(to->sum.odd_returns - from->sum.odd_returns);
    const double returns = (to->sum.return_sum - from->sum.return_sum) / counted_returns;
    const double lengths = (double)(to->sum.length_sum - from->sum.length_sum) / episodes;
    const double rate = (double)(to->sum.steps - from->sum.steps) / seconds;
    /* The last interval of a run may be too short to measure a rate. */
    const double timed = seconds * 1000 * 4 >= SHOAL_HISTORY_PERIOD_MS ? seconds : 0;
    shoal_bin bin = {.begin = (double)(from->time_ns - host->began_ns) / 1e9,
                     .end = (double)(to->time_ns - host->began_ns) / 1e9,
                     .steps = to->sum.steps,
                     .episodes = to->sum.episodes};
    bin.curves[SHOAL_CURVE_RETURN] =
        range == NULL ? make_curve(returns, returns, returns, counted_returns)
                      : make_curve(returns, range->return_low, range->return_high, counted_returns);
    bin.curves[SHOAL_CURVE_LENGTH] =
        range == NULL ? make_curve(lengths, lengths, lengths, episodes)
                      : make_curve(lengths, range->length_low, range->length_high, episodes);
    bin.curves[SHOAL_CURVE_RATE] = make_curve(rate, rate, rate, timed);
    return bin;
}

/* Ends an epoch. Its bin is added at the end of the next epoch, when no thread is still writing the range. */
static void end_epoch(shoal_host *host, uint64_t now) {
    shoal_history *history = host->plan.history;
    const uint32_t epoch = atomic_load_explicit(&history->epoch, memory_order_relaxed);
    counted end = {.time_ns = now};
    host->plan.count(host->plan.context, &end.sum);
    const counted *from = &host->ends[0], *to = &host->ends[1];
    if (from->time_ns != 0 && to->time_ns > from->time_ns) {
        const shoal_range *range = &end.sum.ranges[(epoch - 1) % 2];
        shoal_bin bin = make_bin(host, from, to, range->epoch == epoch - 1 ? range : NULL);
        shoal_history_collect(history, epoch - 1, &bin);
        shoal_history_add(history, &bin);
    }
    host->ends[0] = host->ends[1];
    host->ends[1] = end;
    atomic_store_explicit(&history->epoch, epoch + 1, memory_order_relaxed);
    for (uint32_t i = 0; i < host->plan.lines; i++)
        atomic_store_explicit((shoal_word *)(host->plan.due + (size_t)i * SHOAL_DUE_BYTES) + 1, epoch + 1,
                              memory_order_relaxed);
}

/* Counts the returns of the last episode of each row in bins; rows may be written meanwhile. */
static void count_returns(const shoal_host *host, int64_t values[SHOAL_MAX_WATCHED]) {
    const shoal_host_plan *plan = &host->plan;
    double low = INFINITY, high = -INFINITY;
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t row = 0; row < plan->rows; row++) {
            const double one = plan->last_return[row];
            if (plan->last_length[row] == 0 || !isfinite(one))
                continue;
            if (pass == 0) {
                low = one < low ? one : low;
                high = one > high ? one : high;
                continue;
            }
            const double at = high > low ? (one - low) / (high - low) * SHOAL_RETURN_BINS : 0;
            const int bin = at >= SHOAL_RETURN_BINS ? SHOAL_RETURN_BINS - 1 : at > 0 ? (int)at : 0;
            values[0]++;
            values[3 + bin]++;
        }
    }
    memcpy(&values[1], &low, sizeof low);
    memcpy(&values[2], &high, sizeof high);
}

static int count_watchers(const shoal_host *host) {
    int count = 0;
    for (int i = 0; i < MAX_CLIENTS; i++)
        count += host->clients[i].fd >= 0 && host->clients[i].is_watcher;
    return count;
}

static void answer(shoal_host *host, client *c) {
    if (c->note.kind != SHOAL_PUBLISH && c->note.kind != SHOAL_RECORDED && !c->is_watcher) {
        if (count_watchers(host) == MAX_WATCHERS) {
            drop(host, c);
            return;
        }
        c->is_watcher = 1;
    }
    shoal_note note = {.kind = c->note.kind};
    int error = 0, passed_fd = -1;
    switch (c->note.kind) {
    case SHOAL_WATCH:
        watch(host, c);
        return;
    case SHOAL_PUBLISH:
        publish(host, c);
        break;
    case SHOAL_RECORD:
        note.count = record(host, c);
        break;
    case SHOAL_RECORDED:
        pass_recording(host, c);
        break;
    case SHOAL_FACTS:
        passed_fd = host->plan.facts_fd;
        break;
    case SHOAL_HISTORY:
        passed_fd = host->plan.history_fd;
        break;
    case SHOAL_RETURNS:
        count_returns(host, note.values);
        break;
    case SHOAL_COUNTERS: {
        shoal_statistics sum = {0};
        host->plan.count(host->plan.context, &sum);
        note.values[0] = (int64_t)shoal_now_ns();
        note.values[1] = (int64_t)sum.steps;
        note.values[2] = (int64_t)sum.episodes;
        note.values[3] = (int64_t)sum.length_sum;
        memcpy(&note.values[4], &sum.return_sum, sizeof sum.return_sum);
        note.values[5] = (int64_t)sum.odd_returns;
        break;
    }
    default:
        drop(host, c);
        return;
    }
    error = shoal_note_send(c->fd, &note, passed_fd);
    if (error != 0)
        drop(host, c);
}

static void read_note(shoal_host *host, client *c) {
    struct iovec part = {(char *)&c->note + c->got, sizeof c->note - c->got};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    const ssize_t count = recvmsg(c->fd, &message, MSG_DONTWAIT | SHOAL_MSG_CLOEXEC);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    for (struct cmsghdr *head = count < 0 ? NULL : CMSG_FIRSTHDR(&message); head != NULL;
         head = CMSG_NXTHDR(&message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = CMSG_LEN(0); at + sizeof(int) <= head->cmsg_len; at += sizeof(int)) {
            int fd;
            memcpy(&fd, (char *)head + at, sizeof fd);
            close_fd(&c->passed_fd); /* keep only the last one */
            c->passed_fd = fd;
        }
    }
    if (count <= 0) {
        drop(host, c);
        return;
    }
    c->got += (uint32_t)count;
    if (c->got < sizeof c->note)
        return;
    c->got = 0;
    answer(host, c);
    close_fd(&c->passed_fd);
}

static void accept_client(shoal_host *host) {
    int fd = shoal_accept(host->plan.listen_fd);
    /* If no descriptor is free, the connection stays in the queue and poll would return at once again. */
    host->no_accept_until = fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM || fd == -ENOBUFS
                                ? shoal_now_ns() + ACCEPT_PAUSE_MS * (uint64_t)1000000
                                : 0;
    if (fd < 0)
        return;
    for (int i = 0; i < MAX_CLIENTS && shoal_peer_uid(fd) == (int64_t)geteuid(); i++) {
        client *c = &host->clients[i];
        if (c->fd < 0) {
            *c = (client){.fd = fd, .passed_fd = -1};
            return;
        }
    }
    close(fd); /* another user, or too many */
}

static uint64_t period_ns(const shoal_host *host) {
    uint32_t quickest = host->recorder >= 0 ? RECORD_MILLIHERTZ : 0;
    for (int i = 0; i < MAX_CLIENTS; i++) {
        const client *c = &host->clients[i];
        if (c->fd >= 0 && c->count != 0 && c->millihertz > quickest)
            quickest = c->millihertz;
    }
    return quickest == 0 ? 0 : 1000000000000u / quickest;
}

static void *run(void *argument) {
    shoal_host *host = argument;
    uint64_t last = 0;
    for (;;) {
        struct pollfd polled[2 + MAX_CLIENTS] = {{.fd = host->sleep_fd, .events = POLLIN},
                                                 {.fd = host->plan.listen_fd, .events = POLLIN}};
        for (int i = 0; i < MAX_CLIENTS; i++)
            polled[2 + i] = (struct pollfd){.fd = host->clients[i].fd, .events = POLLIN};
        const uint64_t period = period_ns(host);
        int timeout_ms = -1;
        if (period != 0) {
            const uint64_t now = shoal_now_ns();
            if (now >= last + period) {
                set_due(host);
                last = now;
            }
            timeout_ms = (int)((last + period - now) / 1000000) + 1;
        }
        if (host->plan.history != NULL) {
            const uint64_t now = shoal_now_ns(), end = host->ends[1].time_ns + EPOCH_NS;
            if (now >= end)
                end_epoch(host, now);
            const int left_ms = now >= end ? SHOAL_HISTORY_PERIOD_MS : (int)((end - now) / 1000000) + 1;
            timeout_ms = timeout_ms < 0 || timeout_ms > left_ms ? left_ms : timeout_ms;
        }
        if (host->no_accept_until > shoal_now_ns()) {
            polled[1].fd = -1;
            timeout_ms = timeout_ms < 0 || timeout_ms > ACCEPT_PAUSE_MS ? ACCEPT_PAUSE_MS : timeout_ms;
        }
        if (poll(polled, 2 + MAX_CLIENTS, timeout_ms) < 0)
            continue; /* EINTR */
        if (polled[0].revents != 0)
            return NULL;
        if (polled[1].revents != 0)
            accept_client(host);
        for (int i = 0; i < MAX_CLIENTS; i++)
            if (polled[2 + i].revents != 0 && host->clients[i].fd == polled[2 + i].fd)
                read_note(host, &host->clients[i]);
    }
}

static void release(shoal_host *host) {
    for (int i = 0; i < MAX_CLIENTS; i++) {
        close_fd(&host->clients[i].passed_fd);
        close_fd(&host->clients[i].fd);
    }
    for (int i = 0; i < SHOAL_MAX_WATCHED; i++)
        close_fd(&host->window_fds[i]);
    if (host->wake_fd != host->sleep_fd)
        close_fd(&host->wake_fd);
    close_fd(&host->sleep_fd);
    close_fd(&host->plan.listen_fd);
    close_fd(&host->plan.facts_fd);
    close_fd(&host->plan.history_fd);
    free(host);
}

int shoal_host_start(const shoal_host_plan *plan, shoal_host **out) {
    *out = NULL;
    shoal_host *host = calloc(1, sizeof *host);
    if (host == NULL)
        return -ENOMEM;
    host->plan = *plan;
    for (int i = 0; i < MAX_CLIENTS; i++)
        host->clients[i].fd = host->clients[i].passed_fd = -1;
    for (int i = 0; i < SHOAL_MAX_WATCHED; i++) {
        host->window_fds[i] = -1;
        plan->watched[i].env = -1;
    }
    end_recording(host);
    host->began_ns = shoal_now_ns();
    if (plan->history != NULL)
        end_epoch(host, host->began_ns); /* the first epoch begins with the counters of now */
    int error = -shoal_wakeup_create(&host->sleep_fd, &host->wake_fd);
    if (error == 0) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&host->thread, NULL, run, host);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    } else {
        host->sleep_fd = host->wake_fd = -1;
    }
    if (error != 0) {
        host->plan.listen_fd = host->plan.facts_fd = host->plan.history_fd =
            -1; /* they still belong to the caller */
        release(host);
        return -error;
    }
    *out = host;
    return 0;
}

void shoal_host_stop(shoal_host *host) {
    const uint64_t one = 1;
    while (write(host->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
    pthread_join(host->thread, NULL);
    if (host->plan.history != NULL) { /* the bins of the last two epochs */
        end_epoch(host, shoal_now_ns());
        end_epoch(host, shoal_now_ns());
    }
    release(host);
}

void shoal_host_forget(shoal_host *host) { release(host); }
