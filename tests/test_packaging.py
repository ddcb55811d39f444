"""The package as users get it: one version, a light import, and C environments asked for a compiler alone."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shoal

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def python(source, cwd, **environment):
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def without_compiler(tmp_path):
    """Variables for a process that finds no compiler: an empty PATH, and a module in the place of ziglang."""
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "ziglang.py").touch()
    return {"PATH": str(empty), "PYTHONPATH": str(empty), "CC": ""}


def test_the_version_is_said_in_one_place():
    said = re.search(r'^version = "(.+)"$', PYPROJECT.read_text(), re.MULTILINE)[1]
    assert shoal.__version__ == importlib.metadata.version("shoal") == said


def test_shoal_lab_has_the_version_of_shoal_and_needs_that_very_one():
    lab = (PYPROJECT.parent / "lab" / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.+)"$', lab, re.MULTILINE)[1] == shoal.__version__
    assert f'"shoal=={shoal.__version__}"' in lab


def test_importing_shoal_brings_little_beyond_numpy_and_gymnasium(tmp_path):
    """Each of these takes milliseconds to import, and few programs need one."""
    source = """
import sys
import numpy, gymnasium
before = set(sys.modules)
import shoal
heavy = {"asyncio", "concurrent", "email", "http", "importlib.metadata", "rich", "torch", "unittest"}
heavy |= {"cloudpickle", "logging", "statistics", "uuid"}
print(sorted((set(sys.modules) - before) & heavy))
"""
    assert python(source, tmp_path) == "[]"


def test_everything_but_building_works_without_a_compiler(tmp_path):
    source = """
import numpy as np
import shoal

envs = shoal.make_vec("CartPole-v1", 4)
envs.reset(seed=0)
print(envs.step(np.zeros(4, np.int64))[0].shape)
envs.close()
envs = shoal.make_vec("FrozenLake-v1", 4, num_workers=2)
envs.reset(seed=0)
print(envs.step(np.zeros(4, np.int64))[0].shape)
envs.close()
open("my_env.c", "w").close()
try:
    shoal.make_vec("my_env.c")
except shoal.errors.BuildError as error:
    print(error)
"""
    first, second, refused = python(source, tmp_path, **without_compiler(tmp_path)).splitlines()
    assert (first, second) == ("(4, 4)", "(4,)")
    assert refused.startswith(
        "no compiler: looked for any of cc, gcc, clang on the PATH, and for the Python package ziglang. "
    )


@pytest.mark.parametrize("command", [["new", "my_env"], ["doctor"]])
def test_commands_that_need_no_compiler_work_without_one(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *command],
        cwd=tmp_path,
        env={**os.environ, **without_compiler(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    if command == ["doctor"]:
        assert re.search("^warning +compiler", done.stdout, re.MULTILINE)


def test_free_threaded_python_is_refused_until_it_is_tested(tmp_path):
    source = """
import sys
sys.version = "3.14.1 free-threading build (main) [GCC]"
try:
    import shoal
except ImportError as error:
    print(error)
else:
    print("imported")
"""
    assert python(source, tmp_path).startswith(
        "Shoal has not been tested with free-threaded Python, and this is"
    )
    assert python(source, tmp_path, SHOAL_FREE_THREADED="1") == "imported"
