/* Part of the binding: the Python class of a ring, over arrays of a segment. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_RING_HPP
#define SHOAL_RING_HPP

#include "durable.h"
#include "gather.h"
#include "given.hpp"
#include "links.h"
#include "pool.h"
#include "python.hpp"
#include "ring.h"
#include "seed.h"

#include <nanobind/nanobind.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace nb = nanobind;

class Ring {
  public:
    enum {
        TAIL_BYTES = 64,
        CHECK_BYTES = 8
    }; /* size of the tail's array; of the checksum that ends a record */

    /* `arrays`: tail, writers, rows. `columns`: (name, dtype, format, shape, offset, bytes) of every field.
     * `lock_fd`: an open file description that only this object uses and closes. `checks`: whether records
     * end with a checksum, as in a file. */
    Ring(nb::tuple arrays, uint64_t capacity, uint64_t stride, nb::list columns, int lock_fd, bool checks) {
        for (nb::handle array : arrays)
            kept_.push_back(nb::borrow(array));
        ring_.tail = static_cast<shoal_word64 *>(
            memory_of(kept_.at(0), TAIL_BYTES)); /* | tail | mark | numbers_used | */
        ring_.numbers_used = ring_.tail + 3;
        ring_.writers = static_cast<shoal_ring_writer *>(
            memory_of(kept_.at(1), SHOAL_RING_WRITERS * sizeof(shoal_ring_writer)));
        ring_.rows = static_cast<char *>(memory_of(kept_.at(2), capacity * stride));
        if (stride < sizeof(shoal_word64) || stride % sizeof(shoal_word64) != 0)
            throw nb::value_error(
                ("the record size must be a multiple of 8 bytes, found " + std::to_string(stride)).c_str());
        ring_.capacity = capacity;
        ring_.stride = stride;
        if (checks && stride % 64 != 0)
            throw nb::value_error("the record size of a buffer in a file must be a multiple of 64 bytes");
        if (checks)
            ring_.mark = reinterpret_cast<shoal_ring_mark *>(ring_.tail + 1);
        ring_.writer = SHOAL_RING_WRITERS;
        for (nb::handle column : columns) {
            Field field;
            field.name = nb::borrow(column[0]);
            field.dtype = nb::borrow(column[1]);
            field.format = nb::cast<std::string>(column[2]);
            for (nb::handle size : nb::borrow<nb::tuple>(column[3]))
                field.shape.push_back(nb::cast<Py_ssize_t>(size));
            fields_.push_back(field);
            columns_.push_back({nb::cast<uint64_t>(column[4]), nb::cast<uint64_t>(column[5])});
            if (columns_.back().offset < sizeof(shoal_word64) ||
                columns_.back().offset + columns_.back().bytes > stride - (checks ? CHECK_BYTES : 0))
                throw nb::value_error("a column is outside of the record");
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
        if (pool_taken_.exchange(true)) /* another thread is using it, or was when this child forked */
            return;
        shoal_pool_destroy(pool_);
        pool_ = nullptr;
        pool_threads_ = 0;
        pool_taken_.store(false);
    }

    /* For a forked child, whose number and lock belong to its parent: takes a lock file descriptor of its own
     * and registers again at the next push. */
    void renew(int lock_fd) {
        close();
        ring_.lock_fd = lock_fd;
        ring_.writer = SHOAL_RING_WRITERS;
    }

    /* Stores one row from a dict and returns its id. The values must be contiguous arrays of exactly the
     * fields' types and shapes, or Python numbers. Otherwise it stores nothing and returns None; the Python
     * code then converts the values or raises an error. */
    nb::object push(nb::handle given) {
        require_open();
        Given taken(fields_, array_type_, given);
        for (size_t c = 0; c < columns_.size(); c++) {
            const Field &field = fields_[c];
            if (!taken.next(field))
                return nb::none();
            char *number = taken.number();
            void *data = taken.array(field, nullptr);
            if (data == nullptr && as_number(field, taken.item.ptr(), number))
                data = number;
            if (data == nullptr)
                return nb::none();
            taken.add(data);
        }
        require_writer();
        uint64_t id;
        if (shoal_ring_push(&ring_, {columns_.data(), columns_.size()}, taken.pointers(), 1, &id) != 1)
            id = push_rest(taken.pointers(), 1, &id, 0).front();
        return nb::cast(id);
    }

    /* Stores rows [n, ...] in the same way. Returns the range of their ids, or the ids as bytes if they are
     * not consecutive, or None. */
    nb::object extend(nb::handle given) {
        require_open();
        Given taken(fields_, array_type_, given);
        uint64_t count = 0;
        for (size_t c = 0; c < columns_.size(); c++) {
            uint64_t rows = 0;
            void *data = taken.next(fields_[c]) ? taken.array(fields_[c], &rows) : nullptr;
            if (data == nullptr || rows == 0 || (c > 0 && rows != count))
                return nb::none();
            count = rows;
            taken.add(data);
        }
        push_rows(taken.pointers(), count, ids_);
        if (ids_[count - 1] - ids_[0] != count - 1)
            return nb::bytes(reinterpret_cast<const char *>(ids_.data()), count * 8);
        return nb::borrow(reinterpret_cast<PyObject *>(&PyRange_Type))(ids_[0], ids_[count - 1] + 1);
    }

    /* Writes saved rows [n, ...] under their old ids into a new ring. */
    void restore(nb::handle rows, nb::object ids, uint64_t tail, uint64_t total) {
        require_writer();
        Given taken(fields_, array_type_, rows);
        Buffer numbers;
        numbers.take(ids);
        const uint64_t count = static_cast<uint64_t>(numbers->len) / 8;
        for (const Field &field : fields_) {
            uint64_t found = 0;
            void *data = taken.next(field) ? taken.array(field, &found) : nullptr;
            if (data == nullptr || found != count)
                throw nb::value_error("the saved rows do not fit the fields of the buffer");
            taken.add(data);
        }
        shoal_ring_restore(&ring_, {columns_.data(), columns_.size()}, taken.pointers(),
                           static_cast<const uint64_t *>(numbers->buf), count, tail, total);
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

    /* Replaces each slot in `slots` by the id of its row, or by 2**64 - 1 if it has none. */
    void ids_in(nb::object slots) const {
        require_open();
        Buffer asked;
        asked.take(slots);
        auto *words = static_cast<uint64_t *>(asked->buf);
        shoal_ring_ids(&ring_, words, static_cast<uint64_t>(asked->len) / 8, words);
    }

    uint64_t length() const {
        require_open();
        return shoal_ring_length(&ring_);
    }
    uint64_t tail() const {
        require_open();
        return ring_.tail->load();
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
            throw nb::value_error("the two buffers differ in capacity or fields");
        Unlocked unlocked;
        return shoal_ring_copy(&ring_, &other.ring_);
    }
    /* `mapping` is the whole file. */
    void begin(nb::object mapping) { on_disk(shoal_ring_begin, mapping); }
    void mend(nb::object mapping) { on_disk(shoal_ring_mend, mapping); }
    void sync(nb::object mapping) { on_disk(shoal_ring_sync, mapping); }

    /* Draws and copies rows, uniformly or, with a tree, by weight. Returns `count`, or 0 if there are no
     * rows. The GIL guards the generator and the tree; it is released while large batches are copied. */
    uint64_t draw(const shoal_tree *tree, shoal_rng *rng, uint64_t count, shoal_columns columns,
                  void *const *to, uint64_t *ids, float *weights) {
        constexpr uint64_t FEW = 512;
        uint64_t few[FEW], missing;
        const std::unique_ptr<uint64_t[]> many(count > FEW ? new uint64_t[count] : nullptr);
        uint64_t *slots = many ? many.get() : few; /* not `ids`, which other threads can change */
        if (shoal_ring_draw(&ring_, tree, rng, count, slots, weights) == 0)
            return 0;
        if (is_large_batch(columns, count)) {
            Unlocked unlocked;
            const CopyThreads threads(*this);
            missing = shoal_ring_gather(&ring_, columns, count, slots, to, ids, threads.given);
        } else {
            missing = shoal_ring_gather(&ring_, columns, count, slots, to, ids, {});
        }
        if (missing != 0 && !shoal_ring_redraw(&ring_, tree, rng, columns, count, slots, to, ids, weights))
            return 0;
        return count;
    }

    /* Does the same for linked rows. */
    uint64_t walk(shoal_walk *walk, const shoal_tree *tree, shoal_rng *rng) {
        const bool is_large = bytes_of(walk->obs) * walk->count * 2 * walk->stack +
                                  bytes_of(walk->rest) * walk->count * std::max<uint64_t>(walk->length, 1) >=
                              SHOAL_COPY_LEAST_BYTES;
        bool is_drawn;
        shoal_walk_begin(walk);
        while ((is_drawn = shoal_walk_draw(walk, tree, rng) != 0)) {
            uint64_t missing;
            if (is_large) {
                Unlocked unlocked;
                const CopyThreads threads(*this);
                missing = shoal_walk_gather(walk, threads.given);
            } else {
                missing = shoal_walk_gather(walk, {});
            }
            if (missing == 0)
                break;
        }
        shoal_walk_end(walk);
        return is_drawn ? walk->count : 0;
    }

    static uint64_t bytes_of(shoal_columns columns) {
        uint64_t bytes = 0;
        for (uint64_t c = 0; c < columns.count; c++)
            bytes += columns.items[c].bytes;
        return bytes;
    }
    /* Whether releasing the GIL and using threads pays off. */
    static bool is_large_batch(shoal_columns columns, uint64_t count) {
        return bytes_of(columns) * count >= SHOAL_COPY_LEAST_BYTES;
    }
    /* Reserves the ring's threads, if no other Python thread uses them. */
    class CopyThreads {
      public:
        shoal_copy_threads given = {};

        explicit CopyThreads(Ring &ring) : ring_(ring), mine_(!ring.pool_taken_.exchange(true)) {
            if (!mine_)
                return;
            if (ring.pool_threads_ == 0) {
                const uint32_t cores = shoal_cpu_count();
                ring.pool_threads_ = cores < MAX_COPY_THREADS ? cores : MAX_COPY_THREADS;
                if (ring.pool_threads_ > 1 && shoal_pool_create(ring.pool_threads_, 1, &ring.pool_) != 0)
                    ring.pool_threads_ = 1; /* the system allows no more threads: never try again */
            }
            given = {ring.pool_, ring.pool_threads_, &ring.choice_};
        }
        ~CopyThreads() {
            if (mine_)
                ring_.pool_taken_.store(false);
        }
        CopyThreads(const CopyThreads &) = delete;
        CopyThreads &operator=(const CopyThreads &) = delete;

      private:
        Ring &ring_;
        bool mine_;
    };

    const shoal_ring *ring() const {
        require_open();
        return &ring_;
    }
    const std::vector<Field> &fields() const { return fields_; }
    const std::vector<shoal_column> &columns() const { return columns_; }
    nb::handle array_type() const { return array_type_; }
    /* Pushes rows from addresses, one per field. */
    void push_rows(const void *const *in, uint64_t count, std::vector<uint64_t> &ids) {
        require_writer();
        ids.resize(count);
        const uint64_t done =
            shoal_ring_push(&ring_, {columns_.data(), columns_.size()}, in, count, ids.data());
        if (done != count)
            ids = push_rest(in, count, ids.data(), done);
    }
    /* The columns for which the caller gave arrays. */
    struct Wanted {
        std::vector<shoal_column> items;
        std::vector<void *> to;

        Wanted(const Ring &ring, nb::tuple out, uint64_t count) {
            if (nb::len(out) != ring.columns_.size())
                throw nb::value_error("expected one array or None per column");
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
            if (field.format == "f" && std::isinf(narrow) && !std::isinf(number))
                return false;
            if (field.format == "d")
                memcpy(out, &number, sizeof number);
            else
                memcpy(out, &narrow, sizeof narrow);
        } else {
            return false;
        }
        return true;
    }

    /* Waits for room and pushes the rows after the first `done`; returns the ids of all. The GIL guards the
     * handle. It is released between two tries, when the writer holds no slot: other threads can then push
     * through this handle or close it. Rows and ids are copied, since they can change meanwhile. */
    [[gnu::noinline]] std::vector<uint64_t> push_rest(const void *const *in, uint64_t count,
                                                      const uint64_t *ids, uint64_t done) {
        std::vector<uint64_t> all(ids, ids + done);
        std::vector<std::vector<char>> rows;
        for (size_t c = 0; c < columns_.size(); c++) {
            const auto *from = static_cast<const char *>(in[c]);
            rows.emplace_back(from + done * columns_[c].bytes, from + count * columns_[c].bytes);
        }
        all.resize(count);
        std::vector<const void *> at(columns_.size());
        const uint64_t first = done;
        for (uint64_t since = 0; done != count;) {
            bool may_wait;
            {
                Unlocked unlocked;
                may_wait = shoal_ring_wait_for_room(&since) != 0;
            }
            check_signals();
            require_open();
            if (!may_wait)
                raise_no_room(done, count);
            for (size_t c = 0; c < columns_.size(); c++)
                at[c] = rows[c].data() + (done - first) * columns_[c].bytes;
            const uint64_t more = shoal_ring_push(&ring_, {columns_.data(), columns_.size()}, at.data(),
                                                  count - done, all.data() + done);
            done += more;
            since = more != 0 ? 0 : since;
        }
        return all;
    }

    static void raise_no_room(uint64_t pushed, uint64_t count) {
        const std::string text = std::to_string(pushed) + " of " + std::to_string(count) +
                                 " rows stored: living writers hold every slot and make no progress; "
                                 "continue or end a stopped writer, "
                                 "or give the buffer a larger capacity";
        raise_shoal("ShoalError", text.c_str());
    }

    template <typename Call> void on_disk(Call call, nb::object mapping) {
        require_open();
        Buffer whole;
        whole.take(mapping);
        shoal_ring own = ring_; /* another thread may close the handle meanwhile */
        own.lock_fd = fcntl(ring_.lock_fd, F_DUPFD_CLOEXEC, 0);
        int result = own.lock_fd < 0 ? -errno : 0;
        if (result == 0) {
            Unlocked unlocked;
            result = call(&own, whole->buf, static_cast<uint64_t>(whole->len));
            ::close(own.lock_fd);
        }
        require_success(result);
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
            raise_shoal("ShoalError",
                        "the buffer already has 1024 writers, the most it can have; close one of them");
        if (result < 0) {
            const std::string text = "cannot lock a writer number of the buffer: ";
            PyErr_SetObject(PyExc_OSError, nb::make_tuple(-result, text + strerror(-result)).ptr());
            throw nb::python_error();
        }
    }
    nb::object array_type_ = nb::module_::import_("numpy").attr("ndarray");
    std::vector<nb::object> kept_;
    std::vector<Field> fields_;
    std::vector<shoal_column> columns_;
    std::vector<uint64_t> ids_;
    static constexpr uint32_t MAX_COPY_THREADS = 16;
    shoal_pool *pool_ = nullptr; /* created when first needed */
    uint32_t pool_threads_ = 0;  /* number of threads in the pool; 1: there is no pool, 0: not known yet */
    shoal_choice choice_ = {};
    std::atomic<bool> pool_taken_ = false;
    shoal_ring ring_ = {};
};

#endif
