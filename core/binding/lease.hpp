/* Part of the binding: arrays that are lent and filled again, of results and of batches.
 *
 * Lent arrays are free when each has as many references as it had when it was made: views, memoryviews and
 * tensors keep their array alive, and an array's base is no other array, so nothing else can. What was lent
 * is the user's to change. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_LEASE_HPP
#define SHOAL_LEASE_HPP

#include "python.hpp"

#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

namespace nb = nanobind;

struct Lease {
    std::vector<nb::object> arrays;
    std::vector<std::pair<PyObject *, Py_ssize_t>> counts; /* references to each while nobody holds them */
    bool is_out = false;                                   /* they are being filled */

    void count_references() {
        for (const nb::object &array : arrays)
            counts.emplace_back(array.ptr(), Py_REFCNT(array.ptr()));
    }
    bool is_free() const {
        for (const auto &[array, count] : counts)
            if (Py_REFCNT(array) != count)
                return false;
        return !is_out;
    }
};

#endif
