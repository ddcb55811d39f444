/* Part of the binding: the ring as Python sees it, over arrays of a segment. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_RING_HPP
#define SHOAL_RING_HPP

#include "durable.h"
#include "gate.hpp"
#include "gather.h"
#include "plugin.hpp"
#include "seed.h"

#include <nanobind/nanobind.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace nb = nanobind;

class Ring {
  public:
    /* `arrays`: tail, writers, words, rows. `columns`: (offset, bytes) of every field. `lock_fd`: an open
     * file description of its own, which it closes. `checks`: a file's: records end with a check. */
    Ring(nb::tuple arrays, uint64_t capacity, uint64_t stride, nb::list columns, int lock_fd, bool checks) {
        for (nb::handle array : arrays)
            kept_.push_back(nb::borrow(array));
        ring_.tail = static_cast<shoal_word64 *>(memory_of(kept_.at(0), 8));
        ring_.writers = static_cast<shoal_ring_writer *>(
            memory_of(kept_.at(1), SHOAL_RING_WRITERS * sizeof(shoal_ring_writer)));
        ring_.words = static_cast<shoal_word64 *>(memory_of(kept_.at(2), capacity * 8));
        ring_.rows = static_cast<char *>(memory_of(kept_.at(3), capacity * stride));
        ring_.capacity = capacity;
        ring_.stride = stride;
        if (checks && (stride == 0 || stride % 64 != 0))
            throw nb::value_error("a record with a check is whole lines");
        if (checks)
            ring_.mark = reinterpret_cast<shoal_ring_mark *>(
                static_cast<shoal_word64 *>(memory_of(kept_.at(0), 64)) + 1);
        ring_.writer = SHOAL_RING_WRITERS;
        for (nb::handle column : columns) {
            Field field;
            field.name = nb::borrow(column[0]);
            field.format = nb::cast<std::string>(column[1]);
            for (nb::handle size : nb::borrow<nb::tuple>(column[2]))
                field.shape.push_back(nb::cast<Py_ssize_t>(size));
            fields_.push_back(field);
            columns_.push_back({nb::cast<uint64_t>(column[3]), nb::cast<uint64_t>(column[4])});
            if (columns_.back().offset + columns_.back().bytes > stride - (checks ? 8 : 0))
                throw nb::value_error("a column lies outside the record");
        }
        ring_.lock_fd = lock_fd;
    }
    ~Ring() { close(); }
    Ring(const Ring &) = delete;
    Ring &operator=(const Ring &) = delete;

    void close() {
        if (ring_.lock_fd >= 0)
            ::close(ring_.lock_fd);
        ring_.lock_fd = -1;
    }

    /* In a forked child, whose number and lock are its parent's: begins again with a lock of its own. */
    void renew(int lock_fd) {
        close();
        ring_.lock_fd = lock_fd;
        ring_.writer = SHOAL_RING_WRITERS;
    }

    /* One row (`batched` false) or rows [n, ...] from a dict whose values fit exactly: the fields' types and
     * shapes, contiguous, or numbers of Python's. Gives (first id, rows, whether the ids are consecutive), or
     * None if anything else is found: then nothing was stored, and Python converts or explains. */
    nb::object push(nb::handle given, bool batched) {
        require_open();
        if (!PyDict_CheckExact(given.ptr()) ||
            static_cast<size_t>(PyDict_Size(given.ptr())) != columns_.size())
            return nb::none();
        std::unique_ptr<Buffer[]> buffers(new Buffer[columns_.size()]);
        std::vector<const void *> in(columns_.size());
        std::vector<std::array<char, 8>> numbers(columns_.size());
        uint64_t count = batched ? UINT64_MAX : 1;
        for (size_t c = 0; c < columns_.size(); c++) {
            nb::object item = nb::borrow(PyDict_GetItemWithError(given.ptr(), fields_[c].name.ptr()));
            if (!item.is_valid()) {
                PyErr_Clear();
                return nb::none();
            }
            if (buffers[c].try_take(item)) {
                if (!fits(fields_[c], buffers[c], batched, count))
                    return nb::none();
                in[c] = buffers[c]->buf;
            } else if (!batched && as_number(fields_[c], item.ptr(), numbers[c].data())) {
                in[c] = numbers[c].data();
            } else {
                return nb::none();
            }
        }
        if (count == 0 || count == UINT64_MAX)
            return nb::none();
        require_writer();
        ids_.resize(count);
        shoal_ring_push(&ring_, {columns_.data(), columns_.size()}, in.data(), count, ids_.data());
        return nb::make_tuple(ids_[0], count, ids_[count - 1] - ids_[0] == count - 1);
    }
    /* The ids of the last push. */
    void last_ids(nb::object out) const {
        memcpy(memory_of(out, ids_.size() * 8), ids_.data(), ids_.size() * 8);
    }

    /* `out`: an array per column, or None for a column that is not wanted. */
    uint64_t sample(nb::object rng, uint64_t count, nb::tuple out, nb::object ids) {
        require_open();
        const Wanted wanted(*this, out, count);
        auto *generator = static_cast<shoal_rng *>(memory_of(rng, sizeof(shoal_rng)));
        auto *drawn = static_cast<uint64_t *>(memory_of(ids, count * 8));
        if (count * ring_.stride < 65536)
            return shoal_ring_sample(&ring_, generator, wanted.columns(), count, wanted.to.data(), drawn);
        Unlocked unlocked;
        return shoal_ring_sample(&ring_, generator, wanted.columns(), count, wanted.to.data(), drawn);
    }

    uint64_t fetch(nb::object ids, nb::tuple out, nb::object found) {
        require_open();
        Buffer asked;
        asked.take(ids);
        const uint64_t count = static_cast<uint64_t>(asked->len) / 8;
        const Wanted wanted(*this, out, count);
        return shoal_ring_fetch(&ring_, wanted.columns(), static_cast<const uint64_t *>(asked->buf), count,
                                wanted.to.data(), static_cast<uint8_t *>(memory_of(found, count)));
    }

    uint64_t latest(uint64_t count, nb::object ids) const {
        require_open();
        return shoal_ring_latest(&ring_, count, static_cast<uint64_t *>(memory_of(ids, count * 8)));
    }

    uint64_t length() const {
        require_open();
        return shoal_ring_length(&ring_);
    }
    uint64_t readable() const {
        require_open();
        return shoal_ring_readable(&ring_);
    }
    uint64_t total() const {
        require_open();
        return shoal_ring_total(&ring_);
    }
    uint64_t copy_to(Ring &other) const {
        require_open();
        other.require_open();
        const auto same = [](shoal_column a, shoal_column b) {
            return a.offset == b.offset && a.bytes == b.bytes;
        };
        if (other.ring_.capacity != ring_.capacity ||
            !std::equal(columns_.begin(), columns_.end(), other.columns_.begin(), other.columns_.end(), same))
            throw nb::value_error("rings of different shapes");
        Unlocked unlocked;
        return shoal_ring_copy(&ring_, &other.ring_);
    }
    /* `mapping`: the whole file's. */
    void begin(nb::object mapping) { on_disk(shoal_ring_begin, mapping); }
    void mend(nb::object mapping) { on_disk(shoal_ring_mend, mapping); }
    void sync(nb::object mapping) { on_disk(shoal_ring_sync, mapping); }

    const shoal_ring *ring() const {
        require_open();
        return &ring_;
    }
    /* The columns that somebody has arrays for. */
    struct Wanted {
        std::vector<shoal_column> items;
        std::vector<void *> to;

        Wanted(const Ring &ring, nb::tuple out, uint64_t count) {
            if (nb::len(out) != ring.columns_.size())
                throw nb::value_error("one array or None per column");
            for (size_t c = 0; c < ring.columns_.size(); c++) {
                nb::object array = out[c];
                if (array.is_none())
                    continue;
                items.push_back(ring.columns_[c]);
                to.push_back(memory_of(array, ring.columns_[c].bytes * count));
            }
        }
        shoal_columns columns() const { return {items.data(), items.size()}; }
    };

  private:
    struct Field {
        nb::object name;
        std::string format;
        std::vector<Py_ssize_t> shape;
    };

    static bool fits(const Field &field, const Buffer &view, bool batched, uint64_t &count) {
        if (view->format == nullptr || field.format != view->format ||
            view->ndim != static_cast<int>(field.shape.size()) + (batched ? 1 : 0))
            return false;
        const Py_ssize_t *shape = view->shape + (batched ? 1 : 0);
        for (size_t i = 0; i < field.shape.size(); i++)
            if (shape[i] != field.shape[i])
                return false;
        if (batched && count == UINT64_MAX)
            count = static_cast<uint64_t>(view->shape[0]);
        return !batched || count == static_cast<uint64_t>(view->shape[0]);
    }

    static bool as_number(const Field &field, PyObject *value, char *out) {
        if (!field.shape.empty())
            return false;
        if (PyBool_Check(value) && field.format == "?") {
            *out = value == Py_True;
        } else if (PyLong_CheckExact(value) && (field.format == "l" || field.format == "q")) {
            int overflow = 0;
            const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
            if (overflow != 0)
                return false;
            memcpy(out, &number, sizeof number);
        } else if (PyFloat_CheckExact(value) && (field.format == "d" || field.format == "f")) {
            const double number = PyFloat_AsDouble(value);
            const float narrow = static_cast<float>(number);
            if (field.format == "d")
                memcpy(out, &number, sizeof number);
            else
                memcpy(out, &narrow, sizeof narrow);
        } else {
            return false;
        }
        return true;
    }

    template <typename Call> void on_disk(Call call, nb::object mapping) {
        require_open();
        Buffer whole;
        whole.take(mapping);
        int result;
        {
            Unlocked unlocked;
            result = call(&ring_, whole->buf, static_cast<uint64_t>(whole->len));
        }
        raise_system(result);
    }

    static void raise_system(int result) {
        if (result >= 0)
            return;
        errno = -result;
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }

    void require_open() const {
        if (ring_.lock_fd < 0)
            raise_shoal("ClosedError", "the buffer is closed; arrays taken from it are still valid");
    }
    void require_writer() {
        require_open();
        if (ring_.writer != SHOAL_RING_WRITERS)
            return;
        int result = shoal_ring_register(&ring_);
        if (result == -EAGAIN)
            raise_shoal("ShoalError", "the buffer has as many writers as it can have");
        raise_system(result);
    }
    std::vector<nb::object> kept_;
    std::vector<Field> fields_;
    std::vector<shoal_column> columns_;
    std::vector<uint64_t> ids_;
    shoal_ring ring_ = {};
};

/* Weights over a ring's rows, of one process's own: what prioritized draws are made from. */
class Weights {
  public:
    explicit Weights(nb::object ring) : kept_(ring), ring_(nb::cast<const Ring &>(ring)) {
        const uint64_t capacity = ring_.ring()->capacity;
        const size_t bytes = (shoal_tree_floats(capacity) * sizeof(float) + 63) / 64 * 64;
        memory_.reset(static_cast<float *>(std::aligned_alloc(64, bytes)));
        if (!memory_)
            throw std::bad_alloc();
        memset(memory_.get(), 0, bytes);
        shoal_tree_init(&tree_, capacity, memory_.get());
    }

    /* Rows that came since have `weight`. */
    void weigh_new(float weight) { seen_ = shoal_ring_weigh_new(ring_.ring(), &tree_, seen_, weight); }

    uint64_t weigh(nb::object ids, nb::object weights) {
        Buffer wanted;
        wanted.take(ids);
        const uint64_t count = static_cast<uint64_t>(wanted->len) / 8;
        const auto *given = static_cast<const float *>(memory_of(weights, count * sizeof(float)));
        std::vector<uint64_t> slots(count);
        std::vector<float> kept(count);
        return shoal_ring_weigh(ring_.ring(), &tree_, static_cast<const uint64_t *>(wanted->buf), given,
                                count, slots.data(), kept.data());
    }

    uint64_t sample(nb::object rng, uint64_t count, nb::tuple out, nb::object ids, nb::object weights) {
        const Ring::Wanted wanted(ring_, out, count);
        return shoal_ring_sample_weighted(
            ring_.ring(), &tree_, static_cast<shoal_rng *>(memory_of(rng, sizeof(shoal_rng))),
            wanted.columns(), count, wanted.to.data(), static_cast<uint64_t *>(memory_of(ids, count * 8)),
            static_cast<float *>(memory_of(weights, count * sizeof(float))));
    }
    float total() const { return shoal_tree_total(&tree_); }

  private:
    struct Free {
        void operator()(float *memory) const { std::free(memory); }
    };
    nb::object kept_;
    const Ring &ring_;
    std::unique_ptr<float, Free> memory_;
    shoal_tree tree_ = {};
    uint64_t seen_ = 0;
};

#endif
