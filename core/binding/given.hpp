/* Part of the binding: finds the addresses of the arrays that a caller gave for each field. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GIVEN_HPP
#define SHOAL_GIVEN_HPP

#include "python.hpp"

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

namespace nb = nanobind;

/* A field of a record, with its NumPy type. */
struct Field {
    nb::object name, dtype;
    std::string format;
    std::vector<Py_ssize_t> shape;

    /* `ahead` is the number of dimensions before those of one row. */
    bool fits(int ndim, const Py_ssize_t *given, size_t ahead) const {
        if (static_cast<size_t>(ndim) != shape.size() + ahead)
            return false;
        for (size_t i = 0; i < shape.size(); i++)
            if (given[ahead + i] != shape[i])
                return false;
        return true;
    }
};

/* The addresses of the values of a dict whose keys must be exactly the names of the fields. */
class Given {
  public:
    nb::object item;

    Given(const std::vector<Field> &fields, nb::handle array_type, nb::handle given)
        : array_type_(array_type), given_(given) {
        const size_t number = fields.size();
        is_dict_ = PyDict_Check(given.ptr()) && static_cast<size_t>(PyDict_Size(given.ptr())) == number;
        if (number > FEW) {
            more_.reset(new One[number]);
            more_pointers_.reset(new void *[number]);
            ones_ = more_.get();
            pointers_ = more_pointers_.get();
        }
    }
    bool next(const Field &field) {
        if (!is_dict_)
            return false;
        item = nb::borrow(PyDict_GetItemWithError(given_.ptr(), field.name.ptr()));
        if (!item.is_valid())
            PyErr_Clear();
        return item.is_valid();
    }
    /* Returns the memory of `item` if it fits the field, else NULL. With `rows`, it is an array of rows, and
     * `*rows` becomes their number. */
    void *array(const Field &field, uint64_t *rows, bool writable = false) {
        const size_t ahead = rows != nullptr;
        const ArrayHead *head = ArrayHead::of(item, array_type_);
        if (head != nullptr && head->dtype == field.dtype.ptr()) {
            const int needed = ArrayHead::C_CONTIGUOUS | (writable ? ArrayHead::WRITEABLE : 0);
            if ((head->flags & needed) != needed || !field.fits(head->ndim, head->shape, ahead))
                return nullptr;
            ones_[at_].buffer.hold(item);
            if (rows != nullptr)
                *rows = static_cast<uint64_t>(head->shape[0]);
            return head->data;
        }
        Buffer &buffer = ones_[at_].buffer;
        if (!buffer.try_take(item) || (writable && buffer->readonly) || buffer->format == nullptr ||
            field.format != buffer->format || !field.fits(buffer->ndim, buffer->shape, ahead))
            return nullptr;
        if (rows != nullptr)
            *rows = static_cast<uint64_t>(buffer->shape[0]);
        return buffer->buf;
    }
    char *number() { return ones_[at_].number; }
    void add(void *pointer) { pointers_[at_++] = pointer; }
    void *const *pointers() const { return pointers_; }

  private:
    enum { FEW = 8 };
    struct One {
        Buffer buffer;
        char number[8];
    };
    nb::handle array_type_, given_;
    size_t at_ = 0;
    bool is_dict_;
    One few_[FEW], *ones_ = few_;
    void *few_pointers_[FEW], **pointers_ = few_pointers_;
    std::unique_ptr<One[]> more_;
    std::unique_ptr<void *[]> more_pointers_;
};

#endif
