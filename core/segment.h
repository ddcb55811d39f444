/* A segment: one shared mapping with a header that describes it.
 *
 *   0                128            128 + schema_bytes      data_offset                 size_bytes
 *   | header         | schema       | zeros                 | field | field | ...       |
 *   | magic .. owner | JSON text    |                       | each field 64-byte aligned |
 *
 * 1. The creator writes everything else, then stores `magic` with release.
 * 2. An opener reads the header from the file (never from a mapping) and checks it against the file's size.
 * 3. Only then does it map the file. The header and the schema never change again. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_SEGMENT_H
#define SHOAL_SEGMENT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_SEGMENT_FORMAT 1u      /* the format that this build writes */
#define SHOAL_SEGMENT_MIN_READER 1u  /* the oldest reader that understands it */
#define SHOAL_BYTE_ORDER 0x01020304u /* reads as 0x04030201 on a machine of the other order */
#define SHOAL_ALIGNMENT 64u          /* one cache line */
#define SHOAL_SMALLEST_PAGE 4096u    /* the smallest page of machines that write segments */

/* Writer of every member: the creator, once, before `magic`. Readers: every process. */
typedef struct shoal_segment_header {
    char magic[8]; /* "SHOALSEG", stored last */
    uint32_t format;
    uint32_t min_reader;
    uint32_t byte_order;
    uint32_t reserved;
    uint64_t size_bytes;  /* of the whole segment, header included */
    uint64_t data_offset; /* of the first field; a multiple of the page */
    uint64_t schema_bytes;
    uint8_t digest[32]; /* SHA-256 of the schema */
    uint8_t boot_id[16];
    uint64_t owner_pid; /* the creator, for messages; a lock on the file shows whether it is alive */
    uint64_t owner_start;
    uint8_t zeros[16];
} shoal_segment_header;

/* What is wrong with a file that should be a segment. */
enum shoal_segment_status {
    SHOAL_SEGMENT_OK = 0,
    SHOAL_SEGMENT_TOO_SHORT = 1,  /* shorter than a header */
    SHOAL_SEGMENT_FOREIGN = 2,    /* another kind of file */
    SHOAL_SEGMENT_BYTE_ORDER = 3, /* written on a machine of the other byte order */
    SHOAL_SEGMENT_FORMAT_NEW = 4, /* needs a newer reader than this build */
    SHOAL_SEGMENT_WRONG_SIZE = 5, /* truncated, or grown */
    SHOAL_SEGMENT_BOUNDS = 6      /* offsets that contradict the size */
};

/* Loads and checks the header of an open file. Returns a shoal_segment_status, or -errno if it cannot be
 * read. `file_bytes` gets the file's size. Uses no mapping, so a truncated file raises no signal. */
int shoal_segment_inspect(int fd, shoal_segment_header *header, uint64_t *file_bytes);

/* Maps `size` bytes shared, aligned to 2 MB if it is that large. Returns 0 or -errno; -ENOSPC for a sparse
 * file on a full tmpfs. */
int shoal_segment_map(int fd, uint64_t size, int writable, void **base);
int shoal_segment_unmap(void *base, uint64_t size);

/* Writes the schema and the header into a fresh mapping, magic last (release; partner: the opener's read of
 * the file, which the kernel orders after it). The caller sets `size_bytes`, `data_offset`, `schema_bytes`
 * and `digest`. */
void shoal_segment_publish(void *base, const shoal_segment_header *header, const void *schema);

#ifdef __cplusplus
}
#endif
#endif
