"""What `shoal check --device` prepares before its checks: is there a GPU, and the compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoal.check.subject import Subject, Target
from shoal.cuda.build import LIBM_MARK, build_library, find_source, write_ptx
from shoal.cuda.device import open_device
from shoal.errors import ShoalError
from shoal.native.compilers import find_zig
from shoal.native.plugin import load

__all__ = ["COMPILES", "GPU_IS_MISSING", "Compiled", "compile_for_gpu", "make_target", "require_gpu"]

COMPILES = "It compiles for a GPU"
GPU_IS_MISSING = "There is no GPU here; the checks run on the emulated device"


@dataclass(frozen=True)
class Compiled:
    """The result of compiling for a GPU: the line of the report, and whether the GPU's libm is used."""

    line: tuple[str, str, str | None]
    uses_libm: bool = False


def require_gpu(device: str) -> str | None:
    """Returns why there is no such GPU; None if there is, or if none is needed."""
    if device == "emulated":
        return None
    try:
        open_device(device)
    except ShoalError as error:
        return str(error).partition(" Leave ")[0]
    return None


def compile_for_gpu(subject: Subject, env: str) -> Compiled:
    """Compiles the kernels to PTX; raises BuildError if the plug-in cannot run on a GPU."""
    source = find_source(subject.library, env)
    if find_zig() is None:
        advice = 'pip install "shoal[cuda]" brings the compiler'
        return Compiled(("warning", "It was not compiled for a GPU: there is no package ziglang", advice))
    path = write_ptx(load(subject.library, subject.options), source)
    with path.open() as file:
        uses_libm = file.readline().strip() == LIBM_MARK
    return Compiled(("ok", COMPILES, None), uses_libm)


def make_target(subject: Subject, env: str, device: str, flags: list[str], compiled: Compiled) -> Target:
    """Returns the target. The emulated kernels are compiled here, in a process without a sanitizer."""
    source = find_source(subject.library, env)
    library = Path()
    if device == "emulated":
        library = build_library(load(subject.library, subject.options), source, flags=flags)
    return Target(device, str(source), flags, str(library), compiled.uses_libm)
