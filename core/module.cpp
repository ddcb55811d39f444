/* The binding: the one file that knows both Python and the core, and the only place that turns -errno into an
 * exception. */
// SPDX-License-Identifier: MIT
#include "platform.h"
#include "segment.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

int checked(int result) {
    if (result < 0) {
        errno = -result;
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
    return result;
}

/* Owns one mapping. Every array over the segment has this object as its base, so the memory goes with the
 * last view. */
class Mapping {
  public:
    Mapping(int fd, uint64_t size, bool writable) : size_(size), writable_(writable) {
        checked(shoal_segment_map(fd, size, writable, &base_));
    }
    ~Mapping() {
        if (base_ != nullptr)
            shoal_segment_unmap(base_, size_);
    }
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;

    void *base() const { return base_; }
    uint64_t size() const { return size_; }
    bool writable() const { return writable_; }

    void publish(uint64_t data_offset, nb::bytes schema, nb::bytes digest) {
        shoal_segment_header header = {};
        if (!writable_)
            throw nb::value_error("a read-only mapping cannot be published");
        if (digest.size() != sizeof header.digest)
            throw nb::value_error("a layout digest has 32 bytes");
        if (data_offset > size_ || data_offset < sizeof header || schema.size() > data_offset - sizeof header)
            throw nb::value_error("the schema does not fit before the data");
        header.size_bytes = size_;
        header.data_offset = data_offset;
        header.schema_bytes = schema.size();
        memcpy(header.digest, digest.c_str(), sizeof header.digest);
        shoal_segment_publish(base_, &header, schema.c_str());
    }

  private:
    void *base_ = nullptr;
    uint64_t size_;
    bool writable_;
};

int mapping_get_buffer(PyObject *self, Py_buffer *view, int flags) {
    const Mapping *mapping = nb::inst_ptr<Mapping>(self);
    return PyBuffer_FillInfo(view, self, mapping->base(), static_cast<Py_ssize_t>(mapping->size()),
                             mapping->writable() ? 0 : 1, flags);
}

PyType_Slot mapping_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(mapping_get_buffer)}, {0, nullptr}};

nb::tuple inspect(int fd) {
    shoal_segment_header header;
    uint64_t file_bytes;
    int status = checked(shoal_segment_inspect(fd, &header, &file_bytes));
    nb::dict facts;
    facts["magic"] = nb::bytes(header.magic, sizeof header.magic);
    facts["format"] = header.format;
    facts["min_reader"] = header.min_reader;
    facts["size_bytes"] = header.size_bytes;
    facts["file_bytes"] = file_bytes;
    facts["data_offset"] = header.data_offset;
    facts["schema_bytes"] = header.schema_bytes;
    facts["digest"] = nb::bytes(reinterpret_cast<const char *>(header.digest), sizeof header.digest);
    facts["boot_id"] = nb::bytes(reinterpret_cast<const char *>(header.boot_id), sizeof header.boot_id);
    facts["owner_pid"] = header.owner_pid;
    facts["owner_start"] = header.owner_start;
    return nb::make_tuple(status, facts);
}

/* Writes one row of a space's memory in one call: a tree of leaves under dicts and tuples.
 * It accepts only what needs no conversion and no message: C-contiguous buffers of the exact type and shape
 * in plain dicts and tuples. Everything else is the Python path's, so what is right is written down once,
 * there. */
class RowWriter {
  public:
    explicit RowWriter(nb::handle tree) : root_(parse(tree)) {}

    bool write(int64_t row, nb::handle value) {
        if (row < 0 || row >= rows_)
            return false;
        Staged staged;
        if (!stage(root_, value.ptr(), staged))
            return false;
        for (const auto &[leaf, view] : staged.copies)
            memmove(leaf->base + row * leaf->row_bytes, view.buf, static_cast<size_t>(leaf->row_bytes));
        return true;
    }

  private:
    struct Node {
        enum Kind { LEAF, DICT, TUPLE } kind;
        std::vector<nb::object> keys;
        std::vector<Node> children;
        nb::object array; /* keeps the memory of `base` */
        char *base = nullptr;
        int64_t row_bytes = 0;
        std::string format;
        std::vector<Py_ssize_t> shape;
    };

    struct Staged {
        std::vector<std::pair<const Node *, Py_buffer>> copies;
        ~Staged() {
            for (auto &copy : copies)
                PyBuffer_Release(&copy.second);
        }
    };

    /* A leaf is an array, a branch is (keys, children) for a dict and (None, children) for a tuple. */
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
            PyBuffer_Release(&view); /* the array keeps the memory */
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
                /* Held: getting a buffer may run Python code, which may drop the item from its dict. */
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
            return false;
        if (PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
            PyErr_Clear();
            return false;
        }
        bool fits = view.format != nullptr && node.format == view.format && view.len == node.row_bytes &&
                    static_cast<size_t>(view.ndim) == node.shape.size() &&
                    std::equal(node.shape.begin(), node.shape.end(), view.shape);
        if (fits)
            staged.copies.emplace_back(&node, view);
        else
            PyBuffer_Release(&view);
        return fits;
    }

    int64_t rows_ = 0;
    Node root_;
};

} // namespace

NB_MODULE(_core, m) {
    m.doc() = "Shoal's native core. Private: use the shoal package.";

    nb::class_<Mapping>(m, "Mapping", nb::type_slots(mapping_slots), nb::is_weak_referenceable())
        .def(nb::init<int, uint64_t, bool>(), "fd"_a, "size"_a, "writable"_a)
        .def_prop_ro("address", [](const Mapping &self) { return reinterpret_cast<uintptr_t>(self.base()); })
        .def_prop_ro("size_bytes", &Mapping::size)
        .def_prop_ro("writable", &Mapping::writable)
        .def("publish", &Mapping::publish, "data_offset"_a, "schema"_a, "digest"_a)
        .def(
            "huge_pages",
            [](Mapping &self, bool collapse) {
                int result;
                {
                    nb::gil_scoped_release unlocked;
                    result = shoal_huge_pages(self.base(), self.size(), collapse);
                }
                checked(result);
            },
            "collapse"_a);

    nb::class_<RowWriter>(m, "RowWriter")
        .def(nb::init<nb::handle>(), "tree"_a)
        .def("write", &RowWriter::write, "row"_a, "value"_a.none());

    m.def("inspect", inspect, "fd"_a);
    m.def("memory_create", [] { return checked(shoal_memory_create()); });
    m.def(
        "file_create",
        [](const std::string &directory) {
            char temporary[PATH_MAX];
            int fd = checked(shoal_file_create(directory.c_str(), temporary, sizeof temporary));
            return std::make_pair(fd, std::string(temporary));
        },
        "directory"_a);
    m.def(
        "file_link",
        [](int fd, const std::string &temporary, const std::string &path) {
            checked(shoal_file_link(fd, temporary.c_str(), path.c_str()));
        },
        "fd"_a, "temporary"_a, "path"_a);
    m.def(
        "reserve",
        [](int fd, uint64_t begin, uint64_t length) {
            int result;
            {
                nb::gil_scoped_release unlocked;
                result = shoal_reserve(fd, begin, length);
            }
            checked(result);
        },
        "fd"_a, "begin"_a, "length"_a);
    m.def("seal", [](int fd) { checked(shoal_seal(fd)); }, "fd"_a);
    m.def(
        "reopen", [](int fd, bool writable) { return checked(shoal_reopen(fd, writable)); }, "fd"_a,
        "writable"_a);
    m.def("boot_id", [] {
        uint8_t id[16];
        shoal_boot_id(id);
        return nb::bytes(reinterpret_cast<const char *>(id), sizeof id);
    });
    m.def("process_start", [](int64_t pid) { return shoal_process_start(pid); }, "pid"_a);
    m.def("name_directory", [] { return std::string(shoal_name_directory()); });
}
