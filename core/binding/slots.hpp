/* Part of the binding: the slots that hold the results of a vector environment, with every backend.
 *
 *   take: a free slot -> results are written into it -> the user gets its arrays
 *
 * A slot is free when nobody holds its arrays (lease.hpp) or its last result, a tuple of them and of an empty
 * dict for infos. Both are returned again if nobody holds them, so most steps allocate nothing. Users may
 * change returned arrays, so nothing is read from a slot after its arrays were returned. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_SLOTS_HPP
#define SHOAL_SLOTS_HPP

#include "engine.h"
#include "lease.hpp"
#include "python.hpp"

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace nb = nanobind;

/* Memory for results: references to its arrays, and their addresses. */
struct Slot : Lease { /* arrays: observations, rewards, terminated, truncated, final observations */
    std::vector<void *> addresses;
    nb::object rows; /* the Python object over the same memory */
    size_t fields;
    nb::object result;        /* the tuple that `Slots::result` returned last; invalid: none yet */
    PyObject *info = nullptr; /* its last item */

    Slot(nb::handle list, size_t num_fields) : fields(num_fields) {
        for (nb::handle array : list) {
            arrays.push_back(nb::borrow(array));
            addresses.push_back(address_of(array));
        }
        if (arrays.size() != fields + 3 && arrays.size() != 2 * fields + 3)
            throw nb::value_error("a slot has one array per field, rewards, terminated, truncated");
    }

    shoal_targets targets() const {
        return {addresses.data(), static_cast<double *>(addresses[fields]),
                static_cast<uint8_t *>(addresses[fields + 1]), static_cast<uint8_t *>(addresses[fields + 2]),
                addresses.data() + (arrays.size() > fields + 3 ? fields + 3 : 0)};
    }

    bool is_free() const { return Lease::is_free() && (!result.is_valid() || Py_REFCNT(result.ptr()) == 1); }
};

class Slots {
  public:
    /* `make()` returns the memory of a new slot, as a Python object and as arrays; the first `fields` arrays
     * are observations. `shape` tells how these are nested: the number of an array, or a dict or tuple of
     * shapes. Slot 0 is never leased: results go there if `is_leased` is false, or if the user holds
     * `max_slots` others. */
    Slots(nb::object make, size_t fields, nb::object shape, size_t max_slots, bool is_leased)
        : make_(make), shape_(shape), fields_(fields), max_slots_(max_slots), is_leased_(is_leased),
          only_(PyLong_Check(shape.ptr()) ? nb::cast<size_t>(shape) : SIZE_MAX) {
        add();
    }
    Slots(const Slots &) = delete;
    Slots &operator=(const Slots &) = delete;

    size_t take() {
        if (!is_leased_)
            return 0;
        for (size_t i = 1; i < slots_.size(); i++) {
            Slot &slot = *slots_[i];
            if (slot.is_free())
                return i;
            /* What the user put into the dict may lead to the slot's arrays, or to the tuple, and nobody else
             * may hold it. Python's collector can free such a cycle only if the slot is not part of it. */
            if (slot.info != nullptr && PyDict_Size(slot.info) != 0) {
                forget_result(slot);
                if (slot.is_free())
                    return i;
            }
        }
        if (slots_.size() > max_slots_)
            return 0;
        add();
        return slots_.size() - 1;
    }
    Slot &at(size_t slot) { return *slots_.at(slot); }
    /* Without a check of the number. */
    Slot &operator[](size_t slot) { return *slots_[slot]; }
    size_t count() const { return slots_.size() - 1; }

    nb::object observation(const Slot &slot) const {
        return only_ < slot.arrays.size() ? slot.arrays[only_] : nest(shape_, slot);
    }
    nb::object observation_at(size_t slot) { return observation(at(slot)); }
    nb::tuple results(const Slot &slot, nb::handle info) const {
        const std::vector<nb::object> &arrays = slot.arrays;
        return nb::make_tuple(observation(slot), arrays[fields_], arrays[fields_ + 1], arrays[fields_ + 2],
                              info);
    }
    nb::tuple results_at(size_t slot, nb::dict info) { return results(at(slot), info); }
    /* The same with an empty dict: the last such tuple of this slot, if nobody holds it. A slot of a rollout
     * has no counts, and gets a new tuple. */
    nb::object result(Slot &slot) const {
        if (only_ == SIZE_MAX || slot.counts.empty() ||
            (slot.result.is_valid() && Py_REFCNT(slot.result.ptr()) != 1))
            return results(slot, nb::dict());
        if (!slot.result.is_valid()) {
            nb::dict empty;
            slot.result = results(slot, empty);
            slot.info = empty.ptr();
            for (size_t array : {only_, fields_, fields_ + 1, fields_ + 2})
                slot.counts[array].second++;
        } else if (Py_REFCNT(slot.info) != 1 || PyDict_Size(slot.info) != 0) {
            nb::dict empty; /* the user holds or filled the other one */
            slot.info = empty.ptr();
            PyTuple_SetItem(slot.result.ptr(), 4, empty.release().ptr());
        }
        return slot.result;
    }
    /* Drops the tuples, and with them what users put into their dicts. */
    void forget_results() {
        for (const std::unique_ptr<Slot> &slot : slots_)
            forget_result(*slot);
    }
    nb::list finals(const Slot &slot) const {
        nb::list found;
        for (size_t i = fields_ + 3; i < slot.arrays.size(); i++)
            found.append(slot.arrays[i]);
        return found;
    }
    nb::list finals_at(size_t slot) { return finals(at(slot)); }
    nb::object rows_at(size_t slot) { return at(slot).rows; }
    nb::tuple arrays_at(size_t slot) {
        nb::list all;
        for (const nb::object &array : at(slot).arrays)
            all.append(array);
        return nb::tuple(all);
    }

  private:
    void forget_result(Slot &slot) const {
        slot.info = nullptr;
        nb::object dropped = std::move(slot.result);
        for (size_t array : {only_, fields_, fields_ + 1, fields_ + 2})
            if (dropped.is_valid())
                slot.counts[array].second--;
    }
    void add() {
        nb::object made = make_();
        auto slot = std::make_unique<Slot>(nb::handle(made[1]), fields_);
        slot->rows = made[0];
        made.reset();
        slot->count_references(); /* only now, when the maker's own references are gone */
        slots_.push_back(std::move(slot));
    }

    static nb::object nest(nb::handle shape, const Slot &slot) {
        if (PyLong_Check(shape.ptr()))
            return slot.arrays.at(static_cast<size_t>(PyLong_AsSsize_t(shape.ptr())));
        if (PyDict_Check(shape.ptr())) {
            nb::dict all;
            for (auto [key, part] : nb::borrow<nb::dict>(shape))
                all[key] = nest(part, slot);
            return all;
        }
        nb::list parts;
        for (nb::handle part : shape)
            parts.append(nest(part, slot));
        return nb::tuple(parts);
    }

    nb::object make_, shape_;
    size_t fields_, max_slots_;
    bool is_leased_;
    size_t only_; /* the number of the array, if an observation is one array */
    std::vector<std::unique_ptr<Slot>> slots_;
};

#endif
