"""docs/security.md: every claim has its test, and one of them is here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.sources import find_sources

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/security.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_test_that_a_claim_names_exists() -> None:
    assert len(NAMED) > 40
    for file, name in NAMED:
        assert (ROOT / file).is_file(), f"docs/security.md names {file}, which is not there"
        assert name in functions(ROOT / file), f"docs/security.md names {name}, which is not in {file}"


def test_every_row_of_a_table_names_a_test() -> None:
    rows = [
        line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("| claim", "|--"))
    ]
    assert len(rows) > 30
    for row in rows:
        assert re.search(r"\| `tests/[\w/]+\.py::\w+` \|$", row), f"a claim without a test: {row}"


def test_nothing_but_messages_of_our_own_workers_is_unpickled() -> None:
    """Files, sessions and the viewer have formats of their own. Nothing is evaluated but what docs/puffer.md
    says: the Python file beside a C environment that is compiled and loaded anyway.
    """
    for path in find_sources().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                found = {name.split(".")[0] for name in names} & {
                    "pickle",
                    "cloudpickle",
                    "marshal",
                    "shelve",
                    "dill",
                }
                assert not found or path.parent.name == "process", f"{path}:{node.lineno} imports {found}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                evaluates = node.func.id in ("eval", "exec") and path.parts[-2:] != (
                    "puffer",
                    "constructor.py",
                )
                assert not evaluates, f"{path}:{node.lineno} evaluates"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, (
                    f"{path}: allow_pickle"
                )
