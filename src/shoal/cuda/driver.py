"""The CUDA driver through ctypes: two dozen functions of libcuda, which comes with NVIDIA's driver.

The package cuda-bindings has all of them, but it would be one more dependency of a fixed CUDA version; these
functions have been the same since CUDA 11.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from shoal.errors import ShoalError

__all__ = ["Driver", "DriverError", "open_driver"]

_NOT_READY = 600
_LOST = {700, 702, 709, 710, 714, 715, 716, 717, 718, 719}
"""After these errors every call in the context fails."""

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuCtxGetCurrent": (c_void_p,),
    "cuMemGetInfo_v2": (c_void_p, c_void_p),
    "cuModuleLoadDataEx": (c_void_p, c_char_p, c_uint, c_void_p, c_void_p),
    "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuModuleGetGlobal_v2": (c_void_p, c_void_p, c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemAllocHost_v2": (c_void_p, c_size_t),
    "cuMemFreeHost": (c_void_p,),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamIsCapturing": (c_void_p, c_void_p),
    "cuGetErrorName": (c_int, c_void_p),
    "cuGetErrorString": (c_int, c_void_p),
}


class DriverError(ShoalError):
    """A call of the CUDA driver failed."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code=code)
        self.code = code

    @property
    def is_lost(self) -> bool:
        """Whether every later call of this process will fail too."""
        return self.code in _LOST


class Driver:
    """libcuda, with an exception for every error."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._calls: dict[str, Any] = {}
        for name, types in _SIGNATURES.items():
            call = getattr(library, name)
            call.argtypes, call.restype = types, c_int
            self._calls[name] = call
        self._contexts: dict[int, c_void_p] = {}
        self._modules: dict[tuple[int, int, str], c_void_p] = {}
        self._lock = threading.Lock()
        self("cuInit", 0)

    def __call__(self, name: str, *arguments: Any) -> None:
        code = self._calls[name](*arguments)
        if code != 0:
            raise DriverError(self._describe(name, code), code)

    def _describe(self, name: str, code: int) -> str:
        texts = []
        for call in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            self._calls[call](code, byref(text))
            texts.append((text.value or b"?").decode())
        what = f"{name} failed: {texts[0]} ({code}): {texts[1]}"
        if code in _LOST:
            what += (
                ". A kernel failed earlier, and this process cannot use the GPU any more. If it was an "
                "environment's, `shoal check --device cuda ENV.c` finds out which function does it"
            )
        return what

    def is_done(self, event: c_void_p) -> bool:
        """Whether the work before an event is done."""
        code = self._calls["cuEventQuery"](event)
        if code not in (0, _NOT_READY):
            raise DriverError(self._describe("cuEventQuery", code), code)
        return bool(code == 0)

    def count(self) -> int:
        count = c_int()
        self("cuDeviceGetCount", byref(count))
        return count.value

    def name(self, device: int) -> str:
        text = ctypes.create_string_buffer(128)
        self("cuDeviceGetName", text, len(text), device)
        return text.value.decode()

    def multiprocessors(self, device: int) -> int:
        count = c_int()
        self("cuDeviceGetAttribute", byref(count), 16, device)  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        return count.value

    def version(self) -> str:
        number = c_int()
        self("cuDriverGetVersion", byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    @contextmanager
    def enter(self, device: int) -> Iterator[None]:
        """Makes the device's primary context current, which torch and others use too; then the last one."""
        with self._lock:
            context = self._contexts.get(device)
            if context is None:
                context = c_void_p()
                self("cuDevicePrimaryCtxRetain", byref(context), device)
                self._contexts[device] = context
        current = c_void_p()
        self("cuCtxGetCurrent", byref(current))
        if current.value == context.value:
            yield
            return
        self("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            with contextlib.suppress(DriverError):  # a lost context must not hide the error
                self("cuCtxPopCurrent_v2", byref(c_void_p()))

    def is_capturing(self, stream: int) -> bool:
        """Whether work on this stream becomes part of a CUDA graph."""
        status = c_int()
        self("cuStreamIsCapturing", stream, byref(status))
        return status.value != 0

    def memory(self) -> tuple[int, int]:
        """Returns the free and the total bytes of the current device."""
        free, total = c_size_t(), c_size_t()
        self("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def load(self, device: int, ptx: str, registers: int) -> c_void_p:
        """Compiles PTX for the current device, once in a process; the error has the compiler's messages.

        A thread uses at most so many registers.
        """
        key = device, registers, hashlib.sha256(ptx.encode()).hexdigest()
        with self._lock:
            if key not in self._modules:
                self._modules[key] = self._compile(ptx, registers)
            return self._modules[key]

    def _compile(self, ptx: str, registers: int) -> c_void_p:
        module, log = c_void_p(), ctypes.create_string_buffer(8192)
        names = (c_int * 3)(5, 6, 0)  # CU_JIT_ERROR_LOG_BUFFER and its size, CU_JIT_MAX_REGISTERS
        values = (c_void_p * 3)(ctypes.addressof(log), len(log), registers)
        try:
            self("cuModuleLoadDataEx", byref(module), ptx.encode(), 3, names, values)
        except DriverError as error:
            text = log.value.decode(errors="replace").strip()
            raise DriverError(f"{error}\n{text}" if text else str(error), error.code) from None
        return module

    def function(self, module: c_void_p, name: str) -> c_void_p:
        found = c_void_p()
        self("cuModuleGetFunction", byref(found), module, name.encode())
        return found

    def read_global(self, module: c_void_p, name: str) -> bytes:
        """Returns the bytes of a variable of a module."""
        address, size = c_uint64(), c_size_t()
        self("cuModuleGetGlobal_v2", byref(address), byref(size), module, name.encode())
        text = ctypes.create_string_buffer(size.value)
        self("cuMemcpyDtoHAsync_v2", text, address, size, None)
        self("cuStreamSynchronize", None)
        return text.raw


@cache
def open_driver() -> Driver:
    """Opens libcuda; raises ShoalError if there is no driver or no GPU."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ShoalError(
            'device="cuda" needs an NVIDIA GPU and its driver, and libcuda.so.1 was not found '
            f"({error}). Leave device out to step the environments on the CPU; `shoal doctor` says what is "
            "missing"
        ) from None
    try:
        driver = Driver(library)
        count = driver.count()
    except (DriverError, AttributeError) as error:
        raise ShoalError(f'device="cuda": the NVIDIA driver cannot be used: {error}') from None
    if count == 0:
        raise ShoalError('device="cuda": the NVIDIA driver found no GPU (is CUDA_VISIBLE_DEVICES empty?)')
    return driver
