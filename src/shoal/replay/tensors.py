"""Batches as torch tensors. torch is imported when the first one is requested.

cpu     rows are copied into free arrays of the buffer, and the tensors share the memory of these arrays
cuda    rows are copied into page-locked memory, and from there to the device while the program continues:

        set 0   gather  copy . . . . event          gather (after the event)  copy . . .
        set 1                   gather  copy . . . . event

others  like cpu, followed by a copy to the device
"""

from __future__ import annotations

import importlib
import math
import sys
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from shoal.replay.batches import Batch, Kind, PrioritizedBatch

if TYPE_CHECKING:
    from shoal.replay.sampling import Sampling

__all__ = ["Tensors", "has_cuda", "resolve_device", "warn_once"]

_SETS = 2
_LINE = 64


_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Warns at the line of the program that called Shoal, but only once for each message."""
    if message in _warned:
        return
    _warned.add(message)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("shoal."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def has_cuda(torch: Any) -> bool:
    """Whether there is a CUDA device. Warns once if there is none."""
    if torch.cuda.is_available():
        return True
    warn_once("torch finds no CUDA device: tensors stay in the CPU's memory and nothing is pinned")
    return False


def resolve_device(torch: Any, device: Any) -> Any:
    """Returns the torch device; the CPU if CUDA is requested and there is no CUDA device."""
    place = torch.device(device)
    return place if place.type != "cuda" or has_cuda(torch) else torch.device("cpu")


class Tensors:
    """Makes batches of one buffer as tensors."""

    def __init__(self) -> None:
        try:
            self._torch: Any = importlib.import_module("torch")
        except ImportError as error:
            raise ImportError(
                'device= returns torch tensors, and torch is not installed: pip install "shoal[torch]", or '
                "leave device out for NumPy arrays"
            ) from error
        self._stagings: dict[int, _Staging] = {}

    def sample(self, device: Any, sampling: Sampling[Kind], n: int, options: tuple[Any, ...]) -> Kind:
        """Returns a batch of tensors on a device."""
        torch = self._torch
        place = resolve_device(torch, device)
        if place.type == "cuda":
            return self._get_staging(place).sample(sampling, n, options)
        batch = sampling.lease(n, options)
        return _replace_arrays(
            batch, {name: torch.from_numpy(array).to(place) for name, array in _arrays(batch)}
        )

    def _get_staging(self, place: Any) -> _Staging:
        index = self._torch.cuda.current_device() if place.index is None else place.index
        if index not in self._stagings:
            self._stagings[index] = _Staging(self._torch, self._torch.device("cuda", index))
        return self._stagings[index]


class _Staging:
    """The page-locked memory for copies to one CUDA device."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._sets: deque[_PinnedSet] = deque()  # the first is the one whose copies started first

    def sample(self, sampling: Sampling[Kind], n: int, options: tuple[Any, ...]) -> Kind:
        # A set belongs to this call until its copies have started. If a copy fails, the set is dropped; torch
        # itself keeps page-locked memory alive while a copy reads from it.
        staged = self._sets.popleft() if len(self._sets) >= _SETS else _PinnedSet(self._torch)
        batch = staged.make_batch(sampling, n)
        sampling.fill(batch, options)
        moved = {name: tensor.to(self._device, non_blocking=True) for name, tensor in staged.tensors.items()}
        staged.copied.record(self._torch.cuda.current_stream(self._device))
        self._sets.append(staged)
        return _replace_arrays(batch, moved)


class _PinnedSet:
    """Page-locked memory for one batch, and the event after which it may be sample again."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.copied = torch.cuda.Event()
        self.tensors: dict[str, Any] = {}
        self._memory: Any = None
        self._arrays: dict[str, NDArray[Any]] = {}
        self._laid_out: Any = None

    def make_batch(self, sampling: Sampling[Kind], n: int) -> Kind:
        """Waits until no copy reads this memory, and returns a batch over it."""
        self.copied.synchronize()
        if (sampling, n) != self._laid_out:
            self._lay_out(sampling.empty(), n)
            self._laid_out = sampling, n
        batch = sampling.wrap(n, {name: self._arrays[name] for name in sampling.specs})
        if isinstance(batch, PrioritizedBatch):
            batch.weights = self._arrays[_WEIGHTS]
        return batch

    def _lay_out(self, like: Batch, n: int) -> None:
        places, end = [], 0
        for name, array in _arrays(like):
            size = n * math.prod(array.shape[1:]) * array.itemsize
            places.append((name, array, end, size))
            end += -(-size // _LINE) * _LINE
        torch = self._torch
        if self._memory is None or self._memory.numel() < end:
            self._memory = torch.empty(end, dtype=torch.uint8, pin_memory=True)
        self.tensors = {
            name: self._memory[at : at + size].view(torch.from_numpy(array).dtype).view(n, *array.shape[1:])
            for name, array, at, size in places
        }
        self._arrays = {name: tensor.numpy() for name, tensor in self.tensors.items()}


_WEIGHTS = ""  # a name that no field can have


def _arrays(batch: Batch) -> list[tuple[str, NDArray[Any]]]:
    """Returns the arrays that become tensors. The ids stay an array, since the buffer takes them back."""
    weights = [(_WEIGHTS, batch.weights)] if isinstance(batch, PrioritizedBatch) else []
    return [*batch.items(), *weights]


def _replace_arrays(batch: Kind, tensors: dict[str, Any]) -> Kind:
    """Returns a batch with these tensors instead of the arrays."""
    whole = type(batch)({name: tensors[name] for name in batch})
    whole.ids = batch.ids
    if isinstance(whole, PrioritizedBatch):
        whole.weights = tensors[_WEIGHTS]
    return whole
