/* Part of the binding: weights over a ring's rows. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_WEIGHTS_HPP
#define SHOAL_WEIGHTS_HPP

#include "ring.hpp"

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

/* Weights over a ring's rows, of one process's own: what prioritized draws are made from. */
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

    /* Rows that came since have `weight`. */
    void weigh_new(float weight) { seen_ = shoal_ring_weigh_new(ring_.ring(), &tree_, seen_, weight); }

    uint64_t weigh(nb::object ids, nb::object weights) {
        Buffer wanted;
        wanted.take(ids);
        const uint64_t count = static_cast<uint64_t>(wanted->len) / 8;
        const auto *given = static_cast<const float *>(memory_of(weights, count * sizeof(float)));
        std::vector<uint64_t> slots(count);
        std::vector<float> kept(count);
        return shoal_ring_weigh(ring_.ring(), &tree_, seen_, static_cast<const uint64_t *>(wanted->buf),
                                given, count, slots.data(), kept.data());
    }

    uint64_t sample(nb::object rng, uint64_t count, nb::tuple out, nb::object ids, nb::object weights) {
        const Ring::Wanted wanted(ring_, out, count);
        auto *generator = static_cast<shoal_rng *>(memory_of(rng, sizeof(shoal_rng)));
        auto *drawn = static_cast<uint64_t *>(memory_of(ids, count * 8));
        auto *drawn_weights = static_cast<float *>(memory_of(weights, count * sizeof(float)));
        return ring_.draw(&tree_, generator, count, wanted.columns(), wanted.to.data(), drawn, drawn_weights);
    }
    float total() const { return shoal_tree_total(&tree_); }

  private:
    struct Free {
        void operator()(float *memory) const { std::free(memory); }
    };
    nb::object kept_;
    Ring &ring_;
    std::unique_ptr<float, Free> memory_;
    shoal_tree tree_ = {};
    uint64_t seen_ = 0;
};

#endif
