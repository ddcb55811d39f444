/* Every call that differs between operating systems: memory descriptors, disk space, seals, futexes, sockets,
 * process identity. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PLATFORM_H
#define SHOAL_PLATFORM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include <atomic>
typedef std::atomic<uint32_t> shoal_word;
using std::memory_order_relaxed; /* for inline functions of the headers */
using std::memory_order_release;
extern "C" {
#else
#include <stdatomic.h>
typedef _Atomic(uint32_t) shoal_word; /* a word that processes and threads wait on */
#endif

/* Every function that returns int returns 0 or a descriptor on success and -errno on failure. Descriptors
 * close on exec. */

/* Creates memory without a name: the kernel frees it with its last descriptor and mapping. Mode 0600. */
int shoal_memory_create(void);

/* Creates a file in `directory` that has no name yet, mode 0600. If the file system does not support that, it
 * has a temporary name, in `temporary` (else ""): pass it to shoal_file_link, or remove it. */
int shoal_file_create(const char *directory, char *temporary, size_t capacity);

/* Gives the file its name in one atomic step, so no process sees half a file. -EEXIST if the name is taken.
 */
int shoal_file_link(int fd, const char *temporary, const char *path);

/* Grows the file to `begin + length` bytes and reserves them, so that no later store fails because the disk
 * is full. */
int shoal_reserve(int fd, uint64_t begin, uint64_t length);

/* Forbids every process to shrink or grow the memory. Returns 0 also on a system without seals. */
int shoal_seal(int fd);

/* The same, and forbids new writable mappings and writes; existing mappings stay. For memory that was not
 * sealed with shoal_seal. Returns 0 also on a system without this seal. */
int shoal_seal_writes(int fd);

/* Waits until all data of the file, including stores to its mapping at `base`, are on disk. */
int shoal_file_sync(int fd, void *base, uint64_t size);

/* Opens `fd` again as an independent file description; with `writable` 0 it cannot be mapped for writing. */
int shoal_reopen(int fd, int writable);

/* Makes sure that reading a mapping raises no signal: on tmpfs even a load from a hole needs space. -ENOSPC
 * if there is too little. Does nothing for a file without holes. */
int shoal_back_holes(int fd, void *base, uint64_t size);

/* Requests 2 MB pages: as a hint, or with `collapse` at once, as far as possible. Returns 0 also on a system
 * without them. */
int shoal_huge_pages(void *base, uint64_t size, int collapse);

/* Identifies this boot of the machine; zeros if the system does not provide an id. */
void shoal_boot_id(uint8_t out[16]);

/* When process `pid` started, in the kernel's units; 0 if there is no such process or it is a zombie. */
uint64_t shoal_process_start(int64_t pid);

/* Sleeps while `*word` is `expected`, at most `timeout_ns`; may return early. Works across processes. */
void shoal_futex_wait(const shoal_word *word, uint32_t expected, uint64_t timeout_ns);
void shoal_futex_wake(const shoal_word *word);
void shoal_futex_wake_some(const shoal_word *word, uint32_t count); /* at most `count` sleepers */

/* A liveness word in shared memory (a robust futex). The kernel marks it, and wakes the processes that sleep
 * on it, as soon as the thread that holds it begins to end, whatever the cause. That is before the kernel
 * frees the process's memory, and so milliseconds before a pidfd becomes readable. Zeroed: no thread holds
 * it. */
typedef struct shoal_liveness {
    shoal_word at; /* offset of the kernel's word in `room`, plus one; 0: no thread holds it */
    uint32_t pad[3];
    unsigned char room[48];
} shoal_liveness;

/* This thread holds it until it ends or releases it; the memory must stay mapped so long. Returns -errno
 * where the system does not support it; a watcher finds that out by shoal_liveness_can_be_watched. */
int shoal_liveness_hold(shoal_liveness *liveness);
/* If this thread holds it, releases it without marking it as ended, and wakes processes that sleep on it. */
void shoal_liveness_release(shoal_liveness *liveness);
int shoal_liveness_has_ended(const shoal_liveness *liveness);
/* Whether shoal_futex_wait_with_liveness works: a thread holds each of these, and the system supports it. */
int shoal_liveness_can_be_watched(shoal_liveness *const *liveness_words, uint32_t count);
/* Sleeps while `*word` is `expected` and no liveness word ends, at most `timeout_ns`; may return early. */
void shoal_futex_wait_with_liveness(const shoal_word *word, uint32_t expected,
                                    shoal_liveness *const *liveness_words, uint32_t count,
                                    uint64_t timeout_ns);

/* For the body of a loop that waits for another core. */
static inline void shoal_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Creates a descriptor to sleep on (poll for reading), and one to which a process writes 8 bytes to end the
 * sleep. Both do not block. They may be the same. */
int shoal_wakeup_create(int *sleep_fd, int *wake_fd);

/* Sockets: accepts the next connection, which closes on exec and does not block; the user id of the process
 * at the other end, or -errno. */
int shoal_accept(int listen_fd);
int64_t shoal_peer_uid(int fd);
#ifdef __linux__ /* flags for sendmsg and recvmsg */
enum { SHOAL_MSG_NOSIGNAL = 0x4000, SHOAL_MSG_CLOEXEC = 0x40000000 };
#else
enum { SHOAL_MSG_NOSIGNAL = 0, SHOAL_MSG_CLOEXEC = 0 };
#endif

uint64_t shoal_now_ns(void);     /* monotonic */
uint32_t shoal_cpu_count(void);  /* cores that this process may use */
int shoal_cpu(void);             /* the core this thread runs on; -1: unknown */
void shoal_lower_priority(void); /* other threads that need a core run before this thread from now on */

/* A set of cores; cores from SHOAL_CPU_SET_SIZE on are in no set. */
enum { SHOAL_CPU_SET_SIZE = 1024 };
typedef struct shoal_cpu_set {
    uint64_t words[SHOAL_CPU_SET_SIZE / 64];
} shoal_cpu_set;
static inline void shoal_cpu_set_add(shoal_cpu_set *set, int cpu) {
    if (cpu >= 0 && cpu < SHOAL_CPU_SET_SIZE)
        set->words[cpu / 64] |= UINT64_C(1) << cpu % 64;
}
static inline int shoal_cpu_set_has(const shoal_cpu_set *set, int cpu) {
    return cpu >= 0 && cpu < SHOAL_CPU_SET_SIZE && set->words[cpu / 64] >> cpu % 64 & 1;
}
/* Moves this thread to `preferred`, or else to any core, that is not in `used` and on which it may run. The
 * kernel may move it again. */
void shoal_move_to_unused_cpu(const shoal_cpu_set *used, int preferred);

/* How often this process and its ancestors forked since the library was loaded. If the number differs from an
 * earlier one, this process is a forked child; no system call is needed. */
uint64_t shoal_fork_count(void);

/* For a signal handler, from its third argument: the interrupted address, and the return address of a
 * function that was interrupted at its first instruction. 0 if the system does not provide them. */
uintptr_t shoal_interrupted_at(const void *context);
uintptr_t shoal_interrupted_caller(const void *context);
/* Stores the return addresses of the current calls, innermost first; returns their number, 0 if unknown. */
int shoal_backtrace(void **addresses, int capacity);

/* The directory of named segments. */
const char *shoal_name_directory(void);

#ifdef __cplusplus
}
#endif
#endif
