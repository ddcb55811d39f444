/* Part of the binding: one step of a whole vector environment as rows that lead to each other. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_STEPS_HPP
#define SHOAL_STEPS_HPP

#include "given.hpp"
#include "links.hpp"
#include "python.hpp"
#include "ring.hpp"

#include <nanobind/nanobind.h>

#include <cfloat>
#include <cmath>
#include <vector>

namespace nb = nanobind;

/* The plain case alone: arrays that fit exactly, no fault, nothing that a mode asks to be looked at. Python
 * does the rest (replay/trajectories.py), with the same rows and links. */
class Steps {
  public:
    enum Column { OBS, ACTION, REWARD, TERMINATED, TRUNCATED, FIRST, PREVIOUS, COLUMNS };

    /* `links`: of the ring. `last`: of each environment its newest row's id + 1; `over`:
     * whether its episode is: the buffer's own arrays. `columns`: which of the ring's fields are those above.
     * `resets_next`: NEXT_STEP; else a step after an end is not plain. */
    Steps(nb::object links, nb::object last, nb::object over, nb::list columns, bool resets_next)
        : kept_{links, last, over}, links_(nb::cast<Links &>(links)), ring_(links_.ring()),
          count_(nb::len(last)), last_(static_cast<uint64_t *>(memory_of(last, count_ * 8))),
          over_(static_cast<uint8_t *>(memory_of(over, count_))), resets_next_(resets_next), ids_(count_),
          rewards_(count_), in_(ring_.fields().size()) {
        if (nb::len(columns) != COLUMNS || in_.size() != COLUMNS)
            throw nb::value_error("one column for each part of a step");
        for (size_t i = 0; i < COLUMNS; i++)
            column_[i] = nb::cast<size_t>(columns[i]);
        in_.at(column_[REWARD]) = rewards_.data();
        in_.at(column_[FIRST]) = over_;
        in_.at(column_[PREVIOUS]) = last_;
    }

    /* Whether it was plain; else nothing was stored. */
    bool add(nb::handle action, nb::handle obs, nb::handle reward, nb::handle terminated,
             nb::handle truncated) {
        const nb::handle given[] = {obs, action, nb::handle(), terminated, truncated};
        for (size_t part : {OBS, ACTION, TERMINATED, TRUNCATED})
            if ((in_[column_[part]] = rows_of(ring_.fields()[column_[part]], given[part])) == nullptr)
                return false;
        if (!take_rewards(reward))
            return false;
        const auto *ended = static_cast<const uint8_t *>(in_[column_[TERMINATED]]);
        const auto *cut = static_cast<const uint8_t *>(in_[column_[TRUNCATED]]);
        const size_t count = count_; /* the compiler knows it to stay as it is */
        uint8_t *over = over_, any = 0;
        uint64_t begun = 0;
        for (size_t i = 0; i < count; i++)
            begun |= last_[i];
        for (size_t i = 0; i < count && !resets_next_; i++)
            any |= over[i] | ended[i] | cut[i];
        if (begun == 0 || any != 0)
            return false;
        ring_.push_rows(in_.data(), count, ids_);
        shoal_links_set(links_.links(), last_, ids_.data(), count);
        for (size_t i = 0; i < count; i++)
            over[i] = ended[i] | cut[i];
        return true;
    }

  private:
    /* The memory of an array [environments, ...] of a field's own type. */
    const void *rows_of(const Field &field, nb::handle given) const {
        const ArrayHead *head = ArrayHead::of(given, ring_.array_type());
        const bool fits = head != nullptr && head->dtype == field.dtype.ptr() && head->plain() &&
                          field.fits(head->ndim, head->shape, 1) &&
                          static_cast<size_t>(head->shape[0]) == count_;
        return fits ? head->data : nullptr;
    }

    bool take_rewards(nb::handle given) {
        const ArrayHead *head = ArrayHead::of(given, ring_.array_type());
        if (head == nullptr || head->dtype != double_.ptr() || !head->plain() || head->ndim != 1 ||
            static_cast<size_t>(head->shape[0]) != count_)
            return false;
        const auto *from = reinterpret_cast<const double *>(head->data);
        float *to = rewards_.data();
        const size_t count = count_;
        uint32_t odd = 0;
        for (size_t i = 0; i < count; i++)
            to[i] = static_cast<float>(from[i]);
        for (size_t i = 0; i < count; i++)
            odd |= !(std::fabs(to[i]) <= FLT_MAX);
        for (size_t i = 0; odd != 0 && i < count; i++)
            if (std::isinf(to[i]) && !std::isinf(from[i]))
                return false; /* too large for a float: Python says which */
        return true;
    }

    std::vector<nb::object> kept_;
    nb::object double_ = nb::module_::import_("numpy").attr("dtype")("float64");
    Links &links_;
    Ring &ring_;
    size_t count_;
    uint64_t *last_;
    uint8_t *over_;
    bool resets_next_;
    std::vector<uint64_t> ids_; /* of the newest rows */
    std::vector<float> rewards_;
    std::vector<const void *> in_;
    size_t column_[COLUMNS] = {};
};

#endif
