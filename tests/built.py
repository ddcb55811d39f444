"""Other builds of the binding for tests: made when first asked for, used in place of the installed one.

path = build("faults")
process = subprocess.run([sys.executable, "-m", "tests.built", path, "tests.faults.driver", ...])
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


ASAN = "-O1 -g1 -fsanitize=address -fno-omit-frame-pointer"
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"


def build(name: str) -> Path:
    """The module "asan" or "faults", with all that is installed beside it; what is built already stays."""
    directory = ROOT / "build" / name
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run of this checkout may be building it
        return _build_faults(directory) if name == "faults" else _build_asan(directory)


def core_library(module: Path) -> Path:
    """The core as the "faults" module has it, before it is linked."""
    return Path((module.parents[2] / "tree").read_text()) / "libshoal_core.a"


def _build_faults(directory: Path) -> Path:
    """Linked from the objects of the installed module, where its build is still there."""
    built = sorted((ROOT / "build").glob(f"{PYTHON}-{PYTHON}-*/build.ninja"))
    tree = built[0].parent if built else directory
    if not built:
        _configure(tree)
    _cmake("--build", tree, "--target", "all", "_core_faults")
    module = _install(tree, directory)
    shutil.copy(tree / f"_core_faults{module.suffix}", module)
    (directory / "tree").write_text(str(tree))
    return module


def _build_asan(directory: Path) -> Path:
    _configure(directory, f"-DCMAKE_C_FLAGS={ASAN}", f"-DCMAKE_CXX_FLAGS={ASAN}")
    _cmake("--build", directory)
    return _install(directory, directory)


def _configure(tree: Path, *options: str) -> None:
    if not (tree / "build.ninja").exists():
        common = ("-G", "Ninja", "-DCMAKE_BUILD_TYPE=None", f"-DPython_EXECUTABLE={sys.executable}")
        _cmake("-S", ROOT, "-B", tree, *common, *options)


def _install(tree: Path, directory: Path) -> Path:
    _cmake("--install", tree, "--prefix", directory / "installed")
    (module,) = directory.glob("installed/shoal/_core*.so")  # with the bundled environments beside it
    return module


def _cmake(*arguments: object) -> None:
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    command = ["cmake", *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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
