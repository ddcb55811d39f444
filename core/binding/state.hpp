/* Part of the binding: the exported state of an environment, and the windows that it is published in. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_STATE_HPP
#define SHOAL_STATE_HPP

#include "python.hpp"
#include "state.h"
#include "window.h"

#include <nanobind/nanobind.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace nb = nanobind;

/* The exported fields of an environment: name, dtype, shape, role, columns, categories, stable, and place:
 * the offset in the instances for a stable field that is there, else -1 and its bytes. */
class FieldList {
  public:
    FieldList(shoal_envs *envs, uint64_t env, uint32_t lanes) : envs_(envs), env_(env), lanes_(lanes) {}

    nb::list take(const shoal_state_v1 *state) {
        shoal_message why;
        if (shoal_state_visit(state, envs_, env_, add, this, &why) != 0)
            raise_shoal("PluginError", why.text);
        if (error_)
            std::rethrow_exception(error_);
        return list_;
    }

  private:
    static void add(void *self, const shoal_state_field *field, uint64_t bytes) {
        auto *list = static_cast<FieldList *>(self);
        try { /* the caller is a plug-in in C, which no exception may pass */
            if (!list->error_)
                list->append(*field, bytes);
        } catch (...) {
            list->error_ = std::current_exception();
        }
    }

    void append(const shoal_state_field &field, uint64_t bytes) {
        const char kind = field.dtype.code == SHOAL_CODE_INT     ? 'i'
                          : field.dtype.code == SHOAL_CODE_UINT  ? 'u'
                          : field.dtype.code == SHOAL_CODE_FLOAT ? 'f'
                                                                 : 'b';
        nb::list shape, columns, categories;
        for (uint32_t i = 0; i < field.ndim; i++)
            shape.append(field.shape[i]);
        for (uint64_t i = 0; i < field.num_columns; i++)
            columns.append(field.columns[i]);
        for (uint64_t i = 0; i < field.num_categories; i++) {
            const shoal_category &one = field.categories[i];
            categories.append(nb::make_tuple(one.value, one.name, one.rgb));
        }
        const bool stable = (field.flags & SHOAL_STATE_STABLE) != 0;
        const int64_t offset =
            stable && bytes != 0 ? shoal_state_offset(envs_, env_, lanes_, field.data, bytes) : -1;
        nb::object data = nb::none();
        if (offset < 0)
            data = nb::bytes(bytes == 0 ? "" : static_cast<const char *>(field.data), bytes);
        list_.append(nb::make_tuple(field.name, std::string(1, kind) + std::to_string(field.dtype.bits / 8),
                                    shape, field.role, columns, categories, stable, offset, data));
    }

    shoal_envs *envs_;
    uint64_t env_;
    uint32_t lanes_;
    nb::list list_;
    std::exception_ptr error_;
};

/* A window over the memory of an array. */
class Window {
  public:
    explicit Window(nb::object memory) : memory_(memory) {
        Buffer view;
        if (!view.try_take(memory) || view->len < SHOAL_WINDOW_HEAD_BYTES ||
            reinterpret_cast<uintptr_t>(view->buf) % 64 != 0)
            throw nb::value_error("a window needs an aligned array of at least 64 bytes");
        window_ = static_cast<shoal_window *>(view->buf);
        capacity_ = static_cast<uint64_t>(view->len) - SHOAL_WINDOW_HEAD_BYTES;
        writable_ = view->readonly == 0;
    }

    uint64_t capacity() const { return capacity_; }
    uint64_t number() const { return shoal_window_number(window_); }

    /* `parts` are (offset, bytes-like); the bytes between them are not written. */
    void write(nb::sequence stamps, nb::list parts, uint64_t bytes) {
        int64_t values[SHOAL_WINDOW_STAMPS] = {};
        for (size_t i = 0; i < SHOAL_WINDOW_STAMPS && i < nb::len(stamps); i++)
            values[i] = nb::cast<int64_t>(stamps[i]);
        const size_t count = nb::len(parts);
        std::unique_ptr<Buffer[]> views(new Buffer[count]);
        std::vector<uint64_t> offsets(count);
        for (size_t i = 0; i < count; i++) { /* everything that can fail comes before the first store */
            offsets[i] = nb::cast<uint64_t>(parts[i][0]);
            if (!views[i].try_take(parts[i][1]) || offsets[i] > capacity_ ||
                static_cast<uint64_t>(views[i]->len) > capacity_ - offsets[i])
                throw nb::value_error("a part does not fit the window");
        }
        if (bytes > capacity_ || !writable_)
            throw nb::value_error("the window is too small, or read-only");
        shoal_window_begin(window_);
        for (size_t i = 0; i < count; i++)
            shoal_window_put(window_, offsets[i], views[i]->buf, static_cast<uint64_t>(views[i]->len));
        shoal_window_end(window_, bytes, values);
    }

    /* (number, stamps, content) of the newest snapshot; None if there is no whole snapshot. */
    nb::object read(uint64_t timeout_ns) const {
        nb::object content = nb::steal(PyByteArray_FromStringAndSize(nullptr, Py_ssize_t(capacity_)));
        if (!content.is_valid())
            throw nb::python_error();
        uint64_t bytes = 0, number;
        int64_t stamps[SHOAL_WINDOW_STAMPS] = {};
        {
            Unlocked unlocked;
            number = shoal_window_read(window_, PyByteArray_AsString(content.ptr()), capacity_, &bytes,
                                       stamps, timeout_ns);
        }
        if (number == 0)
            return nb::none();
        if (PyByteArray_Resize(content.ptr(), static_cast<Py_ssize_t>(bytes)) != 0)
            throw nb::python_error();
        nb::list all;
        for (int64_t stamp : stamps)
            all.append(stamp);
        return nb::make_tuple(number, all, content);
    }

  private:
    nb::object memory_;
    shoal_window *window_;
    uint64_t capacity_;
    bool writable_;
};

#endif
