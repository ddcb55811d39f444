"""Other builds of the binding for tests: made when first asked for, used in place of the installed one.

path = build("faults", "-DSHOAL_FAULTS=ON")
process = subprocess.run([sys.executable, "-m", "tests.built", path, "tests.faults.driver", ...])
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


ASAN = "-O1 -g1 -fsanitize=address -fno-omit-frame-pointer"
KINDS = {
    "faults": ("-DSHOAL_FAULTS=ON", "-DCMAKE_C_FLAGS=-O1", "-DCMAKE_CXX_FLAGS=-O1"),
    "asan": (f"-DCMAKE_C_FLAGS={ASAN}", f"-DCMAKE_CXX_FLAGS={ASAN}"),
}


def build(name: str) -> Path:
    """The module built into build/NAME; what is built already is only looked at."""
    directory = ROOT / "build" / name
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run of this checkout may be building it
        return _build(name, directory)


def _build(name: str, directory: Path) -> Path:
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    if not (directory / "build.ninja").exists():
        command = ["cmake", "-S", ROOT, "-B", directory, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=None"]
        command += [f"-DPython_EXECUTABLE={sys.executable}", *KINDS[name]]
        _run(command, environment)
    _run(["cmake", "--build", directory], environment)
    _run(["cmake", "--install", directory, "--prefix", directory / "installed"], environment)
    (found,) = directory.glob("installed/shoal/_core*.so")  # with the bundled environments beside it
    return found


def _run(command: list[object], environment: dict[str, str]) -> None:
    done = subprocess.run(
        list(map(str, command)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout


def use(path: str) -> None:
    """Makes `shoal._core` that module; before shoal is imported."""
    assert "shoal" not in sys.modules
    spec = importlib.util.spec_from_file_location("shoal._core", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["shoal._core"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    if sys.argv[1] == "--build":
        print(build(sys.argv[2]))
        sys.exit()
    use(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
