/* Part of the binding: checks of actions outside a stepper, for a parent whose workers step. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_ACTIONS_HPP
#define SHOAL_ACTIONS_HPP

#include "engine.h"
#include "plugin.hpp"
#include "python.hpp"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

class ActionChecks {
  public:
    ActionChecks(nb::object plugin, nb::list values) : plugin_(plugin) {
        const Plugin &loaded = nb::cast<const Plugin &>(plugin);
        const Values converted(loaded.get()->entry, values);
        loaded.fill(converted, &description_.d);
    }

    /* The first row of field `number` whose action is out of bounds, or NaN; -1 if there is none. `rows` is a
     * contiguous array of the field's dtype. */
    int64_t find_bad(uint64_t number, nb::object rows) const {
        const shoal_field &one = field(number);
        Buffer view; /* also of a read-only array */
        if (!view.try_take(rows))
            throw nb::type_error("rows must be a contiguous array");
        return shoal_engine_bad_action(&one, view->buf,
                                       static_cast<uint64_t>(view->len) / shoal_field_bytes(&one), true);
    }

    bool fit_bytes(uint64_t number) const { return shoal_engine_actions_fit_bytes(&field(number)) != 0; }

    /* Writes the actions of such a field to `bytes`. Returns the first row that is out of bounds, or -1. */
    int64_t to_bytes(uint64_t number, nb::object rows, nb::object bytes) const {
        const shoal_field &one = field(number);
        Buffer from, to;
        if (!from.try_take(rows))
            throw nb::type_error("rows must be a contiguous array");
        to.take(bytes);
        const uint64_t count = static_cast<uint64_t>(from->len) / shoal_field_bytes(&one);
        if (!fit_bytes(number) || static_cast<uint64_t>(to->len) != count * shoal_field_elements(&one))
            throw nb::value_error("the actions do not fit into the bytes");
        return shoal_engine_actions_to_bytes(&one, from->buf, count, static_cast<uint8_t *>(to->buf));
    }

  private:
    const shoal_field &field(uint64_t number) const {
        if (number >= description_.d.actions.count)
            throw nb::index_error("no such field of actions");
        return description_.d.actions.items[number];
    }

    nb::object plugin_; /* keeps the library loaded */
    Description description_;
};

#endif
