/* Part of the binding: the guard for Python and for the other parts of the binding, and the exceptions that
 * it raises. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GUARD_HPP
#define SHOAL_GUARD_HPP

#include "guard.h"
#include "python.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <string>

namespace nb = nanobind;

enum { SLICE_NS = 50000000 }; /* a wait checks signals and close() at least this often */

/* Every public call of a vector environment enters its guard: one call at a time, with every backend. All
 * methods but is_closing need the GIL. */
class Guard {
  public:
    Guard() { shoal_guard_init(&guard_); }
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;

    /* `operation` is the name of the call; it must stay valid until leave. */
    void enter(const char *operation) {
        if (InterpreterExit::has_begun.load(std::memory_order_relaxed))
            InterpreterExit::block_thread();
        const int answer = shoal_guard_enter(&guard_, thread());
        if (answer != SHOAL_GUARD_ENTERED)
            refuse(answer, operation);
        operation_ = operation;
        InterpreterExit::counts.inside++;
    }
    void leave() {
        InterpreterExit::counts.inside--;
        shoal_guard_leave(&guard_);
    }

    /* Enters for a scope. */
    class Inside {
      public:
        Inside(Guard &guard, const char *operation) : guard_(guard) { guard.enter(operation); }
        ~Inside() { guard_.leave(); }
        Inside(const Inside &) = delete;
        Inside &operator=(const Inside &) = delete;

      private:
        Guard &guard_;
    };

    bool is_closing() const { return shoal_guard_is_closing(&guard_) != 0; }
    /* The thread of the last call; 0: none. */
    uint64_t last_thread() const { return guard_.thread; }
    bool is_forked() const { return guard_.forks != shoal_fork_count(); }

    /* For operations that may run during a call, such as reading statistics. */
    void require_open() const {
        if (is_closing() || is_forked())
            refuse(is_closing() ? SHOAL_GUARD_CLOSED : SHOAL_GUARD_FORKED, "");
    }

    /* For the call inside: raises ClosedError if another thread has called close(). The closer itself may
     * wait for workers, too. */
    void require_not_closing() const {
        if (is_closing() && guard_.closer != thread())
            refuse(SHOAL_GUARD_CLOSED, operation_);
    }

    /* For the call inside, in every slice of a wait: handles signals, and close() in another thread. */
    void check_interrupts() const {
        check_signals();
        require_not_closing();
    }

    /* Whether the caller must close now; false if that is done. Waits while another thread closes. */
    bool start_closing() {
        for (;;) {
            switch (shoal_guard_start_closing(&guard_, thread())) {
            case SHOAL_CLOSING_START:
                return true;
            case SHOAL_CLOSING_DONE:
                return false;
            case SHOAL_CLOSING_INSIDE:
                refuse(SHOAL_GUARD_REENTERED, "close");
            default:
                if (InterpreterExit::has_begun)
                    return false;
                Unlocked unlocked;
                shoal_futex_wait(&never_, 0, 1000000);
                unlocked.with([] { check_signals(); });
            }
        }
    }

    /* For the closer: waits until no call is inside, at most `timeout_s`. Returns whether none is. */
    bool wait_until_free(double timeout_s) {
        const uint64_t begin = shoal_now_ns();
        for (;;) {
            const double left_s = timeout_s - static_cast<double>(shoal_now_ns() - begin) * 1e-9;
            bool is_free = shoal_guard_wait(&guard_, 0) != 0;
            /* When the interpreter exits, threads inside may never return. */
            if (is_free || !(left_s > 0) || InterpreterExit::has_begun)
                return is_free;
            Unlocked unlocked;
            shoal_guard_wait(&guard_, static_cast<uint64_t>(std::min(left_s * 1e9, 1.0 * SLICE_NS)));
            unlocked.with([] { check_signals(); });
        }
    }
    void finish_closing() { shoal_guard_finish_closing(&guard_); }
    void abandon_closing() { shoal_guard_abandon_closing(&guard_); }

  private:
    static uint64_t thread() { return static_cast<uint64_t>(PyThread_get_thread_ident()); }

    [[noreturn]] void refuse(int answer, const char *operation) const {
        const std::string call = std::string(operation) + "()";
        const std::string inside =
            operation_ == nullptr || guard_.closer == thread() ? "close()" : std::string(operation_) + "()";
        if (answer == SHOAL_GUARD_BUSY)
            raise_shoal("ShoalError",
                        ("another thread is inside " + inside + " of this environment, so " + call +
                         " did nothing; call it when the other call has returned, or give each "
                         "thread environments of its own")
                            .c_str());
        if (answer == SHOAL_GUARD_REENTERED)
            raise_shoal("ShoalError", (call + " was called from inside " + inside +
                                       " of this environment, by a callback (such as an action's __array__) "
                                       "or a signal handler, and did nothing; call it after " +
                                       inside + " has returned")
                                          .c_str());
        if (answer == SHOAL_GUARD_FORKED)
            raise_shoal("ForkedError", "these environments belong to the parent process, which is not this "
                                       "one: their threads and workers did not survive fork(). Make new "
                                       "ones in the child");
        raise_shoal("ClosedError", "after a call to `close()` the environments cannot be used; arrays they "
                                   "returned are still valid");
    }

    static inline shoal_word never_{0};
    shoal_guard guard_;
    const char *operation_ = nullptr; /* of the call inside */
};

/* A call from Python: the body of `with operation:` is inside the guard. No signal handler can run between
 * the with statement and entering. If the body did not raise and another thread has called close(), the end
 * of the with statement raises ClosedError. */
class Operation {
  public:
    Operation(nb::object guard, nb::str name)
        : guard_object_(guard), name_(name), guard_(nb::cast<Guard &>(guard)), text_(name.c_str()) {}
    void enter() { guard_.enter(text_); }
    void leave(bool raised) {
        guard_.leave();
        if (!raised)
            guard_.require_not_closing();
    }

  private:
    nb::object guard_object_, name_;
    Guard &guard_;
    const char *text_;
};

/* `with closing as is_first:` is one close(). After an exception, close() can be called again. */
class Closing {
  public:
    explicit Closing(nb::object guard) : guard_object_(guard), guard_(nb::cast<Guard &>(guard)) {}
    bool enter() { return is_first_ = guard_.start_closing(); }
    void leave(nb::args raised) {
        if (!is_first_)
            return;
        if (raised[0].is_none())
            guard_.finish_closing();
        else
            guard_.abandon_closing();
    }

  private:
    nb::object guard_object_;
    Guard &guard_;
    bool is_first_ = false;
};

#endif
