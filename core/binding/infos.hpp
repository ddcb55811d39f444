/* Part of the binding: infos of Python environments as rows of shared memory.
 *
 *   worker:  info -> a schema that it matches -> row of the environment: its values, packed
 *                                                word of the environment: the schema's number
 *   parent:  words -> schemas -> one new array per key, as gymnasium.vector.VectorEnv._add_info builds it
 *
 * 1. A schema lists the keys of an info in order, with their types and shapes. Each chunk has a table of
 *    them in shared memory. A number is never used twice, and a schema that a row refers to stays.
 * 2. A word is 0 where the last info of an environment was empty or was reported as a message.
 * 3. The parent reads words and rows only of idle workers and finished environments, so never half a row. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_INFOS_HPP
#define SHOAL_INFOS_HPP

#include "plugin.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace nb = nanobind;

/* The table of one chunk. Writer: the chunk. Reader: the parent. The size of a row is an odd number of cache
 * lines, so that the same key of many environments does not fall into one set of the cache. */
struct InfoTable {
    enum { ROW_BYTES = 15 * 64, SCHEMAS = 16, SCHEMA_BYTES = 2032 };

    struct Slot {
        uint64_t number, size;
        char data[SCHEMA_BYTES]; /* the description, as JSON */
    };

    uint64_t count; /* of all schemas that ever were in this table; they survive the worker */
    Slot slots[SCHEMAS];
};

/* One key of an info. Its description is (key, kind, dtype, shape) or (key, DICT, "", descriptions). */
struct InfoEntry {
    enum Kind { BOOL = 0, INT = 1, FLOAT = 2, SCALAR = 3, ARRAY = 4, DICT = 5 };

    nb::object key, dtype, scalar_type;
    Kind kind;
    std::vector<Py_ssize_t> shape;
    size_t offset, size; /* in the row, in bytes */
    std::vector<InfoEntry> entries;

    /* As Gymnasium does: a bool of NumPy's goes into an array of objects. */
    bool is_object() const { return kind == SCALAR && nb::cast<char>(dtype.attr("kind")) == 'b'; }
};

class InfoSchema {
  public:
    nb::object description;
    std::vector<InfoEntry> entries;
    size_t size = 0;

    explicit InfoSchema(nb::object described)
        : description(described), numpy_(nb::module_::import_("numpy")), array_type_(numpy_.attr("ndarray")),
          zeros_(numpy_.attr("zeros")) {
        parse(described, entries);
    }

    bool fits() const { return size <= InfoTable::ROW_BYTES; }

    /* Writes the info to the row if it has exactly this schema; returns whether it has. Runs no Python code.
     */
    bool write(PyObject *info, char *row) const { return write(entries, info, row); }

    nb::dict read(const char *row) const { return read(entries, row); }

  private:
    void parse(nb::handle described, std::vector<InfoEntry> &into) {
        for (nb::handle one : described) {
            InfoEntry entry;
            entry.key = one[0];
            entry.kind = static_cast<InfoEntry::Kind>(nb::cast<int>(one[1]));
            entry.offset = size;
            entry.size = 0;
            if (entry.kind == InfoEntry::DICT) {
                parse(one[3], entry.entries);
            } else {
                entry.dtype = numpy_.attr("dtype")(one[2]);
                entry.scalar_type = entry.dtype.attr("type");
                entry.shape = shape_of(one[3]);
                entry.size = nb::cast<size_t>(entry.dtype.attr("itemsize"));
                for (Py_ssize_t length : entry.shape)
                    entry.size *= static_cast<size_t>(length);
                size += entry.size;
            }
            into.push_back(std::move(entry));
        }
    }

    static std::vector<Py_ssize_t> shape_of(nb::handle lengths) {
        std::vector<Py_ssize_t> shape;
        for (nb::handle length : lengths)
            shape.push_back(nb::cast<Py_ssize_t>(length));
        return shape;
    }

    bool write(const std::vector<InfoEntry> &entries, PyObject *info, char *row) const {
        if (!PyDict_CheckExact(info) || static_cast<size_t>(PyDict_Size(info)) != entries.size())
            return false;
        Py_ssize_t at = 0;
        PyObject *key, *value;
        for (const InfoEntry &entry : entries) {
            if (!PyDict_Next(info, &at, &key, &value))
                return false;
            if (key != entry.key.ptr() &&
                (!PyUnicode_CheckExact(key) || PyUnicode_Compare(key, entry.key.ptr()) != 0))
                return false;
            if (!write_value(entry, value, row))
                return false;
        }
        return true;
    }

    bool write_value(const InfoEntry &entry, PyObject *value, char *row) const {
        char *at = row + entry.offset;
        switch (entry.kind) {
        case InfoEntry::BOOL:
            *at = value == Py_True;
            return PyBool_Check(value);
        case InfoEntry::INT: {
            int overflow = 0;
            if (!PyLong_CheckExact(value))
                return false;
            const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
            memcpy(at, &number, sizeof number);
            return overflow == 0;
        }
        case InfoEntry::FLOAT: {
            if (!PyFloat_CheckExact(value))
                return false;
            const double number = PyFloat_AsDouble(value);
            memcpy(at, &number, sizeof number);
            return true;
        }
        case InfoEntry::SCALAR:
            return reinterpret_cast<PyObject *>(Py_TYPE(value)) == entry.scalar_type.ptr() &&
                   write_scalar(entry, value, at);
        case InfoEntry::ARRAY:
            return write_array(entry, ArrayHead::of(value, array_type_), at);
        default:
            return write(entry.entries, value, row);
        }
    }

    static bool write_scalar(const InfoEntry &entry, PyObject *value, char *at) {
        Py_buffer view;
        if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) != 0) {
            PyErr_Clear();
            return false;
        }
        const bool fits = static_cast<size_t>(view.len) == entry.size;
        if (fits)
            memcpy(at, view.buf, entry.size);
        PyBuffer_Release(&view);
        return fits;
    }

    static bool write_array(const InfoEntry &entry, const ArrayHead *array, char *at) {
        if (array == nullptr || (array->flags & ArrayHead::C_CONTIGUOUS) == 0 ||
            static_cast<size_t>(array->ndim) != entry.shape.size() ||
            !std::equal(entry.shape.begin(), entry.shape.end(), array->shape))
            return false;
        if (array->dtype != entry.dtype.ptr()) {
            const int same = PyObject_RichCompareBool(array->dtype, entry.dtype.ptr(), Py_EQ);
            if (same < 0)
                PyErr_Clear();
            if (same != 1)
                return false;
        }
        memcpy(at, array->data, entry.size);
        return true;
    }

    nb::dict read(const std::vector<InfoEntry> &entries, const char *row) const {
        nb::dict info;
        for (const InfoEntry &entry : entries)
            info[entry.key] = read_value(entry, row);
        return info;
    }

    nb::object read_value(const InfoEntry &entry, const char *row) const {
        const char *at = row + entry.offset;
        if (entry.kind == InfoEntry::DICT)
            return read(entry.entries, row);
        nb::list lengths;
        for (Py_ssize_t length : entry.shape)
            lengths.append(length);
        nb::object array = zeros_(nb::tuple(lengths), entry.dtype);
        memcpy(ArrayHead::of(array, array_type_)->data, at, entry.size);
        if (entry.kind == InfoEntry::ARRAY)
            return array;
        return entry.kind == InfoEntry::SCALAR ? nb::object(array[nb::make_tuple()]) : array.attr("item")();
    }

    nb::object numpy_, array_type_, zeros_;
};

/* A chunk's side. */
class InfoWriter {
  public:
    /* `describe` returns the description of an info and the same as JSON, or None. */
    InfoWriter(nb::object words, nb::object rows, nb::object table, uint64_t first, uint64_t count,
               nb::object describe)
        : kept_alive_{words, rows, table}, describe_(describe), count_(count),
          words_(static_cast<uint64_t *>(memory_of(words, (first + count) * sizeof(uint64_t))) + first),
          rows_(static_cast<char *>(memory_of(rows, (first + count) * InfoTable::ROW_BYTES)) +
                first * InfoTable::ROW_BYTES),
          table_(static_cast<InfoTable *>(memory_of(table, sizeof(InfoTable)))) {
        std::fill(words_, words_ + count_, 0);
    }

    /* Writes the environment's info to its row; returns whether that was possible. */
    bool write(uint64_t local, nb::handle info) {
        uint64_t &word = words_[local];
        credit_ = std::min(credit_ + 1, CREDIT);
        if (word != 0 && write_as(known_[word % InfoTable::SCHEMAS], local, info))
            return true;
        for (Known &known : known_)
            if (known.schema && known.number != word && write_as(known, local, info)) {
                word = known.number;
                return true;
            }
        word = 0;
        return credit_ >= PRICE && learn(local, info);
    }
    void clear(uint64_t local) {
        if (words_[local] != 0)
            words_[local] = 0;
    }

  private:
    /* Infos that always differ are not worth a schema each: at most one in PRICE of them is described. */
    static constexpr uint32_t PRICE = 16, CREDIT = 16 * PRICE;

    struct Known {
        std::unique_ptr<InfoSchema> schema;
        uint64_t number = 0, used = 0;
    };

    bool write_as(Known &known, uint64_t local, nb::handle info) {
        if (!known.schema->write(info.ptr(), rows_ + local * InfoTable::ROW_BYTES))
            return false;
        known.used = ++clock_;
        return true;
    }

    bool learn(uint64_t local, nb::handle info) {
        credit_ -= PRICE;
        Known *oldest = nullptr;
        for (Known &known : known_)
            if ((oldest == nullptr || known.used < oldest->used) &&
                (!known.schema || std::find(words_, words_ + count_, known.number) == words_ + count_))
                oldest = &known;
        if (oldest == nullptr)
            return false;
        nb::object described = describe_(info);
        if (described.is_none())
            return false;
        auto schema = std::make_unique<InfoSchema>(described[0]);
        nb::bytes data = nb::cast<nb::bytes>(described[1]);
        if (!schema->fits() || data.size() > InfoTable::SCHEMA_BYTES)
            return false;
        const auto at = static_cast<uint64_t>(oldest - known_);
        oldest->number = ++table_->count * InfoTable::SCHEMAS + at;
        oldest->schema = std::move(schema);
        InfoTable::Slot &slot = table_->slots[at];
        slot.number = oldest->number;
        slot.size = data.size();
        memcpy(slot.data, data.c_str(), data.size());
        if (!write_as(*oldest, local, info))
            return false;
        words_[local] = oldest->number;
        return true;
    }

    std::vector<nb::object> kept_alive_;
    nb::object describe_;
    uint64_t count_, *words_;
    char *rows_;
    InfoTable *table_;
    Known known_[InfoTable::SCHEMAS];
    uint64_t clock_ = 0;
    uint32_t credit_ = CREDIT;
};

#endif
