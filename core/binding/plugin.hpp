/* Part of the binding: plug-ins as Python sees them. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PLUGIN_HPP
#define SHOAL_PLUGIN_HPP

#include "plugin.h"
#include "python.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <vector>

namespace nb = nanobind;

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
