/* The table of the test build: every call of the core that can fail goes through here, and the n-th does.
 *
 * The linker sends each call NAME of the core to __wrap_NAME (CMakeLists.txt, _core_faults); __real_NAME is
 * the system's. tests/faults/harness.py arms it, and counts Python's own calls in the same row with
 * shoal_faults_hit. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static _Atomic int64_t left;         /* calls until the one that fails; 0 and below: none */
static _Atomic int64_t seen;         /* calls since it was armed */
static _Atomic(const char *) failed; /* the call that did */
static _Atomic int armed_in;         /* a process: its forked children are left alone */

EXPORT void shoal_faults_arm(int64_t n) {
    atomic_store(&failed, NULL);
    atomic_store(&seen, 0);
    atomic_store(&armed_in, getpid());
    atomic_store(&left, n);
}

EXPORT const char *shoal_faults_disarm(void) {
    atomic_store(&left, 0);
    return atomic_load(&failed);
}

EXPORT int64_t shoal_faults_seen(void) { return atomic_load(&seen); }

/* Counts a call; `error` if it is the one that fails, else 0. */
EXPORT int shoal_faults_hit(const char *call, int error) {
    if (atomic_load(&left) <= 0 || atomic_load(&armed_in) != getpid())
        return 0;
    atomic_fetch_add(&seen, 1);
    if (atomic_fetch_sub(&left, 1) != 1)
        return 0;
    atomic_store(&failed, call);
    return error;
}

static int fails(const char *call, int error) {
    const int kept = errno, found = shoal_faults_hit(call, error);
    errno = found != 0 ? found : kept;
    return found;
}

/* ROUTE(result on failure, errno, result type, name, parameters, arguments) */
#define ROUTE(result, error, type, name, parameters, arguments)                                              \
    type __real_##name parameters;                                                                           \
    type __wrap_##name parameters;                                                                           \
    type __wrap_##name parameters { return fails(#name, error) ? (result) : __real_##name arguments; }

ROUTE(NULL, ENOMEM, void *, malloc, (size_t size), (size))
ROUTE(NULL, ENOMEM, void *, calloc, (size_t count, size_t size), (count, size))
ROUTE(NULL, ENOMEM, void *, realloc, (void *old, size_t size), (old, size))
ROUTE(NULL, ENOMEM, void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size))
ROUTE(ENOMEM, ENOMEM, int, posix_memalign, (void **out, size_t alignment, size_t size),
      (out, alignment, size))
ROUTE(NULL, ENOMEM, char *, strndup, (const char *text, size_t most), (text, most))
ROUTE(MAP_FAILED, ENOMEM, void *, mmap, (void *at, size_t size, int prot, int flags, int fd, off_t offset),
      (at, size, prot, flags, fd, offset))
ROUTE(-1, ENOMEM, int, munmap, (void *at, size_t size), (at, size))
ROUTE(-1, EINVAL, int, madvise, (void *at, size_t size, int advice), (at, size, advice))
ROUTE(-1, EMFILE, int, memfd_create, (const char *name, unsigned flags), (name, flags))
ROUTE(-1, EPERM, int, fchmod, (int fd, mode_t mode), (fd, mode))
ROUTE(ENOSPC, ENOSPC, int, posix_fallocate, (int fd, off_t offset, off_t length), (fd, offset, length))
ROUTE(-1, EIO, int, fdatasync, (int fd), (fd))
ROUTE(-1, EIO, int, fstat, (int fd, struct stat *out), (fd, out))
ROUTE(-1, EIO, int, fstatfs, (int fd, struct statfs *out), (fd, out))
ROUTE(-1, EACCES, int, access, (const char *path, int mode), (path, mode))
ROUTE(-1, ENOSPC, int, mkstemp, (char *name), (name))
ROUTE(-1, ENOSPC, int, link, (const char *from, const char *to), (from, to))
ROUTE(-1, ENOSPC, int, linkat, (int a, const char *from, int b, const char *to, int flags),
      (a, from, b, to, flags))
ROUTE(-1, EIO, ssize_t, pread, (int fd, void *out, size_t size, off_t offset), (fd, out, size, offset))
ROUTE(-1, EIO, ssize_t, read, (int fd, void *out, size_t size), (fd, out, size))
ROUTE(-1, EINTR, ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
ROUTE(-1, EMFILE, int, eventfd, (unsigned count, int flags), (count, flags))
ROUTE(-1, EMFILE, int, accept4, (int fd, struct sockaddr *who, socklen_t *size, int flags),
      (fd, who, size, flags))
ROUTE(-1, ENOBUFS, ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
ROUTE(-1, ENOMEM, ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
ROUTE(-1, ENOBUFS, int, getsockopt, (int fd, int level, int name, void *out, socklen_t *size),
      (fd, level, name, out, size))
ROUTE(-1, ENOMEM, int, poll, (struct pollfd * fds, nfds_t count, int timeout_ms), (fds, count, timeout_ms))
ROUTE(EAGAIN, EAGAIN, int, pthread_create,
      (pthread_t * out, const pthread_attr_t *with, void *(*run)(void *), void *argument),
      (out, with, run, argument))

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const int mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, int) : 0;
    va_end(more);
    return fails("open", EMFILE) ? -1 : __real_open(path, flags, mode);
}

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *); /* an int or a pointer: both come in one register */
    va_end(more);
    return fails("fcntl", ENOLCK) ? -1 : __real_fcntl(fd, command, argument);
}

/* The core's use of syscall() is futexes, and the signs of life that they are marked by. */
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
    va_list more;
    va_start(more, number);
    long a[6];
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    return fails("futex", EINTR) ? -1 : __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* Its error is a text that dlerror gives, so another name that is not there is asked for. */
void *__real_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags) {
    return __real_dlopen(fails("dlopen", ENOMEM) ? "/nowhere/failed-on-purpose.so" : path, flags);
}
