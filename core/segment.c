/* Segments: the header that identifies shared memory, and the mapping itself. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "segment.h"

#include "platform.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(shoal_segment_header) == 128, "the header is two cache lines");
_Static_assert(offsetof(shoal_segment_header, digest) == 48, "the header is frozen");
_Static_assert(offsetof(shoal_segment_header, owner_pid) == 96, "the header is frozen");

static const char MAGIC[8] = {'S', 'H', 'O', 'A', 'L', 'S', 'E', 'G'};

int shoal_segment_inspect(int fd, shoal_segment_header *header, uint64_t *file_bytes) {
    struct stat st;
    memset(header, 0, sizeof *header);
    *file_bytes = 0;
    if (fstat(fd, &st) != 0)
        return -errno;
    *file_bytes = (uint64_t)st.st_size;
    size_t have = 0;
    while (have < sizeof *header) {
        ssize_t got = pread(fd, (char *)header + have, sizeof *header - have, (off_t)have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        have += (size_t)got;
    }
    if (have >= sizeof MAGIC && memcmp(header->magic, MAGIC, sizeof MAGIC) != 0)
        return SHOAL_SEGMENT_FOREIGN;
    if (have < sizeof *header)
        return SHOAL_SEGMENT_TOO_SHORT;
    if (header->byte_order != SHOAL_BYTE_ORDER)
        return SHOAL_SEGMENT_BYTE_ORDER;
    if (header->min_reader > SHOAL_SEGMENT_FORMAT || header->format == 0)
        return SHOAL_SEGMENT_FORMAT_NEW;
    if (header->size_bytes != *file_bytes)
        return SHOAL_SEGMENT_WRONG_SIZE;
    if (header->data_offset < sizeof *header || header->data_offset > header->size_bytes ||
        header->data_offset % SHOAL_SMALLEST_PAGE != 0 ||
        header->schema_bytes > header->data_offset - sizeof *header)
        return SHOAL_SEGMENT_BOUNDS;
    return SHOAL_SEGMENT_OK;
}

int shoal_segment_map(int fd, uint64_t size, int writable, void **base) {
    const uint64_t huge = 2u << 20;
    *base = NULL;
    if (size == 0 || size > SIZE_MAX - huge)
        return -EINVAL;
    /* Huge pages need an address that agrees with the offset modulo 2 MB: reserve more, keep that part. */
    uint64_t slack = size >= huge ? huge : 0;
    char *room = mmap(NULL, size + slack, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (room == MAP_FAILED)
        return -errno;
    char *start = room;
    if (slack != 0)
        start = (char *)(((uintptr_t)room + huge - 1) & ~(uintptr_t)(huge - 1));
    void *at = mmap(start, size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED | MAP_FIXED, fd, 0);
    if (at == MAP_FAILED) {
        int error = errno;
        munmap(room, size + slack);
        return -error;
    }
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t mapped = (size + page - 1) & ~(page - 1);
    if (start > room)
        munmap(room, (size_t)(start - room));
    char *end = (char *)(((uintptr_t)room + size + slack + page - 1) & ~(uintptr_t)(page - 1));
    if (end > start + mapped)
        munmap(start + mapped, (size_t)(end - (start + mapped)));
    int error = writable ? 0 : shoal_back_holes(fd, at, size); /* a writer's file has no holes */
    if (error != 0) {
        munmap(at, size);
        return error;
    }
    *base = at;
    return 0;
}

int shoal_segment_unmap(void *base, uint64_t size) { return munmap(base, size) == 0 ? 0 : -errno; }

void shoal_segment_publish(void *base, const shoal_segment_header *header, const void *schema) {
    shoal_segment_header filled = *header;
    memset(filled.magic, 0, sizeof filled.magic);
    filled.format = SHOAL_SEGMENT_FORMAT;
    filled.min_reader = SHOAL_SEGMENT_MIN_READER;
    filled.byte_order = SHOAL_BYTE_ORDER;
    filled.reserved = 0;
    memset(filled.zeros, 0, sizeof filled.zeros);
    shoal_boot_id(filled.boot_id);
    filled.owner_pid = (uint64_t)getpid();
    filled.owner_start = shoal_process_start(getpid());
    memcpy((char *)base + sizeof filled, schema, header->schema_bytes);
    /* Everything but the magic, which is stored last for readers. */
    const size_t after = sizeof filled.magic;
    memcpy((char *)base + after, (char *)&filled + after, sizeof filled - after);
    uint64_t magic;
    memcpy(&magic, MAGIC, sizeof magic);
    atomic_store_explicit((_Atomic uint64_t *)base, magic, memory_order_release);
}
