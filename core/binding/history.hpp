/* Part of the binding: a session's history, as the run writes logged values into it and as watchers read it.
 */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_HISTORY_HPP
#define SHOAL_HISTORY_HPP

#include "history.h"
#include "python.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace nb = nanobind;

/* Returns the history in an array of at least its size; NULL for None. */
inline shoal_history *history_of(nb::handle memory, bool *writable = nullptr) {
    if (memory.is_none())
        return nullptr;
    Buffer view;
    if (!view.try_take(memory) || view->len < static_cast<Py_ssize_t>(sizeof(shoal_history)) ||
        reinterpret_cast<uintptr_t>(view->buf) % 64 != 0)
        throw nb::value_error(("a history needs an aligned array of at least " +
                               std::to_string(sizeof(shoal_history)) + " bytes")
                                  .c_str());
    if (writable != nullptr)
        *writable = view->readonly == 0;
    return static_cast<shoal_history *>(view->buf);
}

class History {
  public:
    /* `memory` is None for a run without a session: what is logged is then checked and not kept. */
    explicit History(nb::object memory) : memory_(memory), history_(history_of(memory, &writable_)) {}

    /* Logs a dict of names and numbers: all of them, or none if it raises. [GIL] */
    void log(nb::dict values) {
        numbers_.clear();
        size_t unknown = 0;
        for (auto [name, value] : values) {
            const double number = PyFloat_AsDouble(value.ptr());
            if (number == -1 && PyErr_Occurred()) {
                PyErr_Clear();
                raise(PyExc_TypeError,
                      "logged values must be numbers, got %R for %R; convert it with float()", value.ptr(),
                      name.ptr());
            }
            numbers_.push_back(number);
            if (!indexes_.contains(name)) {
                check_name(name);
                if (indexes_.size() + ++unknown > SHOAL_HISTORY_LOGGED)
                    raise(PyExc_ValueError,
                          "at most 24 names can be logged, and %R would be one more; the names so far are %R",
                          name.ptr(), nb::list(indexes_.keys()).ptr());
            }
        }
        if (history_ != nullptr && !writable_)
            raise(PyExc_ValueError, "this history is read-only: %R", memory_.ptr());
        const double *number = numbers_.data();
        for (auto [name, value] : values) {
            const uint32_t index = index_of(name);
            if (history_ != nullptr)
                shoal_history_log(history_, index, *number);
            number++;
        }
    }

    /* The bins as bytes, oldest first; None if they are not whole within `timeout_ns`. */
    nb::object read(uint64_t timeout_ns) const {
        if (history_ == nullptr)
            return nb::bytes("", 0);
        const size_t most = SHOAL_HISTORY_LEVELS * SHOAL_HISTORY_BINS;
        std::unique_ptr<shoal_bin[]> bins(new shoal_bin[most]);
        int64_t count;
        {
            Unlocked unlocked;
            count = shoal_history_read(history_, bins.get(), timeout_ns);
        }
        if (count < 0)
            return nb::none();
        return nb::bytes(reinterpret_cast<const char *>(bins.get()),
                         static_cast<size_t>(count) * sizeof(shoal_bin));
    }

    /* [(name as bytes, the last value, how often it was logged)] in the order of the curves. */
    nb::list logged() const {
        nb::list all;
        uint32_t names = history_ == nullptr ? 0 : history_->names.load(std::memory_order_acquire);
        for (uint32_t i = 0; i < names && i < SHOAL_HISTORY_LOGGED; i++) {
            const shoal_logged *one = &history_->logged[i];
            all.append(nb::make_tuple(nb::bytes(one->name, strnlen(one->name, SHOAL_HISTORY_NAME_BYTES)),
                                      one->last, one->times));
        }
        return all;
    }

  private:
    [[noreturn]] static void raise(PyObject *kind, const char *format, PyObject *one,
                                   PyObject *other = nullptr) {
        PyErr_Format(kind, format, one, other);
        throw nb::python_error();
    }

    static void check_name(nb::handle name) {
        Py_ssize_t bytes = 0;
        const bool is_text = PyUnicode_Check(name.ptr());
        const char *text = is_text ? PyUnicode_AsUTF8AndSize(name.ptr(), &bytes) : nullptr;
        PyErr_Clear(); /* a surrogate is not UTF-8, and not printable either */
        if (text == nullptr || bytes == 0 || bytes >= SHOAL_HISTORY_NAME_BYTES ||
            !nb::cast<bool>(name.attr("isprintable")()))
            raise(PyExc_ValueError, "a logged name must be printable text of 1 to 63 bytes in UTF-8, got %R",
                  name.ptr());
    }

    /* The index of a checked name, which is added if it is new. */
    uint32_t index_of(nb::handle name) {
        PyObject *known = PyDict_GetItemWithError(indexes_.ptr(), name.ptr());
        if (known != nullptr)
            return static_cast<uint32_t>(PyLong_AsUnsignedLong(known));
        Py_ssize_t bytes = 0;
        const char *text = PyUnicode_AsUTF8AndSize(name.ptr(), &bytes);
        uint32_t index = static_cast<uint32_t>(indexes_.size());
        if (history_ != nullptr)
            shoal_history_add_name(history_, text, static_cast<uint64_t>(bytes));
        indexes_[name] = index;
        return index;
    }

    nb::object memory_;
    bool writable_ = false;
    shoal_history *history_;
    nb::dict indexes_;
    std::vector<double> numbers_; /* of one call */
};

static_assert(SHOAL_HISTORY_LOGGED == 24 && SHOAL_HISTORY_NAME_BYTES == 64, "the messages above name them");

#endif
