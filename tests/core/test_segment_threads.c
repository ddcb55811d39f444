/* Segments from many threads at once; run under the thread sanitizer, which sees what a lucky run hides.
 *
 * 1. Makers share nothing: each creates, publishes, inspects and unmaps segments of its own.
 * 2. Readers spin on the magic word of one mapping with acquire while a writer publishes into it (release).
 * 3. Whoever has seen the magic reads the whole header and schema, without a race and never half of it.
 */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "platform.h"
#include "segment.h"

#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { MAKERS = 8, ROUNDS = 100, READERS = 4, PUBLICATIONS = 200, SIZE = 8192 };

static void fill(shoal_segment_header *header, unsigned char mark) {
    memset(header, 0, sizeof *header);
    header->size_bytes = SIZE;
    header->data_offset = 4096;
    header->schema_bytes = 64;
    memset(header->digest, mark, sizeof header->digest);
}

static void check_content(const shoal_segment_header *header, const unsigned char *schema,
                          unsigned char mark) {
    CHECK(header->size_bytes == SIZE && header->data_offset == 4096 && header->schema_bytes == 64);
    CHECK(header->format == SHOAL_SEGMENT_FORMAT && header->byte_order == SHOAL_BYTE_ORDER);
    CHECK(header->owner_pid == (uint64_t)getpid() && header->owner_start != 0);
    for (int i = 0; i < 32; i++)
        CHECK_EQUAL(header->digest[i], mark);
    for (int i = 0; i < 64; i++)
        CHECK_EQUAL(schema[i], mark);
}

static int new_memory(void **base) {
    int fd = shoal_memory_create();
    CHECK(fd >= 0);
    CHECK_EQUAL(shoal_reserve(fd, 0, SIZE), 0);
    CHECK_EQUAL(shoal_seal(fd), 0);
    CHECK_EQUAL(shoal_segment_map(fd, SIZE, 1, base), 0);
    return fd;
}

static void *make_segments(void *argument) {
    unsigned char maker = *(unsigned char *)argument;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char mark = (unsigned char)(maker * 31 + round), schema[64];
        shoal_segment_header header, found;
        uint64_t file_bytes;
        void *base;
        int fd = new_memory(&base);
        memset(schema, mark, sizeof schema);
        fill(&header, mark);
        shoal_segment_publish(base, &header, schema);
        CHECK_EQUAL(shoal_segment_inspect(fd, &found, &file_bytes), SHOAL_SEGMENT_OK);
        check_content(&found, (unsigned char *)base + sizeof found, mark);
        CHECK_EQUAL(shoal_segment_unmap(base, SIZE), 0);
        close(fd);
    }
    return NULL;
}

static void segments_of_many_threads_are_independent(void) {
    pthread_t threads[MAKERS];
    unsigned char numbers[MAKERS];
    for (int i = 0; i < MAKERS; i++) {
        numbers[i] = (unsigned char)i;
        CHECK(pthread_create(&threads[i], NULL, make_segments, &numbers[i]) == 0);
    }
    for (int i = 0; i < MAKERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

struct publication {
    void *base;
    unsigned char mark;
    _Atomic int waiting; /* writers: the readers, each once; reader: the publisher, so that they truly race */
};

static void *read_when_published(void *argument) {
    struct publication *publication = argument;
    uint64_t expected, magic;
    memcpy(&expected, "SHOALSEG", sizeof expected);
    atomic_fetch_add(&publication->waiting, 1);
    /* acquire; partner: the release in shoal_segment_publish */
    while ((magic = atomic_load_explicit((_Atomic uint64_t *)publication->base, memory_order_acquire)) !=
           expected) {
        CHECK(magic == 0);
        sched_yield();
    }
    const shoal_segment_header *header = publication->base;
    check_content(header, (unsigned char *)publication->base + sizeof *header, publication->mark);
    return NULL;
}

static void reader_that_sees_the_magic_sees_the_whole_header(void) {
    for (int round = 0; round < PUBLICATIONS; round++) {
        struct publication publication = {.mark = (unsigned char)round};
        int fd = new_memory(&publication.base);
        pthread_t readers[READERS];
        for (int i = 0; i < READERS; i++)
            CHECK(pthread_create(&readers[i], NULL, read_when_published, &publication) == 0);
        while (atomic_load(&publication.waiting) < READERS)
            sched_yield();
        shoal_segment_header header;
        unsigned char schema[64];
        memset(schema, publication.mark, sizeof schema);
        fill(&header, publication.mark);
        shoal_segment_publish(publication.base, &header, schema);
        for (int i = 0; i < READERS; i++)
            CHECK(pthread_join(readers[i], NULL) == 0);
        CHECK_EQUAL(shoal_segment_unmap(publication.base, SIZE), 0);
        close(fd);
    }
}

int main(void) {
    RUN(segments_of_many_threads_are_independent);
    RUN(reader_that_sees_the_magic_sees_the_whole_header);
    return 0;
}
