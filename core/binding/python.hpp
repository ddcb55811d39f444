/* Part of the binding: helpers for all parts of it: exceptions, the GIL, signals, and the memory of Python
 * objects. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PYTHON_HPP
#define SHOAL_PYTHON_HPP

#include "platform.h"

#include <nanobind/nanobind.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace nb = nanobind;

[[noreturn]] inline void raise_shoal(const char *kind, const char *text) {
    /* A plug-in's text may be in any encoding. */
    nb::object message =
        nb::steal(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(strlen(text)), "replace"));
    nb::object error = nb::module_::import_("shoal.errors").attr(kind)(message);
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
    throw nb::python_error();
}

/* Returns a result of the core; raises OSError if it is -errno. */
inline int require_success(int result) {
    if (result < 0) {
        errno = -result;
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
    return result;
}

/* Runs Python's signal handlers; raises what they raise, such as KeyboardInterrupt. */
inline void check_signals() {
    if (PyErr_CheckSignals() != 0)
        throw nb::python_error();
}

/* On a cache line of its own, because each call writes to it and threads of the core read other globals. */
struct alignas(64) CallCounts {
    std::atomic<int> unlocked{0};
    int inside = 0; /* calls of vector environments, counted under the GIL */
};

/* Threads that work without the GIL must not request it once the interpreter exits: that would end them in
 * the middle of C++ code. At exit, new work keeps the GIL, and `wait` waits for running work. */
struct InterpreterExit {
    static inline CallCounts counts;
    static inline std::atomic<bool> has_begun{false};

    static void wait() {
        thread_ = PyThread_get_thread_ident();
        has_begun = true;
        for (int i = 0;
             i < 5000 && (counts.unlocked != 0 || counts.inside != 0) && forks_ == shoal_fork_count(); i++) {
            nb::gil_scoped_release others;
            shoal_futex_wait(&never_, 0, 1000000);
        }
    }

    /* For a call that begins while the interpreter exits. Python code that it calls could lose the GIL, which
     * would end its thread in the middle of C++ code. So every thread but the exiting one blocks here until
     * the process ends, as threads of Python 3.14 do. */
    static void block_thread() {
        if (!has_begun || thread_ == PyThread_get_thread_ident())
            return;
        PyEval_SaveThread();
        for (;;)
            shoal_futex_wait(&never_, 0, 1000000000);
    }

  private:
    static inline shoal_word never_{0};
    static inline unsigned long thread_ = 0;
    static inline uint64_t forks_ = shoal_fork_count(); /* a child does not have its parent's threads */
};

/* Releases the GIL for a scope, unless the interpreter exits. */
class Unlocked {
  public:
    Unlocked() {
        if (!InterpreterExit::has_begun) {
            InterpreterExit::counts.unlocked++;
            state_ = PyEval_SaveThread();
        }
    }
    ~Unlocked() {
        if (state_ != nullptr) {
            PyEval_RestoreThread(state_);
            InterpreterExit::counts.unlocked--;
        }
    }
    Unlocked(const Unlocked &) = delete;
    Unlocked &operator=(const Unlocked &) = delete;

    /* Acquires the GIL for a call. */
    template <typename Call> void with(Call call) {
        if (state_ == nullptr)
            return call();
        PyEval_RestoreThread(state_);
        try {
            call();
        } catch (...) {
            state_ = nullptr; /* keeps the GIL from here on */
            InterpreterExit::counts.unlocked--;
            throw;
        }
        state_ = PyEval_SaveThread();
    }

  private:
    PyThreadState *state_ = nullptr;
};

/* A view of an object's memory, released at the end of its scope. */
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
    void hold(nb::handle object) { held_ = nb::borrow(object); } /* in place of a view */
    const Py_buffer *operator->() const { return &view_; }

  private:
    Py_buffer view_;
    nb::object held_;
};

/* The head of NumPy's array object. It is part of NumPy's ABI, because its headers inline reads of it into
 * every extension. The buffer protocol builds a description in each call, which takes a sixth of a step of
 * eight environments. */
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

/* The same; raises ValueError if the array has fewer bytes. */
inline void *memory_of(nb::handle array, size_t at_least) {
    Buffer buffer;
    buffer.take(array);
    if (static_cast<size_t>(buffer->len) < at_least)
        throw nb::value_error(("the array is too small: it has " + std::to_string(buffer->len) +
                               " bytes, and the core needs " + std::to_string(at_least))
                                  .c_str());
    return buffer->buf;
}

#endif
