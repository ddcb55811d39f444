/* Part of the binding: the sizes and numbers of the core that Python needs. Python code takes them from here
 * and never types them again, so a struct can grow without a search through the package. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_CONSTANTS_HPP
#define SHOAL_CONSTANTS_HPP

#include "arrays.hpp"
#include "chunk.hpp"
#include "gate.hpp"
#include "host.hpp"
#include "ring.hpp"
#include "stepper.hpp"
#include "watch.h"

#include <nanobind/nanobind.h>

#include <cstddef>

namespace nb = nanobind;

inline void add_constants(nb::module_ &m) {
    m.attr("GATE_BYTES") = sizeof(shoal_gate);
    m.attr("GATE_LIVENESS_AT") = offsetof(shoal_gate, liveness);
    m.attr("GATE_GUARD_LIVENESS_AT") = offsetof(shoal_gate, guard_liveness);
    m.attr("LIVENESS_BYTES") = sizeof(shoal_liveness);
    m.attr("LIVENESS_ROOM_AT") = offsetof(shoal_liveness, room);
    m.attr("WAKEUP_BYTES") = sizeof(shoal_wakeup);
    m.attr("TAIL_BYTES") = sizeof(shoal_tail);
    m.attr("SUMS") = static_cast<int>(SUMS);
    m.attr("DUE_BYTES") = static_cast<int>(SHOAL_DUE_BYTES);
    m.attr("MAX_WATCHED") = static_cast<int>(SHOAL_MAX_WATCHED);
    m.attr("WATCHED_ENTRIES") = static_cast<int>(SHOAL_WATCHED_ENTRIES);

    m.attr("GATE_STEP") = static_cast<int>(SHOAL_STEP);
    m.attr("GATE_MESSAGE") = static_cast<int>(SHOAL_MESSAGE);
    m.attr("GATE_STOP") = static_cast<int>(SHOAL_STOP);

    m.attr("GATES_IDLE") = static_cast<int>(SHOAL_WAIT_IDLE);
    m.attr("GATES_TIMEOUT") = static_cast<int>(SHOAL_WAIT_TIMEOUT);
    m.attr("GATES_DIED") = static_cast<int>(SHOAL_WAIT_DIED);

    m.attr("REPORT_INFO") = static_cast<int>(Chunk::INFO);
    m.attr("REPORT_ERROR") = static_cast<int>(Chunk::ERROR);
    m.attr("REPORT_OBSERVATION") = static_cast<int>(Chunk::OBSERVATION);

    m.attr("AUTORESET_NEXT_STEP") = static_cast<int>(SHOAL_NEXT_STEP);
    m.attr("AUTORESET_SAME_STEP") = static_cast<int>(SHOAL_SAME_STEP);
    m.attr("AUTORESET_DISABLED") = static_cast<int>(SHOAL_DISABLED);

    m.attr("STEPPER_LIVE") = static_cast<int>(Stepper::LIVE);
    m.attr("STEPPER_CHECK_ACTIONS") = static_cast<int>(Stepper::CHECK_ACTIONS);
    m.attr("STEPPER_CHECK_NAN") = static_cast<int>(Stepper::CHECK_NAN);
    m.attr("STEPPER_INFOS") = static_cast<int>(Stepper::INFOS);
    m.attr("STEPPER_ARRAYS") = describe_arrays(STEPPER_ARRAYS);
    m.attr("CHUNK_ARRAYS") = describe_arrays(CHUNK_ARRAYS);

    m.attr("FIELD_BOX") = static_cast<int>(SHOAL_BOX);
    m.attr("FIELD_DISCRETE") = static_cast<int>(SHOAL_DISCRETE);
    m.attr("FIELD_MULTI_DISCRETE") = static_cast<int>(SHOAL_MULTI_DISCRETE);
    m.attr("FIELD_MULTI_BINARY") = static_cast<int>(SHOAL_MULTI_BINARY);

    m.attr("RING_TAIL_BYTES") = static_cast<int>(Ring::TAIL_BYTES);
    m.attr("RING_WRITERS") = static_cast<int>(SHOAL_RING_WRITERS);
    m.attr("RING_WRITER_BYTES") = sizeof(shoal_ring_writer);
    m.attr("RECORD_WORD_BYTES") = sizeof(shoal_word64);
    m.attr("RECORD_CHECK_BYTES") = static_cast<int>(Ring::CHECK_BYTES);

    m.attr("INFO_ROW_BYTES") = static_cast<int>(InfoTable::ROW_BYTES);
    m.attr("INFO_TABLE_BYTES") = sizeof(InfoTable);
    m.attr("INFO_KINDS") =
        nb::make_tuple(static_cast<int>(InfoEntry::BOOL), static_cast<int>(InfoEntry::INT),
                       static_cast<int>(InfoEntry::FLOAT), static_cast<int>(InfoEntry::SCALAR),
                       static_cast<int>(InfoEntry::ARRAY), static_cast<int>(InfoEntry::DICT));

    m.attr("NOTE_BYTES") = sizeof(shoal_note);
    m.attr("NOTE_FACTS") = static_cast<int>(SHOAL_FACTS);
    m.attr("NOTE_COUNTERS") = static_cast<int>(SHOAL_COUNTERS);
    m.attr("NOTE_WATCH") = static_cast<int>(SHOAL_WATCH);
    m.attr("NOTE_WINDOW") = static_cast<int>(SHOAL_WINDOW);
    m.attr("NOTE_PUBLISH") = static_cast<int>(SHOAL_PUBLISH);
    m.attr("NOTE_HISTORY") = static_cast<int>(SHOAL_HISTORY);
    m.attr("NOTE_RETURNS") = static_cast<int>(SHOAL_RETURNS);
    m.attr("NOTE_RECORD") = static_cast<int>(SHOAL_RECORD);
    m.attr("NOTE_RECORDED") = static_cast<int>(SHOAL_RECORDED);
    m.attr("RETURN_BINS") = static_cast<int>(SHOAL_RETURN_BINS);

    m.attr("HISTORY_BYTES") = sizeof(shoal_history);
    m.attr("HISTORY_LOGGED") = static_cast<int>(SHOAL_HISTORY_LOGGED);
    m.attr("HISTORY_NAME_BYTES") = static_cast<int>(SHOAL_HISTORY_NAME_BYTES);
    m.attr("HISTORY_PERIOD_S") = SHOAL_HISTORY_PERIOD_MS / 1000.0;
}

#endif
