/* Part of the binding: tables of the arrays that Python passes to a Stepper and to a Chunk. Python builds its
 * layouts from these tables (_core.STEPPER_ARRAYS, _core.CHUNK_ARRAYS) and passes arrays by name. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_ARRAYS_HPP
#define SHOAL_ARRAYS_HPP

#include "host.h"
#include "python.hpp"

#include <nanobind/nanobind.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace nb = nanobind;

/* Statistics of a worker in a row, so that no two workers share a cache line: five sums, and the ranges of
 * two epochs (shoal_range). */
enum { SUMS = 16, SUMS_RANGES_AT = 5 };
static_assert(SUMS_RANGES_AT + 2 * sizeof(shoal_range) / sizeof(double) <= SUMS);

/* An array has one entry per row, per environment or per worker. An entry is `items` numbers; 0: the
 * plug-in's instance_bytes. */
struct ArraySpec {
    const char *name, *dtype, *per;
    size_t items;

    size_t entry_bytes() const { return static_cast<size_t>(dtype[1] - '0') * items; }
};

static constexpr ArraySpec STEPPER_ARRAYS[] = {
    {"instances", "u1", "environment", 0},
    {"rng", "u8", "environment", 5},
    {"reset", "u1", "environment", 1},
    {"elapsed", "u4", "environment", 1},
    {"total", "f8", "row", 1},
    {"length", "u4", "row", 1},
    {"last_return", "f8", "row", 1},
    {"last_length", "u4", "row", 1},
    {"episode", "u4", "environment", 1},
    {"over", "u1", "environment", 1},
};

/* Python environments have one agent, so rows are environments. A chunk gets the arrays of the whole vector,
 * and only its worker's entry of the last two. */
static constexpr ArraySpec CHUNK_ARRAYS[] = {
    {"reset", "u1", "environment", 1},
    {"total", "f8", "row", 1},
    {"length", "u4", "row", 1},
    {"last_return", "f8", "row", 1},
    {"last_length", "u4", "row", 1},
    {"ticket", "u4", "environment", 1},
    {"finished", "u4", "environment", 1},
    {"episode", "u4", "environment", 1},
    {"over", "u1", "environment", 1},
    {"sums", "f8", "worker", SUMS},
    {"due", "u4", "worker", SHOAL_DUE_BYTES / 4},
};

template <size_t COUNT> nb::tuple describe_arrays(const ArraySpec (&table)[COUNT]) {
    nb::list all;
    for (const ArraySpec &spec : table)
        all.append(nb::make_tuple(spec.name, spec.dtype, spec.per, spec.items));
    return nb::tuple(all);
}

/* Gets the addresses of named arrays, and checks that each is in the table and large enough. */
template <size_t COUNT> class NamedArrays {
  public:
    NamedArrays(const ArraySpec (&table)[COUNT], nb::object arrays, uint64_t environments, uint64_t rows,
                uint64_t instance_bytes, std::vector<nb::object> &kept)
        : table_(table), arrays_(arrays), environments_(environments), rows_(rows),
          instance_bytes_(instance_bytes), kept_(kept) {}

    /* `Entry` is one entry, or one number of it. */
    template <typename Entry> Entry *take(const char *name) {
        const ArraySpec *spec = table_;
        while (spec != table_ + COUNT && strcmp(spec->name, name) != 0)
            spec++;
        if (spec == table_ + COUNT)
            throw std::logic_error(std::string("no array ") + name);
        const size_t bytes = spec->items == 0 ? instance_bytes_ : spec->entry_bytes();
        if constexpr (!std::is_void_v<Entry>)
            if (sizeof(Entry) != bytes && sizeof(Entry) * spec->items != bytes)
                throw std::logic_error(std::string("the table has another type of ") + name);
        const uint64_t count = *spec->per == 'e' ? environments_ : *spec->per == 'r' ? rows_ : 1;
        nb::object array = arrays_[name];
        kept_.push_back(array);
        return static_cast<Entry *>(memory_of(array, bytes * count));
    }

  private:
    const ArraySpec (&table_)[COUNT];
    nb::object arrays_;
    uint64_t environments_, rows_, instance_bytes_;
    std::vector<nb::object> &kept_;
};

#endif
