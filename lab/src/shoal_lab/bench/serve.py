"""A process that runs a library's rivals. It is started by its path and reads requests line by line.

    shoal bench  -- {"make": "PufferLib C", "arguments": [8]} -->  python serve.py native pufferlib FOLDER
                 <-- {"made": 0, "steps": 8} ------------------
                 -- {"burst": 0, "calls": 1000} -------------->
                 <-- {"seconds": 0.0017} ----------------------

A peer can therefore pin its own versions, print, or crash, and it sleeps while others are timed. Its Python
does not need Shoal: FOLDER has the modules of Shoal, which are imported without the package's `__init__`,
because that loads the native core. The same happens in processes it spawns, because they run this file first.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Maker", "serve"]

_BENCH = Path(__file__).resolve().parent


def _register_package(name: str, folder: str) -> None:
    """Makes the modules of a package importable without running its `__init__`."""
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [folder]


if __name__ != "shoal_lab.bench.serve":  # run by its path
    # A script's folder comes first on the path, but modules here have the names of other packages.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _BENCH]
    _register_package("shoal_lab", str(_BENCH.parent))
    if sys.argv[2] != "shoal":
        _register_package("shoal", sys.argv[3])

Burst = Callable[[int], float]
Maker = Callable[..., "tuple[int, Burst]"]
"""Returns the work per call (environment steps or rows) and the burst."""


def serve(requests: Iterable[str], out: TextIO, makers: dict[str, Maker], drop: Callable[[], object]) -> None:
    """Answers each line of `requests` with a line; `drop` ends the rivals that were made."""
    made: list[Burst] = []
    for line in requests:
        try:
            answer = _handle_request(json.loads(line), made, makers, drop)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
        out.write(json.dumps(answer) + "\n")
        out.flush()


def _handle_request(
    request: dict[str, Any], made: list[Burst], makers: dict[str, Maker], drop: Callable[[], object]
) -> dict[str, Any]:
    if "burst" in request:
        return {"seconds": made[request["burst"]](request["calls"])}
    if "make" in request:
        steps, burst = makers[request["make"]](*request["arguments"])
        made.append(burst)
        return {"made": len(made) - 1, "steps": steps}
    if "load" in request:
        module = importlib.import_module(request["load"])
        return {"version": _version(request["load"], module)}
    made.clear()
    drop()
    _return_memory()
    return {}


def _return_memory() -> None:
    """Returns freed memory to the system; otherwise the next rival would reuse it and seem to need less."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _version(library: str, module: Any) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(module, "__version__", "of unknown version"))


def _main(group: str) -> None:
    """Runs the process of a group's rivals."""
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of a library must not mix with the answers
    rivals = importlib.import_module(f"shoal_lab.bench.rivals.{group}")
    makers = {name: make for library in rivals.MAKERS.values() for name, make in library.items()}
    try:
        serve(iter(sys.stdin.readline, ""), replies, makers, rivals.drop)
    finally:
        rivals.drop()


if __name__ == "__main__":
    _main(sys.argv[1])
