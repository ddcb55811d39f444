/* Part of the binding: the stepper, which steps every environment in one Python call.
 *
 *   step(actions):  enter the guard, get the memory of the actions (or convert them in Python), check them,
 *                   take a slot, step the engine into it, return its arrays
 *
 * `step` enters the guard itself; callers of all other methods have entered it already. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_STEPPER_HPP
#define SHOAL_STEPPER_HPP

#include "arrays.hpp"
#include "checkpoint.h"
#include "engine.h"
#include "guard.hpp"
#include "platform.h"
#include "plugin.hpp"
#include "python.hpp"
#include "seed.h"
#include "send.h"
#include "slots.hpp"
#include "state.hpp"

#include <shoal/ext/render.h>

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace nb = nanobind;

class Stepper {
  public:
    enum Flags { LIVE = 1, CHECK_ACTIONS = 4, CHECK_NAN = 8, INFOS = 16 };

    Stepper(nb::object plugin, nb::list values, uint64_t num_envs, uint32_t num_threads, uint32_t autoreset,
            uint64_t time_limit, nb::object arrays, nb::tuple actions, nb::object hooks, uint32_t flags,
            nb::object guard, nb::object slots);
    ~Stepper() { shoal_engine_destroy(engine_); }
    Stepper(const Stepper &) = delete;
    Stepper &operator=(const Stepper &) = delete;

    void seed(uint64_t env, uint64_t seed) {
        require_open();
        if (env >= num_envs_)
            throw nb::index_error("no such environment");
        shoal_rng_seed(&arrays_.rng[env], seed);
    }
    void reset_into(nb::object mask, nb::tuple arrays);
    nb::object step(nb::handle actions); /* null: those in the action buffer */
    uint64_t step_into(nb::object actions, nb::tuple arrays, nb::object recorded);
    nb::bytes save(uint64_t env);
    void restore(uint64_t env, nb::bytes data);
    void require_checkpoint(uint64_t env, nb::bytes data) const;
    nb::tuple render(uint64_t env, nb::object memory);
    void set_watch(nb::object due, nb::object sums);
    nb::tuple look(uint64_t env) const;
    nb::tuple glance(uint64_t env) const;
    nb::list fields(uint64_t env) const;
    void close();
    uint64_t finished() const { return finished_; }
    uint64_t count_changes() const {
        require_none_pending();
        return changes_;
    }
    /* The kind of an asynchronous call whose results were not taken yet; None: there is none. */
    void set_pending(nb::object kind) {
        pending_ = kind;
        is_pending_ = !kind.is_none();
    }
    nb::dict statistics() const;

    /* For a Flow over the same environments. */
    shoal_engine *engine() const { return engine_; }
    const shoal_description &description() const { return description_.d; }
    void *const *own_actions() const { return own_actions_.data(); }
    bool is_due() const { return due_ != nullptr && due_->load(std::memory_order_relaxed) != 0; }
    void publish(nb::handle source);
    nb::list fields_of(uint64_t env) const;
    nb::tuple rows_of(const Slot &slot, uint64_t row, const void *const *actions, uint64_t action_row) const;
    nb::tuple glance_of(const Slot *slot, uint64_t row, bool has_acted, uint64_t env) const;
    nb::tuple stamps_of(uint64_t env) const;
    uint64_t num_envs() const { return num_envs_; }
    uint64_t num_fields() const { return fields_; }
    void mark_reset() { memset(arrays_.reset, 1, num_envs_); }
    std::unique_ptr<Buffer[]> take_sent_actions(nb::handle actions, shoal_sending &sending);
    void raise_bad_action(uint64_t field, uint64_t row, const void *rows) const;
    Guard &guard() const { return guard_; }
    bool has_nan(void *const *observations, const double *rewards, uint64_t rows) const;

  private:
    void require_open() const;
    void require_reset() const;
    void require_none_pending() const;
    Slot &take_slot(bool &copied);
    void reset_slot(nb::object mask, const Slot &slot);
    bool had_ended(const uint8_t *chosen) const;
    void save_observations(const Slot &slot);
    void publish_slot(const Slot &slot, bool acted);
    void mark_ended(const shoal_targets &targets);
    void find_ended() { any_over_ = std::find(over_, over_ + num_envs_, 1) != over_ + num_envs_; }
    void require_no_nan(Slot &slot);
    nb::object result(Slot &slot, bool copied);
    void take_fields(nb::handle actions, Buffer *views, uint64_t rows);
    void take_actions(nb::handle actions, Buffer *views);
    bool take_array(uint64_t f, nb::handle given, Buffer &view, uint64_t rows);
    void take_field(uint64_t f, nb::handle given, Buffer &view, uint64_t rows);
    void check_actions();
    void run(const Slot &slot);
    uint64_t timed_step(const shoal_targets &targets);
    shoal_checkpoints checkpoints() const;

    nb::object plugin_, hooks_, guard_object_;
    Guard &guard_;
    Values values_;
    Description description_;
    shoal_engine *engine_ = nullptr;
    shoal_engine_arrays arrays_ = {};
    std::vector<nb::object> kept_; /* arrays behind arrays_ and own_actions_ */
    std::vector<void *> own_actions_;
    std::vector<const void *> actions_; /* of the step in progress */
    std::vector<std::vector<char>> sent_copies_;
    std::vector<std::string> formats_;
    std::vector<nb::object> dtypes_; /* of action fields */
    nb::object array_type_;          /* numpy.ndarray; none: its objects do not have the expected layout */
    std::vector<nb::object> action_names_;
    nb::object pending_, slots_object_;
    Slots *slots_;                    /* NULL in a worker, which gets the arrays for results */
    const Slot *published_ = nullptr; /* while something is published: the results just written */
    std::vector<std::vector<char>> saved_observations_; /* by field; only without shoal.observe/1 */
    uint64_t num_envs_, rows_, fields_, finished_ = 0;
    uint64_t changes_ = 0; /* steps, restores, and resets of environments whose episode had not ended */
    uint32_t flags_;
    uint8_t *over_; /* SHOAL_DISABLED, per environment: it ended and was not reset */
    uint32_t turn_ = 0;
    bool slow_ = false;         /* the last measured step took long: release the GIL for steps */
    shoal_word *due_ = nullptr; /* a watcher is due: publish after this step */
    double before_[SUMS_RANGES_AT] = {};
    double *sums_ = nullptr;   /* a worker's statistics for its parent */
    bool has_actions_ = false; /* actions_ are those of the step that is being published */
    bool disabled_, whole_, any_over_ = false, was_reset_ = false, is_pending_ = false;
};

inline Stepper::Stepper(nb::object plugin, nb::list values, uint64_t num_envs, uint32_t num_threads,
                        uint32_t autoreset, uint64_t time_limit, nb::object arrays, nb::tuple actions,
                        nb::object hooks, uint32_t flags, nb::object guard, nb::object slots)
    : plugin_(plugin), hooks_(hooks), guard_object_(guard), guard_(nb::cast<Guard &>(guard)),
      values_(nb::cast<Plugin &>(plugin).get()->entry, values), slots_object_(slots),
      slots_(slots.is_none() ? nullptr : &nb::cast<Slots &>(slots)), num_envs_(num_envs), flags_(flags) {
    const Plugin &loaded = nb::cast<const Plugin &>(plugin);
    loaded.fill(values_, &description_.d);
    const shoal_description &d = description_.d;
    rows_ = num_envs * d.spec.agents;
    fields_ = d.observations.count;
    whole_ = num_envs % d.spec.lanes == 0;
    disabled_ = autoreset == SHOAL_DISABLED;
    const uint64_t padded = (num_envs + d.spec.lanes - 1) / d.spec.lanes * d.spec.lanes;
    NamedArrays named(STEPPER_ARRAYS, arrays, padded, padded * d.spec.agents, d.spec.instance_bytes, kept_);
    arrays_ = {named.take<void>("instances"),     named.take<shoal_rng>("rng"),
               named.take<uint8_t>("reset"),      named.take<uint32_t>("elapsed"),
               named.take<double>("total"),       named.take<uint32_t>("length"),
               named.take<double>("last_return"), named.take<uint32_t>("last_length"),
               named.take<uint32_t>("episode"),   nullptr};
    over_ = named.take<uint8_t>("over");
    for (nb::handle array : actions) {
        Buffer buffer;
        if (!buffer.try_take(array))
            throw nb::type_error("actions are arrays");
        kept_.push_back(nb::borrow(array));
        own_actions_.push_back(buffer->buf);
        formats_.push_back(buffer->format);
        dtypes_.push_back(array.attr("dtype"));
        const ArrayHead *head = ArrayHead::of(array, array.type());
        if (head->data == buffer->buf && head->ndim == buffer->ndim && head->shape[0] == buffer->shape[0] &&
            head->dtype == dtypes_.back().ptr() && head->plain())
            array_type_ = nb::borrow(array.type());
    }
    actions_.resize(own_actions_.size());
    for (uint64_t i = 0; i < d.actions.count && d.actions.items[0].name != nullptr; i++)
        action_names_.push_back(nb::cast(d.actions.items[i].name));
    shoal_message why;
    if (shoal_engine_create(loaded.get(), &d, values_.items.data(), num_envs, num_threads,
                            static_cast<shoal_autoreset>(autoreset), time_limit, &arrays_, &engine_,
                            &why) != 0)
        raise_shoal("PluginError", (loaded.name() + ": " + why.text).c_str());
    if (!shoal_engine_can_observe(engine_))
        for (uint64_t f = 0; f < fields_; f++)
            saved_observations_.emplace_back(rows_ * shoal_field_bytes(&d.observations.items[f]));
}

inline void Stepper::close() {
    shoal_engine *engine = engine_;
    engine_ = nullptr; /* first, because other threads may read statistics meanwhile */
    if (slots_ != nullptr)
        slots_->forget_results();
    Unlocked unlocked;
    shoal_engine_destroy(engine);
}

inline void Stepper::require_open() const {
    if (engine_ == nullptr)
        hooks_.attr("refuse")("closed");
}

inline void Stepper::require_none_pending() const {
    if (is_pending_)
        hooks_.attr("refuse_pending")(pending_);
}

inline void Stepper::require_reset() const {
    require_open();
    require_none_pending();
    if (!was_reset_ || any_over_)
        hooks_.attr("refuse")(was_reset_ ? "over" : "not reset");
}

inline Slot &Stepper::take_slot(bool &copied) {
    const size_t slot = slots_->take();
    copied = slot == 0 && (flags_ & LIVE) == 0;
    return (*slots_)[slot];
}

/* Whether all of these environments (NULL: all) had ended in the last step. */
inline bool Stepper::had_ended(const uint8_t *chosen) const {
    for (uint64_t env = 0; any_over_ && env < num_envs_; env++)
        if ((chosen == nullptr || chosen[env] != 0) && over_[env] == 0)
            return false;
    return any_over_;
}

/* Saves the observations for a later reset of some environments, if the plug-in cannot write them again. */
inline void Stepper::save_observations(const Slot &slot) {
    for (size_t f = 0; f < saved_observations_.size(); f++)
        memcpy(saved_observations_[f].data(), slot.addresses[f], saved_observations_[f].size());
}

/* Rows that are not reset get their environments' last observations, even if the user changed the arrays that
 * were returned then. */
inline void Stepper::reset_slot(nb::object mask, const Slot &slot) {
    Buffer chosen;
    if (!mask.is_none())
        chosen.take(mask);
    const uint8_t *some = mask.is_none() ? nullptr : static_cast<const uint8_t *>(chosen->buf);
    if (some != nullptr && !was_reset_ && std::find(some, some + num_envs_, 0) != some + num_envs_)
        hooks_.attr("refuse")("never reset");
    shoal_targets targets = slot.targets();
    memset(targets.rewards, 0, rows_ * sizeof(double)); /* the slot may hold old rewards */
    memset(targets.terminated, 0, rows_);
    memset(targets.truncated, 0, rows_);
    const bool keeps_some = some != nullptr && was_reset_;
    if (keeps_some && saved_observations_.empty())
        shoal_engine_observe(engine_, &targets);
    for (size_t f = 0; keeps_some && f < saved_observations_.size(); f++)
        memcpy(slot.addresses[f], saved_observations_[f].data(), saved_observations_[f].size());
    shoal_engine_reset(engine_, some, &targets);
    save_observations(slot);
    if (disabled_)
        find_ended(); /* a worker's parent sets these flags, too */
    changes_ += !had_ended(some);
    for (uint64_t env = 0; any_over_ && env < num_envs_; env++)
        over_[env] &= some != nullptr && !some[env];
    if (any_over_)
        find_ended();
    was_reset_ = true;
    if (is_due())
        publish_slot(slot, false);
}

inline void Stepper::reset_into(nb::object mask, nb::tuple arrays) {
    require_open();
    reset_slot(mask, Slot(arrays, fields_));
}

/* Takes an ordinary array of the right type and shape without the buffer protocol. */
inline bool Stepper::take_array(uint64_t f, nb::handle given, Buffer &view, uint64_t rows) {
    const shoal_field &field = description_.d.actions.items[f];
    const ArrayHead *head = ArrayHead::of(given, array_type_);
    if (head == nullptr || head->dtype != dtypes_[f].ptr() || !head->plain() ||
        head->ndim != static_cast<int>(field.ndim) + 1 || head->shape[0] != static_cast<Py_ssize_t>(rows))
        return false;
    for (uint32_t k = 0; k < field.ndim; k++)
        if (head->shape[k + 1] != field.shape[k])
            return false;
    view.hold(given);
    actions_[f] = head->data;
    return true;
}

inline void Stepper::take_field(uint64_t f, nb::handle given, Buffer &view, uint64_t rows) {
    const shoal_field &field = description_.d.actions.items[f];
    if (take_array(f, given, view, rows))
        return;
    nb::object converted = nb::borrow(given);
    for (int tries = 0;; tries++) {
        bool taken = view.try_take(converted);
        bool fits = taken && view->format != nullptr && formats_[f] == view->format &&
                    view->ndim == static_cast<int>(field.ndim) + 1 &&
                    view->shape[0] == static_cast<Py_ssize_t>(rows) &&
                    reinterpret_cast<uintptr_t>(view->buf) % static_cast<uintptr_t>(view->itemsize) == 0;
        for (uint32_t k = 0; fits && k < field.ndim; k++)
            fits = view->shape[k + 1] == field.shape[k];
        if (fits)
            break;
        if (taken)
            view.drop();
        if (tries == 1)
            throw nb::type_error("the converted action has the wrong type");
        converted = hooks_.attr("convert")(f, converted, rows); /* raises if it cannot */
    }
    actions_[f] = view->buf;
}

inline void Stepper::take_fields(nb::handle actions, Buffer *views, uint64_t rows) {
    const size_t count = own_actions_.size();
    if (!actions.is_valid()) { /* those in the action buffer */
        for (size_t f = 0; f < count; f++)
            actions_[f] = own_actions_[f];
    } else if (action_names_.empty()) {
        take_field(0, actions, views[0], rows);
    } else {
        nb::object parts =
            PyDict_CheckExact(actions.ptr()) ? nb::borrow(actions) : hooks_.attr("as_dict")(actions);
        for (size_t f = 0; f < count; f++) {
            PyObject *part = PyDict_GetItemWithError(parts.ptr(), action_names_[f].ptr());
            if (part == nullptr && !PyErr_Occurred()) {
                parts = hooks_.attr("as_dict")(actions); /* raises an error that names the keys, or has all */
                part = PyDict_GetItemWithError(parts.ptr(), action_names_[f].ptr());
            }
            if (part == nullptr)
                throw nb::python_error();
            take_field(f, part, views[f], rows);
        }
    }
}

/* Takes, and checks, the actions of a step of all environments. */
inline void Stepper::take_actions(nb::handle actions, Buffer *views) {
    take_fields(actions, views, rows_);
    if ((flags_ & (CHECK_ACTIONS | CHECK_NAN)) != 0)
        check_actions();
    /* The last block runs through the whole kernel, so its padding must be readable. */
    for (size_t f = 0; !whole_ && f < actions_.size(); f++)
        if (actions_[f] != own_actions_[f]) {
            memcpy(own_actions_[f], actions_[f], rows_ * shoal_field_bytes(&description_.d.actions.items[f]));
            actions_[f] = own_actions_[f];
        }
}

/* Describes the actions of a flow's send; they stay valid while the returned views exist. */
inline std::unique_ptr<Buffer[]> Stepper::take_sent_actions(nb::handle actions, shoal_sending &sending) {
    std::unique_ptr<Buffer[]> views(new Buffer[own_actions_.size()]);
    const uint64_t rows = sending.num_ids * description_.d.spec.agents;
    take_fields(actions, views.get(), rows);
    sent_copies_.resize(own_actions_.size());
    for (size_t f = 0; f < own_actions_.size(); f++) { /* actions in the buffer itself would be overwritten */
        const uint64_t bytes = shoal_field_bytes(&description_.d.actions.items[f]);
        const char *given = static_cast<const char *>(actions_[f]),
                   *own = static_cast<char *>(own_actions_[f]);
        if (given < own + num_envs_ * description_.d.spec.agents * bytes && own < given + rows * bytes) {
            sent_copies_[f].assign(given, given + rows * bytes);
            actions_[f] = sent_copies_[f].data();
        }
    }
    sending.actions = actions_.data();
    sending.checks_ranges = (flags_ & CHECK_ACTIONS) != 0;
    sending.checks_nan = (flags_ & CHECK_NAN) != 0;
    return views;
}

inline void Stepper::raise_bad_action(uint64_t field, uint64_t row, const void *rows) const {
    const uint64_t bytes = shoal_field_bytes(&description_.d.actions.items[field]);
    hooks_.attr("raise_bad_action")(field, row,
                                    nb::bytes(static_cast<const char *>(rows) + row * bytes, bytes));
}

inline void Stepper::check_actions() {
    for (size_t f = 0; f < actions_.size(); f++) {
        const shoal_field &field = description_.d.actions.items[f];
        if ((flags_ & CHECK_ACTIONS) == 0 && field.dtype.code != SHOAL_CODE_FLOAT)
            continue;
        const int64_t bad = shoal_engine_check_actions(engine_, &field, actions_[f]);
        if (bad >= 0)
            raise_bad_action(f, static_cast<uint64_t>(bad), actions_[f]);
    }
}

inline uint64_t Stepper::timed_step(const shoal_targets &targets) {
    const uint64_t begin = shoal_now_ns();
    const uint64_t finished = shoal_engine_step(engine_, actions_.data(), &targets);
    slow_ = shoal_now_ns() - begin > 20000;
    return finished;
}

/* SHOAL_DISABLED: marks the environments that are over. An environment is over when all its rows are. */
inline void Stepper::mark_ended(const shoal_targets &targets) {
    const uint64_t agents = description_.d.spec.agents;
    for (uint64_t env = 0; env < num_envs_; env++) {
        uint8_t over = 1;
        for (uint64_t row = env * agents; row < (env + 1) * agents; row++)
            over &= targets.terminated[row] | targets.truncated[row];
        over_[env] = over;
    }
    find_ended();
}

inline void Stepper::run(const Slot &slot) {
    shoal_targets targets = slot.targets();
    /* For a step of less than some tens of microseconds, releasing the GIL costs more than it gains. */
    if (slow_) {
        Unlocked unlocked;
        finished_ = timed_step(targets);
    } else if (turn_++ % 64 == 0) {
        finished_ = timed_step(targets);
    } else {
        finished_ = shoal_engine_step(engine_, actions_.data(), &targets);
    }
    changes_++;
    if (!saved_observations_.empty())
        save_observations(slot);
    if (disabled_ && finished_ != 0)
        mark_ended(targets);
    if (sums_ != nullptr) {
        shoal_statistics sum;
        shoal_engine_statistics(engine_, &sum);
        const double all[] = {static_cast<double>(sum.steps), static_cast<double>(sum.episodes),
                              sum.return_sum, static_cast<double>(sum.length_sum),
                              static_cast<double>(sum.odd_returns)};
        for (int i = 0; i < SUMS_RANGES_AT; i++)
            sums_[i] = before_[i] + all[i];
        if (finished_ != 0)
            memcpy(sums_ + SUMS_RANGES_AT, sum.ranges, sizeof sum.ranges);
    }
    if (is_due())
        publish_slot(slot, true);
}

/* Python reads the results (`look`) before the next step can overwrite them. */
inline void Stepper::publish_slot(const Slot &slot, bool acted) {
    struct Shown {
        Stepper &stepper;
        ~Shown() {
            stepper.published_ = nullptr;
            stepper.has_actions_ = false;
        }
    } shown = {*this};
    published_ = &slot;
    has_actions_ = acted;
    publish(nb::find(*this));
}

/* `due` is a line of 64 bytes that the host sets; `sums` is an array of SUMS doubles, or None. */
inline void Stepper::set_watch(nb::object due, nb::object sums) {
    Buffer line, row;
    line.take(due);
    kept_.push_back(due);
    due_ = static_cast<shoal_word *>(line->buf);
    shoal_engine_set_epoch(engine_, due_ + 1);
    if (!sums.is_none()) {
        row.take(sums);
        kept_.push_back(sums);
        sums_ = static_cast<double *>(row->buf);
        memcpy(before_, sums_, sizeof before_); /* the sums of a worker that this one replaces */
    }
}

/* Python publishes the watched environments; it calls `source.look`. */
inline void Stepper::publish(nb::handle source) {
    due_->store(0, std::memory_order_relaxed);
    hooks_.attr("publish")(source);
}

inline nb::list Stepper::fields_of(uint64_t env) const {
    auto *extension =
        static_cast<const shoal_state_v1 *>(nb::cast<const Plugin &>(plugin_).extension(SHOAL_EXT_STATE));
    if (extension == nullptr)
        return nb::list();
    return FieldList(shoal_engine_envs(engine_), env, description_.d.spec.lanes).take(extension);
}

/* The number of the episode, from 0, and its steps so far. */
inline nb::tuple Stepper::stamps_of(uint64_t env) const {
    const uint32_t episodes = arrays_.episode[env];
    return nb::make_tuple(episodes == 0 ? 0 : episodes - 1,
                          description_.d.spec.agents == 1 ? arrays_.length[env] : arrays_.elapsed[env]);
}

/* The rows of one environment as bytes: observations, rewards, terminated, truncated, actions (NULL: none).
 */
inline nb::tuple Stepper::rows_of(const Slot &slot, uint64_t row, const void *const *actions,
                                  uint64_t action_row) const {
    const uint64_t agents = description_.d.spec.agents;
    auto rows = [agents](const void *base, uint64_t at, uint64_t bytes) {
        return nb::bytes(static_cast<const char *>(base) + at * bytes, agents * bytes);
    };
    const shoal_targets targets = slot.targets();
    nb::list observations, acted;
    for (uint64_t f = 0; f < fields_; f++)
        observations.append(
            rows(slot.addresses[f], row, shoal_field_bytes(&description_.d.observations.items[f])));
    for (uint64_t f = 0; actions != nullptr && f < actions_.size(); f++)
        acted.append(rows(actions[f], action_row, shoal_field_bytes(&description_.d.actions.items[f])));
    return nb::make_tuple(observations, rows(targets.rewards, row, sizeof(double)),
                          rows(targets.terminated, row, 1), rows(targets.truncated, row, 1), acted);
}

/* Episode, tick, the mean reward of the agents, and whether the step ended the episode. A reset has no
 * actions, and `slot` is NULL before the first step: then there is no reward, and no end. */
inline nb::tuple Stepper::glance_of(const Slot *slot, uint64_t row, bool has_acted, uint64_t env) const {
    const uint64_t agents = description_.d.spec.agents;
    double reward = 0;
    bool is_over = slot != nullptr && has_acted;
    if (is_over) {
        const shoal_targets targets = slot->targets();
        for (uint64_t i = row; i < row + agents; i++) {
            reward += targets.rewards[i];
            is_over &= (targets.terminated[i] | targets.truncated[i]) != 0;
        }
    }
    const nb::tuple stamps = stamps_of(env);
    return nb::make_tuple(stamps[0], stamps[1], reward / static_cast<double>(agents), is_over);
}

inline nb::tuple Stepper::glance(uint64_t env) const {
    require_open();
    if (env >= num_envs_)
        throw nb::index_error("no such environment");
    return glance_of(published_, env * description_.d.spec.agents, has_actions_, env);
}

/* The last step of an environment while it is published: episode, tick, and its rows (none before a step). */
inline nb::tuple Stepper::look(uint64_t env) const {
    require_open();
    if (env >= num_envs_)
        throw nb::index_error("no such environment");
    const uint64_t row = env * description_.d.spec.agents;
    nb::object rows = nb::none();
    if (published_ != nullptr)
        rows = rows_of(*published_, row, has_actions_ ? actions_.data() : nullptr, row);
    return nb::make_tuple(stamps_of(env), rows);
}

/* The exported state of an environment. */
inline nb::list Stepper::fields(uint64_t env) const {
    require_open();
    if (env >= num_envs_)
        throw nb::index_error("no such environment");
    return fields_of(env);
}

inline nb::object Stepper::result(Slot &slot, bool copied) {
    if ((flags_ & INFOS) == 0 || finished_ == 0)
        return copied ? hooks_.attr("copy_results")(slots_->results(slot, nb::dict())) : slots_->result(slot);
    nb::object info =
        hooks_.attr("build_infos")(slot.arrays[fields_ + 1], slot.arrays[fields_ + 2], slots_->finals(slot));
    nb::tuple whole = slots_->results(slot, info);
    return copied ? hooks_.attr("copy_results")(whole) : nb::object(whole);
}

inline bool Stepper::has_nan(void *const *observations, const double *rewards, uint64_t rows) const {
    const shoal_field reward = {nullptr, SHOAL_FLOAT64, SHOAL_BOX, 0, 0, {}, 0, 0, nullptr, nullptr};
    bool found = shoal_engine_bad_action(&reward, rewards, rows, true) >= 0;
    for (uint64_t f = 0; f < fields_ && !found; f++) {
        const shoal_field &field = description_.d.observations.items[f];
        found = field.dtype.code == SHOAL_CODE_FLOAT &&
                shoal_engine_bad_action(&field, observations[f], rows, true) >= 0;
    }
    return found;
}

/* check="nan": raises an error that names the first row with a NaN. The environments have stepped. */
inline void Stepper::require_no_nan(Slot &slot) {
    if ((flags_ & CHECK_NAN) == 0 || !has_nan(slot.addresses.data(), slot.targets().rewards, rows_))
        return;
    hooks_.attr("raise_nan")(result(slot, false));
}

inline nb::object Stepper::step(nb::handle actions) {
    Guard::Inside inside(guard_, "step");
    require_reset();
    Buffer one;
    std::unique_ptr<Buffer[]> many(own_actions_.size() > 1 ? new Buffer[own_actions_.size()] : nullptr);
    take_actions(actions, many ? many.get() : &one);
    bool copied;
    Slot &slot = take_slot(copied);
    run(slot);
    require_no_nan(slot);
    nb::object found = result(slot, copied);
    guard_.require_not_closing();
    return found;
}

/* `actions` None: those in the action buffer. `recorded`: an array per field, into which the actions are
 * copied; or None. */
inline uint64_t Stepper::step_into(nb::object actions, nb::tuple arrays, nb::object recorded) {
    require_reset();
    std::unique_ptr<Buffer[]> views(new Buffer[own_actions_.size()]);
    take_actions(actions.is_none() ? nb::object() : actions, views.get());
    Slot slot(arrays, fields_);
    for (size_t f = 0; !recorded.is_none() && f < actions_.size(); f++) {
        const size_t bytes = rows_ * shoal_field_bytes(&description_.d.actions.items[f]);
        memcpy(memory_of(recorded[f], bytes), actions_[f], bytes);
    }
    run(slot);
    require_no_nan(slot);
    return finished_;
}

inline shoal_checkpoints Stepper::checkpoints() const {
    const Plugin &plugin = nb::cast<const Plugin &>(plugin_);
    auto *extension = static_cast<const shoal_checkpoint_v1 *>(plugin.extension(SHOAL_EXT_CHECKPOINT));
    if (extension == nullptr)
        hooks_.attr("refuse")("no checkpoint");
    return {plugin.get()->entry->name,
            &description_.d.spec,
            extension,
            shoal_engine_envs(engine_),
            &arrays_,
            over_,
            disabled_};
}

inline nb::bytes Stepper::save(uint64_t env) {
    require_open();
    const shoal_checkpoints of = checkpoints();
    std::string data(shoal_checkpoint_bytes(&of, env), '\0');
    shoal_checkpoint_write(&of, env, data.data(), data.size());
    return nb::bytes(data.data(), data.size());
}

/* Raises if these bytes are not from `save`. The plug-in may still reject its own part. */
inline void Stepper::require_checkpoint(uint64_t, nb::bytes data) const {
    require_open();
    const shoal_checkpoints of = checkpoints();
    if (!shoal_checkpoint_verify(&of, data.c_str(), data.size()))
        hooks_.attr("refuse")("bad checkpoint");
}

inline void Stepper::restore(uint64_t env, nb::bytes data) {
    require_checkpoint(env, data);
    const shoal_checkpoints of = checkpoints();
    const char *why = shoal_checkpoint_read(&of, env, data.c_str(), data.size());
    if (why != nullptr)
        raise_shoal("PluginError", why);
    changes_++;
    if (disabled_)
        find_ended();
    was_reset_ = true;
}

/* Draws into `memory` if that is a bytearray of the right size, else into a new one: new memory of this size
 * costs more time than the drawing, because the kernel clears it page by page. */
inline nb::tuple Stepper::render(uint64_t env, nb::object memory) {
    require_open();
    auto *extension =
        static_cast<const shoal_render_v1 *>(nb::cast<const Plugin &>(plugin_).extension(SHOAL_EXT_RENDER));
    if (extension == nullptr)
        hooks_.attr("refuse")("no render");
    uint32_t height = 0, width = 0;
    extension->size(shoal_engine_envs(engine_), env, &height, &width);
    if (height == 0 || width == 0 || height > 16384 || width > 16384)
        raise_shoal("PluginError", "the plug-in returned a picture size that is zero or far too large");
    const auto size = static_cast<Py_ssize_t>(height) * width * 3;
    if (!PyByteArray_CheckExact(memory.ptr()) || PyByteArray_Size(memory.ptr()) != size)
        memory = nb::steal(PyByteArray_FromStringAndSize(nullptr, size));
    if (!memory.is_valid())
        nb::raise_python_error();
    auto *rgb = reinterpret_cast<uint8_t *>(PyByteArray_AsString(memory.ptr()));
    memset(rgb, 0, static_cast<size_t>(size));
    extension->draw(shoal_engine_envs(engine_), env, rgb);
    return nb::make_tuple(height, width, memory);
}

inline nb::dict describe_statistics(const shoal_statistics &sum) {
    const double episodes = static_cast<double>(sum.episodes);
    nb::dict all;
    all["steps"] = sum.steps;
    all["episodes"] = sum.episodes;
    all["mean_return"] = sum.episodes == 0 || sum.odd_returns != 0 ? std::nan("") : sum.return_sum / episodes;
    all["mean_length"] = sum.episodes == 0 ? std::nan("") : static_cast<double>(sum.length_sum) / episodes;
    return all;
}

inline nb::dict Stepper::statistics() const {
    require_open();
    shoal_statistics sum;
    shoal_engine_statistics(engine_, &sum);
    return describe_statistics(sum);
}

#endif
