/* Part of the binding: plug-ins as Python sees them, and the borrowing of Python's buffers. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PLUGIN_HPP
#define SHOAL_PLUGIN_HPP

#include "platform.h"
#include "plugin.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace nb = nanobind;

[[noreturn]] inline void raise_shoal(const char *kind, const char *text) {
    /* A plug-in's words may be in any encoding. */
    nb::object message =
        nb::steal(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(strlen(text)), "replace"));
    nb::object error = nb::module_::import_("shoal.errors").attr(kind)(message);
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
    throw nb::python_error();
}

/* On a line of its own, which each call writes to: threads of the core read what lies beside. */
struct alignas(64) CallCounts {
    std::atomic<int> unlocked{0};
    int inside = 0; /* calls of vector environments; under the GIL */
};

/* Threads that work without the GIL must not ask for it once the interpreter is going: it would end them in
 * the middle of C++. At exit, new work keeps the GIL, and what is under way is waited for. */
struct Leaving {
    static inline CallCounts counts;
    static inline std::atomic<bool> begun{false};

    static void wait() {
        thread_ = PyThread_get_thread_ident();
        begun = true;
        for (int i = 0;
             i < 5000 && (counts.unlocked != 0 || counts.inside != 0) && forks_ == shoal_fork_count(); i++) {
            nb::gil_scoped_release others;
            shoal_futex_wait(&never_, 0, 1000000);
        }
    }

    /* A call that begins when the interpreter is going. Python code that it calls could lose the GIL, and its
     * thread would be ended in the middle of C++; so a thread other than the one that leaves stays here,
     * until the process ends, as threads of Python 3.14 do. */
    static void hold_up() {
        if (!begun || thread_ == PyThread_get_thread_ident())
            return;
        PyEval_SaveThread();
        for (;;)
            shoal_futex_wait(&never_, 0, 1000000000);
    }

  private:
    static inline shoal_word never_{0};
    static inline unsigned long thread_ = 0;
    static inline uint64_t forks_ = shoal_fork_count(); /* a child has none of its parent's threads */
};

/* Gives the GIL away for a scope, unless the interpreter is leaving. */
class Unlocked {
  public:
    Unlocked() {
        if (!Leaving::begun) {
            Leaving::counts.unlocked++;
            state_ = PyEval_SaveThread();
        }
    }
    ~Unlocked() {
        if (state_ != nullptr) {
            PyEval_RestoreThread(state_);
            Leaving::counts.unlocked--;
        }
    }
    Unlocked(const Unlocked &) = delete;
    Unlocked &operator=(const Unlocked &) = delete;

    /* Takes the GIL back for a call. */
    template <typename Call> void with(Call call) {
        if (state_ == nullptr)
            return call();
        PyEval_RestoreThread(state_);
        try {
            call();
        } catch (...) {
            state_ = nullptr; /* held from here on */
            Leaving::counts.unlocked--;
            throw;
        }
        state_ = PyEval_SaveThread();
    }

  private:
    PyThreadState *state_ = nullptr;
};

/* A borrowed view of an object's memory, given back at the end of its scope. */
class Buffer {
  public:
    Buffer() { view_.obj = nullptr; }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    bool try_take(nb::handle object) {
        if (!PyObject_CheckBuffer(object.ptr()))
            return false;
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0)
            return true;
        PyErr_Clear();
        return false;
    }
    void take(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0)
            throw nb::python_error();
    }
    void drop() { PyBuffer_Release(&view_); }
    void hold(nb::handle object) { held_ = nb::borrow(object); } /* instead of a view */
    const Py_buffer *operator->() const { return &view_; }

  private:
    Py_buffer view_;
    nb::object held_;
};

/* The head of NumPy's array object, part of its ABI: its own headers inline reads of it into every extension.
 * The buffer protocol composes its description anew for each call, which takes a sixth of a step of eight
 * environments. */
struct ArrayHead {
    PyObject_HEAD char *data;
    int ndim;
    Py_ssize_t *shape, *strides;
    PyObject *base, *dtype;
    int flags;

    enum { C_CONTIGUOUS = 1, ALIGNED = 0x100, WRITEABLE = 0x400 };

    /* NULL if the object is not of exactly this type. */
    static const ArrayHead *of(nb::handle object, nb::handle type) {
        return Py_TYPE(object.ptr()) == reinterpret_cast<PyTypeObject *>(type.ptr())
                   ? reinterpret_cast<const ArrayHead *>(object.ptr())
                   : nullptr;
    }
    bool plain() const { return (flags & (C_CONTIGUOUS | ALIGNED)) == (C_CONTIGUOUS | ALIGNED); }
};

/* The address of an array's memory. The array itself keeps it alive. */
inline void *address_of(nb::handle array) {
    Buffer buffer;
    buffer.take(array);
    return buffer->buf;
}

/* The same, if it has at least so many bytes. */
inline void *memory_of(nb::handle array, size_t at_least) {
    Buffer buffer;
    buffer.take(array);
    if (static_cast<size_t>(buffer->len) < at_least)
        throw nb::value_error(("the array is too small: it has " + std::to_string(buffer->len) +
                               " bytes, and the core needs " + std::to_string(at_least))
                                  .c_str());
    return buffer->buf;
}

/* One value per option, in the plug-in's order; strings live here. */
struct Values {
    std::vector<shoal_value> items;
    std::vector<std::unique_ptr<std::string>> strings;

    Values(const shoal_entry_v1 *entry, nb::handle list) {
        if (nb::len(list) != entry->num_options)
            throw nb::value_error("one value per option");
        for (uint64_t i = 0; i < entry->num_options; i++) {
            shoal_value value = {};
            nb::object given = list[i];
            if (entry->options[i].type == SHOAL_OPTION_INT)
                value.i = nb::cast<int64_t>(given);
            else if (entry->options[i].type == SHOAL_OPTION_FLOAT)
                value.f = nb::cast<double>(given);
            else {
                strings.push_back(std::make_unique<std::string>(nb::cast<std::string>(given)));
                value.s = strings.back()->c_str();
            }
            items.push_back(value);
        }
    }
};

struct Description {
    shoal_description d = {};
    ~Description() { shoal_description_free(&d); }
};

class Plugin {
  public:
    explicit Plugin(const std::string &path) {
        shoal_message why;
        if (shoal_plugin_open(path.c_str(), &plugin_, &why) != 0)
            raise_shoal("PluginError", why.text);
    }
    ~Plugin() { shoal_plugin_close(&plugin_); }
    Plugin(const Plugin &) = delete;
    Plugin &operator=(const Plugin &) = delete;

    const shoal_plugin *get() const { return &plugin_; }
    std::string name() const { return plugin_.entry->name; }
    nb::tuple abi() const { return nb::make_tuple(plugin_.entry->abi_major, plugin_.entry->abi_minor); }

    const void *extension(const char *id) const {
        return plugin_.entry->get_extension == nullptr ? nullptr : plugin_.entry->get_extension(id);
    }
    bool has_extension(const std::string &id) const { return extension(id.c_str()) != nullptr; }

    nb::list options() const {
        nb::list all;
        for (uint64_t i = 0; i < plugin_.entry->num_options; i++) {
            const shoal_option &option = plugin_.entry->options[i];
            nb::object value = option.type == SHOAL_OPTION_INT     ? nb::cast(option.value.i)
                               : option.type == SHOAL_OPTION_FLOAT ? nb::cast(option.value.f)
                                                                   : nb::cast(option.value.s);
            all.append(nb::make_tuple(option.name, option.help == nullptr ? "" : option.help, value));
        }
        return all;
    }

    nb::dict describe(nb::list values) const {
        Values converted(plugin_.entry, values);
        Description described;
        fill(converted, &described.d);
        nb::dict facts;
        facts["instance_bytes"] = described.d.spec.instance_bytes;
        facts["lanes"] = described.d.spec.lanes;
        facts["agents"] = described.d.spec.agents;
        facts["max_episode_steps"] = described.d.spec.max_episode_steps;
        facts["observations"] = fields(described.d.observations);
        facts["actions"] = fields(described.d.actions);
        return facts;
    }

    void fill(const Values &values, shoal_description *description) const {
        shoal_message why;
        if (shoal_plugin_describe(&plugin_, values.items.data(), description, &why) != 0)
            raise_shoal("PluginError", (name() + ": " + why.text).c_str());
    }

  private:
    static nb::list fields(const shoal_fields &all) {
        nb::list list;
        for (uint64_t i = 0; i < all.count; i++) {
            const shoal_field &field = all.items[i];
            const char codes[] = {'i', 'u', 'f', '?', '?', '?', 'b'};
            nb::list shape, lows, highs;
            for (uint32_t k = 0; k < field.ndim; k++)
                shape.append(field.shape[k]);
            uint64_t elements =
                field.lows == nullptr && field.highs == nullptr ? 1 : shoal_field_elements(&field);
            for (uint64_t k = 0; k < elements; k++) {
                lows.append(field.lows == nullptr ? field.low : field.lows[k]);
                highs.append(field.highs == nullptr ? field.high : field.highs[k]);
            }
            nb::dict facts;
            facts["name"] = field.name == nullptr ? nb::none() : nb::cast(field.name);
            facts["dtype"] = std::string(1, codes[field.dtype.code]) + std::to_string(field.dtype.bits / 8);
            facts["kind"] = field.kind;
            facts["shape"] = shape;
            facts["lows"] = lows;
            facts["highs"] = highs;
            list.append(facts);
        }
        return list;
    }

    shoal_plugin plugin_;
};

#endif
