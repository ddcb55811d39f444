/* Tests of core/segment.c: create, reserve, seal, map, publish and inspect, and what mapping leaves behind.
 */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "platform.h"
#include "segment.h"

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t HUGE_PAGE = 2 << 20;

static int memory_of(uint64_t size) {
    int fd = shoal_memory_create();
    CHECK(fd >= 0);
    CHECK_EQUAL(shoal_reserve(fd, 0, size), 0);
    CHECK_EQUAL(shoal_seal(fd), 0);
    return fd;
}

static void published_header_is_read_by_inspect(void) {
    const char schema[] = "{\"fields\":[]}";
    const uint64_t size = 12288;
    shoal_segment_header header, found;
    uint64_t file_bytes;
    void *base, *other;
    int fd = memory_of(size);
    CHECK_EQUAL(shoal_segment_inspect(fd, &found, &file_bytes), SHOAL_SEGMENT_FOREIGN);
    CHECK_EQUAL(shoal_segment_map(fd, size, 1, &base), 0);
    memset(&header, 0xee, sizeof header); /* whatever the caller leaves in the rest is not published */
    header.size_bytes = size;
    header.data_offset = 4096;
    header.schema_bytes = sizeof schema;
    shoal_segment_publish(base, &header, schema);

    CHECK_EQUAL(shoal_segment_inspect(fd, &found, &file_bytes), SHOAL_SEGMENT_OK);
    CHECK_EQUAL(file_bytes, size);
    CHECK(memcmp(found.magic, "SHOALSEG", 8) == 0);
    CHECK_EQUAL(found.format, SHOAL_SEGMENT_FORMAT);
    CHECK_EQUAL(found.min_reader, SHOAL_SEGMENT_MIN_READER);
    CHECK_EQUAL(found.byte_order, SHOAL_BYTE_ORDER);
    CHECK_EQUAL(found.reserved, 0);
    CHECK_EQUAL(found.size_bytes, size);
    CHECK_EQUAL(found.data_offset, 4096);
    CHECK_EQUAL(found.schema_bytes, sizeof schema);
    CHECK(memcmp(found.digest, header.digest, sizeof found.digest) == 0);
    uint8_t boot_id[16], zeros[16] = {0};
    shoal_boot_id(boot_id);
    CHECK(memcmp(found.boot_id, boot_id, sizeof boot_id) == 0);
    CHECK_EQUAL(found.owner_pid, getpid());
    CHECK_EQUAL(found.owner_start, shoal_process_start(getpid()));
    CHECK(memcmp(found.zeros, zeros, sizeof zeros) == 0);

    CHECK_EQUAL(shoal_segment_map(fd, size, 0, &other), 0);
    CHECK(memcmp((char *)other + sizeof found, schema, sizeof schema) == 0);
    for (uint64_t i = sizeof found + sizeof schema; i < size; i++)
        CHECK(((char *)other)[i] == 0);
    ((char *)base)[size - 1] = 42;
    CHECK_EQUAL(((char *)other)[size - 1], 42);
    CHECK_EQUAL(shoal_segment_unmap(other, size), 0);
    CHECK_EQUAL(shoal_segment_unmap(base, size), 0);
    close(fd);
}

static void a_mapping_outlives_its_descriptor(void) {
    void *base;
    int fd = memory_of(4096);
    CHECK_EQUAL(shoal_segment_map(fd, 4096, 1, &base), 0);
    close(fd);
    ((char *)base)[4095] = 1;
    CHECK_EQUAL(((char *)base)[4095], 1);
    CHECK_EQUAL(shoal_segment_unmap(base, 4096), 0);
}

static void large_mappings_are_aligned_to_huge_pages(void) {
    const uint64_t sizes[] = {HUGE_PAGE, HUGE_PAGE + 1, HUGE_PAGE + 4096, 3 * HUGE_PAGE, 3 * HUGE_PAGE - 1};
    void *bases[5][4];
    /* Several at once and of odd sizes, so that luck does not align them. */
    for (int i = 0; i < 5; i++) {
        int fd = memory_of(sizes[i]);
        for (int k = 0; k < 4; k++) {
            CHECK_EQUAL(shoal_segment_map(fd, sizes[i], 1, &bases[i][k]), 0);
            CHECK_EQUAL((uintptr_t)bases[i][k] % HUGE_PAGE, 0);
            ((char *)bases[i][k])[sizes[i] - 1] = (char)k;
            CHECK_EQUAL(((char *)bases[i][0])[sizes[i] - 1], k);
        }
        close(fd);
    }
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 4; k++)
            CHECK_EQUAL(shoal_segment_unmap(bases[i][k], sizes[i]), 0);
}

/* The thread sanitizer maps and unmaps memory of its own beside every mapping, so nothing can be counted. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#if defined(__linux__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_MAPPINGS 1
struct address_space {
    int lines;
    uint64_t bytes;
};

/* Reads /proc/self/maps without allocating, which would change it. */
static struct address_space address_space(void) {
    static char text[1 << 20];
    size_t have = 0;
    int fd = open("/proc/self/maps", O_RDONLY);
    CHECK(fd >= 0);
    for (ssize_t got; (got = read(fd, text + have, sizeof text - 1 - have)) > 0;)
        have += (size_t)got;
    close(fd);
    CHECK(have < sizeof text - 1);
    text[have] = '\0';
    struct address_space space = {0, 0};
    for (char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        uint64_t begin, end;
        CHECK(sscanf(line, "%" SCNx64 "-%" SCNx64, &begin, &end) == 2);
        space.lines++;
        space.bytes += end - begin;
    }
    return space;
}

static void mapping_uses_exactly_its_pages_and_releases_all(void) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t sizes[] = {1,         page,          page + 1,           HUGE_PAGE - 1,
                              HUGE_PAGE, HUGE_PAGE + 1, 5 * HUGE_PAGE + 123};
    const int count = (int)(sizeof sizes / sizeof *sizes);
    int fds[sizeof sizes / sizeof *sizes];
    for (int i = 0; i < count; i++)
        fds[i] = memory_of(sizes[i]);
    address_space(); /* the first reading may itself allocate */
    struct address_space before = address_space();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < count; i++) {
            void *base;
            CHECK_EQUAL(shoal_segment_map(fds[i], sizes[i], 1, &base), 0);
            struct address_space during = address_space();
            CHECK_EQUAL(during.bytes - before.bytes, (sizes[i] + page - 1) / page * page);
            CHECK_EQUAL(shoal_segment_unmap(base, sizes[i]), 0);
            struct address_space after = address_space();
            CHECK_EQUAL(after.bytes, before.bytes);
            CHECK_EQUAL(after.lines, before.lines);
        }
    }
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

static void a_mapping_that_fails_leaves_nothing_behind(void) {
    void *base = &base;
    int fd = memory_of(3 * HUGE_PAGE), reader = shoal_reopen(fd, 0);
    CHECK(reader >= 0);
    address_space();
    struct address_space before = address_space();
    CHECK_EQUAL(shoal_segment_map(reader, 3 * HUGE_PAGE, 1, &base), -EACCES);
    CHECK(base == NULL);
    CHECK_EQUAL(shoal_segment_map(-1, 4096, 1, &base), -EBADF);
    struct address_space after = address_space();
    CHECK_EQUAL(after.bytes, before.bytes);
    CHECK_EQUAL(after.lines, before.lines);
    close(reader);
    close(fd);
}
#endif

static void a_read_only_descriptor_is_mapped_for_reading_only(void) {
    void *base;
    int fd = memory_of(4096), reader = shoal_reopen(fd, 0);
    CHECK(reader >= 0);
    CHECK_EQUAL(shoal_segment_map(reader, 4096, 1, &base), -EACCES);
    CHECK_EQUAL(shoal_segment_map(reader, 4096, 0, &base), 0);
    CHECK(mprotect(base, 4096, PROT_READ | PROT_WRITE) != 0 && errno == EACCES);
    CHECK_EQUAL(shoal_segment_unmap(base, 4096), 0);
    close(reader);
    close(fd);
}

#ifdef __linux__
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

static void a_reader_of_a_sparse_file_has_its_space_before_it_reads(void) {
    struct stat st;
    void *base, *scratch = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANON, -1, 0);
    CHECK(scratch != MAP_FAILED);
    /* Where any advice is accepted, as under qemu, none is followed. */
    if (madvise(scratch, 4096, MADV_POPULATE_READ) == 0 && madvise(scratch, 4096, -1) != 0) {
        int fd = shoal_memory_create(), reader = shoal_reopen(fd, 0);
        CHECK(fd >= 0 && reader >= 0);
        CHECK_EQUAL(ftruncate(fd, 1 << 20), 0); /* one hole */
        CHECK(fstat(fd, &st) == 0 && st.st_blocks == 0);
        CHECK_EQUAL(shoal_segment_map(reader, 1 << 20, 0, &base), 0);
        CHECK(fstat(fd, &st) == 0);
        CHECK_EQUAL(st.st_blocks * 512, 1 << 20);
        CHECK_EQUAL(shoal_segment_unmap(base, 1 << 20), 0);
        close(reader);
        close(fd);
    }
    munmap(scratch, 4096);
}
#endif

static void sizes_that_cannot_be_mapped_are_refused(void) {
    void *base = &base;
    int fd = memory_of(4096);
    CHECK_EQUAL(shoal_segment_map(fd, 0, 1, &base), -EINVAL);
    CHECK(base == NULL);
    CHECK_EQUAL(shoal_segment_map(fd, UINT64_MAX, 1, &base), -EINVAL);
    CHECK_EQUAL(shoal_segment_map(fd, UINT64_MAX - HUGE_PAGE + 1, 1, &base), -EINVAL);
    CHECK_EQUAL(shoal_segment_map(fd, (uint64_t)1 << 62, 1, &base), -ENOMEM);
    CHECK(base == NULL);
    close(fd);
}

static void a_published_file_keeps_its_content_under_its_name(void) {
    char directory[] = "/tmp/shoal-test-XXXXXX", temporary[PATH_MAX], path[PATH_MAX];
    CHECK(mkdtemp(directory) != NULL);
    snprintf(path, sizeof path, "%s/ring.seg", directory);
    shoal_segment_header header = {.size_bytes = 8192, .data_offset = 4096, .schema_bytes = 2}, found;
    uint64_t file_bytes;
    void *base;
    int fd = shoal_file_create(directory, temporary, sizeof temporary);
    CHECK(fd >= 0);
    CHECK_EQUAL(shoal_reserve(fd, 0, 8192), 0);
    CHECK_EQUAL(shoal_segment_map(fd, 8192, 1, &base), 0);
    shoal_segment_publish(base, &header, "{}");
    ((char *)base)[4096] = 7;
    CHECK_EQUAL(shoal_file_link(fd, temporary, path), 0);
    CHECK_EQUAL(shoal_segment_unmap(base, 8192), 0);
    close(fd);

    fd = open(path, O_RDONLY);
    CHECK_EQUAL(shoal_segment_inspect(fd, &found, &file_bytes), SHOAL_SEGMENT_OK);
    CHECK_EQUAL(shoal_segment_map(fd, 8192, 0, &base), 0);
    CHECK_EQUAL(((char *)base)[4096], 7);
    CHECK(memcmp((char *)base + 128, "{}", 2) == 0);
    CHECK_EQUAL(shoal_segment_unmap(base, 8192), 0);
    CHECK_EQUAL(truncate(path, 5000), 0); /* by another program: found before anything is mapped */
    CHECK_EQUAL(shoal_segment_inspect(fd, &found, &file_bytes), SHOAL_SEGMENT_WRONG_SIZE);
    close(fd);
    unlink(path);
    rmdir(directory);
}

int main(void) {
    RUN(published_header_is_read_by_inspect);
    RUN(a_mapping_outlives_its_descriptor);
    RUN(large_mappings_are_aligned_to_huge_pages);
#ifdef COUNTS_MAPPINGS
    RUN(mapping_uses_exactly_its_pages_and_releases_all);
    RUN(a_mapping_that_fails_leaves_nothing_behind);
#endif
    RUN(a_read_only_descriptor_is_mapped_for_reading_only);
#ifdef __linux__
    RUN(a_reader_of_a_sparse_file_has_its_space_before_it_reads);
#endif
    RUN(sizes_that_cannot_be_mapped_are_refused);
    RUN(a_published_file_keeps_its_content_under_its_name);
    return 0;
}
