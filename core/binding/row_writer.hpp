/* Part of the binding: writes one value of a space into its arrays in one call. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_ROW_WRITER_HPP
#define SHOAL_ROW_WRITER_HPP

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;

/* Writes one row of a space in one call. A space is a tree of dicts and tuples with arrays as leaves.
 * This class accepts only values that need no conversion: C-contiguous buffers of the exact type and shape in
 * plain dicts and tuples. Python code converts everything else or raises the error, so the rules are in one
 * place. */
class RowWriter {
  public:
    explicit RowWriter(nb::handle tree) : root_(parse(tree)) {}

    bool write(int64_t row, nb::handle value) {
        if (row < 0 || row >= rows_)
            return false;
        Staged staged;
        if (!stage(root_, value.ptr(), staged))
            return false;
        for (const Copy &copy : staged.copies)
            memmove(copy.leaf->base + row * copy.leaf->row_bytes, copy.view.obj ? copy.view.buf : copy.scalar,
                    static_cast<size_t>(copy.leaf->row_bytes));
        return true;
    }

  private:
    struct Node {
        enum Kind { LEAF, DICT, TUPLE } kind;
        std::vector<nb::object> keys;
        std::vector<Node> children;
        nb::object array; /* owns the memory of `base` */
        char *base = nullptr;
        int64_t row_bytes = 0;
        std::string format;
        std::vector<Py_ssize_t> shape;
    };

    struct Copy {
        const Node *leaf;
        Py_buffer view; /* obj is NULL for a Python number, which is in `scalar` */
        char scalar[8];
    };

    struct Staged {
        std::vector<Copy> copies;
        ~Staged() {
            for (Copy &copy : copies)
                PyBuffer_Release(&copy.view);
        }
    };

    /* A leaf is an array; a branch is (keys, children) for a dict and (None, children) for a tuple. */
    Node parse(nb::handle tree) {
        Node node;
        if (!nb::isinstance<nb::tuple>(tree)) {
            node.kind = Node::LEAF;
            node.array = nb::borrow(tree);
            Py_buffer view;
            if (PyObject_GetBuffer(tree.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) !=
                0)
                throw nb::python_error();
            node.base = static_cast<char *>(view.buf);
            node.format = view.format;
            node.shape.assign(view.shape + 1, view.shape + view.ndim);
            rows_ = view.shape[0];
            node.row_bytes = rows_ == 0 ? 0 : view.len / rows_;
            PyBuffer_Release(&view); /* the array owns the memory */
            return node;
        }
        nb::object keys = tree[0];
        node.kind = keys.is_none() ? Node::TUPLE : Node::DICT;
        if (node.kind == Node::DICT)
            for (nb::handle key : keys)
                node.keys.push_back(nb::borrow(key));
        for (nb::handle child : nb::borrow<nb::tuple>(tree[1]))
            node.children.push_back(parse(child));
        return node;
    }

    static bool stage(const Node &node, PyObject *value, Staged &staged) {
        const size_t count = node.children.size();
        switch (node.kind) {
        case Node::LEAF:
            return stage_leaf(node, value, staged);
        case Node::DICT:
            if (!PyDict_CheckExact(value))
                return false;
            for (size_t i = 0; i < count; i++) {
                /* Keep a reference: getting a buffer may run Python code that removes the item from its dict.
                 */
                nb::object item = nb::borrow(PyDict_GetItemWithError(value, node.keys[i].ptr()));
                if (!item.is_valid())
                    PyErr_Clear();
                if (!item.is_valid() || !stage(node.children[i], item.ptr(), staged))
                    return false;
            }
            return true;
        default:
            if (!PyTuple_CheckExact(value) || static_cast<size_t>(PyTuple_Size(value)) != count)
                return false;
            for (size_t i = 0; i < count; i++)
                if (!stage(node.children[i], PyTuple_GetItem(value, static_cast<Py_ssize_t>(i)), staged))
                    return false;
            return true;
        }
    }

    static bool stage_leaf(const Node &node, PyObject *value, Staged &staged) {
        Py_buffer view;
        if (!PyObject_CheckBuffer(value))
            return node.shape.empty() && stage_number(node, value, staged);
        if (PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
            PyErr_Clear();
            return false;
        }
        bool fits = view.format != nullptr && node.format == view.format && view.len == node.row_bytes &&
                    static_cast<size_t>(view.ndim) == node.shape.size() &&
                    std::equal(node.shape.begin(), node.shape.end(), view.shape);
        if (fits)
            staged.copies.push_back({&node, view, {}});
        else
            PyBuffer_Release(&view);
        return fits;
    }

    /* Stages a Python int or float for a scalar field, such as a Discrete observation. */
    static bool stage_number(const Node &node, PyObject *value, Staged &staged) {
        Copy copy = {&node, {}, {}};
        const std::string &format = node.format;
        if (PyLong_CheckExact(value) && (format == "l" || format == "q") && node.row_bytes == 8) {
            int overflow = 0;
            const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
            if (overflow != 0)
                return false;
            memcpy(copy.scalar, &number, sizeof number);
        } else if (PyFloat_CheckExact(value) && format == "d") {
            const double number = PyFloat_AsDouble(value);
            memcpy(copy.scalar, &number, sizeof number);
        } else {
            return false;
        }
        staged.copies.push_back(copy);
        return true;
    }

    int64_t rows_ = 0;
    Node root_;
};

#endif
