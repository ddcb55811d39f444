"""The array libraries that results can be: torch, CuPy, JAX, and NumPy for the emulated device.

Each library allocates the memory itself, so results are ordinary arrays of it: the memory returns to its
allocator with the last of them, and the allocator knows the streams that use it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from shoal.cuda.device import Device
from shoal.errors import ShoalError

__all__ = ["Arrays", "choose_arrays"]


class Arrays(Protocol):
    """Allocates arrays on one device."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any: ...

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any: ...

    def address(self, array: Any) -> int: ...

    def stream(self) -> int:
        """Returns the caller's current stream."""

    def cached_bytes(self) -> int:
        """Returns the bytes of the device that the library keeps and does not use."""

    def take(self, value: Any, what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Returns a contiguous array of this library with the user's values; raises if they are elsewhere."""

    def export(self, array: Any) -> Any:
        """Returns what the user gets for an array."""


def choose_arrays(name: str | None, device: Device) -> Arrays:
    """Returns the library that `array=` names; None: torch, or NumPy for the emulated device."""
    emulated = device.name == "emulated"
    chosen = name or ("numpy" if emulated else "torch")
    if chosen == "numpy":
        if not emulated:
            raise ValueError('array must be "torch", "cupy" or "jax" for a GPU, got "numpy"')
        return _NumPy()
    if chosen == "torch":
        return _Torch(device)
    if chosen in ("cupy", "jax") and not emulated:
        return _CuPy(device) if chosen == "cupy" else _Jax(device)
    allowed = '"numpy" or "torch" for the emulated device' if emulated else '"torch", "cupy" or "jax"'
    raise ValueError(f"array must be {allowed}, got {name!r}")


def _import(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ShoalError(
            f"results on a GPU are arrays of {package}, which is not installed: pip install {package}, or "
            'choose another library with array="torch", "cupy" or "jax"'
        ) from error


def _require(value: Any, what: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Raises if an array on the right device has another shape or dtype."""
    if value.shape != shape:
        raise ValueError(f"{what}: expected shape {shape}, found {tuple(value.shape)}; nothing was done")
    if value.dtype != dtype:
        raise TypeError(f"{what}: expected dtype {dtype}, found {value.dtype}; nothing was done")


class _NumPy:
    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        return np.zeros(shape, dtype)

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    def stream(self) -> int:
        return 0

    def cached_bytes(self) -> int:
        return 0

    def take(self, value: Any, what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        array = np.asarray(value)
        _require(array, what, shape, dtype)
        return np.ascontiguousarray(array)

    def export(self, array: Any) -> Any:
        return array


class _Torch:
    def __init__(self, device: Device) -> None:
        self._torch = torch = _import("torch", "torch")
        on_gpu = device.name != "emulated"
        if on_gpu and not torch.cuda.is_available():
            raise ShoalError(
                "torch is installed without CUDA, or does not see the GPU: torch.cuda.is_available() is "
                "False. Install a CUDA build of torch"
            )
        self._device = torch.device("cuda", device.index) if on_gpu else torch.device("cpu")
        self._name = str(self._device)
        self._dtypes: dict[Any, Any] = {}

    def _dtype(self, dtype: DTypeLike) -> Any:
        found = self._dtypes.get(dtype)
        if found is None:
            found = self._dtypes[dtype] = getattr(self._torch, np.dtype(dtype).name)
        return found

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        return self._torch.empty(shape, dtype=self._dtype(dtype), device=self._device)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        return self._torch.zeros(shape, dtype=self._dtype(dtype), device=self._device)

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def stream(self) -> int:
        if self._device.type == "cpu":
            return 0
        return int(self._torch.cuda.current_stream(self._device).cuda_stream)

    def cached_bytes(self) -> int:
        if self._device.type == "cpu":
            return 0
        cuda = self._torch.cuda
        return int(cuda.memory_reserved(self._device) - cuda.memory_allocated(self._device))

    def take(self, value: Any, what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        torch = self._torch
        if not isinstance(value, torch.Tensor):
            if not hasattr(value, "__dlpack__") or isinstance(value, np.ndarray):
                raise TypeError(
                    f"{what}: expected a tensor on {self._device}, found {type(value).__name__}; use "
                    f"torch.as_tensor(..., device={str(self._device)!r})"
                )
            value = torch.from_dlpack(value)
        if value.device != self._device:
            raise ValueError(
                f"{what}: expected a tensor on {self._name}, found one on {value.device}; use "
                f".to({self._name!r}). Nothing was done"
            )
        _require(value, what, shape, self._dtype(dtype))
        return value if value.is_contiguous() else value.contiguous()

    def export(self, array: Any) -> Any:
        return array


class _CuPy:
    def __init__(self, device: Device) -> None:
        self._cupy, self._index = _import("cupy", "cupy"), device.index

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        with self._cupy.cuda.Device(self._index):
            return self._cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        with self._cupy.cuda.Device(self._index):
            return self._cupy.zeros(shape, dtype)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def stream(self) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def cached_bytes(self) -> int:
        return int(self._cupy.get_default_memory_pool().free_bytes())

    def take(self, value: Any, what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        if not isinstance(value, self._cupy.ndarray):
            if not hasattr(value, "__dlpack__") or isinstance(value, np.ndarray):
                raise TypeError(
                    f"{what}: expected an array on cuda:{self._index}, found {type(value).__name__}; use "
                    "cupy.asarray(...)"
                )
            value = self._cupy.from_dlpack(value)
        if value.device.id != self._index:
            raise ValueError(
                f"{what}: expected an array on cuda:{self._index}, found one on cuda:{value.device.id}; copy "
                "it there first. Nothing was done"
            )
        _require(value, what, shape, dtype)
        return self._cupy.ascontiguousarray(value)

    def export(self, array: Any) -> Any:
        return array


class _Jax:
    """JAX's arrays cannot be written, so CuPy or torch allocates the memory; JAX gets it through DLPack."""

    def __init__(self, device: Device) -> None:
        self._jax = _import("jax", "jax")
        found = importlib.util.find_spec("cupy") is not None
        self._base: Any = _CuPy(device) if found else _Torch(device)
        self.empty, self.zeros, self.stream = self._base.empty, self._base.zeros, self._base.stream
        self.take, self.address = self._base.take, self._base.address
        self.cached_bytes = self._base.cached_bytes

    def export(self, array: Any) -> Any:
        return self._jax.dlpack.from_dlpack(array)
