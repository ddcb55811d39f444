/* Part of the binding: a session's host over a Stepper, a Flow, or the sums of worker processes. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_HOST_HPP
#define SHOAL_HOST_HPP

#include "arrays.hpp"
#include "flow.hpp"
#include "host.h"
#include "python.hpp"
#include "stepper.hpp"

#include <nanobind/nanobind.h>

#include <cstring>

namespace nb = nanobind;

/* Keeps the memory that it reads alive. The environments close it before they close themselves. */
class Host {
  public:
    /* Owns both descriptors from now on. `counted` is the Stepper or Flow, or an array of sums, [rows, SUMS].
     */
    Host(int listen_fd, int facts_fd, uint64_t num_envs, nb::object watched, nb::object due,
         nb::object counted)
        : kept_{watched, due, counted}, forks_(shoal_fork_count()) {
        Buffer list, lines;
        list.take(watched);
        lines.take(due);
        if (list->len != static_cast<Py_ssize_t>(SHOAL_MAX_WATCHED * sizeof(shoal_watched)) ||
            lines->len % SHOAL_DUE_BYTES != 0)
            throw nb::value_error("watched must be 16 pairs of int64, due must be lines of 64 bytes");
        shoal_host_plan plan = {listen_fd,
                                facts_fd,
                                num_envs,
                                static_cast<shoal_watched *>(list->buf),
                                static_cast<char *>(lines->buf),
                                static_cast<uint32_t>(lines->len / SHOAL_DUE_BYTES),
                                nullptr,
                                nullptr};
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
        double sums[4] = {};
        for (size_t row = 0; row < num_rows_; row++)
            for (int i = 0; i < 4; i++) { /* the worker may be writing at the same time */
                uint64_t bits = __atomic_load_n(reinterpret_cast<const uint64_t *>(rows_ + row * SUMS + i),
                                                __ATOMIC_RELAXED);
                double one;
                memcpy(&one, &bits, sizeof one);
                sums[i] += one;
            }
        *sum = {static_cast<uint64_t>(sums[0]), static_cast<uint64_t>(sums[1]),
                static_cast<uint64_t>(sums[3]), sums[2]};
    }

    nb::object kept_[3];
    shoal_host *host_ = nullptr;
    const double *rows_ = nullptr;
    size_t num_rows_ = 0;
    uint64_t forks_;
};

#endif
