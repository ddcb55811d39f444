"""The machines that run kernels: a GPU, and the CPU with a loop in place of the grid."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from ctypes import byref, c_uint32, c_void_p
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.cuda.build import build_library, build_ptx
from shoal.cuda.driver import Driver, DriverError, open_driver
from shoal.errors import ShoalError
from shoal.native.plugin import PluginInfo

__all__ = ["KERNELS", "LARGE", "Device", "Emulated", "Gpu", "Kernels", "Mirror", "open_device"]

KERNELS = ("shoal_init", "shoal_reset", "shoal_step")
LARGE = 8192
"""From so many bytes on, an environment waits for memory most of the time. Its threads get few registers, so
that a multiprocessor runs 1,024 of them at once."""
_REGISTERS, _REGISTERS_OF_LARGE = 255, 64


class Kernels(Protocol):
    """The kernels of one plug-in, loaded. Their one argument is an array of 64-bit words."""

    unit: int
    """Environments that one thread steps."""
    block: int
    """Threads of a block."""
    words: int
    """The size of the argument."""

    def launch(self, name: str, blocks: int, threads: int, address: int, stream: int) -> None:
        """Enqueues a kernel with the argument at this address, which is copied before it returns."""


class Mirror(Protocol):
    """Copies memory of the device to the host from time to time, without waiting for it."""

    def start(self, sources: Sequence[tuple[int, int]], stream: int) -> None:
        """Enqueues a copy of (address, bytes) pairs, one after the other."""

    def poll(self) -> bytes | None:
        """Returns the bytes of the copy that was started last; None if it has not finished."""

    @property
    def close(self) -> Callable[[], object]: ...


class Device(Protocol):
    """Memory copies and kernels."""

    name: str
    """As make_vec's argument names it, such as "cuda:0"."""
    index: int
    multiprocessors: int

    def enter(self) -> AbstractContextManager[None]:
        """Makes the device current in this thread, in a with statement."""

    def load(self, info: PluginInfo, source: Path) -> Kernels: ...

    def read(self, address: int, size: int, stream: int) -> bytes:
        """Waits for the stream, and returns bytes of the device."""

    def write(self, address: int, data: bytes | NDArray[Any], stream: int) -> None:
        """Copies to the device; `data` may be changed afterwards."""

    def copy(self, to: int, source: int, size: int, stream: int) -> None: ...

    def synchronize(self) -> None:
        """Waits for the work of all streams."""

    def is_capturing(self, stream: int) -> bool:
        """Whether work on this stream becomes part of a CUDA graph."""

    def mirror(self, size: int) -> Mirror: ...

    def free_memory(self) -> int: ...


class Gpu:
    """An NVIDIA GPU."""

    def __init__(self, index: int) -> None:
        self.index, self.name = index, f"cuda:{index}"
        self._driver = open_driver()
        count = self._driver.count()
        if index >= count:
            raise ShoalError(f'device="cuda:{index}": there are {count} GPUs, 0 to {count - 1}')
        self.multiprocessors = self._driver.multiprocessors(index)

    def enter(self) -> AbstractContextManager[None]:
        return self._driver.enter(self.index)

    def load(self, info: PluginInfo, source: Path) -> Kernels:
        with self.enter():
            registers = _REGISTERS_OF_LARGE if info.instance_bytes >= LARGE else _REGISTERS
            return _GpuKernels(self._driver, self.index, build_ptx(info, source), registers)

    def synchronize(self) -> None:
        self._driver("cuCtxSynchronize")

    def is_capturing(self, stream: int) -> bool:
        return self._driver.is_capturing(stream)

    def read(self, address: int, size: int, stream: int) -> bytes:
        text = ctypes.create_string_buffer(size)
        self._driver("cuMemcpyDtoHAsync_v2", text, address, size, stream)
        self._driver("cuStreamSynchronize", stream)
        return text.raw

    def write(self, address: int, data: bytes | NDArray[Any], stream: int) -> None:
        held = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
        self._driver("cuMemcpyHtoDAsync_v2", address, held.ctypes.data, held.nbytes, stream)
        self._driver("cuStreamSynchronize", stream)

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        self._driver("cuMemcpyDtoDAsync_v2", to, source, size, stream)

    def mirror(self, size: int) -> Mirror:
        return _GpuMirror(self._driver, size)

    def free_memory(self) -> int:
        return self._driver.memory()[0]


class _GpuMirror:
    """Page-locked memory, and an event that says when the copy into it is done."""

    def __init__(self, driver: Driver, size: int) -> None:
        self._driver, self._size = driver, size
        self._memory, self._event = c_void_p(), c_void_p()
        driver("cuMemAllocHost_v2", byref(self._memory), size)
        driver("cuEventCreate", byref(self._event), 2)  # CU_EVENT_DISABLE_TIMING
        self._started = False
        self.close = weakref.finalize(self, _free_mirror, driver, self._memory, self._event)

    def start(self, sources: Sequence[tuple[int, int]], stream: int) -> None:
        at = self._memory.value or 0
        for address, size in sources:
            self._driver("cuMemcpyDtoHAsync_v2", at, address, size, stream)
            at += size
        self._driver("cuEventRecord", self._event, stream)
        self._started = True

    def poll(self) -> bytes | None:
        if not self._started or not self._driver.is_done(self._event):
            return None
        return ctypes.string_at(self._memory.value or 0, self._size)


def _free_mirror(driver: Driver, memory: c_void_p, event: c_void_p) -> None:
    with contextlib.suppress(DriverError):  # the context may be lost
        driver("cuEventDestroy_v2", event)
        driver("cuMemFreeHost", memory)


class _GpuKernels:
    def __init__(self, driver: Driver, device: int, ptx: str, registers: int) -> None:
        self._driver = driver
        module = driver.load(device, ptx, registers)
        self._functions = {name: driver.function(module, name) for name in KERNELS}
        facts = np.frombuffer(driver.read_global(module, "shoal_facts"), np.uint32)
        self.unit, self.block, size = map(int, facts)
        self.words = size // 8
        self._module = module

    def launch(self, name: str, blocks: int, threads: int, address: int, stream: int) -> None:
        arguments = (c_void_p * 1)(address)
        sizes = blocks, 1, 1, threads, 1, 1
        self._driver("cuLaunchKernel", self._functions[name], *sizes, 0, stream, arguments, None)


class Emulated:
    """The CPU: the same kernels, in which a loop takes the place of the threads."""

    index = 0
    name = "emulated"
    multiprocessors = 1

    def __init__(self, flags: tuple[str, ...] = ()) -> None:
        self._flags = flags

    def enter(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def synchronize(self) -> None: ...

    def is_capturing(self, stream: int) -> bool:
        return False

    def load(self, info: PluginInfo, source: Path) -> Kernels:
        return _Library(build_library(info, source, flags=self._flags))

    def read(self, address: int, size: int, stream: int) -> bytes:
        return ctypes.string_at(address, size)

    def write(self, address: int, data: bytes | NDArray[Any], stream: int) -> None:
        held = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
        ctypes.memmove(address, held.ctypes.data, held.nbytes)

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        ctypes.memmove(to, source, size)

    def mirror(self, size: int) -> Mirror:
        return _HostMirror()

    def free_memory(self) -> int:
        return 2**62


class _HostMirror:
    def __init__(self) -> None:
        self._seen: bytes | None = None

    def start(self, sources: Sequence[tuple[int, int]], stream: int) -> None:
        self._seen = b"".join(ctypes.string_at(address, size) for address, size in sources)

    def poll(self) -> bytes | None:
        return self._seen

    def close(self) -> None: ...


class _Library:
    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._functions = {name: getattr(library, name) for name in KERNELS}
        for function in self._functions.values():
            function.argtypes, function.restype = (c_void_p, c_uint32), None
        facts = (c_uint32 * 3).in_dll(library, "shoal_facts")
        self.unit, self.block, size = facts
        self.words = size // 8

    def launch(self, name: str, blocks: int, threads: int, address: int, stream: int) -> None:
        self._functions[name](address, blocks)


def open_device(name: str) -> Device:
    """Opens "cuda", "cuda:1" or "emulated"."""
    if name == "emulated":
        return Emulated()
    kind, _, number = name.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise ValueError(f'device must be "cpu", "cuda", "cuda:N" or "emulated", got {name!r}')
    return Gpu(int(number or 0))
