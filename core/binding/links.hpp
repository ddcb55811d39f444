/* Part of the binding: the links between a ring's rows, over arrays of a segment. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_LINKS_HPP
#define SHOAL_LINKS_HPP

#include "links.h"
#include "python.hpp"
#include "ring.hpp"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

class Links {
  public:
    enum Column { FIRST, PREVIOUS, REWARD, TERMINATED, TRUNCATED, COLUMNS };

    /* `next`: the array of forward links. `columns`: the indices of the fields above in the ring. `apart`:
     * the usual distance in ids between two consecutive rows of an environment. */
    Links(nb::object ring, nb::object next, nb::list columns, uint64_t apart)
        : kept_{ring, next}, ring_(nb::cast<Ring &>(ring)) {
        const uint64_t bytes[COLUMNS] = {1, 8, 4, 1, 1};
        shoal_column found[COLUMNS];
        if (nb::len(columns) != COLUMNS)
            throw nb::value_error("expected 5 columns: first, previous, reward, terminated, truncated");
        for (size_t i = 0; i < COLUMNS; i++) {
            found[i] = ring_.columns().at(nb::cast<size_t>(columns[i]));
            if (found[i].bytes != bytes[i])
                throw nb::value_error("a column of a link has the wrong size");
        }
        const shoal_ring *own = ring_.ring();
        links_ = {own,          static_cast<uint64_t *>(memory_of(next, own->capacity * 8)),
                  found[FIRST], found[PREVIOUS],
                  {},           apart};
        for (size_t i = REWARD; i < COLUMNS; i++)
            links_.step[i - REWARD] = found[i];
    }
    Links(const Links &) = delete;
    Links &operator=(const Links &) = delete;

    /* Links earlier rows forward to the new rows `ids`. `last`, uint64[n], is the id + 1 of each earlier row,
     * and becomes the id + 1 of each new one. */
    void set(nb::object last, nb::object ids) {
        Buffer before;
        before.take(last);
        const uint64_t count = static_cast<uint64_t>(before->len) / 8;
        shoal_links_set(&links_, static_cast<uint64_t *>(before->buf),
                        static_cast<const uint64_t *>(memory_of(ids, count * 8)), count);
    }
    const shoal_links *links() const { return &links_; }
    Ring &ring() { return ring_; }

  private:
    std::vector<nb::object> kept_;
    Ring &ring_;
    shoal_links links_;
};

#endif
