"""Batches as torch tensors. torch is imported with the first one that is asked for.

cpu     rows are gathered into arrays of the buffer that nobody holds, and the tensors are those arrays
cuda    rows are gathered into page-locked memory and copied from there while the program goes on:

        set 0   gather  copy . . . . event          gather (after the event)  copy . . .
        set 1                   gather  copy . . . . event

others  the same, and copied
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

__all__ = ["Tensors", "has_cuda", "placed", "say_once"]

_SETS = 2
_LINE = 64


_said: set[str] = set()


def say_once(message: str) -> None:
    """A warning of the program that called Shoal, the first time only."""
    if message in _said:
        return
    _said.add(message)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("shoal."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def has_cuda(torch: Any) -> bool:
    """Whether there is a CUDA device; if not, that is said once, and what would have used it goes on."""
    if torch.cuda.is_available():
        return True
    say_once("torch finds no CUDA device: tensors stay in the CPU's memory and nothing is pinned")
    return False


def placed(torch: Any, device: Any) -> Any:
    """That device; the CPU in place of CUDA where there is none."""
    place = torch.device(device)
    return place if place.type != "cuda" or has_cuda(torch) else torch.device("cpu")


class Tensors:
    """Gives the batches of one buffer as tensors."""

    def __init__(self) -> None:
        try:
            self._torch: Any = importlib.import_module("torch")
        except ImportError as error:
            raise ImportError(
                'device= gives torch tensors, and torch is not installed: pip install "shoal[torch]", or '
                "leave device out for NumPy arrays"
            ) from error
        self._lanes: dict[int, _Lane] = {}

    def filled(self, device: Any, way: Sampling[Kind], n: int, options: tuple[Any, ...]) -> Kind:
        """A batch of tensors on a device."""
        torch = self._torch
        place = placed(torch, device)
        if place.type == "cuda":
            return self._lane(place).filled(way, n, options)
        batch = way.lease(n, options)
        return _mapped(batch, {name: torch.from_numpy(array).to(place) for name, array in _arrays(batch)})

    def _lane(self, place: Any) -> _Lane:
        index = self._torch.cuda.current_device() if place.index is None else place.index
        if index not in self._lanes:
            self._lanes[index] = _Lane(self._torch, self._torch.device("cuda", index))
        return self._lanes[index]


class _Lane:
    """The way to one CUDA device."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._sets: deque[_Set] = deque()  # the one whose copies began the longest ago first

    def filled(self, way: Sampling[Kind], n: int, options: tuple[Any, ...]) -> Kind:
        # A set belongs to this call until its copies are on their way. If one fails the set is dropped;
        # torch itself keeps page-locked memory that a copy reads from.
        staged = self._sets.popleft() if len(self._sets) >= _SETS else _Set(self._torch)
        batch = staged.begun(way, n)
        way.fill(batch, options)
        moved = {name: tensor.to(self._device, non_blocking=True) for name, tensor in staged.tensors.items()}
        staged.copied.record(self._torch.cuda.current_stream(self._device))
        self._sets.append(staged)
        return _mapped(batch, moved)


class _Set:
    """Page-locked memory for one batch, and the event after which it may be filled again."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.copied = torch.cuda.Event()
        self.tensors: dict[str, Any] = {}
        self._memory: Any = None
        self._arrays: dict[str, NDArray[Any]] = {}
        self._laid_out: Any = None

    def begun(self, way: Sampling[Kind], n: int) -> Kind:
        """A batch over this memory, once nobody reads it any more."""
        self.copied.synchronize()
        if (way, n) != self._laid_out:
            self._lay_out(way.empty(), n)
            self._laid_out = way, n
        batch = way.begun(n, {name: self._arrays[name] for name in way.specs})
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


_WEIGHTS = ""  # no field has this name


def _arrays(batch: Batch) -> list[tuple[str, NDArray[Any]]]:
    """All that becomes tensors. The ids stay an array: they go back to the buffer."""
    weights = [(_WEIGHTS, batch.weights)] if isinstance(batch, PrioritizedBatch) else []
    return [*batch.items(), *weights]


def _mapped(batch: Kind, tensors: dict[str, Any]) -> Kind:
    """The batch with tensors in place of its arrays."""
    whole = type(batch)({name: tensors[name] for name in batch})
    whole.ids = batch.ids
    if isinstance(whole, PrioritizedBatch):
        whole.weights = tensors[_WEIGHTS]
    return whole
