"""Imports only go down the layers drawn in ARCHITECTURE.md."""

import ast
import re
from pathlib import Path

import pytest

from tests.sources import find_modules

# Lowest first. A module may import from its own part and from parts on a lower line.
LAYERS = [
    {"_core", "argument_types", "errors"},
    {"draw", "memory"},
    {"spaces"},
    {"state"},
    {"native"},
    {"compat", "cuda"},
    {"process"},
    {"vector", "replay"},
    {"learner", "dashboard"},
    {"cluster"},
    {"adapters", "check", "demo", "doctor", "reference", "torch", "viewer"},
    {"__init__"},
    {"cli"},
    {"__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
MODULES = find_modules()


def part_of(module: str) -> str:
    """`shoal.memory.layout` belongs to the part `memory`; `shoal` itself is `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported(path: Path) -> set[str]:
    """The parts of shoal that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {part_of(alias.name) for alias in node.names if alias.name.split(".")[0] == "shoal"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative imports hide which layer they reach"
            if node.module == "shoal":
                names = {alias.name for alias in node.names}
                found |= {name if name in LEVEL else "__init__" for name in names}
            elif node.module and node.module.startswith("shoal."):
                found.add(part_of(node.module))
    return found


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_only_go_down(path):
    own = path.parts[0].removesuffix(".py")
    assert own in LEVEL, f"{own} has no layer: add it to LAYERS and to ARCHITECTURE.md"
    for part in imported(MODULES[path]) - {own}:
        assert LEVEL[part] < LEVEL[own], f"{own} imports {part}, which is not below it"


def test_the_check_sees_an_upward_import(tmp_path):
    upward = tmp_path / "layout.py"
    upward.write_text("def late():\n    from shoal.spaces import declare\n")
    assert imported(upward) == {"spaces"}
    assert LEVEL["spaces"] > LEVEL["memory"]


def test_only_the_binding_knows_python():
    core = Path(__file__).parent.parent / "core"
    plain = [path for path in core.iterdir() if path.suffix in (".c", ".h")]
    assert len(plain) > 10
    for path in plain:
        assert "nanobind" not in path.read_text() and "Python.h" not in path.read_text(), path.name


def binding_includes(name: str) -> set[str]:
    """The headers of core/binding that one of them includes, directly and through others."""
    binding = Path(__file__).parent.parent / "core" / "binding"
    found: set[str] = set()
    waiting = [name]
    while waiting:
        named = set(re.findall(r'#include "(\w+\.hpp)"', (binding / waiting.pop()).read_text())) - found
        found |= named
        waiting += named
    return found


REPLAY = {
    "batches.hpp",
    "given.hpp",
    "lease.hpp",
    "links.hpp",
    "plan.hpp",
    "python.hpp",
    "ring.hpp",
    "weights.hpp",
}


@pytest.mark.parametrize("name", sorted(REPLAY | {"steps.hpp"}))
def test_replay_headers_include_nothing_of_workers_or_environments(name):
    assert binding_includes(name) <= REPLAY


def test_shoal_imports_nothing_of_shoal_lab():
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "shoal_lab"], path
