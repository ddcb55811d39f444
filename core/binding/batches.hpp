/* Part of the binding: reuses the arrays of batches.
 *
 *   find a set of arrays that the user does not hold -> copy rows into it -> return a batch of its arrays
 *
 * A buffer keeps a limited number of sets. If the user holds all of them, the buffer drops the set that was
 * leased longest ago, so its arrays then belong to the user alone, and allocates a new set. A batch that is
 * held forever therefore costs only its own memory. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_BATCHES_HPP
#define SHOAL_BATCHES_HPP

#include "given.hpp"
#include "lease.hpp"
#include "python.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace nb = nanobind;

/* The arrays of one batch of `rows` rows: one per field, the ids and, with priorities, the weights. */
struct BatchSet : Lease {
    uint64_t plan, rows, lent_at = 0;
    nb::dict items; /* from field name to array */
    std::vector<void *> addresses;

    BatchSet(uint64_t of_plan, uint64_t count) : plan(of_plan), rows(count) {}

    void add(nb::object array, const Field &field) {
        addresses.push_back(reinterpret_cast<ArrayHead *>(array.ptr())->data);
        arrays.push_back(array);
        fields_.push_back(&field);
    }
    /* Whether the arrays are still as they were created: the user can have changed the shape, the type or the
     * memory of an array. */
    bool is_unchanged() const {
        for (size_t i = 0; i < arrays.size(); i++) {
            const auto *head = reinterpret_cast<const ArrayHead *>(arrays[i].ptr());
            const Field &field = *fields_[i];
            if (head->data != addresses[i] || head->dtype != field.dtype.ptr() || !head->plain() ||
                (head->flags & ArrayHead::WRITEABLE) == 0 || !field.fits(head->ndim, head->shape, 1) ||
                static_cast<uint64_t>(head->shape[0]) != rows)
                return false;
        }
        return true;
    }

  private:
    std::vector<const Field *> fields_; /* of the plan */
};

/* The sets of one buffer. The GIL guards them. */
class Leases {
  public:
    explicit Leases(size_t most) : most_(most) {}

    /* Returns a free set for that many rows of a plan, or NULL. It prefers the set that was leased last,
     * whose memory is most likely in the cache. */
    std::shared_ptr<BatchSet> find(uint64_t plan, uint64_t rows) {
        std::shared_ptr<BatchSet> *found = nullptr;
        for (auto &set : sets_)
            if (set->plan == plan && set->rows == rows && (!found || set->lent_at > (*found)->lent_at) &&
                set->is_free())
                found = &set;
        if (found == nullptr)
            return nullptr;
        std::shared_ptr<BatchSet> set = *found;
        if (!set->is_unchanged()) {
            forget(set.get());
            return nullptr;
        }
        set->lent_at = ++lent_;
        return set;
    }
    void add(std::shared_ptr<BatchSet> set) {
        set->lent_at = ++lent_;
        if (sets_.size() >= most_) {
            auto oldest = std::min_element(sets_.begin(), sets_.end(), [](const auto &a, const auto &b) {
                return a->lent_at < b->lent_at;
            });
            const std::shared_ptr<BatchSet> forgotten =
                std::move(*oldest); /* freed after the list is consistent */
            *oldest = std::move(set);
        } else {
            sets_.push_back(std::move(set));
        }
    }
    void forget_plan(uint64_t plan) {
        std::vector<std::shared_ptr<BatchSet>> others, gone;
        for (auto &set : sets_)
            (set->plan == plan ? gone : others).push_back(std::move(set));
        sets_ = std::move(others);
    }
    void clear() { const auto gone = std::move(sets_); }
    size_t count() const { return sets_.size(); }
    uint64_t next_plan() { return ++plans_; }

  private:
    void forget(const BatchSet *which) {
        std::vector<std::shared_ptr<BatchSet>> others;
        for (auto &set : sets_)
            if (set.get() != which)
                others.push_back(set);
        sets_.swap(others);
    }

    size_t most_;
    uint64_t lent_ = 0, plans_ = 0;
    std::vector<std::shared_ptr<BatchSet>> sets_;
};

#endif
