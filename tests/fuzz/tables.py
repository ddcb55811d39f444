"""Plug-ins that declare what mutated bytes say: refused with words, or made and stepped without harm."""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from shoal.native.build import include_directory
from shoal.native.plugin import load
from shoal.vector import VectorEnv
from shoal.vector.backend import Common
from shoal.vector.native import NativeBackend

MOST_BYTES = 64 << 20
"""Of one segment: a table may ask for what the machine has, and others are on it."""


@functools.cache
def _library(directory: Path) -> tuple[Path, Any]:
    path = directory / "scripted.so"
    source = Path(__file__).with_name("scripted.c")
    command = [os.environ.get("CC", "cc"), "-std=c11", "-O1", "-shared", "-fPIC", f"-I{include_directory()}"]
    subprocess.run([*command, str(source), "-o", str(path)], check=True)
    return path, ctypes.CDLL(str(path))


def _script(directory: Path) -> tuple[Any, int]:
    _, library = _library(directory)
    size = ctypes.c_uint64.in_dll(library, "shoal_script_bytes").value
    return (ctypes.c_char * size).in_dll(library, "shoal_script"), size


def run(directory: Path, data: bytes) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, resource.RLIM_INFINITY))
    path, library = _library(directory)
    script, size = _script(directory)
    ctypes.memmove(script, data[:size].ljust(size, b"\0"), size)
    library.shoal_script_apply()
    info = load(path, {})
    assert info.observation_space is not None and info.action_space is not None
    common = Common.from_arguments()
    envs = VectorEnv(NativeBackend(info, 1 + len(data) % 5, common, num_threads=1 + len(data) % 2), common)
    try:
        envs.reset(seed=0)
        for _ in range(3):
            # As they lie there: sampling spaces of 2**60 values is Gymnasium's, and slow.
            envs.step()
    finally:
        envs.close()


def seeds(directory: Path) -> list[bytes]:
    """A sane script of each shape, written through the same memory."""
    field_bytes = 4 * 4 + 16 + (8 + 4 + 4 + 4 + 4 + 48 + 16 + 16) + 128
    found = []
    for kinds in (
        [(0, 2, 32, 0, (3,)), (1, 0, 64, 1, ())],
        [(0, 1, 8, 0, (2, 2)), (0, 6, 8, 3, (4,)), (1, 2, 32, 0, (2,))],
    ):
        head = np.zeros(
            1,
            [
                ("i", "<u8"),
                ("lanes", "<u4"),
                ("agents", "<u4"),
                ("most", "<i8"),
                ("count", "<u4"),
                ("no", "<u4"),
            ],
        )
        head[0] = 24, 1, 1, 100, len(kinds), 0
        options = np.zeros(
            2, [("name", "<u8"), ("help", "<u8"), ("type", "<u4"), ("r", "<u4"), ("value", "<i8")]
        )
        data = head.tobytes() + b"Fuzz-v0".ljust(16, b"\0") + b"speed".ljust(16, b"\0") + options.tobytes()
        data += np.array([1, 1], "<u4").tobytes()
        for number, (action, code, bits, kind, shape) in enumerate(kinds):
            field = np.zeros(
                1,
                [
                    ("name", "<u8"),
                    ("code", "u1"),
                    ("bits", "u1"),
                    ("one", "<u2"),
                    ("kind", "<u4"),
                    ("ndim", "<u4"),
                    ("r", "<u4"),
                    ("shape", "<i8", (6,)),
                    ("low", "<f8"),
                    ("high", "<f8"),
                    ("lows", "<u8"),
                    ("highs", "<u8"),
                ],
            )
            field["code"], field["bits"], field["one"], field["kind"], field["ndim"] = (
                code,
                bits,
                1,
                kind,
                len(shape),
            )
            field["shape"][0, : len(shape)] = shape
            field["high"] = 1
            whole = np.array(
                [action, len(kinds) > 2, 0, 0], "<u4"
            ).tobytes() + f"field{number}".encode().ljust(16, b"\0")
            whole += field.tobytes() + np.zeros(8).tobytes() + np.ones(8).tobytes()
            assert len(whole) == field_bytes, (len(whole), field_bytes)
            data += whole
        found.append(data.ljust(_script(directory)[1], b"\0"))
    return found
