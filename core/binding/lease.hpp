/* Part of the binding: leased arrays of results and batches, which are filled again when they are free.
 *
 * A lease is free when each array has as many references as when it was created. Views, memoryviews and
 * tensors keep a reference to their array, and the arrays have no base of their own, so no other reference is
 * possible. The user may change leased arrays. */
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
    std::vector<std::pair<PyObject *, Py_ssize_t>> counts; /* references to each array when it is free */
    bool is_out = false;                                   /* the arrays are being filled */

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
