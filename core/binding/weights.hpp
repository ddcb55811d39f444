/* Part of the binding: weights over a ring's rows. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_WEIGHTS_HPP
#define SHOAL_WEIGHTS_HPP

#include "python.hpp"
#include "ring.hpp"
#include "tree.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace nb = nanobind;

/* The weights of a ring's rows for prioritized sampling. They belong to one process. */
class Weights {
  public:
    explicit Weights(nb::object ring) : kept_(ring), ring_(nb::cast<Ring &>(ring)) {
        const uint64_t capacity = ring_.ring()->capacity;
        const size_t bytes = (shoal_tree_floats(capacity) * sizeof(float) + 63) / 64 * 64;
        memory_.reset(static_cast<float *>(std::aligned_alloc(64, bytes)));
        if (!memory_)
            throw std::bad_alloc();
        memset(memory_.get(), 0, bytes);
        shoal_tree_init(&tree_, capacity, memory_.get());
    }

    /* Gives rows pushed since the last call the highest weight so far. */
    void add_new_rows() { seen_ = shoal_ring_set_new_weights(ring_.ring(), &tree_, seen_, highest_); }

    /* Sets the weights of rows that are still stored to priority ** alpha; returns how many were. If a weight
     * is out of range, nothing changes: weights are floats, and so are sums of millions of them. */
    uint64_t update(nb::object ids, nb::object priorities, double alpha) {
        Buffer wanted;
        wanted.take(ids);
        const uint64_t count = static_cast<uint64_t>(wanted->len) / 8;
        const auto *given = static_cast<const double *>(memory_of(priorities, count * sizeof(double)));
        weights_.resize(count);
        slots_.resize(count);
        for (uint64_t i = 0; i < count; i++) {
            const double weight = std::pow(given[i], alpha);
            if (!(given[i] > 0 && std::isfinite(given[i]) && weight >= MIN_WEIGHT && weight <= MAX_WEIGHT))
                raise_out_of_range(given[i], weight);
            weights_[i] = static_cast<float>(weight);
        }
        add_new_rows();
        const uint64_t applied =
            shoal_ring_set_weights(ring_.ring(), &tree_, seen_, static_cast<const uint64_t *>(wanted->buf),
                                   weights_.data(), count, slots_.data(), weights_.data());
        for (uint64_t i = 0; i < applied; i++) /* shoal_ring_set_weights dropped overwritten rows */
            highest_ = std::max(highest_, weights_[i]);
        return applied;
    }

    /* Turns the weights of drawn rows into importance-sampling weights: (1 / weight) ** beta, scaled to a
     * maximum of 1. */
    static void unbias(float *weights, uint64_t count, double beta) {
        const auto power = static_cast<float>(-beta);
        float highest = 0;
        for (uint64_t i = 0; i < count; i++)
            highest = std::max(highest, weights[i] = std::pow(weights[i], power));
        for (uint64_t i = 0; i < count; i++)
            weights[i] /= highest;
    }
    const shoal_tree *tree() const { return &tree_; }

    /* Returns (the weight of every slot as bytes, the ticket up to which rows have a weight, the highest
     * weight). */
    nb::tuple state() const {
        const nb::bytes weights(reinterpret_cast<const char *>(tree_.level[0]), tree_.leaves * sizeof(float));
        return nb::make_tuple(weights, seen_, highest_);
    }
    /* Restores such a state. */
    void restore(nb::object weights, uint64_t seen, float highest) {
        const auto *given = static_cast<const float *>(memory_of(weights, tree_.leaves * sizeof(float)));
        bool fits = highest >= static_cast<float>(MIN_WEIGHT) * 0.9999F &&
                    highest <= static_cast<float>(MAX_WEIGHT) * 1.0001F;
        for (uint64_t i = 0; i < tree_.leaves; i++)
            fits = fits && (given[i] == 0 || (given[i] >= static_cast<float>(MIN_WEIGHT) * 0.9999F &&
                                              given[i] <= static_cast<float>(MAX_WEIGHT) * 1.0001F));
        if (!fits)
            throw nb::value_error("the saved weights are out of range; the file is damaged");
        shoal_tree_load(&tree_, given);
        seen_ = std::min(seen, ring_.ring()->tail->load()); /* the last rows may not have been committed */
        highest_ = highest;
    }
    float total() const { return shoal_tree_total(&tree_); }

  private:
    static constexpr double MIN_WEIGHT = 1e-25, MAX_WEIGHT = 1e25;
    [[noreturn]] static void raise_out_of_range(double priority, double weight) {
        char text[160];
        if (priority > 0 && std::isfinite(priority))
            snprintf(text, sizeof text,
                     "priority ** alpha must be from %g to %g, found %g for %g; scale the priorities",
                     MIN_WEIGHT, MAX_WEIGHT, weight, priority);
        else
            snprintf(
                text, sizeof text,
                "priorities must be finite and more than 0, found %g; add a small number to the TD errors",
                priority);
        throw nb::value_error(text);
    }
    struct Free {
        void operator()(float *memory) const { std::free(memory); }
    };
    nb::object kept_;
    Ring &ring_;
    std::unique_ptr<float, Free> memory_;
    shoal_tree tree_ = {};
    uint64_t seen_ = 0;
    float highest_ = 1;
    std::vector<float> weights_; /* scratch memory of update() */
    std::vector<uint64_t> slots_;
};

#endif
