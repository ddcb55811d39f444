/* Part of the binding: a session's host over a Stepper, a Flow, or the sums of worker processes. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_HOST_HPP
#define SHOAL_HOST_HPP

#include "arrays.hpp"
#include "flow.hpp"
#include "history.hpp"
#include "host.h"
#include "python.hpp"
#include "stepper.hpp"

#include <nanobind/nanobind.h>

#include <cstring>

namespace nb = nanobind;

/* Keeps the memory that it reads alive. The environments close it before they close themselves. */
class Host {
  public:
    /* Owns the three descriptors from now on. `counted` is the Stepper or Flow, or an array of sums, [rows,
     * SUMS]; `returns` and `lengths` are those of each row's last episode. */
    Host(int listen_fd, int facts_fd, uint64_t num_envs, nb::object watched, nb::object due,
         nb::object counted, nb::object history, int history_fd, nb::object returns, nb::object lengths)
        : kept_{watched, due, counted, history, returns, lengths}, forks_(shoal_fork_count()) {
        Buffer list, lines;
        list.take(watched);
        lines.take(due);
        if (list->len != static_cast<Py_ssize_t>(SHOAL_WATCHED_ENTRIES * sizeof(shoal_watched)) ||
            lines->len % SHOAL_DUE_BYTES != 0)
            throw nb::value_error("watched must be 17 pairs of int64, due must be lines of 64 bytes");
        shoal_host_plan plan = {listen_fd,
                                facts_fd,
                                num_envs,
                                static_cast<shoal_watched *>(list->buf),
                                static_cast<char *>(lines->buf),
                                static_cast<uint32_t>(lines->len / SHOAL_DUE_BYTES),
                                nullptr,
                                nullptr,
                                history_of(history),
                                history_fd,
                                nullptr,
                                nullptr,
                                nb::len(returns)};
        plan.last_return = static_cast<const double *>(memory_of(returns, plan.rows * sizeof(double)));
        plan.last_length = static_cast<const uint32_t *>(memory_of(lengths, plan.rows * sizeof(uint32_t)));
        if (nb::isinstance<Flow>(counted)) {
            plan.count = [](void *flow, shoal_statistics *sum) {
                shoal_flow_statistics(static_cast<shoal_flow *>(flow), sum);
            };
            plan.context = nb::cast<Flow &>(counted).flow();
        } else if (nb::isinstance<Stepper>(counted)) {
            plan.count = [](void *engine, shoal_statistics *sum) {
                shoal_engine_statistics(static_cast<shoal_engine *>(engine), sum);
            };
            plan.context = nb::cast<Stepper &>(counted).engine();
        } else {
            Buffer sums;
            sums.take(counted);
            rows_ = static_cast<const double *>(sums->buf);
            num_rows_ = static_cast<size_t>(sums->len) / (SUMS * sizeof(double));
            plan.count = [](void *self, shoal_statistics *sum) { static_cast<Host *>(self)->add_up(sum); };
            plan.context = this;
        }
        require_success(shoal_host_start(&plan, &host_));
    }
    ~Host() { close(); }
    Host(const Host &) = delete;
    Host &operator=(const Host &) = delete;

    void close() {
        if (host_ != nullptr && forks_ == shoal_fork_count())
            shoal_host_stop(host_);
        else if (host_ != nullptr)
            shoal_host_forget(host_);
        host_ = nullptr;
    }

  private:
    void add_up(shoal_statistics *sum) const {
        double sums[SUMS_RANGES_AT] = {};
        *sum = {};
        for (size_t row = 0; row < num_rows_; row++) {
            double one[SUMS];
            for (int i = 0; i < SUMS; i++) { /* the worker may be writing at the same time */
                uint64_t bits = __atomic_load_n(reinterpret_cast<const uint64_t *>(rows_ + row * SUMS + i),
                                                __ATOMIC_RELAXED);
                memcpy(&one[i], &bits, sizeof one[i]);
            }
            for (int i = 0; i < SUMS_RANGES_AT; i++)
                sums[i] += one[i];
            shoal_range ranges[2];
            memcpy(ranges, one + SUMS_RANGES_AT, sizeof ranges);
            shoal_ranges_merge(sum->ranges, ranges);
        }
        sum->steps = static_cast<uint64_t>(sums[0]);
        sum->episodes = static_cast<uint64_t>(sums[1]);
        sum->return_sum = sums[2];
        sum->length_sum = static_cast<uint64_t>(sums[3]);
        sum->odd_returns = static_cast<uint64_t>(sums[4]);
    }

    nb::object kept_[6];
    shoal_host *host_ = nullptr;
    const double *rows_ = nullptr;
    size_t num_rows_ = 0;
    uint64_t forks_;
};

#endif
