/* Tests of shoal_segment_inspect: the frozen header, every way a file can be wrong, and 100,000 random ones.
 */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "platform.h"
#include "segment.h"

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* Files written by one version are read by the next: a change here is a new format number. */
#define FROZEN(member, at, bytes)                                                                            \
    _Static_assert(offsetof(shoal_segment_header, member) == (at), #member " moved");                        \
    _Static_assert(sizeof(((shoal_segment_header *)0)->member) == (bytes), #member " changed its size")
FROZEN(magic, 0, 8);
FROZEN(format, 8, 4);
FROZEN(min_reader, 12, 4);
FROZEN(byte_order, 16, 4);
FROZEN(reserved, 20, 4);
FROZEN(size_bytes, 24, 8);
FROZEN(data_offset, 32, 8);
FROZEN(schema_bytes, 40, 8);
FROZEN(digest, 48, 32);
FROZEN(boot_id, 80, 16);
FROZEN(owner_pid, 96, 8);
FROZEN(owner_start, 104, 8);
FROZEN(zeros, 112, 16);
_Static_assert(sizeof(shoal_segment_header) == 128, "the header's size is frozen");
_Static_assert(SHOAL_SEGMENT_FORMAT == 1 && SHOAL_SEGMENT_MIN_READER == 1, "a new format needs new tests");
_Static_assert(SHOAL_BYTE_ORDER == 0x01020304u && SHOAL_ALIGNMENT == 64 && SHOAL_SMALLEST_PAGE == 4096,
               "frozen");
_Static_assert(SHOAL_SEGMENT_OK == 0 && SHOAL_SEGMENT_TOO_SHORT == 1 && SHOAL_SEGMENT_FOREIGN == 2 &&
                   SHOAL_SEGMENT_BYTE_ORDER == 3 && SHOAL_SEGMENT_FORMAT_NEW == 4 &&
                   SHOAL_SEGMENT_WRONG_SIZE == 5 && SHOAL_SEGMENT_BOUNDS == 6,
               "Python knows these numbers");

enum { HEADER = sizeof(shoal_segment_header), FILE_BYTES = 8192, FUZZ_ROUNDS = 100000 };

static int memory_of(const void *bytes, size_t count, uint64_t file_bytes) {
    int fd = shoal_memory_create();
    CHECK(fd >= 0);
    CHECK_EQUAL(pwrite(fd, bytes, count, 0), count);
    CHECK_EQUAL(ftruncate(fd, (off_t)file_bytes), 0);
    return fd;
}

static int inspected(const void *bytes, size_t count, uint64_t file_bytes) {
    shoal_segment_header header;
    uint64_t found_bytes = 12345;
    int fd = memory_of(bytes, count, file_bytes);
    int status = shoal_segment_inspect(fd, &header, &found_bytes);
    CHECK_EQUAL(found_bytes, file_bytes);
    CHECK(memcmp(&header, bytes, count < HEADER ? count : HEADER) == 0);
    close(fd);
    return status;
}

static int status_of(const shoal_segment_header *header) { return inspected(header, HEADER, FILE_BYTES); }

static shoal_segment_header valid_header(void) {
    shoal_segment_header header = {.magic = {'S', 'H', 'O', 'A', 'L', 'S', 'E', 'G'},
                                   .format = 1,
                                   .min_reader = 1,
                                   .byte_order = SHOAL_BYTE_ORDER,
                                   .size_bytes = FILE_BYTES,
                                   .data_offset = 4096,
                                   .schema_bytes = 100};
    return header;
}

static void a_consistent_header_is_accepted(void) {
    shoal_segment_header header = valid_header();
    CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_OK);
    header.schema_bytes = 0;
    CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_OK);
    header.schema_bytes = 4096 - 128; /* up to the data */
    CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_OK);
    header.data_offset = FILE_BYTES; /* no data */
    header.schema_bytes = FILE_BYTES - 128;
    CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_OK);
}

static void a_header_cut_anywhere_is_too_short(void) {
    shoal_segment_header header = valid_header();
    for (size_t count = 0; count < HEADER; count++)
        CHECK_EQUAL(inspected(&header, count, count), SHOAL_SEGMENT_TOO_SHORT);
}

static void another_kind_of_file_is_foreign_however_long(void) {
    char bytes[HEADER];
    memset(bytes, 0x7f, sizeof bytes);
    CHECK_EQUAL(inspected(bytes, 8, 8), SHOAL_SEGMENT_FOREIGN);
    CHECK_EQUAL(inspected(bytes, HEADER, HEADER), SHOAL_SEGMENT_FOREIGN);
    CHECK_EQUAL(inspected("", 0, FILE_BYTES), SHOAL_SEGMENT_FOREIGN); /* a hole: created, not yet published */
    for (size_t i = 0; i < 8; i++) {
        shoal_segment_header header = valid_header();
        header.magic[i] ^= 1;
        CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_FOREIGN);
    }
}

static void other_byte_order_is_reported_before_other_fields_are_used(void) {
    shoal_segment_header header = valid_header();
    header.byte_order = 0x04030201u;
    header.format = header.min_reader = 0x01000000u;
    header.size_bytes = (uint64_t)0x20 << 48;
    CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_BYTE_ORDER);
    header.byte_order = 0;
    CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_BYTE_ORDER);
}

static void newer_format_is_read_only_if_min_reader_allows_it(void) {
    shoal_segment_header header = valid_header();
    header.format = 7;
    CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_OK); /* its min_reader is still ours */
    header.min_reader = 2;
    CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_FORMAT_NEW);
    header.min_reader = UINT32_MAX;
    CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_FORMAT_NEW);
    header.format = 0;
    header.min_reader = 1;
    CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_FORMAT_NEW);
}

static void a_file_of_another_size_than_written_is_refused(void) {
    shoal_segment_header header = valid_header();
    CHECK_EQUAL(inspected(&header, HEADER, HEADER), SHOAL_SEGMENT_WRONG_SIZE);
    CHECK_EQUAL(inspected(&header, HEADER, FILE_BYTES - 1), SHOAL_SEGMENT_WRONG_SIZE);
    CHECK_EQUAL(inspected(&header, HEADER, FILE_BYTES + 1), SHOAL_SEGMENT_WRONG_SIZE);
    header.size_bytes = UINT64_MAX;
    CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_WRONG_SIZE);
}

static void offsets_that_contradict_the_size_are_refused(void) {
    const uint64_t bad_offsets[] = {
        0, 64, 128, 2048, 4095, 4097, 4160, FILE_BYTES + 4096, UINT64_MAX, UINT64_MAX - 4095};
    for (size_t i = 0; i < sizeof bad_offsets / sizeof *bad_offsets; i++) {
        shoal_segment_header header = valid_header();
        header.data_offset = bad_offsets[i];
        header.schema_bytes = 0;
        CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_BOUNDS);
    }
    const uint64_t bad_schemas[] = {4096 - 127, 4096, UINT64_MAX, UINT64_MAX - 127};
    for (size_t i = 0; i < sizeof bad_schemas / sizeof *bad_schemas; i++) {
        shoal_segment_header header = valid_header();
        header.schema_bytes = bad_schemas[i];
        CHECK_EQUAL(status_of(&header), SHOAL_SEGMENT_BOUNDS);
    }
}

static void unreadable_file_is_an_error_not_a_status(void) {
    shoal_segment_header header;
    uint64_t bytes;
    int pipes[2], directory = open("/", O_RDONLY | O_DIRECTORY);
    CHECK(pipe(pipes) == 0 && directory >= 0);
    CHECK_EQUAL(shoal_segment_inspect(-1, &header, &bytes), -EBADF);
    CHECK_EQUAL(shoal_segment_inspect(pipes[0], &header, &bytes), -ESPIPE);
    CHECK_EQUAL(shoal_segment_inspect(directory, &header, &bytes), -EISDIR);
    close(pipes[0]);
    close(pipes[1]);
    close(directory);
}

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint64_t random_word(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* A number near one that matters, more often than not. */
static uint64_t random_number(void) {
    const uint64_t edges[] = {0, 1, 2, 64, HEADER, 4096, FILE_BYTES, UINT32_MAX, INT64_MAX, UINT64_MAX};
    if (random_word() % 4 == 0)
        return random_word() >> random_word() % 64;
    return edges[random_word() % (sizeof edges / sizeof *edges)] + random_word() % 3 - 1;
}

/* Says in its own words, in 128 bits, what segment.c must find. */
static bool consistent(const shoal_segment_header *header, uint64_t file_bytes) {
    __extension__ typedef unsigned __int128 wide;
    wide schema_end = (wide)HEADER + header->schema_bytes;
    return memcmp(header->magic, "SHOALSEG", 8) == 0 && header->byte_order == 0x01020304u &&
           header->format >= 1 && header->min_reader <= 1 && header->size_bytes == file_bytes &&
           schema_end <= header->data_offset && header->data_offset <= file_bytes &&
           header->data_offset % 4096 == 0;
}

static void random_header(shoal_segment_header *header) {
    unsigned char *bytes = (unsigned char *)header;
    if (random_word() % 8 == 0) {
        for (size_t i = 0; i < HEADER; i++)
            bytes[i] = (unsigned char)random_word();
        return;
    }
    *header = valid_header();
    for (uint64_t changes = random_word() % 4; changes > 0; changes--) {
        switch (random_word() % 8) {
        case 0:
            header->format = (uint32_t)random_number();
            break;
        case 1:
            header->min_reader = (uint32_t)random_number();
            break;
        case 2:
            header->byte_order = (uint32_t)random_number();
            break;
        case 3:
            header->size_bytes = random_number();
            break;
        case 4:
            header->data_offset = random_number();
            break;
        case 5:
            header->data_offset = random_number() * 4096;
            break;
        case 6:
            header->schema_bytes = random_number();
            break;
        default:
            bytes[random_word() % HEADER] ^= (unsigned char)(1u << random_word() % 8);
        }
    }
}

static void random_headers_are_accepted_only_when_consistent(void) {
    shoal_segment_header header = {0}, found;
    uint64_t file_bytes = 0, found_bytes;
    int accepted = 0, refused[7] = {0}, fd = memory_of("", 0, 0);
    for (int round = 0; round < FUZZ_ROUNDS; round++) {
        if (round % 64 == 0) {
            file_bytes = random_word() % 8 == 0 ? random_word() % 300 : FILE_BYTES;
            CHECK(ftruncate(fd, (off_t)file_bytes) == 0);
        }
        random_header(&header);
        size_t count = file_bytes < HEADER ? (size_t)file_bytes : HEADER;
        CHECK(pwrite(fd, &header, count, 0) == (ssize_t)count);
        int status = shoal_segment_inspect(fd, &found, &found_bytes);
        CHECK(status >= 0 && status <= 6);
        CHECK_EQUAL(status == SHOAL_SEGMENT_OK, count == HEADER && consistent(&header, file_bytes));
        accepted += status == SHOAL_SEGMENT_OK;
        refused[status]++;
    }
    close(fd);
    CHECK(accepted > FUZZ_ROUNDS / 100);
    for (int status = 1; status <= 6; status++)
        CHECK(refused[status] > FUZZ_ROUNDS / 1000); /* every branch was reached */
}

int main(void) {
    RUN(a_consistent_header_is_accepted);
    RUN(a_header_cut_anywhere_is_too_short);
    RUN(another_kind_of_file_is_foreign_however_long);
    RUN(other_byte_order_is_reported_before_other_fields_are_used);
    RUN(newer_format_is_read_only_if_min_reader_allows_it);
    RUN(a_file_of_another_size_than_written_is_refused);
    RUN(offsets_that_contradict_the_size_are_refused);
    RUN(unreadable_file_is_an_error_not_a_status);
    RUN(random_headers_are_accepted_only_when_consistent);
    return 0;
}
