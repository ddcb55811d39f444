/* The one file with code per operating system: Linux first, macOS by small fallbacks. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "platform.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#if __has_include(<execinfo.h>)
#include <execinfo.h>
#define HAS_BACKTRACE
#endif

#if !defined(__linux__) && !defined(__APPLE__)
#error "Shoal runs on Linux and macOS; this system is neither"
#endif

#ifdef __linux__
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#include <sys/time.h>
#endif

enum { HUGE_PAGE_BYTES = 2 << 20, NAME_TRIES = 16 };

#ifdef __linux__
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif
#define TMPFS_MAGIC 0x01021994u
#else
static int close_on_exec(int fd) {
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) == 0)
        return fd;
    int error = errno;
    close(fd);
    return -error;
}
#endif

int shoal_memory_create(void) {
#ifdef __linux__
    int fd = memfd_create("shoal", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    if (fchmod(fd, 0600) != 0) { /* memfd_create gives 0777 */
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
#else
    for (int i = 0; i < NAME_TRIES; i++) {
        char name[32]; /* macOS allows 31 characters */
        snprintf(name, sizeof name, "/shoal-%08x%08x", arc4random(), arc4random());
        int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd >= 0) {
            shm_unlink(name);
            return close_on_exec(fd);
        }
        if (errno != EEXIST)
            return -errno;
    }
    return -EEXIST;
#endif
}

static int create_temporary(const char *directory, char *temporary, size_t capacity) {
    int length = snprintf(temporary, capacity, "%s/.shoal-%ld-XXXXXX", directory, (long)getpid());
    if (length < 0 || (size_t)length >= capacity)
        return -ENAMETOOLONG;
    int fd = mkstemp(temporary); /* 0600, O_EXCL */
    if (fd < 0) {
        int error = errno;
        temporary[0] = '\0';
        return -error;
    }
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        int error = errno;
        close(fd);
        unlink(temporary);
        temporary[0] = '\0';
        return -error;
    }
    return fd;
}

int shoal_file_create(const char *directory, char *temporary, size_t capacity) {
    temporary[0] = '\0';
#ifdef __linux__
    /* The name is given through /proc later, so without /proc an unnamed file would stay unnamed. */
    if (access("/proc/self/fd", X_OK) == 0) {
        int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fd >= 0)
            return fd;
        if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
            return -errno;
    }
#endif
    return create_temporary(directory, temporary, capacity);
}

int shoal_file_link(int fd, const char *temporary, const char *path) {
    if (temporary[0] != '\0') {
        if (link(temporary, path) != 0)
            return -errno;
        unlink(temporary);
        return 0;
    }
#ifdef __linux__
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0 ? 0 : -errno;
#else
    (void)fd;
    return -EINVAL;
#endif
}

int shoal_reserve(int fd, uint64_t begin, uint64_t length) {
    if (length == 0)
        return 0;
    if (length > INT64_MAX || begin > INT64_MAX - length)
        return -EFBIG;
#ifdef __linux__
    int error;
    do
        error = posix_fallocate(fd, (off_t)begin, (off_t)length);
    while (error == EINTR);
    return -error;
#else
    struct stat st;
    if (fstat(fd, &st) != 0)
        return -errno;
    if ((uint64_t)st.st_size >= begin + length)
        return 0;
    if (S_ISREG(st.st_mode)) {
        fstore_t store = {F_ALLOCATEALL, F_PEOFPOSMODE, 0, (off_t)(begin + length) - st.st_size, 0};
        if (fcntl(fd, F_PREALLOCATE, &store) != 0)
            return -errno;
    }
    return ftruncate(fd, (off_t)(begin + length)) == 0 ? 0 : -errno;
#endif
}

int shoal_file_sync(int fd, void *base, uint64_t size) {
    int result;
#ifdef __linux__
    (void)base; /* fdatasync also writes pages that a mapping made dirty */
    (void)size;
    do
        result = fdatasync(fd);
    while (result != 0 && errno == EINTR);
#else
    if (msync(base, size, MS_SYNC) != 0)
        return -errno;
    do
        result = fcntl(fd, F_FULLFSYNC); /* fsync leaves data in the disk's cache */
    while (result != 0 && errno == EINTR);
#endif
    return result == 0 ? 0 : -errno;
}

int shoal_seal(int fd) {
#ifdef __linux__
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 ? 0 : -errno;
#else
    (void)fd;
    return 0;
#endif
}

int shoal_seal_writes(int fd) {
#ifdef __linux__
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
    const int size = F_SEAL_SHRINK | F_SEAL_GROW;
    if (fcntl(fd, F_ADD_SEALS, size | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0)
        return 0;
    if (errno == EINVAL) /* before Linux 5.1, or an emulation: the descriptor passed on is read-only anyway */
        return fcntl(fd, F_ADD_SEALS, size | F_SEAL_SEAL) == 0 ? 0 : -errno;
    return -errno;
#else
    (void)fd;
    return 0;
#endif
}

int shoal_accept(int listen_fd) {
#ifdef __linux__
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    return fd >= 0 ? fd : -errno;
#else
    int fd = accept(listen_fd, NULL, NULL), on = 1;
    if (fd < 0)
        return -errno;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
    return fd;
#endif
}

int64_t shoal_peer_uid(int fd) {
#ifdef __linux__
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? (int64_t)peer.uid : -errno;
#else
    uid_t uid;
    gid_t gid;
    return getpeereid(fd, &uid, &gid) == 0 ? (int64_t)uid : -errno;
#endif
}

int shoal_reopen(int fd, int writable) {
    char self[64];
#ifdef __linux__
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
#else
    snprintf(self, sizeof self, "/dev/fd/%d", fd);
#endif
    int other = open(self, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    return other >= 0 ? other : -errno;
}

int shoal_back_holes(int fd, void *base, uint64_t size) {
#ifdef __linux__
    struct stat st;
    struct statfs fs;
    if (fstat(fd, &st) != 0 || fstatfs(fd, &fs) != 0)
        return -errno;
    uint64_t backed = (uint64_t)st.st_blocks * 512;
    if (backed >= size || (uint64_t)fs.f_type != TMPFS_MAGIC)
        return 0;
    if (fs.f_blocks != 0 && (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize < size - backed)
        return -ENOSPC;
    if (madvise(base, size, MADV_POPULATE_READ) == 0 || errno == EINVAL) /* EINVAL: an older kernel */
        return 0;
    return errno == EFAULT ? -ENOSPC : -errno;
#else
    (void)fd;
    (void)base;
    (void)size;
    return 0;
#endif
}

int shoal_huge_pages(void *base, uint64_t size, int collapse) {
#ifdef __linux__
    if (size < HUGE_PAGE_BYTES)
        return 0;
    if (madvise(base, size, MADV_HUGEPAGE) != 0)
        return errno == EINVAL ? 0 : -errno;
    if (collapse)
        (void)madvise(base, size, MADV_COLLAPSE); /* fails if memory is fragmented: small pages work, too */
#else
    (void)base;
    (void)size;
    (void)collapse;
#endif
    return 0;
}

void shoal_boot_id(uint8_t out[16]) {
    memset(out, 0, 16);
#ifdef __linux__
    char text[40] = {0};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    unsigned digits = 0;
    for (ssize_t i = 0; i < length && digits < 32; i++) {
        char c = text[i];
        if (c == '-')
            continue;
        unsigned value = c >= '0' && c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 32) - 'a') + 10;
        if (value > 15)
            break;
        out[digits / 2] = (uint8_t)(out[digits / 2] << 4 | value);
        digits++;
    }
#else
    struct timeval boot = {0};
    size_t size = sizeof boot;
    if (sysctlbyname("kern.boottime", &boot, &size, NULL, 0) == 0)
        memcpy(out, &boot, sizeof boot < 16 ? sizeof boot : 16);
#endif
}

uint64_t shoal_process_start(int64_t pid) {
    if (pid <= 0 || pid > INT32_MAX)
        return 0;
#ifdef __linux__
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    char *field = strrchr(text, ')'); /* the command name may hold spaces and parentheses */
    if (field == NULL || field[1] == '\0')
        return 0;
    field += 2; /* field 3, the state */
    if (*field == 'Z' || *field == 'X')
        return 0;
    for (int i = 3; i < 22 && field != NULL; i++) {
        field = strchr(field, ' ');
        if (field != NULL)
            field++;
    }
    return field == NULL ? 0 : strtoull(field, NULL, 10);
#else
    struct kinfo_proc info;
    size_t size = sizeof info;
    int name[4] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, (int)pid};
    if (sysctl(name, 4, &info, &size, NULL, 0) != 0 || size == 0 || info.kp_proc.p_stat == SZOMB)
        return 0;
    struct timeval start = info.kp_proc.p_starttime;
    return (uint64_t)start.tv_sec * 1000000u + (uint64_t)start.tv_usec;
#endif
}

void shoal_futex_wait(const shoal_word *word, uint32_t expected, uint64_t timeout_ns) {
    struct timespec limit = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
#ifdef __linux__
    (void)syscall(SYS_futex, word, FUTEX_WAIT, expected, &limit, NULL, 0);
#else
    struct timespec step = {0, 50000}; /* no public futex before macOS 14.4: poll every 50 us */
    if (limit.tv_sec == 0 && limit.tv_nsec < step.tv_nsec)
        step = limit;
    if (atomic_load_explicit(word, memory_order_relaxed) == expected)
        nanosleep(&step, NULL);
#endif
}

void shoal_futex_wake_some(const shoal_word *word, uint32_t count) {
#ifdef __linux__
    /* Linux does not interrupt this call, but a layer between may (a tracer, an emulated kernel), and threads
     * that wait for work sleep without a limit. */
    while (syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0) < 0 && errno == EINTR)
        ;
#else
    (void)word, (void)count;
#endif
}

void shoal_futex_wake(const shoal_word *word) { shoal_futex_wake_some(word, INT32_MAX); }

/* A robust mutex that is locked and never unlocked: when its owner ends, the kernel sets FUTEX_OWNER_DIED in
 * its word, and wakes sleepers if FUTEX_WAITERS is set. */
#ifdef __linux__
_Static_assert(sizeof(pthread_mutex_t) <= sizeof((shoal_liveness){0}.room), "room for a mutex");

enum {
    MAX_LIVENESS_WORDS = 127,
    SYS_FUTEX_WAITV = 449,
    WAITV_32_BITS = 2
}; /* Linux 5.16, on every machine */
typedef struct waited {
    uint64_t expected, address;
    uint32_t flags, reserved;
} waited;

static pthread_once_t waitv_once = PTHREAD_ONCE_INIT;
static int has_waitv;
static void probe_waitv(void) {
    has_waitv = syscall(SYS_FUTEX_WAITV, NULL, 0, 0, NULL, 0) < 0 && errno == EINVAL;
}

/* The kernel's word, always inside `room`, whatever another process wrote; NULL if no thread holds it. */
static shoal_word *word_of(const shoal_liveness *liveness) {
    const uint32_t at = atomic_load_explicit(&liveness->at, memory_order_acquire);
    if (at == 0 || at - 1 > sizeof liveness->room - sizeof(shoal_word) || (at - 1) % sizeof(shoal_word) != 0)
        return NULL;
    return (shoal_word *)(uintptr_t)(liveness->room + (at - 1));
}

int shoal_liveness_hold(shoal_liveness *liveness) {
    pthread_mutex_t *mutex = (pthread_mutex_t *)liveness->room;
    pthread_mutexattr_t shared;
    struct robust_list_head *held = NULL;
    size_t size = 0;
    memset(liveness, 0, sizeof *liveness);
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &shared);
    pthread_mutex_lock(mutex);
    pthread_mutexattr_destroy(&shared);
    if (syscall(SYS_get_robust_list, 0, &held, &size) != 0) {
        const int error = errno;
        pthread_mutex_unlock(mutex);
        return -error;
    }
    /* The mutex locked last is first in the list; the offset from link to word is the same for all. */
    const uintptr_t word = ((uintptr_t)held->list.next & ~(uintptr_t)1) + (uintptr_t)held->futex_offset;
    const uintptr_t at = word - (uintptr_t)liveness->room;
    const int is_ours = at <= sizeof liveness->room - sizeof(shoal_word) && at % sizeof(shoal_word) == 0;
    if (!is_ours || (*(const uint32_t *)word & FUTEX_TID_MASK) != (uint32_t)syscall(SYS_gettid)) {
        pthread_mutex_unlock(mutex);
        return -ENOSYS;
    }
    atomic_store_explicit(&liveness->at, (uint32_t)at + 1, memory_order_release);
    return 0;
}

void shoal_liveness_release(shoal_liveness *liveness) {
    const shoal_word *word = word_of(liveness);
    if (word == NULL || (atomic_load(word) & FUTEX_TID_MASK) != (uint32_t)syscall(SYS_gettid))
        return; /* for example in a forked child */
    atomic_store(&liveness->at, 0);
    pthread_mutex_unlock((pthread_mutex_t *)liveness->room);
}

int shoal_liveness_has_ended(const shoal_liveness *liveness) {
    const shoal_word *word = word_of(liveness);
    return word != NULL && (atomic_load_explicit(word, memory_order_acquire) & FUTEX_OWNER_DIED) != 0;
}

int shoal_liveness_can_be_watched(shoal_liveness *const *liveness_words, uint32_t count) {
    pthread_once(&waitv_once, probe_waitv);
    for (uint32_t i = 0; i < count; i++)
        if (word_of(liveness_words[i]) == NULL)
            return 0;
    return has_waitv && count <= MAX_LIVENESS_WORDS;
}

void shoal_futex_wait_with_liveness(const shoal_word *word, uint32_t expected,
                                    shoal_liveness *const *liveness_words, uint32_t count,
                                    uint64_t timeout_ns) {
    waited all[1 + MAX_LIVENESS_WORDS] = {{expected, (uintptr_t)word, WAITV_32_BITS, 0}};
    uint32_t number = 1;
    for (uint32_t i = 0; i < count && number <= MAX_LIVENESS_WORDS; i++) {
        shoal_word *liveness = word_of(liveness_words[i]);
        if (liveness == NULL)
            continue;
        const uint32_t is = atomic_fetch_or(liveness, FUTEX_WAITERS) | FUTEX_WAITERS;
        if (is & FUTEX_OWNER_DIED)
            return;
        all[number++] = (waited){is, (uintptr_t)liveness, WAITV_32_BITS, 0};
    }
    const uint64_t until = shoal_now_ns() + timeout_ns;
    const struct timespec limit = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    (void)syscall(SYS_FUTEX_WAITV, all, number, 0, &limit, CLOCK_MONOTONIC);
}
#else
int shoal_liveness_hold(shoal_liveness *liveness) {
    memset(liveness, 0, sizeof *liveness);
    return -ENOSYS;
}
void shoal_liveness_release(shoal_liveness *liveness) { (void)liveness; }
int shoal_liveness_has_ended(const shoal_liveness *liveness) {
    (void)liveness;
    return 0;
}
int shoal_liveness_can_be_watched(shoal_liveness *const *liveness_words, uint32_t count) {
    (void)liveness_words, (void)count;
    return 0;
}
void shoal_futex_wait_with_liveness(const shoal_word *word, uint32_t expected,
                                    shoal_liveness *const *liveness_words, uint32_t count,
                                    uint64_t timeout_ns) {
    (void)liveness_words, (void)count;
    shoal_futex_wait(word, expected, timeout_ns);
}
#endif

int shoal_wakeup_create(int *sleep_fd, int *wake_fd) {
#ifdef __linux__
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
        return -errno;
    *sleep_fd = *wake_fd = fd;
    return 0;
#else
    int ends[2];
    if (pipe(ends) != 0)
        return -errno;
    for (int i = 0; i < 2; i++) {
        int flags = fcntl(ends[i], F_GETFL);
        if (close_on_exec(ends[i]) < 0 || fcntl(ends[i], F_SETFL, flags | O_NONBLOCK) != 0) {
            int error = errno;
            close(ends[0]);
            close(ends[1]);
            return -error;
        }
    }
    *sleep_fd = ends[0];
    *wake_fd = ends[1];
    return 0;
#endif
}

uint64_t shoal_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint32_t shoal_cpu_count(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (uint32_t)CPU_COUNT(&set);
#endif
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (uint32_t)count : 1;
}

int shoal_cpu(void) {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

void shoal_lower_priority(void) {
#ifdef __linux__
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &(struct sched_param){0});
    (void)!nice(10); /* on Linux, of this thread only */
#endif
}

#ifdef __linux__
void shoal_move_to_unused_cpu(const shoal_cpu_set *used, int preferred) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    int to = -1;
    for (int cpu = 0; cpu < SHOAL_CPU_SET_SIZE && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((unsigned)cpu, &allowed) && !shoal_cpu_set_has(used, cpu) &&
            (to < 0 || cpu == preferred))
            to = cpu;
    if (to < 0)
        return;
    CPU_ZERO(&one);
    CPU_SET((unsigned)to, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0)
        (void)sched_setaffinity(0, sizeof allowed, &allowed);
}
#else
void shoal_move_to_unused_cpu(const shoal_cpu_set *used, int preferred) { (void)used, (void)preferred; }
#endif

static uint64_t fork_count;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void count_fork(void) { fork_count++; /* the child has only this thread */ }

static void watch_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

uint64_t shoal_fork_count(void) {
    pthread_once(&fork_once, watch_forks);
    return fork_count;
}

uintptr_t shoal_interrupted_at(const void *context) {
    const ucontext_t *at = context;
#if defined(__linux__) && defined(__x86_64__)
    return (uintptr_t)at->uc_mcontext.gregs[REG_RIP];
#elif defined(__linux__) && defined(__aarch64__)
    return (uintptr_t)at->uc_mcontext.pc;
#elif defined(__APPLE__) && defined(__aarch64__)
    return (uintptr_t)at->uc_mcontext->__ss.__pc;
#elif defined(__APPLE__) && defined(__x86_64__)
    return (uintptr_t)at->uc_mcontext->__ss.__rip;
#else
    (void)at;
    return 0;
#endif
}

uintptr_t shoal_interrupted_caller(const void *context) {
    const ucontext_t *at = context;
#if defined(__linux__) && defined(__x86_64__)
    return *(const uintptr_t *)at->uc_mcontext.gregs[REG_RSP];
#elif defined(__linux__) && defined(__aarch64__)
    return (uintptr_t)at->uc_mcontext.regs[30];
#elif defined(__APPLE__) && defined(__aarch64__)
    return (uintptr_t)at->uc_mcontext->__ss.__lr;
#elif defined(__APPLE__) && defined(__x86_64__)
    return *(const uintptr_t *)at->uc_mcontext->__ss.__rsp;
#else
    (void)at;
    return 0;
#endif
}

int shoal_backtrace(void **addresses, int capacity) {
#ifdef HAS_BACKTRACE
    return backtrace(addresses, capacity);
#else
    (void)addresses, (void)capacity;
    return 0;
#endif
}

const char *shoal_name_directory(void) {
#ifdef __linux__
    return "/dev/shm";
#else
    const char *directory = getenv("TMPDIR"); /* per user and 0700 */
    return directory != NULL && directory[0] == '/' ? directory : "/tmp";
#endif
}
