"""Python takes the sizes and numbers of the core's structs from the core."""

import re
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from shoal import _core
from shoal.memory.layout import array_fields
from shoal.state import notes
from shoal.vector.arguments import AUTORESET_CODES
from tests.sources import find_sources

ROOT = Path(__file__).parents[2]
USES = re.compile(r"_core\.(Gates?|start_watch|read_tail|count_tail)\(")
FILES = [
    path
    for folder in ("compat", "src", "tests", "lab")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if USES.search(path.read_text())
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_that_uses_gates_does_not_type_their_sizes(path):
    sizes = rf"\b({_core.GATE_BYTES}|{_core.TAIL_BYTES})\b"
    assert re.findall(sizes, path.read_text()) == [], "use _core.GATE_BYTES, _core.TAIL_BYTES"


def test_those_files_are_found():
    assert {"pool.py", "worker.py", "pingpong.py", "test_gates.py"} <= {path.name for path in FILES}


def test_a_note_has_the_size_that_the_host_reads():
    assert notes._FORMAT.size == _core.NOTE_BYTES


RETYPED = {
    "autoreset codes": re.compile(
        r"autoreset\w*\s*(==|!=)\s*\d|_?(NEXT_STEP|SAME_STEP|DISABLED)\b[\"']?\s*[:=]\s*\d"
    ),
    "stepper flags": re.compile(r'"(leased|live|copy|actions|nan)":\s*\d|_INFOS\s*='),
    "array names": re.compile(r'"total"[,:].*\s*"length"[,:]'),
}


@pytest.mark.parametrize("what", RETYPED)
def test_python_code_does_not_retype(what):
    found = {
        str(path.relative_to(ROOT)): RETYPED[what].findall(path.read_text())
        for path in find_sources().values()
    }
    assert {path: hits for path, hits in found.items() if hits} == {}, "take it from shoal._core"


def test_the_search_finds_what_was_typed_before():
    assert RETYPED["autoreset codes"].search("if self._plan.autoreset == 1:")
    assert RETYPED["autoreset codes"].search("_NEXT_STEP = 0  # as enum shoal_autoreset")
    assert RETYPED["autoreset codes"].search("{AutoresetMode.NEXT_STEP: 0}")
    assert RETYPED["stepper flags"].search('{"leased": 0, "live": 1}')
    assert RETYPED["array names"].search('"reset", "total", "length", "last_return",')
    assert RETYPED["array names"].search(
        '"total": (np.float64, (rows,)),\n    "length": (np.uint32, (rows,)),'
    )


def test_each_autoreset_mode_has_its_own_code():
    assert set(AUTORESET_CODES) == set(AutoresetMode)
    assert len(set(AUTORESET_CODES.values())) == len(AutoresetMode)


def test_missing_or_too_small_arrays_raise():
    fields = array_fields(_core.CHUNK_ARRAYS, row=4, environment=4, worker=1)
    arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in fields.items()}
    table = np.zeros(_core.INFO_TABLE_BYTES, np.uint8)
    rows = np.zeros((4, _core.INFO_ROW_BYTES), np.uint8)
    infos = _core.InfoWriter(np.zeros(4, np.uint64), rows, table, 3, 1, lambda info: None)
    _core.Chunk([None], 3, _core.AUTORESET_NEXT_STEP, arrays, [None], infos, object())
    for name in arrays:
        missing = {other: array for other, array in arrays.items() if other != name}
        with pytest.raises(KeyError, match=name):
            _core.Chunk([None], 3, _core.AUTORESET_NEXT_STEP, missing, [None], infos, object())
        small = {**arrays, name: arrays[name].reshape(-1)[:-1].copy()}
        with pytest.raises(ValueError, match="too small"):
            _core.Chunk([None], 3, _core.AUTORESET_NEXT_STEP, small, [None], infos, object())
