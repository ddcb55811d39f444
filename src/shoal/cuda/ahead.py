"""`shoal build --device cuda`: compiles an environment for a GPU before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.cuda.build import find_source, write_ptx
from shoal.errors import BuildError
from shoal.native.build import build
from shoal.native.plugin import bundled, load

__all__ = ["build_ahead", "find_library"]


def build_ahead(env: str, options: Mapping[str, Any], *, output: Path | None = None) -> Path:
    """Compiles a C file or a bundled environment with these options; returns the path of the PTX."""
    library = find_library(env)
    return write_ptx(load(library, dict(options)), find_source(library, env), output=output)


def find_library(env: str) -> Path:
    """Returns the plug-in for the CPU, which describes the environment; compiles it if `env` is a C file."""
    library = bundled().get(env.removeprefix("shoal/"))
    if library is not None:
        return library
    if Path(env).is_dir() or Path(env).suffix == ".c":
        return build(env)
    if Path(env).suffix or env.startswith("puffer:"):
        find_source(Path(env), env)  # raises
    raise BuildError(
        f"{env!r} is neither a C file nor the id of a bundled environment ({', '.join(sorted(bundled()))})"
    )
