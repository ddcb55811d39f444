/* Part of the binding: the parent's side of infos.hpp, which builds the infos of a step from rows.
 *
 *   words -> the schemas of this step, in the order of the environments -> plan: a column for each key
 *   column -> one new array, filled from the rows, and its mask */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_INFO_READER_HPP
#define SHOAL_INFO_READER_HPP

#include "infos.hpp"

#include <stdexcept>

class InfoReader {
  public:
    /* `firsts`: the first environment of each chunk. `load` decodes JSON. */
    InfoReader(nb::object words, nb::object rows, nb::object tables, nb::list firsts, uint64_t num_envs,
               nb::object load)
        : kept_alive_{words, rows, tables}, load_(load), chunk_of_(num_envs),
          words_(static_cast<const uint64_t *>(memory_of(words, num_envs * sizeof(uint64_t)))),
          rows_(static_cast<const char *>(memory_of(rows, num_envs * InfoTable::ROW_BYTES))),
          tables_(static_cast<const InfoTable *>(memory_of(tables, nb::len(firsts) * sizeof(InfoTable)))),
          known_(nb::len(firsts) * InfoTable::SCHEMAS) {
        nb::module_ numpy = nb::module_::import_("numpy");
        array_type_ = numpy.attr("ndarray");
        bool_ = numpy.attr("dtype")("?");
        object_ = numpy.attr("dtype")("O");
        booleans_[0] = bool_.attr("type")(false);
        booleans_[1] = bool_.attr("type")(true);
        const char *home = nb::hasattr(numpy, "_core") ? "numpy._core.multiarray" : "numpy.core.multiarray";
        nb::object api = nb::module_::import_(home).attr("_ARRAY_API");
        api_ = static_cast<void **>(PyCapsule_GetPointer(api.ptr(), nullptr));
        if (api_ == nullptr)
            throw nb::python_error();
        size_t chunk = 0;
        for (nb::handle first : firsts)
            std::fill(chunk_of_.begin() + nb::cast<Py_ssize_t>(first), chunk_of_.end(), chunk++);
    }

    /* Whether any environment has an info in its row. */
    bool any() const {
        for (size_t env = 0; env < chunk_of_.size(); env++)
            if (words_[env] != 0)
                return true;
        return false;
    }

    /* The info in the row of one environment; None if there is none. */
    nb::object read(uint64_t env) {
        if (words_[require_success(env)] == 0)
            return nb::none();
        return schema_of(env).read(rows_ + env * InfoTable::ROW_BYTES);
    }

    /* The infos of all environments, or of some in this order; None where environments disagree about the
     * type of a key, which Gymnasium decides value by value. */
    nb::object batch(nb::object env_ids) {
        Step &step = step_;
        step.clear();
        if (env_ids.is_none())
            for (size_t env = 0; env < chunk_of_.size(); env++)
                step.add(*this, env);
        else
            for (nb::handle env : env_ids)
                step.add(*this, require_success(nb::cast<uint64_t>(env)));
        const Plan &plan = plan_of(step);
        return plan.agrees ? nb::object(build(plan.columns, step)) : nb::none();
    }

  private:
    struct Known {
        std::shared_ptr<InfoSchema> schema;
        uint64_t number = 0;
    };

    /* One key of the result. */
    struct Column {
        nb::object key, mask;
        std::vector<Py_ssize_t> shape; /* of the array */
        const InfoEntry *entry;
        bool is_object;
        std::vector<Py_ssize_t> offsets; /* in rows of each schema; -1: it has no such key */
        std::vector<Column> columns;     /* of a dict */
    };

    /* The columns for infos of these schemas. */
    struct Plan {
        size_t count;
        std::vector<const InfoSchema *> schemas;
        bool agrees;
        std::vector<Column> columns;
    };

    /* The environments of the infos, and the schema of each. */
    struct Step {
        enum { NONE = 255 }; /* more schemas than this are rarely equal, so they need not be compared */
        std::vector<const InfoSchema *> schemas;
        std::vector<const char *> rows;
        std::vector<uint8_t> which;

        void clear() {
            schemas.clear();
            rows.clear();
            which.clear();
        }
        void add(InfoReader &reader, uint64_t env) {
            rows.push_back(reader.rows_ + env * InfoTable::ROW_BYTES);
            which.push_back(NONE);
            if (reader.words_[env] == 0)
                return;
            const InfoSchema *schema = &reader.schema_of(env);
            auto found = std::find(schemas.begin(), schemas.end(), schema);
            if (found == schemas.end())
                found = schemas.insert(found, schema);
            which.back() = static_cast<uint8_t>(std::min<ptrdiff_t>(found - schemas.begin(), NONE));
        }
    };

    uint64_t require_success(uint64_t env) const {
        if (env >= chunk_of_.size())
            throw nb::index_error("no such environment");
        return env;
    }

    const InfoSchema &schema_of(uint64_t env) {
        const uint64_t number = words_[env], at = number % InfoTable::SCHEMAS;
        Known &known = known_[chunk_of_[env] * InfoTable::SCHEMAS + at];
        if (known.number != number) {
            const InfoTable::Slot &slot = tables_[chunk_of_[env]].slots[at];
            if (slot.number != number || slot.size > InfoTable::SCHEMA_BYTES)
                throw std::runtime_error("the info of an environment names a schema that is not there");
            plans_.clear();
            known.schema = load(nb::bytes(slot.data, slot.size));
            known.number = number;
        }
        return *known.schema;
    }

    /* Chunks with equal descriptions share one schema, so that one plan covers their rows. */
    std::shared_ptr<InfoSchema> load(nb::bytes data) {
        nb::object description = load_(data);
        for (const Known &known : known_)
            if (known.schema && known.schema->description.equal(description))
                return known.schema;
        return std::make_shared<InfoSchema>(description);
    }

    const Plan &plan_of(const Step &step) {
        for (const Plan &plan : plans_)
            if (plan.count == step.rows.size() && plan.schemas == step.schemas)
                return plan;
        if (plans_.size() >= MOST_PLANS)
            plans_.clear();
        Plan plan = {step.rows.size(), step.schemas, step.schemas.size() < Step::NONE, {}};
        for (size_t i = 0; plan.agrees && i < step.schemas.size(); i++)
            plan.agrees = merge(plan.columns, step.schemas[i]->entries, i, step);
        plans_.push_back(std::move(plan));
        return plans_.back();
    }

    static bool merge(std::vector<Column> &columns, const std::vector<InfoEntry> &entries, size_t schema,
                      const Step &step) {
        for (const InfoEntry &entry : entries) {
            auto found = std::find_if(columns.begin(), columns.end(),
                                      [&](const Column &column) { return column.key.equal(entry.key); });
            if (found == columns.end())
                found = columns.insert(found, column_of(entry, step));
            else if (!agree(*found->entry, entry))
                return false;
            found->offsets[schema] = static_cast<Py_ssize_t>(entry.offset);
            if (!merge(found->columns, entry.entries, schema, step))
                return false;
        }
        return true;
    }

    static Column column_of(const InfoEntry &entry, const Step &step) {
        Column column;
        column.key = entry.key;
        column.mask = nb::str("_") + entry.key;
        column.shape.push_back(static_cast<Py_ssize_t>(step.rows.size()));
        column.shape.insert(column.shape.end(), entry.shape.begin(), entry.shape.end());
        column.entry = &entry;
        column.is_object = entry.is_object();
        column.offsets.assign(step.schemas.size(), -1);
        return column;
    }

    static bool agree(const InfoEntry &one, const InfoEntry &other) {
        const bool is_dict = one.kind == InfoEntry::DICT;
        if (is_dict || other.kind == InfoEntry::DICT)
            return is_dict == (other.kind == InfoEntry::DICT);
        return one.shape == other.shape && one.is_object() == other.is_object() &&
               one.dtype.equal(other.dtype);
    }

    nb::dict build(const std::vector<Column> &columns, const Step &step) const {
        nb::dict infos;
        for (const Column &column : columns) {
            nb::object mask = make(EMPTY, 1, column.shape, bool_), values;
            auto *present = reinterpret_cast<uint8_t *>(data_of(mask));
            for (size_t i = 0; i < step.rows.size(); i++)
                present[i] = offset_of(column, step, i) >= 0;
            if (column.entry->kind == InfoEntry::DICT)
                values = build(column.columns, step);
            else if (column.is_object)
                values = build_objects(column, step);
            else
                values = build_array(column, step);
            infos[column.key] = values;
            infos[column.mask] = mask;
        }
        return infos;
    }

    nb::object build_array(const Column &column, const Step &step) const {
        nb::object array = make(ZEROS, column.shape.size(), column.shape, column.entry->dtype);
        char *data = data_of(array);
        const size_t size = column.entry->size;
        for (size_t i = 0; i < step.rows.size(); i++) {
            const Py_ssize_t offset = offset_of(column, step, i);
            if (offset >= 0 && size == 8)
                memcpy(data + i * 8, step.rows[i] + offset, 8); /* the usual size: one store */
            else if (offset >= 0)
                memcpy(data + i * size, step.rows[i] + offset, size);
        }
        return array;
    }

    nb::object build_objects(const Column &column, const Step &step) const {
        nb::object array = make(EMPTY, 1, column.shape, object_); /* of None */
        for (size_t i = 0; i < step.rows.size(); i++) {
            const Py_ssize_t offset = offset_of(column, step, i);
            if (offset >= 0)
                array[i] = booleans_[step.rows[i][offset] != 0];
        }
        return array;
    }

    static Py_ssize_t offset_of(const Column &column, const Step &step, size_t i) {
        return step.which[i] == Step::NONE ? -1 : column.offsets[step.which[i]];
    }

    char *data_of(const nb::object &array) const { return ArrayHead::of(array, array_type_)->data; }

    /* A new array, by NumPy's C API: PyArray_Zeros or PyArray_Empty, which take the reference to the dtype.
     * np.zeros would take three times as long. */
    nb::object make(size_t function, size_t ndim, const std::vector<Py_ssize_t> &shape,
                    const nb::object &dtype) const {
        using Make = PyObject *(*)(int, const Py_ssize_t *, PyObject *, int);
        PyObject *array = reinterpret_cast<Make>(api_[function])(static_cast<int>(ndim), shape.data(),
                                                                 dtype.inc_ref().ptr(), 0);
        if (array == nullptr)
            throw nb::python_error();
        return nb::steal(array);
    }

    enum { MOST_PLANS = 32, ZEROS = 183, EMPTY = 184 /* their places in NumPy's table */ };
    std::vector<nb::object> kept_alive_;
    nb::object load_, array_type_, bool_, object_, booleans_[2];
    void **api_;
    std::vector<size_t> chunk_of_;
    const uint64_t *words_;
    const char *rows_;
    const InfoTable *tables_;
    std::vector<Known> known_;
    std::vector<Plan> plans_;
    Step step_; /* of the current call; a member, so that its vectors keep their memory */
};

#endif
