/* Part of the binding: a plan describes one way to sample a ring: the arrays of its batches and how they are
 * filled. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PLAN_HPP
#define SHOAL_PLAN_HPP

#include "batches.hpp"
#include "given.hpp"
#include "links.hpp"
#include "python.hpp"
#include "ring.hpp"
#include "weights.hpp"

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

namespace nb = nanobind;

class Plan {
  public:
    /* Options that can differ between calls. */
    struct Options {
        uint64_t steps;
        double gamma;
        bool across_episodes;
        double beta;
    };

    /* `fields`: (name, dtype, format, shape, role, column) of each array of a batch, where the role is "row"
     * (of the drawn row, or of every row of a sequence), "obs" or "next_obs" (of the two ends of a
     * transition), "discount" or "mask", and the column is an index into the ring's columns. Without `links`,
     * batches are single rows; without `weights`, rows are drawn uniformly. `kind` is the type of the
     * batches. */
    Plan(nb::object ring, nb::object links, nb::object weights, nb::object leases, nb::object kind,
         nb::list fields, uint64_t stack, uint64_t length)
        : kept_{ring, links, weights, leases}, kind_(kind), ring_(nb::cast<Ring &>(ring)),
          links_(links.is_none() ? nullptr : nb::cast<Links *>(links)),
          weights_(weights.is_none() ? nullptr : nb::cast<Weights *>(weights)),
          leases_(nb::cast<Leases &>(leases)), number_(leases_.next_plan()), stack_(stack), length_(length) {
        for (nb::handle item : fields)
            add_field(item);
        const nb::object numpy = nb::module_::import_("numpy");
        empty_ = numpy.attr("empty");
        ids_.dtype = numpy.attr("dtype")("uint64");
        weight_.dtype = numpy.attr("dtype")("float32");
        if (links_ != nullptr && length_ == 0 &&
            (obs_.empty() || obs_.size() != next_.size() || step_[0] < 0 || step_[1] < 0 || step_[2] < 0))
            throw nb::value_error("transitions need observations, a reward and flags");
        if (links_ != nullptr && length_ != 0 && mask_ < 0)
            throw nb::value_error("sequences need a mask");
    }
    ~Plan() { leases_.forget_plan(number_); }
    Plan(const Plan &) = delete;
    Plan &operator=(const Plan &) = delete;

    /* Returns a batch of `count` rows in leased arrays. Returns None if there is nothing to draw, or if
     * `count` is not an int in range; the Python code then raises the error. */
    nb::object lease(nb::handle rng, nb::handle count, uint64_t steps, double gamma, bool across_episodes,
                     double beta) {
        const uint64_t rows = parse_count(count);
        if (rows == 0)
            return nb::none();
        (void)ring_.ring();
        std::shared_ptr<BatchSet> set = leases_.find(number_, rows);
        const bool is_new = set == nullptr;
        if (is_new)
            set = make_set(rows);
        const FillMark mark(*set); /* from here on no other caller gets this set */
        if (is_new)
            leases_.add(set);
        nb::object batch = make_batch(*set);
        const size_t number = fields_.size();
        float *weights = weights_ == nullptr ? nullptr : static_cast<float *>(set->addresses[number + 1]);
        const uint64_t drawn =
            draw(rng, rows, set->addresses.data(), static_cast<uint64_t *>(set->addresses[number]), weights,
                 {steps, gamma, across_episodes, beta});
        return drawn == rows ? batch : nb::none();
    }

    /* Fills the arrays of the dict `out`, `ids` and `weights`, which must fit exactly and be writable.
     * Returns how many rows were drawn, or None if an array does not fit. */
    nb::object fill(nb::handle rng, nb::handle count, nb::handle out, nb::handle ids, nb::handle weights,
                    uint64_t steps, double gamma, bool across_episodes, double beta) {
        const uint64_t rows = parse_count(count);
        if (rows == 0)
            return nb::none();
        Given taken(fields_, ring_.array_type(), out);
        for (const Field &field : fields_) {
            uint64_t found = 0;
            void *data = taken.next(field) ? taken.array(field, &found, true) : nullptr;
            if (data == nullptr || found != rows)
                return nb::none();
            taken.add(data);
        }
        auto *drawn_ids = static_cast<uint64_t *>(find_exact(ids, ids_, rows));
        auto *drawn_weights =
            weights_ == nullptr ? nullptr : static_cast<float *>(find_exact(weights, weight_, rows));
        if (drawn_ids == nullptr || (weights_ != nullptr && drawn_weights == nullptr))
            return nb::none();
        const nb::object held[] = {nb::borrow(ids),
                                   nb::borrow(weights)}; /* keeps them alive without the GIL */
        return nb::cast(draw(rng, rows, taken.pointers(), drawn_ids, drawn_weights,
                             {steps, gamma, across_episodes, beta}));
    }

  private:
    static constexpr uint64_t FEW = 512, MANY = UINT64_C(1) << 40;

    /* Marks a set while it is being filled. */
    struct FillMark {
        BatchSet &set;
        explicit FillMark(BatchSet &of) : set(of) { set.is_out = true; }
        ~FillMark() { set.is_out = false; }
        FillMark(const FillMark &) = delete;
        FillMark &operator=(const FillMark &) = delete;
    };

    void add_field(nb::handle item) {
        Field field;
        field.name = nb::borrow(item[0]);
        field.dtype = nb::borrow(item[1]);
        field.format = nb::cast<std::string>(item[2]);
        for (nb::handle size : nb::borrow<nb::tuple>(item[3]))
            field.shape.push_back(nb::cast<Py_ssize_t>(size));
        const auto role = nb::cast<std::string>(item[4]);
        const int at = static_cast<int>(fields_.size());
        fields_.push_back(field);
        if (role == "discount") {
            discount_ = at;
        } else if (role == "mask") {
            mask_ = at;
        } else {
            const auto number = nb::cast<size_t>(item[5]);
            const shoal_column column = ring_.columns().at(number);
            if (role == "obs") {
                obs_columns_.push_back(column);
                obs_.push_back(at);
            } else if (role == "next_obs") {
                next_.push_back(at);
            } else if (role == "row") {
                bool is_step = false;
                for (size_t i = 0; links_ != nullptr && length_ == 0 && i < 3; i++) {
                    const shoal_column step = links_->links()->step[i];
                    if (column.offset == step.offset && column.bytes == step.bytes) {
                        step_[i] = at;
                        is_step = true;
                    }
                }
                if (!is_step) {
                    rest_columns_.push_back(column);
                    rest_.push_back(at);
                }
            } else {
                throw nb::value_error(("unknown role of a field: " + role).c_str());
            }
        }
    }

    /* Returns the number of rows, or 0 if `count` is not an int in range. */
    static uint64_t parse_count(nb::handle count) {
        if (!PyLong_CheckExact(count.ptr()))
            return 0;
        int overflow = 0;
        const long long rows = PyLong_AsLongLongAndOverflow(count.ptr(), &overflow);
        return overflow != 0 || rows < 0 || static_cast<uint64_t>(rows) > MANY ? 0
                                                                               : static_cast<uint64_t>(rows);
    }

    /* Returns the memory of a writable array [rows] of exactly the field's type, else NULL. */
    void *find_exact(nb::handle array, const Field &field, uint64_t rows) const {
        const ArrayHead *head = ArrayHead::of(array, ring_.array_type());
        const bool fits = head != nullptr && head->dtype == field.dtype.ptr() && head->plain() &&
                          (head->flags & ArrayHead::WRITEABLE) != 0 && head->ndim == 1 &&
                          static_cast<uint64_t>(head->shape[0]) == rows;
        return fits ? head->data : nullptr;
    }

    std::shared_ptr<BatchSet> make_set(uint64_t rows) {
        auto set = std::make_shared<BatchSet>(number_, rows);
        for (const Field &field : fields_) {
            nb::list shape;
            shape.append(rows);
            for (Py_ssize_t size : field.shape)
                shape.append(size);
            nb::object array = empty_(nb::tuple(shape), field.dtype);
            set->items[field.name] = array;
            set->add(array, field);
        }
        set->add(empty_(rows, ids_.dtype), ids_);
        if (weights_ != nullptr)
            set->add(empty_(rows, weight_.dtype), weight_);
        set->count_references();
        return set;
    }

    nb::object make_batch(const BatchSet &set) const {
        nb::object batch = nb::steal(PyObject_CallNoArgs(kind_.ptr()));
        const size_t number = fields_.size();
        if (!batch.is_valid() || PyDict_Update(batch.ptr(), set.items.ptr()) != 0 ||
            PyObject_SetAttr(batch.ptr(), ids_name_.ptr(), set.arrays[number].ptr()) != 0 ||
            (weights_ != nullptr &&
             PyObject_SetAttr(batch.ptr(), weights_name_.ptr(), set.arrays[number + 1].ptr()) != 0))
            throw nb::python_error();
        return batch;
    }

    uint64_t draw(nb::handle rng, uint64_t rows, void *const *out, uint64_t *ids, float *weights,
                  Options options) {
        const shoal_ring *ring = ring_.ring(); /* raises if the buffer is closed */
        auto *generator = static_cast<shoal_rng *>(memory_of(rng, sizeof(shoal_rng)));
        const nb::object held = nb::borrow(rng);
        const shoal_tree *tree = nullptr;
        if (weights_ != nullptr) {
            weights_->add_new_rows();
            tree = weights_->tree();
        }
        uint64_t drawn;
        if (links_ != nullptr)
            drawn = walk(ring, tree, generator, rows, out, ids, weights, options);
        else
            drawn = ring_.draw(tree, generator, rows, {rest_columns_.data(), rest_columns_.size()}, out, ids,
                               weights);
        if (weights_ != nullptr && drawn == rows)
            Weights::unbias(weights, rows, options.beta);
        return drawn;
    }

    uint64_t walk(const shoal_ring *, const shoal_tree *tree, shoal_rng *rng, uint64_t rows, void *const *out,
                  uint64_t *ids, float *weights, Options options) {
        std::vector<void *> obs, next, rest;
        for (int at : obs_)
            obs.push_back(out[at]);
        for (int at : next_)
            next.push_back(out[at]);
        for (int at : rest_)
            rest.push_back(out[at]);
        uint64_t few[2 * FEW];
        float few_weights[FEW];
        const std::unique_ptr<uint64_t[]> many(rows > FEW ? new uint64_t[2 * rows] : nullptr);
        const std::unique_ptr<float[]> many_weights(rows > FEW ? new float[rows] : nullptr);
        shoal_walk w = {};
        w.links = links_->links();
        w.count = rows;
        w.stack = stack_;
        w.steps = options.steps;
        w.length = length_;
        w.gamma = options.gamma;
        w.across_episodes = options.across_episodes;
        w.obs = {obs_columns_.data(), obs_columns_.size()};
        w.rest = {rest_columns_.data(), rest_columns_.size()};
        w.obs_out = obs.data();
        w.next_out = next.data();
        w.rest_out = rest.data();
        for (size_t i = 0; i < 3 && length_ == 0; i++)
            w.step_out[i] = out[step_[i]];
        w.discount = discount_ < 0 ? nullptr : static_cast<float *>(out[discount_]);
        w.mask = mask_ < 0 ? nullptr : static_cast<uint8_t *>(out[mask_]);
        w.ids = ids;
        w.weights = weights;
        w.slots = many ? many.get() : few; /* not `ids`, which other threads can change */
        w.places = w.slots + rows;
        w.drawn = many_weights ? many_weights.get() : few_weights;
        return ring_.walk(&w, tree, rng);
    }

    std::vector<nb::object> kept_;
    nb::object kind_, empty_;
    nb::object ids_name_ = nb::steal(PyUnicode_InternFromString("ids"));
    nb::object weights_name_ = nb::steal(PyUnicode_InternFromString("weights"));
    Ring &ring_;
    Links *links_;
    Weights *weights_;
    Leases &leases_;
    uint64_t number_, stack_, length_;
    std::vector<Field> fields_;
    Field ids_, weight_;
    std::vector<shoal_column> obs_columns_, rest_columns_;
    std::vector<int> obs_, next_, rest_; /* indices of the arrays of a batch */
    int step_[3] = {-1, -1, -1}, discount_ = -1, mask_ = -1;
};

#endif
