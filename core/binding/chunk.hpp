/* Part of the binding: a worker's chunk of Python environments, stepped in one call.
 *
 *   for each environment:  action -> env.step -> row of the slot: observation, reward, flags
 *       NEXT_STEP: env.reset in place of the step after an episode's end
 *       SAME_STEP: env.reset in the same step
 *
 * Rare cases (an exception, an info, a final observation, a value that needs conversion) are handled in
 * Python, by `hooks` (ChunkHooks in _core.pyi). A report is (environment, kind, value). */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_CHUNK_HPP
#define SHOAL_CHUNK_HPP

#include "arrays.hpp"
#include "engine.h"
#include "gate.hpp"
#include "infos.hpp"
#include "python.hpp"
#include "row_writer.hpp"
#include "tickets.h"

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <vector>

namespace nb = nanobind;

class Chunk {
  public:
    enum Report { INFO = 0, ERROR = 1, OBSERVATION = 2 };
    enum { SAMPLE = 16 }; /* one step in 16 measures the time inside environments */

    /* `arrays`: the CHUNK_ARRAYS by name. `first`: this chunk's first environment. `produced`: the last
     * observation of each environment, None before the first. `infos`: an InfoWriter. */
    Chunk(nb::list envs, uint64_t first, uint32_t autoreset, nb::object arrays, nb::list produced,
          nb::object infos, nb::object hooks)
        : envs_(envs), produced_(produced), hooks_(hooks), first_(first), count_(nb::len(envs)),
          autoreset_(autoreset), step_(nb::cast("step")), infos_object_(infos),
          infos_(nb::cast<InfoWriter &>(infos)) {
        const uint64_t rows = first_ + count_;
        NamedArrays named(CHUNK_ARRAYS, arrays, rows, rows, 0, kept_);
        reset_ = named.take<uint8_t>("reset");
        total_ = named.take<double>("total");
        length_ = named.take<uint32_t>("length");
        last_return_ = named.take<double>("last_return");
        last_length_ = named.take<uint32_t>("last_length");
        ticket_ = named.take<shoal_word>("ticket");
        finished_ = named.take<shoal_word>("finished");
        episode_ = named.take<uint32_t>("episode");
        over_ = named.take<uint8_t>("over");
        sums_ = named.take<double>(
            "sums"); /* steps, episodes, sums of returns and lengths, odd returns, ranges */
        due_ = named.take<shoal_word>("due");
        generic_ = nb::module_::import_("numpy").attr("generic");
    }

    /* Adds memory for results. `memory` writes observations (None: they go into reports), `ahead` rows after
     * the rewards: those of a rollout are one step ahead. `blank` zeroes a row of observations. */
    void add_slot(uint32_t slot, nb::object memory, nb::object blank, nb::object reward,
                  nb::object terminated, nb::object truncated, uint64_t ahead) {
        Target target;
        target.memory = memory;
        target.blank = blank;
        target.ahead = ahead;
        if (!memory.is_none()) {
            nb::object tree = memory.attr("tree")();
            if (!tree.is_none())
                target.writer = std::make_shared<RowWriter>(tree);
        }
        target.kept = {reward, terminated, truncated};
        target.rows = nb::len(reward);
        target.reward = static_cast<double *>(memory_of(reward, target.rows * sizeof(double)));
        target.terminated = static_cast<uint8_t *>(memory_of(terminated, target.rows));
        target.truncated = static_cast<uint8_t *>(memory_of(truncated, target.rows));
        targets_[slot] = target;
    }
    void drop_slot(uint32_t slot) { targets_.erase(slot); }

    /* Sets the chunk's rows of the shared action array. Without them, hooks.actions() returns a list. */
    void set_actions(nb::object rows) {
        rows_ = rows;
        copy_rows_ = rows.attr("copy");
    }

    /* Serves steps until another command comes, and returns that command. */
    uint32_t serve(Gate &gate) {
        for (;;) {
            const uint32_t command = gate.wait();
            if (command == SHOAL_STEP) {
                nb::list reports;
                step(gate.slot(), gate.row(), actions(), reports, &gate);
                if (nb::len(reports) == 0)
                    gate.finish(0, 0);
                else
                    hooks_.attr("reply")(reports);
            } else if (command == SHOAL_SENT) {
                serve_sent(gate);
            } else {
                return command;
            }
        }
    }

    /* Steps every environment; returns the reports. */
    nb::list step_all(uint32_t slot, uint64_t row, nb::object actions) {
        nb::list reports;
        step(slot, row, actions.is_none() ? this->actions() : actions, reports, nullptr);
        return reports;
    }

    /* Resets one environment and writes its observation into its row. Raises what env.reset raises. */
    void reset_one(uint32_t slot, uint64_t row, uint64_t local, nb::object seed, nb::object options,
                   nb::list reports) {
        Target &target = target_of(slot, row);
        reset_[first_ + local] = 1; /* if it raises, the next step resets again: the old episode is over */
        nb::object result = env(local).attr("reset")(nb::arg("seed") = seed, nb::arg("options") = options);
        nb::object info = take_reset(result, target, row, local, reports);
        begin_episode(local);
        reset_[first_ + local] = 0;
        add_info(local, info, reports);
    }

    /* Writes an environment's last observation into its row again; zeros if there is none. */
    void write_again(uint32_t slot, uint64_t row, uint64_t local, nb::list reports) {
        infos_.clear(local);
        put_again(target_of(slot, row), row, local, reports);
    }

    /* Calls hooks.publish if a watcher is due. `row` is the row of the vector's first environment. */
    void publish_due(uint32_t slot, uint64_t row) {
        if (due_->load(std::memory_order_relaxed) == 0)
            return;
        due_->store(0, std::memory_order_relaxed);
        hooks_.attr("publish")(slot, row);
    }

  private:
    struct Target {
        nb::object memory, blank;
        std::shared_ptr<RowWriter> writer;
        std::vector<nb::object> kept;
        double *reward = nullptr;
        uint8_t *terminated = nullptr, *truncated = nullptr;
        uint64_t rows = 0, ahead = 0;
    };

    nb::object env(uint64_t local) const { return envs_[local]; }
    nb::object actions() const { return rows_.is_valid() ? copy_rows_() : hooks_.attr("actions")(); }
    nb::object action(uint64_t local) const { /* a copy, because an environment may keep its action */
        return rows_.is_valid() ? rows_[local].attr("copy")() : hooks_.attr("action")(local);
    }

    /* `row` is the row of the vector's first environment. */
    Target &target_of(uint32_t slot, uint64_t row) {
        auto found = targets_.find(slot);
        if (found == targets_.end() || row + first_ + count_ > found->second.rows)
            throw nb::index_error("no such slot or row");
        return found->second;
    }

    void put(Target &target, uint64_t row, uint64_t local, nb::handle observation, nb::list &reports) {
        const uint64_t at = row_of(row, local) + target.ahead;
        if (!target.writer || !target.writer->write(static_cast<int64_t>(at), observation)) {
            if (target.memory.is_none())
                reports.append(nb::make_tuple(first_ + local, static_cast<int>(OBSERVATION),
                                              hooks_.attr("pickle_value")(observation)));
            else
                target.memory.attr("write")(at, observation);
        }
        if (PyList_SetItem(produced_.ptr(), static_cast<Py_ssize_t>(local), observation.inc_ref().ptr()) != 0)
            throw nb::python_error();
    }

    void put_again(Target &target, uint64_t row, uint64_t local, nb::list &reports) {
        nb::object observation = produced_[local];
        if (!observation.is_none())
            put(target, row, local, observation, reports);
        else if (!target.blank.is_none())
            target.blank(row_of(row, local) + target.ahead);
    }

    nb::object take_reset(nb::handle result, Target &target, uint64_t row, uint64_t local,
                          nb::list &reports) {
        if (!PyTuple_Check(result.ptr()) || PyTuple_Size(result.ptr()) != 2)
            hooks_.attr("raise_bad_result")("reset", result, 2);
        put(target, row, local, PyTuple_GetItem(result.ptr(), 0), reports);
        return nb::borrow(PyTuple_GetItem(result.ptr(), 1));
    }

    /* Counts an episode when it starts. */
    void begin_episode(uint64_t local) {
        clear_episode(local);
        episode_[first_ + local]++;
    }

    void clear_episode(uint64_t local) {
        total_[first_ + local] = 0;
        length_[first_ + local] = 0;
        over_[first_ + local] = 0;
    }

    void add_info(uint64_t local, nb::handle info, nb::list &reports) {
        if (!PyDict_Check(info.ptr()))
            hooks_.attr("raise_bad_info")(info);
        if (PyDict_Size(info.ptr()) == 0)
            infos_.clear(local);
        else if (!infos_.write(local, info))
            reports.append(nb::make_tuple(first_ + local, static_cast<int>(INFO), pickle_if_mutable(info)));
    }

    /* A copy of the info as it is now: another environment of this chunk may change the same objects. */
    nb::object pickle_if_mutable(nb::handle info) const {
        PyObject *key, *value;
        Py_ssize_t at = 0;
        while (PyDict_Next(info.ptr(), &at, &key, &value))
            if (!(PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
                  PyUnicode_CheckExact(value) || value == Py_None ||
                  PyObject_IsInstance(value, generic_.ptr()) == 1))
                return hooks_.attr("pickle_value")(info);
        return nb::steal(PyDict_Copy(info.ptr()));
    }

    void step(uint32_t slot, uint64_t row, nb::object actions, nb::list &reports, Gate *gate) {
        Target &target = target_of(slot, row);
        if (nb::len(actions) != count_)
            throw nb::value_error("one action per environment");
        is_timed_ = gate != nullptr && turn_++ % SAMPLE == 0;
        spent_ns_ = 0;
        for (uint64_t local = 0; local < count_; local++)
            step_or_report(target, row, local, actions[local], reports);
        if (is_timed_)
            gate->add_env_ns(spent_ns_ * SAMPLE);
        publish_due(slot, row);
    }

    void step_or_report(Target &target, uint64_t row, uint64_t local, nb::object action, nb::list &reports) {
        try {
            step_one(target, row, local, action, reports);
        } catch (nb::python_error &error) {
            fail(target, row, local, nb::borrow(error.value()), reports);
        } catch (std::exception &error) {
            nb::object raised = nb::borrow(PyExc_RuntimeError)(nb::cast(error.what()));
            fail(target, row, local, raised, reports);
        }
    }

    /* The environment raised. Marks its row as truncated; the next step resets it. hooks.handle_exception may
     * make it again, and then returns the first observation. */
    void fail(Target &target, uint64_t row, uint64_t local, nb::object error, nb::list &reports) {
        const uint64_t at = row_of(row, local);
        infos_.clear(local);
        target.reward[at] = 0;
        target.terminated[at] = 0;
        target.truncated[at] = 1;
        reset_[first_ + local] = 1;
        clear_episode(local);
        nb::object again = hooks_.attr("handle_exception")(local, error, reports);
        if (again.is_none()) {
            put_again(target, row, local, reports);
        } else {
            episode_[first_ + local]++;
            put(target, row, local, again, reports);
            reset_[first_ + local] = autoreset_ == SHOAL_NEXT_STEP;
        }
    }

    uint64_t row_of(uint64_t row, uint64_t local) const { return row + first_ + local; }

    void step_one(Target &target, uint64_t row, uint64_t local, nb::handle action, nb::list &reports) {
        const uint64_t at = row_of(row, local), env_id = first_ + local;
        if (reset_[env_id]) {
            nb::object result = hooks_.attr("reset")(local);
            nb::object info = take_reset(result, target, row, local, reports);
            target.reward[at] = 0;
            target.terminated[at] = target.truncated[at] = 0;
            reset_[env_id] = 0;
            begin_episode(local);
            add_info(local, info, reports);
            return;
        }
        const uint64_t begin = is_timed_ ? shoal_now_ns() : 0;
        PyObject *arguments[] = {PyList_GetItem(envs_.ptr(), static_cast<Py_ssize_t>(local)), action.ptr()};
        nb::object result = nb::steal(PyObject_VectorcallMethod(step_.ptr(), arguments, 2, nullptr));
        if (is_timed_)
            spent_ns_ += shoal_now_ns() - begin;
        if (!result.is_valid())
            throw nb::python_error();
        if (!PyTuple_Check(result.ptr()) || PyTuple_Size(result.ptr()) != 5)
            hooks_.attr("raise_bad_result")("step", result, 5);
        PyObject *parts[5];
        for (int i = 0; i < 5; i++)
            parts[i] = PyTuple_GetItem(result.ptr(), i);
        const double reward = PyFloat_AsDouble(parts[1]);
        if (reward == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            hooks_.attr("raise_bad_value")("reward", nb::handle(parts[1]));
        }
        const int terminated = flag("terminated", parts[2]), truncated = flag("truncated", parts[3]);
        nb::object observation = nb::borrow(parts[0]), info = nb::borrow(parts[4]);
        const bool done = terminated || truncated;
        if (done && autoreset_ == SHOAL_SAME_STEP) {
            nb::object again = hooks_.attr("reset_in_same_step")(local, observation, info);
            observation = again[0];
            info = again[1];
        }
        put(target, row, local, observation, reports);
        target.reward[at] = reward;
        target.terminated[at] = static_cast<uint8_t>(terminated);
        target.truncated[at] = static_cast<uint8_t>(truncated);
        total_[env_id] += reward;
        length_[env_id]++;
        sums_[0] += 1;
        if (done) {
            last_return_[env_id] = total_[env_id];
            last_length_[env_id] = length_[env_id];
            sums_[1] += 1;
            const int is_counted = shoal_is_counted(total_[env_id]);
            sums_[2] += is_counted ? total_[env_id] : 0;
            sums_[3] += length_[env_id];
            sums_[4] += !is_counted;
            shoal_range_add(reinterpret_cast<shoal_range *>(sums_ + SUMS_RANGES_AT),
                            due_[1].load(std::memory_order_relaxed), total_[env_id], length_[env_id]);
            if (autoreset_ == SHOAL_SAME_STEP)
                begin_episode(local);
            else
                clear_episode(local);
            reset_[env_id] = autoreset_ == SHOAL_NEXT_STEP;
            over_[env_id] = autoreset_ == SHOAL_DISABLED;
        }
        add_info(local, info, reports);
    }

    int flag(const char *name, PyObject *value) const {
        const int result = PyObject_IsTrue(value);
        if (result < 0) {
            PyErr_Clear();
            hooks_.attr("raise_bad_value")(name, nb::handle(value));
        }
        return result;
    }

    /* Asynchronous stepping: steps every environment that has a new ticket, into slot 0. */
    void serve_sent(Gate &gate) {
        Target &target = target_of(0, 0);
        shoal_serving serving = {ticket_, finished_, gate.worker(), first_, count_, 0, 0, 0, 0, 0};
        while (shoal_serving_next(&serving)) {
            const uint64_t local = serving.env_id - first_;
            nb::list reports;
            is_timed_ = turn_++ % SAMPLE == 0;
            spent_ns_ = 0;
            step_or_report(target, 0, local, action(local), reports);
            if (is_timed_)
                gate.add_env_ns(spent_ns_ * SAMPLE);
            if (nb::len(reports) != 0)
                hooks_.attr("post")(reports);
            publish_due(0, 0);
            shoal_serving_finish(&serving);
        }
    }

    nb::list envs_, produced_;
    nb::object hooks_, rows_, copy_rows_, generic_;
    uint64_t first_, count_;
    uint32_t autoreset_;
    nb::object step_, infos_object_;
    InfoWriter &infos_;
    std::vector<nb::object> kept_;
    uint8_t *reset_, *over_;
    double *total_, *last_return_, *sums_;
    uint32_t *length_, *last_length_, *episode_;
    shoal_word *ticket_, *finished_, *due_;
    std::map<uint32_t, Target> targets_;
    uint64_t turn_ = 0, spent_ns_ = 0;
    bool is_timed_ = false;
};

#endif
