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
        if (number >= description_.d.actions.count)
            throw nb::index_error("no such field of actions");
        const shoal_field &field = description_.d.actions.items[number];
        Buffer view; /* also of a read-only array */
        if (!view.try_take(rows))
            throw nb::type_error("rows must be a contiguous array");
        return shoal_engine_bad_action(&field, view->buf,
                                       static_cast<uint64_t>(view->len) / shoal_field_bytes(&field), true);
    }

  private:
    nb::object plugin_; /* keeps the library loaded */
    Description description_;
};

#endif
