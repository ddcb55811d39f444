"""Adapters against the libraries they are for; `make test-adapters` installs those."""

import importlib
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from tests.lenience import PROGRAM_S


def needs(name: str) -> ModuleType:
    """The library; its own warnings at import are not ours. Without it the tests of the file are skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.split(".")[0]:
                raise
            pytest.skip(f"{name} is not installed: make test-adapters", allow_module_level=True)


def run_snippet(module: str, tmp_path: Path) -> None:
    """Runs the page's pieces of code for an adapter; the ordinary tests cannot, without its library."""
    page = (Path(__file__).parent.parent.parent / "docs" / "adapters.md").read_text()
    blocks = [one for one in re.findall(r"```py\n(.*?)```", page, re.DOTALL) if module in one]
    assert blocks, f"docs/adapters.md shows no code for {module}"
    for number, block in enumerate(blocks):
        script = tmp_path / f"snippet_{number}.py"
        script.write_text(block)
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=PROGRAM_S
        )
        assert done.returncode == 0, done.stderr
