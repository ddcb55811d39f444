"""Python takes the sizes and numbers of the core's structs from the core."""

import re
from pathlib import Path

import pytest

from shoal import _core
from shoal.state import notes

ROOT = Path(__file__).parents[2]
USES = re.compile(r"_core\.(Gates?|start_watch|read_tail|count_tail)\(")
FILES = [
    path
    for folder in ("src", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if USES.search(path.read_text())
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_that_uses_gates_does_not_type_their_sizes(path):
    sizes = rf"\b({_core.GATE_BYTES}|{_core.TAIL_BYTES})\b"
    assert re.findall(sizes, path.read_text()) == [], "use _core.GATE_BYTES, _core.TAIL_BYTES"


def test_those_files_are_found():
    assert {"crew.py", "worker.py", "pingpong.py", "test_gates.py"} <= {path.name for path in FILES}


def test_a_note_has_the_size_that_the_host_reads():
    assert notes._FORMAT.size == _core.NOTE_BYTES
