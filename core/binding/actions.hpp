/* Part of the binding: checks of actions outside a stepper, for a parent whose workers step. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_ACTIONS_HPP
#define SHOAL_ACTIONS_HPP

#include "action_check.h"
#include "engine.h"
#include "plugin.hpp"
#include "python.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>

namespace nb = nanobind;

/* Many actions are checked by several threads, if that has been faster. */
class ActionChecks {
  public:
    ActionChecks(nb::object plugin, nb::list values) : plugin_(plugin) {
        const Plugin &loaded = nb::cast<const Plugin &>(plugin);
        const Values converted(loaded.get()->entry, values);
        loaded.fill(converted, &description_.d);
    }
    ~ActionChecks() { close(); }
    ActionChecks(const ActionChecks &) = delete;
    ActionChecks &operator=(const ActionChecks &) = delete;

    /* Ends the threads. */
    void close() {
        shoal_pool_destroy(pool_);
        pool_ = nullptr;
        num_threads_ = 1;
    }

    /* The first row of field `number` whose action is out of bounds, or NaN; -1 if there is none. `rows` is a
     * contiguous array of the field's dtype. */
    int64_t find_bad(uint64_t number, nb::object rows) { return run(field(number), rows, nullptr); }

    bool fit_bytes(uint64_t number) const { return shoal_engine_actions_fit_bytes(&field(number)) != 0; }

    /* Writes the actions of such a field to `bytes`. Returns the first row that is out of bounds, or -1. */
    int64_t to_bytes(uint64_t number, nb::object rows, nb::object bytes) {
        Buffer to;
        to.take(bytes);
        if (!fit_bytes(number))
            throw nb::value_error("the actions do not fit into bytes");
        return run(field(number), rows, &to);
    }

  private:
    enum : uint64_t { THREADS_BYTES = 1 << 19 }; /* fewer actions are checked by one thread */
    enum : uint64_t { BLOCK_ROWS = 64 };         /* so that two threads write no cache line together */
    enum : uint32_t { MOST_THREADS = 4 };        /* more threads were not faster on 16 cores */

    const shoal_field &field(uint64_t number) const {
        if (number >= description_.d.actions.count)
            throw nb::index_error("no such field of actions");
        return description_.d.actions.items[number];
    }

    int64_t run(const shoal_field &one, nb::object rows, Buffer *bytes) {
        Buffer from; /* also of a read-only array */
        if (!from.try_take(rows))
            throw nb::type_error("rows must be a contiguous array");
        const uint64_t size = static_cast<uint64_t>(from->len), count = size / shoal_field_bytes(&one);
        if (bytes != nullptr && static_cast<uint64_t>((*bytes)->len) != count * shoal_field_elements(&one))
            throw nb::value_error("there must be one byte for each action");
        auto *to = bytes == nullptr ? nullptr : static_cast<uint8_t *>((*bytes)->buf);
        if (size >= THREADS_BYTES && num_threads_ == 0)
            start_threads();
        const shoal_action_check check = {&one, from->buf, count, BLOCK_ROWS, to};
        shoal_pool *pool = size < THREADS_BYTES ? nullptr : pool_;
        return shoal_action_check_run(&check, pool, num_threads_, &choice_);
    }

    /* These threads never spin: between two checks, the workers need the cores. */
    void start_threads() {
        num_threads_ = std::min<uint32_t>(shoal_cpu_count(), MOST_THREADS);
        if (num_threads_ > 1 && shoal_pool_create(num_threads_, 0, &pool_) != 0)
            num_threads_ = 1; /* the system allows no more threads: never try again */
    }

    nb::object plugin_; /* keeps the library loaded */
    Description description_;
    shoal_pool *pool_ = nullptr;
    uint32_t num_threads_ = 0; /* 0: not started yet; 1: there is no pool */
    shoal_choice choice_ = {};
};

#endif
