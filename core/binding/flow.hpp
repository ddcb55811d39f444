/* Part of the binding: send and recv over a flow. Results are leased from slots, like those of a step. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_FLOW_HPP
#define SHOAL_FLOW_HPP

#include "flow.h"
#include "guard.hpp"
#include "python.hpp"
#include "stepper.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace nb = nanobind;

/* Steps the environments of a Stepper asynchronously. While it exists, the Stepper itself does not step. */
class Flow {
  public:
    Flow(nb::object stepper, uint32_t threads, uint64_t unit, uint64_t batch, bool check_nan,
         nb::object hooks, nb::object slots);
    ~Flow() { close(); }
    Flow(const Flow &) = delete;
    Flow &operator=(const Flow &) = delete;

    void send(nb::object actions, nb::object env_ids);
    void reset();
    nb::object recv();
    void close() {
        shoal_flow *flow = flow_;
        flow_ = nullptr; /* first, because other threads may read statistics meanwhile */
        Unlocked unlocked;
        shoal_flow_destroy(flow);
    }
    nb::dict statistics() const;
    nb::tuple look(uint64_t env);
    nb::tuple glance(uint64_t env);
    nb::list fields(uint64_t env);
    nb::tuple render(uint64_t env, nb::object memory);
    shoal_flow *flow() const { return flow_; }
    uint64_t under_way() const { return flow_ == nullptr ? 0 : shoal_flow_under_way(flow_) * unit_; }

  private:
    void require_open() const;
    void wait_for_step(uint64_t env);
    int64_t find_row(uint64_t env) const;
    uint64_t place_of(uint64_t env) const {
        return env / unit_ * stepper_.description().spec.lanes + env % unit_;
    }
    void add_batches(uint64_t units);
    [[noreturn]] void raise_refusal(const shoal_refusal &refusal, const shoal_sending &sending,
                                    nb::handle env_ids);

    nb::object owner_, hooks_, slots_object_;
    Slots
        &slots_; /* of batches, without a limit: units under way need a place, even if the user keeps many */
    Stepper &stepper_;
    shoal_flow *flow_ = nullptr;
    uint64_t unit_, batch_, num_units_;
    bool check_nan_, was_reset_ = false;
    std::vector<size_t> order_;  /* slots under way, oldest first */
    const Slot *last_ = nullptr; /* the batch that was received last */
};

inline Flow::Flow(nb::object stepper, uint32_t threads, uint64_t unit, uint64_t batch, bool check_nan,
                  nb::object hooks, nb::object slots)
    : owner_(stepper), hooks_(hooks), slots_object_(slots), slots_(nb::cast<Slots &>(slots)),
      stepper_(nb::cast<Stepper &>(stepper)), unit_(unit), batch_(batch),
      num_units_(stepper_.num_envs() / stepper_.description().spec.lanes), check_nan_(check_nan) {
    require_success(shoal_flow_create(stepper_.engine(), &stepper_.description(), threads, num_units_, unit,
                                      batch, &flow_));
    shoal_flow_actions(flow_, stepper_.own_actions());
}

inline void Flow::require_open() const {
    if (flow_ == nullptr)
        hooks_.attr("refuse")("closed");
}

inline void Flow::add_batches(uint64_t units) {
    for (uint64_t missing = shoal_flow_batches_needed(flow_, units); missing > 0; missing--) {
        order_.push_back(slots_.take());
        Slot &slot = slots_.at(order_.back());
        slot.is_out = true;
        shoal_targets targets = slot.targets();
        /* The last field of a batch holds the ids of the environments. */
        shoal_flow_add_batch(flow_, &targets, static_cast<int64_t *>(slot.addresses[stepper_.num_fields()]));
    }
}

inline void Flow::reset() {
    require_open();
    if (shoal_flow_under_way(flow_) != 0)
        hooks_.attr("refuse")("under way");
    add_batches(num_units_);
    stepper_.mark_reset();
    shoal_flow_send_all(flow_);
    was_reset_ = true;
}

inline void Flow::raise_refusal(const shoal_refusal &refusal, const shoal_sending &sending,
                                nb::handle env_ids) {
    if (refusal.reason == SHOAL_BAD_ACTION)
        stepper_.raise_bad_action(refusal.field, refusal.at, sending.actions[refusal.field]);
    if (refusal.reason == SHOAL_BAD_ID)
        hooks_.attr("raise_bad_ids")(env_ids, unit_, num_units_ * unit_, refusal.at);
    hooks_.attr("raise_sent_twice")(env_ids, refusal.at);
    throw nb::value_error("the send was refused"); /* not reached: the hooks raise */
}

inline void Flow::send(nb::object actions, nb::object env_ids) {
    Guard::Inside inside(stepper_.guard(), "send");
    require_open();
    if (!was_reset_)
        hooks_.attr("refuse")("not async reset");
    Buffer ids; /* also of a read-only array */
    if (!ids.try_take(env_ids))
        throw nb::type_error("env_ids must be a contiguous array");
    shoal_sending sending = {};
    sending.ids = static_cast<const int64_t *>(ids->buf);
    sending.num_ids = static_cast<uint64_t>(ids->len) / sizeof(int64_t);
    const auto views = stepper_.take_sent_actions(actions, sending);
    add_batches(sending.num_ids / unit_);
    shoal_refusal refusal;
    if (!shoal_flow_send(flow_, &sending, &refusal))
        raise_refusal(refusal, sending, env_ids);
}

inline nb::object Flow::recv() {
    Guard::Inside inside(stepper_.guard(), "recv");
    require_open();
    if (shoal_flow_under_way(flow_) * unit_ < batch_)
        hooks_.attr("raise_too_few")(shoal_flow_under_way(flow_) * unit_, batch_);
    for (int ready = 0; !ready;) {
        {
            Unlocked unlocked;
            ready = shoal_flow_recv(flow_, SLICE_NS);
        }
        if (!ready)
            stepper_.guard().check_interrupts();
        if (!ready && InterpreterExit::has_begun)
            hooks_.attr("refuse")("exiting");
    }
    Slot &slot = slots_.at(order_.front());
    order_.erase(order_.begin());
    const size_t fields = stepper_.num_fields();
    nb::dict info;
    info["env_id"] = slot.arrays[fields];
    nb::object result = slots_.results(slot, info);
    slot.is_out = false; /* only now, when the result refers to its arrays */
    if (stepper_.is_due()) {
        last_ = &slot;
        struct Shown {
            Flow &flow;
            ~Shown() { flow.last_ = nullptr; }
        } shown = {*this};
        stepper_.publish(nb::find(*this));
    }
    if (check_nan_ && stepper_.has_nan(slot.addresses.data(), slot.targets().rewards, batch_))
        hooks_.attr("raise_nan")(result, slot.arrays[fields]);
    stepper_.guard().require_not_closing();
    return result;
}

/* The row of an environment in the batch that is being published; -1 if it is not there. Environments of a
 * flow have one agent, so a row is an environment. */
inline int64_t Flow::find_row(uint64_t env) const {
    if (last_ == nullptr)
        return -1;
    const int64_t *ids = static_cast<const int64_t *>(last_->addresses[stepper_.num_fields()]);
    const int64_t *found = std::find(ids, ids + batch_, static_cast<int64_t>(env));
    return found == ids + batch_ ? -1 : found - ids;
}

/* Episode, tick and rows of an environment in the batch that is being published; empty if it is not there. */
inline nb::tuple Flow::look(uint64_t env) {
    require_open();
    const int64_t row = find_row(env);
    if (row < 0)
        return nb::make_tuple();
    const uint64_t place = place_of(env);
    return nb::make_tuple(stepper_.stamps_of(place), stepper_.rows_of(*last_, static_cast<uint64_t>(row),
                                                                      stepper_.own_actions(), place));
}

inline nb::tuple Flow::glance(uint64_t env) {
    require_open();
    const int64_t row = find_row(env);
    if (row < 0)
        return nb::make_tuple();
    return stepper_.glance_of(last_, static_cast<uint64_t>(row), true, place_of(env));
}

/* If an environment is being stepped, waits for the end of the step. No other thread can send it meanwhile,
 * because this call is inside the guard. */
inline void Flow::wait_for_step(uint64_t env) {
    require_open();
    if (env >= num_units_ * unit_)
        throw nb::index_error("no such environment");
    const uint64_t unit = env / unit_;
    while (!shoal_flow_is_done(flow_, unit)) {
        {
            Unlocked unlocked;
            shoal_flow_await(flow_, unit, SLICE_NS);
        }
        stepper_.guard().check_interrupts();
    }
}

/* The exported state of an environment. */
inline nb::list Flow::fields(uint64_t env) {
    wait_for_step(env);
    return stepper_.fields_of(place_of(env));
}

/* The picture of an environment: height, width and pixels. */
inline nb::tuple Flow::render(uint64_t env, nb::object memory) {
    wait_for_step(env);
    return stepper_.render(place_of(env), memory);
}

inline nb::dict Flow::statistics() const {
    require_open();
    shoal_statistics sum = {};
    shoal_flow_statistics(flow_, &sum);
    return describe_statistics(sum);
}

#endif
