/* Part of the binding: plug-ins for Python. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PLUGIN_HPP
#define SHOAL_PLUGIN_HPP

#include "plugin.h"
#include "python.hpp"

#include <shoal/ext/info.h>
#include <shoal/ext/render.h>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace nb = nanobind;

/* One value per option, in the plug-in's order; this object owns the strings. */
struct Values {
    std::vector<shoal_value> items;
    std::vector<std::unique_ptr<std::string>> strings;

    Values(const shoal_entry_v1 *entry, nb::handle list) {
        if (nb::len(list) != entry->num_options)
            throw nb::value_error("expected one value per option");
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

    /* Pictures per second of a video; 0 if the plug-in draws none or does not say. */
    uint32_t render_fps() const {
        auto *render = static_cast<const shoal_render_v1 *>(extension(SHOAL_EXT_RENDER));
        return render == nullptr ? 0 : render->fps;
    }

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

    /* The texts of shoal.info/1 as they are; None without it. shoal/native/describe.py compares them with the
     * fields. */
    nb::object info() const {
        const auto *info = static_cast<const shoal_info_v1 *>(extension(SHOAL_EXT_INFO));
        if (info == nullptr)
            return nb::none();
        nb::dict facts;
        facts["summary"] = text(info->summary, "summary");
        facts["reward"] = text(info->reward, "reward");
        facts["ending"] = text(info->ending, "ending");
        facts["observations"] = texts_of_fields(info->observations, info->num_observations, "observations");
        facts["actions"] = texts_of_fields(info->actions, info->num_actions, "actions");
        return facts;
    }

    void fill(const Values &values, shoal_description *description) const {
        shoal_message why;
        if (shoal_plugin_describe(&plugin_, values.items.data(), description, &why) != 0)
            raise_shoal("PluginError", (name() + ": " + why.text).c_str());
    }

  private:
    [[noreturn]] void refuse_info(const std::string &what) const {
        raise_shoal("PluginError", (name() + ": shoal.info/1: " + what).c_str());
    }

    nb::str text(const char *given, const std::string &what) const {
        enum { MOST = 4096 };
        if (given == nullptr || given[0] == '\0' || strnlen(given, MOST) == MOST)
            refuse_info(what + " must be a text of 1 to 4095 bytes");
        PyObject *decoded = PyUnicode_FromString(given);
        if (decoded == nullptr) {
            PyErr_Clear();
            refuse_info(what + " must be UTF-8");
        }
        return nb::steal<nb::str>(decoded);
    }

    nb::list texts(const char *const *names, uint64_t count, const std::string &what) const {
        if (count > 4096 || (count != 0 && names == nullptr))
            refuse_info(what + " has the count " + std::to_string(count) +
                        (count > 4096 ? "; at most 4096 names are allowed" : " but is NULL"));
        nb::list all;
        for (uint64_t i = 0; i < count; i++)
            all.append(text(names[i], what));
        return all;
    }

    nb::list texts_of_fields(const shoal_info_field *fields, uint64_t count, const std::string &what) const {
        if (count > 4096 || (count != 0 && fields == nullptr))
            refuse_info(what + " has the count " + std::to_string(count) +
                        (count > 4096 ? "; at most 4096 fields are allowed" : " but is NULL"));
        nb::list all;
        for (uint64_t i = 0; i < count; i++) {
            const std::string field = what + "[" + std::to_string(i) + "]";
            all.append(nb::make_tuple(text(fields[i].text, field + ".text"),
                                      texts(fields[i].elements, fields[i].num_elements, field + ".elements"),
                                      texts(fields[i].values, fields[i].num_values, field + ".values")));
        }
        return all;
    }

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
