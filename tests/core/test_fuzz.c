/* What the core reads from outside, mutated in a loop: headers, rings, windows, tables. Compiled with
 * sanitizers it is `make fuzz`; FUZZ_CASES and FUZZ_SEED choose. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "check.h"
#include "durable.h"
#include "gather.h"
#include "platform.h"
#include "plugin.h"
#include "segment.h"
#include "state.h"
#include "window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t random_state, cases;

static uint64_t draw(void) { /* splitmix64 */
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t below(uint64_t end) { return draw() % end; }

/* A number at an edge, near one, or any. */
static uint64_t number(void) {
    static const uint64_t edges[] = {0,   1,    2,    8,        63,       64,        128,
                                     255, 4095, 4096, 1u << 16, 1u << 31, UINT32_MAX};
    switch (below(4)) {
    case 0:
        return edges[below(sizeof edges / sizeof *edges)];
    case 1:
        return ((uint64_t)1 << below(64)) + below(3) - 1;
    case 2:
        return below(300);
    default:
        return draw();
    }
}

static void mutate(void *memory, uint64_t bytes) {
    unsigned char *data = memory;
    for (uint64_t changes = 1 + below(4); changes > 0; changes--) {
        const uint64_t value = number(), size = (uint64_t)1 << below(4), at = below(bytes) / size * size;
        if (below(3) == 0)
            data[below(bytes)] ^= (unsigned char)(1u << below(8));
        else if (at + size <= bytes)
            memcpy(data + at, &value, size);
    }
}

static void headers(void) {
    enum { SIZE = 2 * 4096 };
    const int fd = shoal_memory_create();
    CHECK(fd >= 0 && shoal_reserve(fd, 0, SIZE) == 0);
    void *base;
    CHECK(shoal_segment_map(fd, SIZE, 1, &base) == 0);
    shoal_segment_header header = {.size_bytes = SIZE, .data_offset = 4096, .schema_bytes = 3};
    shoal_segment_publish(base, &header, "{ }");
    char whole[sizeof header];
    memcpy(whole, base, sizeof whole);
    uint64_t good = 0;
    for (uint64_t i = 0; i < cases; i++) {
        memcpy(base, whole, sizeof whole);
        mutate(base, sizeof whole);
        shoal_segment_header found;
        uint64_t file_bytes;
        const int status = shoal_segment_inspect(fd, &found, &file_bytes);
        CHECK(status >= 0);
        if (status != SHOAL_SEGMENT_OK)
            continue;
        good++;
        CHECK(found.size_bytes == SIZE && found.data_offset <= SIZE && found.data_offset % 4096 == 0);
        CHECK(sizeof found + found.schema_bytes <= found.data_offset);
    }
    CHECK(good > 0 && good < cases);
    shoal_segment_unmap(base, SIZE);
    close(fd);
}

enum { CAPACITY = 7, STRIDE = 64 };

typedef struct memory {
    shoal_word64 tail;
    shoal_ring_mark mark;
    shoal_word64 numbers_used;
    shoal_ring_writer writers[SHOAL_RING_WRITERS];
    _Alignas(64) char rows[CAPACITY * STRIDE];
} memory;

/* A ring after damage anywhere in it: reading is safe, and what was pushed since is there. */
static void rings(void) {
    const shoal_column column = {8, STRIDE - 16};
    const shoal_columns columns = {&column, 1};
    memory *of = aligned_alloc(64, sizeof *of), *whole = aligned_alloc(64, sizeof *of);
    memset(of, 0, sizeof *of);
    const int fd = shoal_memory_create();
    shoal_ring ring = {.tail = &of->tail,
                       .numbers_used = &of->numbers_used,
                       .writers = of->writers,
                       .rows = of->rows,
                       .capacity = CAPACITY,
                       .stride = STRIDE,
                       .mark = &of->mark,
                       .lock_fd = fd,
                       .writer = SHOAL_RING_WRITERS};
    CHECK(shoal_ring_begin(&ring, of, sizeof *of) == 0 && shoal_ring_register(&ring) == 0);
    char row[STRIDE - 16] = "a row", out[4][STRIDE - 16];
    const void *in[] = {row};
    void *outs[] = {out};
    uint64_t ids[16], slots[16], refused = 0;
    uint8_t found[16];
    for (int i = 0; i < 11; i++)
        CHECK(shoal_ring_push(&ring, columns, in, 1, ids) == 1);
    memcpy(whole, of, sizeof *of);
    for (uint64_t i = 0; i < cases; i++) {
        memcpy(of, whole, sizeof *of);
        if (below(2))
            mutate(&of->rows, sizeof of->rows);
        if (below(3) == 0)
            mutate(&of->tail, 32); /* the mark, and how many writers, too */
        if (below(3) == 0)
            mutate(of->writers, 4 * sizeof *of->writers);
        shoal_ring opener = ring;
        opener.writer = SHOAL_RING_WRITERS; /* the locks are this process's own: it sees no other writer */
        atomic_store(&of->mark.checked_in, 0);
        const int result = shoal_ring_mend(&opener, of, sizeof *of);
        CHECK(result == 0 || result == -EBADMSG);
        if (result != 0) {
            refused++;
            continue;
        }
        const uint64_t there = shoal_ring_readable(&opener), latest = shoal_ring_latest(&opener, 16, ids);
        CHECK(there <= CAPACITY && latest <= there && shoal_ring_length(&opener) <= CAPACITY);
        CHECK(shoal_ring_fetch(&opener, columns, ids, latest < 4 ? latest : 4, outs, found) ==
              (latest < 4 ? latest : 4));
        for (uint64_t r = 0; r < latest && r < 4; r++)
            CHECK(memcmp(out[r], row, sizeof row) == 0); /* damaged ones are not among them */
        shoal_rng rng = {draw(), draw(), draw(), draw() | 1, 0, 0};
        if (shoal_ring_draw(&opener, NULL, &rng, 4, slots, NULL) != 0 && there != 0)
            (void)shoal_ring_gather(&opener, columns, 4, slots, outs, ids, (shoal_copy_threads){0});
        opener.writer = ring.writer;
        const uint64_t total = shoal_ring_total(&opener);
        CHECK(shoal_ring_push(&opener, columns, in, 1, ids) == 1);
        CHECK(shoal_ring_total(&opener) == total + 1);
        CHECK(shoal_ring_fetch(&opener, columns, ids, 1, outs, found) == 1);
    }
    CHECK(refused > 0 && refused < cases);
    free(of), free(whole);
    close(fd);
}

static void windows(void) {
    enum { ROOM = 256 };
    for (uint64_t i = 0; i < cases; i++) {
        const uint64_t room = below(ROOM), capacity = below(2) ? room : below(ROOM);
        shoal_window *window = aligned_alloc(64, SHOAL_WINDOW_HEAD_BYTES + (room + 63) / 64 * 64);
        memset(window, 0, SHOAL_WINDOW_HEAD_BYTES + room);
        atomic_store(&window->sequence, 2 * below(4));
        window->bytes = room;
        mutate(window, SHOAL_WINDOW_HEAD_BYTES);
        uint64_t bytes = 0;
        int64_t stamps[SHOAL_WINDOW_STAMPS];
        char *out = malloc(capacity + 1);
        const uint64_t most = capacity < room ? capacity : room;
        if (shoal_window_read(window, out, most, &bytes, stamps, 0) != 0)
            CHECK(bytes <= most);
        free(out), free(window);
    }
}

/* ---- Tables ---- */

static char name[8];
static double bounds[64];

static shoal_field a_field(void) {
    shoal_field field = {NULL, SHOAL_FLOAT32, SHOAL_BOX, 1, 0, {2}, 0, 1, NULL, NULL};
    field.name = below(3) ? name : NULL;
    mutate(&field.dtype, offsetof(shoal_field, lows) - offsetof(shoal_field, dtype));
    if (below(3) == 0)
        field.low = (double)(int64_t)number();
    uint64_t elements = 1;
    for (uint32_t i = 0; i < field.ndim && i < SHOAL_MAX_NDIM; i++)
        elements = field.shape[i] < 0 || field.shape[i] > 64 || elements > 64
                       ? 65
                       : elements * (uint64_t)field.shape[i];
    if (elements <= 64) { /* a plug-in that says how many bounds it has lies there at its own risk */
        field.lows = below(2) ? bounds : NULL;
        field.highs = below(2) ? bounds : NULL;
    }
    return field;
}

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    for (uint64_t count = below(5); count > 0; count--) {
        const shoal_field field = a_field();
        (below(2) ? spec->add_action : spec->add_observation)(spec->host, &field);
    }
    if (below(4) == 0)
        mutate(spec, offsetof(shoal_spec, host));
    return below(50) ? NULL : "the table says no";
}

static void tables(void) {
    const shoal_entry_v1 entry = {.abi_major = 1, .name = "fuzz", .describe = describe};
    const shoal_plugin plugin = {NULL, &entry};
    uint64_t good = 0;
    for (uint64_t i = 0; i < cases; i++) {
        for (unsigned n = 0; n < sizeof name - 1; n++)
            name[n] = (char)(below(20) ? 'a' + below(3) : draw());
        for (unsigned b = 0; b < 64; b++)
            bounds[b] = below(3) ? 0.5 : (double)(int64_t)number();
        shoal_description description;
        shoal_message why;
        const int result = shoal_plugin_describe(&plugin, NULL, &description, &why);
        CHECK((result == 0) == (why.text[0] == '\0') && strnlen(why.text, sizeof why.text) < sizeof why.text);
        for (uint64_t f = 0; result == 0 && f < description.observations.count; f++)
            CHECK(shoal_field_bytes(&description.observations.items[f]) > 0);
        good += result == 0;
        shoal_description_free(&description);
    }
    CHECK(good > 0 && good < cases);
}

static void fields(shoal_envs *envs, uint64_t env, void *host,
                   void (*add)(void *, const shoal_state_field *)) {
    static const char *const columns[4] = {"r", "c", "kind", "hp"};
    static const shoal_category categories[2] = {{0, "wall", 0x112233, 0}, {1, "floor", 0xffffff, 0}};
    (void)envs, (void)env;
    for (uint64_t count = below(4); count > 0; count--) {
        shoal_state_field field = {"x", SHOAL_FLOAT32, 2, {2, 4}, bounds, 0, 0, NULL, 0, NULL, 0};
        mutate(&field.dtype, offsetof(shoal_state_field, data) - offsetof(shoal_state_field, dtype));
        field.flags = (uint32_t)(below(3) ? 0 : number());
        field.role = (uint32_t)(below(3) ? below(5) : number());
        field.columns = below(2) ? columns : NULL;
        field.num_columns = below(6) ? below(5) : 0; /* as many as there are, at most */
        field.categories = below(2) ? categories : NULL;
        field.num_categories = below(3);
        field.name = below(4) ? "x" : below(2) ? NULL : name;
        add(host, &field);
    }
}

static void visit(void *context, const shoal_state_field *field, uint64_t bytes) {
    (void)field;
    *(uint64_t *)context += bytes <= 512;
}

static void states(void) {
    const shoal_state_v1 state = {fields};
    shoal_envs envs = {.num_envs = 1};
    uint64_t seen = 0, good = 0;
    for (uint64_t i = 0; i < cases; i++) {
        shoal_message why = {{0}};
        const int result = shoal_state_visit(&state, &envs, 0, visit, &seen, &why);
        CHECK((result == 0) == (why.text[0] == '\0'));
        good += result == 0;
    }
    CHECK(good > 0 && good < cases);
}

int main(void) {
    const char *asked = getenv("FUZZ_CASES"), *seed = getenv("FUZZ_SEED");
    cases = asked == NULL ? 5000 : strtoull(asked, NULL, 10);
    random_state = seed == NULL ? 1 : strtoull(seed, NULL, 10);
    RUN(headers);
    RUN(rings);
    RUN(windows);
    RUN(tables);
    RUN(states);
    printf("%llu cases of each, seed %s\n", (unsigned long long)cases, seed == NULL ? "1" : seed);
    return 0;
}
