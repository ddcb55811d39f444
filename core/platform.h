/* Every call whose meaning differs between operating systems: descriptors of memory, space, seals, process
 * identity. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PLATFORM_H
#define SHOAL_PLATFORM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include <atomic>
typedef std::atomic<uint32_t> shoal_word;
using std::memory_order_relaxed; /* for what the headers inline */
using std::memory_order_release;
extern "C" {
#else
#include <stdatomic.h>
typedef _Atomic(uint32_t) shoal_word; /* what processes and threads wait on */
#endif

/* Every function that returns int gives 0 or a descriptor on success and -errno on failure. Descriptors close
 * on exec. */

/* Memory that has no name: the kernel frees it with its last descriptor and mapping. Mode 0600. */
int shoal_memory_create(void);

/* A file in `directory` that has no name yet, mode 0600. Where the file system cannot do that, a temporary
 * name is left in `temporary` (else ""), to be given to shoal_file_link or removed. */
int shoal_file_create(const char *directory, char *temporary, size_t capacity);

/* Gives the file its name in one atomic step: -EEXIST if the name is taken, and nobody ever sees half a file.
 */
int shoal_file_link(int fd, const char *temporary, const char *path);

/* Grows the file to `begin + length` bytes and reserves them, so that no later store can fail for want of
 * space. */
int shoal_reserve(int fd, uint64_t begin, uint64_t length);

/* No holder of the descriptor can shrink or grow the memory any more. 0 also where the system has no seals.
 */
int shoal_seal(int fd);

/* The same, and from now on nobody can map it for writing or write to it; mappings that are there stay. For
 * memory that shoal_seal has not seen. 0 also where the system has no such seal. */
int shoal_seal_writes(int fd);

/* Waits until all that was stored into the file, through its mapping at `base` too, is on disk. */
int shoal_file_sync(int fd, void *base, uint64_t size);

/* A second, independent open file description of `fd`; with `writable` 0 it cannot be mapped for writing. */
int shoal_reopen(int fd, int writable);

/* Makes every byte of a mapping readable without a signal: on tmpfs even a load from a hole takes space.
 * -ENOSPC where there is too little of it. Nothing to do for a file without holes. */
int shoal_back_holes(int fd, void *base, uint64_t size);

/* Asks for 2 MB pages: a hint, or with `collapse` a best effort made now. Returns 0 also where there are
 * none. */
int shoal_huge_pages(void *base, uint64_t size, int collapse);

/* Identifies this boot of the machine; zeros where the system does not say. */
void shoal_boot_id(uint8_t out[16]);

/* When process `pid` started, in the kernel's own units; 0 if there is no such process (or it is a zombie).
 */
uint64_t shoal_process_start(int64_t pid);

/* Sleeps while `*word` is `expected`, at most `timeout_ns`; may return early. Works across processes. */
void shoal_futex_wait(const shoal_word *word, uint32_t expected, uint64_t timeout_ns);
void shoal_futex_wake(const shoal_word *word);

/* A liveness word in shared memory (a robust futex). The kernel marks it, and wakes the processes that sleep
 * on it, as soon as the thread that holds it begins to end, whatever the cause. That is before the kernel
 * frees the process's memory, and so milliseconds before a pidfd becomes readable. Zeroed: no thread holds
 * it. */
typedef struct shoal_liveness {
    shoal_word at; /* of the kernel's word in `room`, from its beginning, plus one; 0: nobody holds it */
    uint32_t pad[3];
    unsigned char room[48];
} shoal_liveness;

/* This thread holds it until it ends or releases it; the memory must stay mapped so long. Returns -errno
 * where the system does not support it; a watcher finds that out by shoal_liveness_can_be_watched. */
int shoal_liveness_hold(shoal_liveness *liveness);
/* Releases it if this thread holds it, without marking it as ended, and wakes the processes that sleep on it.
 */
void shoal_liveness_release(shoal_liveness *liveness);
int shoal_liveness_has_ended(const shoal_liveness *liveness);
/* Whether shoal_futex_wait_with_liveness can be used: a thread holds each of these, and the system supports
 * it.
 */
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

/* A descriptor to sleep on (poll for reading) and one that ends the sleep when 8 bytes are written to it;
 * both non-blocking. They may be the same. 0 or -errno. */
int shoal_wakeup_create(int *sleep_fd, int *ring_fd);

/* Sockets: the next connection, which closes on exec and does not block, or -errno; whose process is at the
 * other end, or -errno. */
int shoal_accept(int listen_fd);
int64_t shoal_peer_uid(int fd);
#ifdef __linux__ /* flags for sendmsg and recvmsg */
enum { SHOAL_MSG_NOSIGNAL = 0x4000, SHOAL_MSG_CLOEXEC = 0x40000000 };
#else
enum { SHOAL_MSG_NOSIGNAL = 0, SHOAL_MSG_CLOEXEC = 0 };
#endif

uint64_t shoal_now_ns(void);     /* monotonic */
uint32_t shoal_cpu_count(void);  /* that this process may use */
int shoal_cpu(void);             /* the one this thread runs on, -1: unknown */
void shoal_wake_modestly(void);  /* from now on this thread leaves a core to others who want it */
void shoal_move_to_cpu(int cpu); /* moves this thread, if it may run there; it may be moved again */

/* How often this process's line of ancestors forked since the library was loaded: a number that differs from
 * the one remembered means "I am a forked child", without a system call. */
uint64_t shoal_fork_count(void);

/* For a signal handler, from its third argument: the address that the signal interrupted, and the address
 * that a function returns to whose first instruction was to run there. 0 where the system does not say. */
uintptr_t shoal_interrupted_at(const void *context);
uintptr_t shoal_interrupted_caller(const void *context);
/* The return addresses of the calls under way, innermost first; how many there are, 0 where nobody knows. */
int shoal_backtrace(void **addresses, int capacity);

/* The directory in which named segments live. */
const char *shoal_name_directory(void);

#ifdef __cplusplus
}
#endif
#endif
