/* The binding: this file and the .hpp files it includes are the only code that uses both Python and the core,
 * and the only code that turns a failure into an exception. */
// SPDX-License-Identifier: MIT
#include "actions.hpp"
#include "chunk.hpp"
#include "constants.hpp"
#include "crash.h"
#include "flow.hpp"
#include "gate.hpp"
#include "guard.hpp"
#include "history.hpp"
#include "host.hpp"
#include "info_reader.hpp"
#include "isa.h"
#include "plan.hpp"
#include "platform.h"
#include "plugin.hpp"
#include "python.hpp"
#include "ring.hpp"
#include "row_writer.hpp"
#include "segment.h"
#include "state.hpp"
#include "stepper.hpp"
#include "steps.hpp"
#include "weights.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <climits>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

/* Owns one mapping. It is the base of every array over the segment, so the memory is unmapped with the last
 * view. */
class Mapping {
  public:
    Mapping(int fd, uint64_t size, bool writable) : size_(size), writable_(writable) {
        require_success(shoal_segment_map(fd, size, writable, &base_));
    }
    ~Mapping() {
        if (base_ != nullptr)
            shoal_segment_unmap(base_, size_);
    }
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;

    void *base() const { return base_; }
    uint64_t size() const { return size_; }
    bool writable() const { return writable_; }

    void publish(uint64_t data_offset, nb::bytes schema, nb::bytes digest) {
        shoal_segment_header header = {};
        if (!writable_)
            throw nb::value_error("a read-only mapping cannot be published");
        if (digest.size() != sizeof header.digest)
            throw nb::value_error("a layout digest must have 32 bytes");
        if (data_offset > size_ || data_offset < sizeof header || schema.size() > data_offset - sizeof header)
            throw nb::value_error("the schema does not fit before the data");
        header.size_bytes = size_;
        header.data_offset = data_offset;
        header.schema_bytes = schema.size();
        memcpy(header.digest, digest.c_str(), sizeof header.digest);
        shoal_segment_publish(base_, &header, schema.c_str());
    }

  private:
    void *base_ = nullptr;
    uint64_t size_;
    bool writable_;
};

int mapping_get_buffer(PyObject *self, Py_buffer *view, int flags) {
    const Mapping *mapping = nb::inst_ptr<Mapping>(self);
    return PyBuffer_FillInfo(view, self, mapping->base(), static_cast<Py_ssize_t>(mapping->size()),
                             mapping->writable() ? 0 : 1, flags);
}

PyType_Slot mapping_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(mapping_get_buffer)}, {0, nullptr}};

/* Runs a function for Python without nanobind's dispatch, which would take a tenth of a step of a few
 * environments. */
template <typename Type, typename Call> PyObject *call_plainly(PyObject *self, Call call) {
    if (!nb::inst_ready(self)) {
        PyErr_SetString(PyExc_TypeError, "this object was not initialized: its __init__ was not called");
        return nullptr;
    }
    try {
        return call(*nb::inst_ptr<Type>(self)).release().ptr();
    } catch (nb::python_error &error) {
        error.restore();
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

PyObject *stepper_step(PyObject *self, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    const Py_ssize_t named = names == nullptr ? 0 : PyTuple_Size(names);
    if (count + named > 1 ||
        (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "actions") != 0)) {
        PyErr_SetString(PyExc_TypeError, "step takes the actions, or nothing to use those in the buffer");
        return nullptr;
    }
    nb::handle actions = count + named == 1 ? given[0] : nullptr;
    return call_plainly<Stepper>(self, [actions](Stepper &stepper) { return stepper.step(actions); });
}

PyMethodDef stepper_methods[] = {{"step",
                                  reinterpret_cast<PyCFunction>(reinterpret_cast<void *>(stepper_step)),
                                  METH_FASTCALL | METH_KEYWORDS, nullptr},
                                 {nullptr, nullptr, 0, nullptr}};
PyType_Slot stepper_slots[] = {{Py_tp_methods, stepper_methods}, {0, nullptr}};

PyObject *operation_enter(PyObject *self, PyObject *) {
    return call_plainly<Operation>(self, [](Operation &operation) {
        operation.enter();
        return nb::object(nb::none());
    });
}

PyObject *operation_leave(PyObject *self, PyObject *const *raised, Py_ssize_t count) {
    const bool is_raising = count > 0 && raised[0] != Py_None;
    return call_plainly<Operation>(self, [is_raising](Operation &operation) {
        operation.leave(is_raising);
        return nb::object(nb::none());
    });
}

PyMethodDef operation_methods[] = {{"__enter__", operation_enter, METH_NOARGS, nullptr},
                                   {"__exit__",
                                    reinterpret_cast<PyCFunction>(reinterpret_cast<void *>(operation_leave)),
                                    METH_FASTCALL, nullptr},
                                   {nullptr, nullptr, 0, nullptr}};
PyType_Slot operation_slots[] = {{Py_tp_methods, operation_methods}, {0, nullptr}};

nb::tuple inspect(int fd) {
    shoal_segment_header header;
    uint64_t file_bytes;
    int status = require_success(shoal_segment_inspect(fd, &header, &file_bytes));
    nb::dict facts;
    facts["magic"] = nb::bytes(header.magic, sizeof header.magic);
    facts["format"] = header.format;
    facts["min_reader"] = header.min_reader;
    facts["size_bytes"] = header.size_bytes;
    facts["file_bytes"] = file_bytes;
    facts["data_offset"] = header.data_offset;
    facts["schema_bytes"] = header.schema_bytes;
    facts["digest"] = nb::bytes(reinterpret_cast<const char *>(header.digest), sizeof header.digest);
    facts["boot_id"] = nb::bytes(reinterpret_cast<const char *>(header.boot_id), sizeof header.boot_id);
    facts["owner_pid"] = header.owner_pid;
    facts["owner_start"] = header.owner_start;
    return nb::make_tuple(status, facts);
}

} // namespace

NB_MODULE(_core, m) {
    nb::set_leak_warnings(false); /* at exit, threads of the user may still hold objects */
    m.doc() = "Shoal's native core. Private: use the shoal package.";
    if (shoal_isa_error() != nullptr)
        throw std::runtime_error(shoal_isa_error()); /* becomes an ImportError */
    nb::list isas;
    for (int isa = 0; isa <= shoal_isa_detect(); isa++)
        isas.append(shoal_isa_name(static_cast<shoal_isa>(isa)));
    m.attr("INSTRUCTION_SETS") = nb::tuple(isas);
    m.attr("INSTRUCTION_SET") = shoal_isa_name(shoal_isa_chosen());

    nb::class_<Mapping>(m, "Mapping", nb::type_slots(mapping_slots), nb::is_weak_referenceable())
        .def(nb::init<int, uint64_t, bool>(), "fd"_a, "size"_a, "writable"_a)
        .def_prop_ro("address", [](const Mapping &self) { return reinterpret_cast<uintptr_t>(self.base()); })
        .def_prop_ro("size_bytes", &Mapping::size)
        .def_prop_ro("writable", &Mapping::writable)
        .def("publish", &Mapping::publish, "data_offset"_a, "schema"_a, "digest"_a)
        .def(
            "huge_pages",
            [](Mapping &self, bool collapse) {
                int result;
                {
                    nb::gil_scoped_release unlocked;
                    result = shoal_huge_pages(self.base(), self.size(), collapse);
                }
                require_success(result);
            },
            "collapse"_a);

    nb::class_<RowWriter>(m, "RowWriter")
        .def(nb::init<nb::handle>(), "tree"_a)
        .def("write", &RowWriter::write, "row"_a, "value"_a.none());

    nb::class_<Plugin>(m, "Plugin")
        .def(nb::init<const std::string &>(), "path"_a)
        .def_prop_ro("name", &Plugin::name)
        .def_prop_ro("abi", &Plugin::abi)
        .def_prop_ro("options", &Plugin::options)
        .def("has_extension", &Plugin::has_extension, "id"_a)
        .def_prop_ro("render_fps", &Plugin::render_fps)
        .def("describe", &Plugin::describe, "values"_a)
        .def("info", &Plugin::info);
    nb::class_<ActionChecks>(m, "ActionChecks")
        .def(nb::init<nb::object, nb::list>(), "plugin"_a, "values"_a)
        .def("find_bad", &ActionChecks::find_bad, "number"_a, "rows"_a)
        .def("fit_bytes", &ActionChecks::fit_bytes, "number"_a)
        .def("to_bytes", &ActionChecks::to_bytes, "number"_a, "rows"_a, "bytes"_a)
        .def("close", &ActionChecks::close);

    nb::class_<Guard>(m, "Guard")
        .def(nb::init<>())
        .def("require_open", &Guard::require_open)
        .def("require_not_closing", &Guard::require_not_closing)
        .def("wait_until_free", &Guard::wait_until_free, "timeout_s"_a)
        .def_prop_ro("last_thread", &Guard::last_thread)
        .def_prop_ro("is_forked", &Guard::is_forked);
    nb::class_<Operation>(m, "Operation", nb::type_slots(operation_slots))
        .def(nb::init<nb::object, nb::str>(), "guard"_a, "name"_a);
    nb::class_<Closing>(m, "Closing")
        .def(nb::init<nb::object>(), "guard"_a)
        .def("__enter__", &Closing::enter)
        .def("__exit__", &Closing::leave);

    nb::class_<Slots>(m, "Slots")
        .def(nb::init<nb::object, size_t, nb::object, size_t, bool>(), "make"_a, "fields"_a, "shape"_a,
             "max_slots"_a, "is_leased"_a)
        .def("take", &Slots::take)
        .def("observation", &Slots::observation_at, "slot"_a)
        .def("results", &Slots::results_at, "slot"_a, "info"_a)
        .def("finals", &Slots::finals_at, "slot"_a)
        .def("arrays", &Slots::arrays_at, "slot"_a)
        .def("rows", &Slots::rows_at, "slot"_a)
        .def_prop_ro("count", &Slots::count);

    nb::class_<Stepper>(m, "Stepper", nb::type_slots(stepper_slots))
        .def(nb::init<nb::object, nb::list, uint64_t, uint32_t, uint32_t, uint64_t, nb::object, nb::tuple,
                      nb::object, uint32_t, nb::object, nb::object>(),
             "plugin"_a, "values"_a, "num_envs"_a, "num_threads"_a, "autoreset"_a, "time_limit"_a, "arrays"_a,
             "actions"_a, "hooks"_a, "flags"_a, "guard"_a, "slots"_a.none())
        .def("seed", &Stepper::seed, "env"_a, "seed"_a)
        .def("reset_into", &Stepper::reset_into, "mask"_a.none(), "arrays"_a)
        .def("step_into", &Stepper::step_into, "actions"_a.none(), "arrays"_a, "recorded"_a.none())
        .def("save", &Stepper::save, "env"_a)
        .def("restore", &Stepper::restore, "env"_a, "data"_a)
        .def("require_checkpoint", &Stepper::require_checkpoint, "env"_a, "data"_a)
        .def("render", &Stepper::render, "env"_a, "memory"_a = nb::none())
        .def("set_watch", &Stepper::set_watch, "due"_a, "sums"_a.none())
        .def("look", &Stepper::look, "env"_a)
        .def("glance", &Stepper::glance, "env"_a)
        .def("fields", &Stepper::fields, "env"_a)
        .def("close", &Stepper::close)
        .def_prop_ro("finished", &Stepper::finished)
        .def("count_changes", &Stepper::count_changes)
        .def("set_pending", &Stepper::set_pending, "kind"_a.none())
        .def_prop_ro("statistics", &Stepper::statistics);

    nb::class_<Flow>(m, "Flow")
        .def(nb::init<nb::object, uint32_t, uint64_t, uint64_t, bool, nb::object, nb::object>(), "stepper"_a,
             "threads"_a, "unit"_a, "batch"_a, "check_nan"_a, "hooks"_a, "slots"_a)
        .def("reset", &Flow::reset)
        .def("send", &Flow::send, "actions"_a.none(), "env_ids"_a.none())
        .def("recv", &Flow::recv)
        .def("look", &Flow::look, "env"_a)
        .def("glance", &Flow::glance, "env"_a)
        .def("fields", &Flow::fields, "env"_a)
        .def("render", &Flow::render, "env"_a, "memory"_a = nb::none())
        .def("close", &Flow::close)
        .def_prop_ro("under_way", &Flow::under_way)
        .def_prop_ro("statistics", &Flow::statistics);

    nb::class_<Window>(m, "Window")
        .def(nb::init<nb::object>(), "memory"_a)
        .def("write", &Window::write, "stamps"_a, "parts"_a, "bytes"_a)
        .def("read", &Window::read, "timeout_ns"_a)
        .def_prop_ro("capacity", &Window::capacity)
        .def_prop_ro("number", &Window::number);

    nb::class_<History>(m, "History")
        .def(nb::init<nb::object>(), "memory"_a.none())
        .def("log", &History::log, "values"_a)
        .def("read", &History::read, "timeout_ns"_a)
        .def("logged", &History::logged);

    nb::class_<Host>(m, "Host")
        .def(nb::init<int, int, uint64_t, nb::object, nb::object, nb::object, nb::object, int, nb::object,
                      nb::object>(),
             "listen_fd"_a, "facts_fd"_a, "num_envs"_a, "watched"_a, "due"_a, "counted"_a, "history"_a,
             "history_fd"_a, "returns"_a, "lengths"_a)
        .def("close", &Host::close);

    nb::class_<Gates>(m, "Gates")
        .def(nb::init<nb::object, nb::object, uint32_t, int, bool, nb::object>(), "gates"_a, "wakeup"_a,
             "count"_a, "wakeup_fd"_a, "crowded"_a, "guard"_a.none() = nb::none())
        .def("watch", &Gates::watch, "worker"_a, "fd"_a, "is_socket"_a)
        .def("idle", &Gates::idle, "worker"_a)
        .def("post", &Gates::post, "worker"_a, "command"_a, "slot"_a, "row"_a, "mail_bytes"_a)
        .def("post_all", &Gates::post_all, "command"_a, "slot"_a, "row"_a, "if_all_live"_a = false)
        .def("wait", &Gates::wait, "timeout_ns"_a, "only"_a = -1, "any_death"_a = false)
        .def_prop_ro("all_live", &Gates::all_live)
        .def("dead", &Gates::dead)
        .def("peek", &Gates::peek, "worker"_a)
        .def("reply", &Gates::reply, "worker"_a)
        .def("times", &Gates::times, "worker"_a)
        .def("send", &Gates::send, "tickets"_a, "sent"_a, "env_ids"_a, "worker_of"_a)
        .def("take_finished", &Gates::take_finished, "tickets"_a, "finished"_a, "sent"_a, "start"_a, "most"_a,
             "timeout_ns"_a)
        .def_prop_ro("replied", &Gates::replied);

    nb::class_<Gate>(m, "Gate")
        .def(nb::init<nb::object, nb::object, uint32_t, int, bool>(), "gates"_a, "wakeup"_a, "worker"_a,
             "wakeup_fd"_a, "crowded"_a)
        .def("wait", &Gate::wait)
        .def("finish", &Gate::finish, "replied"_a, "reply_bytes"_a)
        .def_prop_ro("slot", &Gate::slot)
        .def_prop_ro("row", &Gate::row)
        .def_prop_ro("mail_bytes", &Gate::mail_bytes);

    nb::class_<InfoWriter>(m, "InfoWriter")
        .def(nb::init<nb::object, nb::object, nb::object, uint64_t, uint64_t, nb::object>(), "words"_a,
             "rows"_a, "table"_a, "first"_a, "count"_a, "describe"_a);
    nb::class_<InfoReader>(m, "InfoReader")
        .def(nb::init<nb::object, nb::object, nb::object, nb::list, uint64_t, nb::object>(), "words"_a,
             "rows"_a, "tables"_a, "firsts"_a, "num_envs"_a, "load"_a)
        .def("any", &InfoReader::any)
        .def("read", &InfoReader::read, "env"_a)
        .def("batch", &InfoReader::batch, "env_ids"_a.none());

    nb::class_<Chunk>(m, "Chunk")
        .def(nb::init<nb::list, uint64_t, uint32_t, nb::object, nb::list, nb::object, nb::object>(), "envs"_a,
             "first"_a, "autoreset"_a, "arrays"_a, "produced"_a, "infos"_a, "hooks"_a)
        .def("add_slot", &Chunk::add_slot, "slot"_a, "memory"_a.none(), "blank"_a.none(), "reward"_a,
             "terminated"_a, "truncated"_a, "ahead"_a)
        .def("drop_slot", &Chunk::drop_slot, "slot"_a)
        .def("set_actions", &Chunk::set_actions, "rows"_a)
        .def("serve", &Chunk::serve, "gate"_a)
        .def("step", &Chunk::step_all, "slot"_a, "row"_a, "actions"_a.none())
        .def("reset_one", &Chunk::reset_one, "slot"_a, "row"_a, "local"_a, "seed"_a.none(),
             "options"_a.none(), "reports"_a)
        .def("write_again", &Chunk::write_again, "slot"_a, "row"_a, "local"_a, "reports"_a)
        .def("publish_due", &Chunk::publish_due, "slot"_a, "row"_a);

    nb::class_<Ring>(m, "Ring")
        .def(nb::init<nb::tuple, uint64_t, uint64_t, nb::list, int, bool>(), "arrays"_a, "capacity"_a,
             "stride"_a, "columns"_a, "lock_fd"_a, "checks"_a)
        .def("close", &Ring::close)
        .def("renew", &Ring::renew, "lock_fd"_a)
        .def("push", &Ring::push, "given"_a.none())
        .def("extend", &Ring::extend, "given"_a.none())
        .def("fetch", &Ring::fetch, "ids"_a, "out"_a, "found"_a)
        .def("latest", &Ring::latest, "count"_a, "ids"_a)
        .def("ids_in", &Ring::ids_in, "slots"_a)
        .def("begin", &Ring::begin, "mapping"_a)
        .def("mend", &Ring::mend, "mapping"_a)
        .def("sync", &Ring::sync, "mapping"_a)
        .def("copy_to", &Ring::copy_to, "other"_a)
        .def("restore", &Ring::restore, "rows"_a, "ids"_a, "tail"_a, "total"_a)
        .def_prop_ro("tail", &Ring::tail)
        .def_prop_ro("length", &Ring::length)
        .def_prop_ro("readable", &Ring::readable)
        .def_prop_ro("total", &Ring::total);

    nb::class_<Links>(m, "Links")
        .def(nb::init<nb::object, nb::object, nb::list, uint64_t>(), "ring"_a, "next"_a, "columns"_a,
             "apart"_a)
        .def("set", &Links::set, "last"_a, "ids"_a);
    nb::class_<Steps>(m, "Steps")
        .def(nb::init<nb::object, nb::object, nb::object, nb::list, bool>(), "links"_a, "last"_a, "over"_a,
             "columns"_a, "resets_next"_a)
        .def("add", &Steps::add, "action"_a.none(), "obs"_a.none(), "reward"_a.none(), "terminated"_a.none(),
             "truncated"_a.none());
    nb::class_<Weights>(m, "Weights")
        .def(nb::init<nb::object>(), "ring"_a)
        .def("add_new_rows", &Weights::add_new_rows)
        .def("update", &Weights::update, "ids"_a, "priorities"_a, "alpha"_a)
        .def("state", &Weights::state)
        .def("restore", &Weights::restore, "weights"_a, "seen"_a, "highest"_a)
        .def_prop_ro("total", &Weights::total);
    nb::class_<Leases>(m, "Leases")
        .def(nb::init<size_t>(), "most"_a)
        .def("clear", &Leases::clear)
        .def_prop_ro("count", &Leases::count);
    nb::class_<Plan>(m, "Plan")
        .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object, nb::list, uint64_t,
                      uint64_t>(),
             "ring"_a, "links"_a.none(), "weights"_a.none(), "leases"_a, "kind"_a, "fields"_a, "stack"_a,
             "length"_a)
        .def("lease", &Plan::lease, "rng"_a, "count"_a, "steps"_a = 1, "gamma"_a = 1.0,
             "across_episodes"_a = false, "beta"_a = 0.0)
        .def("fill", &Plan::fill, "rng"_a, "count"_a, "out"_a.none(), "ids"_a.none(), "weights"_a.none(),
             "steps"_a = 1, "gamma"_a = 1.0, "across_episodes"_a = false, "beta"_a = 0.0);

    m.def("wakeup_create", [] {
        int sleep_fd, ring_fd;
        require_success(shoal_wakeup_create(&sleep_fd, &ring_fd));
        return nb::make_tuple(sleep_fd, ring_fd);
    });
    m.def("start_watch", start_watch, "parent_fd"_a, "socket_fd"_a, "stderr_fd"_a, "out_fd"_a, "tail"_a,
          "gate"_a);
    m.def("read_tail", read_tail, "tail"_a);
    m.def("count_tail", count_tail, "tail"_a);
    m.def("leave", InterpreterExit::wait);
    m.def(
        "report_crashes_to",
        [](int fd, bool crashes) { require_success(shoal_crash_report_to(fd, crashes)); }, "fd"_a,
        "crashes"_a);
    m.def(
        "watch_call",
        [](const std::string &call, uint32_t seconds) { shoal_crash_watch(call.c_str(), seconds); }, "call"_a,
        "seconds"_a);
    m.def("fork_count", [] { return shoal_fork_count(); });
    m.def("cpu_count", [] { return shoal_cpu_count(); });
    m.def("inspect", inspect, "fd"_a);
    m.def("memory_create", [] { return require_success(shoal_memory_create()); });
    m.def(
        "file_create",
        [](const std::string &directory) {
            char temporary[PATH_MAX];
            int fd = require_success(shoal_file_create(directory.c_str(), temporary, sizeof temporary));
            return std::make_pair(fd, std::string(temporary));
        },
        "directory"_a);
    m.def(
        "file_link",
        [](int fd, const std::string &temporary, const std::string &path) {
            require_success(shoal_file_link(fd, temporary.c_str(), path.c_str()));
        },
        "fd"_a, "temporary"_a, "path"_a);
    m.def(
        "reserve",
        [](int fd, uint64_t begin, uint64_t length) {
            int result;
            {
                nb::gil_scoped_release unlocked;
                result = shoal_reserve(fd, begin, length);
            }
            require_success(result);
        },
        "fd"_a, "begin"_a, "length"_a);
    m.def("seal", [](int fd) { require_success(shoal_seal(fd)); }, "fd"_a);
    m.def("seal_writes", [](int fd) { require_success(shoal_seal_writes(fd)); }, "fd"_a);
    m.def("peer_uid", [](int fd) { return shoal_peer_uid(fd); }, "fd"_a);
    m.def(
        "reopen", [](int fd, bool writable) { return require_success(shoal_reopen(fd, writable)); }, "fd"_a,
        "writable"_a);
    m.def("boot_id", [] {
        uint8_t id[16];
        shoal_boot_id(id);
        return nb::bytes(reinterpret_cast<const char *>(id), sizeof id);
    });
    m.def("process_start", [](int64_t pid) { return shoal_process_start(pid); }, "pid"_a);
    m.def("name_directory", [] { return std::string(shoal_name_directory()); });
    add_constants(m);
    m.attr("__version__") = SHOAL_VERSION; /* compiled in, because importlib.metadata takes 20 ms */
}
