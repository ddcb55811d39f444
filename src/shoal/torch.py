"""Results as torch tensors: the same memory on the CPU, and a way to a GPU that nothing waits for.

    slot, leased --tensors()--> CPU tensors in the same memory; who holds one holds the lease
      |  pin(): registered with CUDA once, as long as the memory lives
      +--to_device()--> copy under way ... event --> only now may the slot be filled again

torch knows when memory of its own is still being copied from, but not memory like this: a tensor that is let
go right after `.to("cuda", non_blocking=True)` gives its lease back while the copy still reads. `to_device`
and `Prefetcher` hold the lease until the copy is over.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ShoalError
from shoal.memory import Segment
from shoal.replay import ReplayBuffer
from shoal.replay.tensors import has_cuda, placed, say_once
from shoal.vector import Rollout, VectorEnv

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "shoal.torch needs PyTorch, which is not installed: pip install torch", name=error.name
    ) from error

__all__ = ["Prefetcher", "Step", "pin", "tensors", "to_device"]


def tensors(value: Any) -> Any:
    """Arrays, nested as they are, as tensors in the same memory. A tensor holds the lease of its array.

    >>> envs = shoal.make_vec("CartPole-v1", 8)
    >>> observation = shoal.torch.tensors(envs.reset(seed=0)[0])
    >>> observation.shape
    torch.Size([8, 4])
    """
    return _mapped(torch.from_numpy, value)


def to_device(value: Any, device: Any) -> Any:
    """Arrays, nested as they are, as tensors on a device. Nothing is waited for, and nothing lent is given
    back before its copy is over. On the CPU, and without a CUDA device, they are `tensors(value)`.
    """
    place = placed(torch, device)
    if place.type == "cpu":
        return tensors(value)
    moved = _mapped(lambda array: torch.from_numpy(array).to(place, non_blocking=True), value)
    if place.type == "cuda":
        _held.until(_recorded(place), value)
    return moved


def pin(what: Any) -> bool:
    """Registers memory with CUDA, so that copies from it run at full speed while the program goes on.

    `what` is a vector environment (all it lends, now and later), a Rollout, a Segment, or arrays of them.
    It stays registered as long as the memory lives: undone when the environments are closed and their
    arrays let go. Returns False where there is no CUDA device, and says so once.

    >>> envs = shoal.make_vec("CartPole-v1", 8)
    >>> pinned = shoal.torch.pin(envs)
    """
    if isinstance(what, ReplayBuffer):
        raise TypeError('a ReplayBuffer is not pinned whole: sample(n, device="cuda") goes by pinned memory')
    lent = _lender(what)
    mappings = [] if lent is not None else _mappings(what)
    if not has_cuda(torch):
        return False
    for mapping in mappings:
        refusal = _register(mapping)
        if refusal:
            raise RuntimeError(
                f"CUDA does not register these {mapping.size_bytes} bytes: {refusal}. It takes anonymous and "
                "named segments, not those in files, as much as may be locked in memory"
            )
    if lent is not None:
        lent.subscribe(_register_later)
    return True


class Step(NamedTuple):
    """What a part of the environments gave, on the device; `info["env_id"]` says which they are."""

    observations: Any
    rewards: Any
    terminated: Any
    truncated: Any
    info: dict[str, Any]


class Prefetcher:
    """Steps one part of the environments while another is on its way to the device or in the policy.

    envs = shoal.make_vec("Pixels-v0", 512, batch_size=256)
    prefetch = shoal.torch.Prefetcher(envs, seed=0)
    for step in prefetch:                          # 256 environments, on the GPU
        prefetch.send(policy(step.observations))

    part A   policy on the GPU        | stepped                    | copied | policy ...
    part B   stepped         | copied | policy on the GPU          | stepped ...
    """

    def __init__(self, envs: VectorEnv, device: Any = None, *, seed: int | None = None) -> None:
        """`device` None: the GPU if there is one, else the CPU. The environments are reset."""
        if not isinstance(envs, VectorEnv):
            raise TypeError(f"Prefetcher takes what shoal.make_vec returns, got {type(envs).__name__}")
        batch = envs.batch_size
        if batch is None or 2 * batch > envs.num_envs:
            raise ValueError(
                f"Prefetcher needs parts that take turns: {envs.num_envs} environments with "
                f"batch_size={envs.num_envs // 2 or 1} or less (at least two parts), found batch_size={batch}"
            )
        if device is None:
            device = "cuda" if has_cuda(torch) else "cpu"
        self.envs, self.device = envs, placed(torch, device)
        self._stream: Any = None
        if self.device.type == "cuda":
            pin(envs)
            self._stream = torch.cuda.Stream(self.device)
        envs.async_reset(seed)
        self._under_way = envs.num_envs
        self._given: NDArray[Any] | None = None  # the environments whose actions are to be sent next
        self._ahead: tuple[Step, Any] | None = None  # a part on its way, and the event after its copy
        self._actions: dict[Any, Any] = {}  # page-locked memory for them, by shape and type

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        if self._given is not None:
            raise ShoalError("send() the actions of the last step before the next one is asked for")
        step, copied = self._ahead or self._received()
        self._ahead = None
        self._given = step.info["env_id"]
        if copied is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(copied)
            # The tensors were made in the other stream; their memory must not go back to it too early.
            _mapped(lambda tensor: tensor.record_stream(stream), step[:4])
        return step

    def send(self, actions: Any) -> None:
        """The actions of the last step, on any device. While they are computed the next part is fetched."""
        if self._given is None:
            raise ShoalError("there is nothing to send actions to; take a step first: `for step in prefetch`")
        ready = torch.cuda.Event() if self._stream is not None else None
        chosen = _mapped(self._fetched, actions)
        if ready is not None:
            ready.record(torch.cuda.current_stream(self.device))
        if self._ahead is None and self._under_way >= int(self.envs.batch_size or 0):
            self._ahead = self._received()
        if ready is not None:
            ready.synchronize()
        self.envs.send(_mapped(np.asarray, chosen), self._given)
        self._under_way += len(self._given)
        self._given = None

    def _received(self) -> tuple[Step, Any]:
        *results, info = self.envs.recv()
        self._under_way -= len(info["env_id"])
        if self._stream is None:
            return Step._make((*to_device(results, self.device), info)), None
        with torch.cuda.stream(self._stream):
            return Step._make((*to_device(results, self.device), info)), _recorded(self.device)

    def _fetched(self, actions: Any) -> Any:
        """Actions on their way to the host."""
        if not isinstance(actions, torch.Tensor):
            return actions
        actions = actions.detach()
        if self._stream is None or actions.device.type != "cuda":
            return actions.cpu()
        key = tuple(actions.shape), actions.dtype
        if key not in self._actions:
            self._actions[key] = torch.empty(actions.shape, dtype=actions.dtype, pin_memory=True)
        return self._actions[key].copy_(actions, non_blocking=True)


# -- leases held until a copy is over ---------------------------------------------------------------------


class _Held:
    """What copies still read, until their events have passed. Looked through with every new copy."""

    def __init__(self) -> None:
        self._copies: list[tuple[Any, Any]] = []
        self._lock = threading.Lock()

    def until(self, event: Any, value: Any) -> None:
        with self._lock:
            self._copies = [copy for copy in self._copies if not copy[0].query()]
            self._copies.append((event, value))


_held = _Held()


def _recorded(device: Any) -> Any:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


# -- memory registered with CUDA --------------------------------------------------------------------------

_pins: weakref.WeakSet[_core.Mapping] = weakref.WeakSet()


def _register(mapping: _core.Mapping) -> str:
    """Registers a mapping, once, or says why not. CUDA forgets it before it is unmapped."""
    if mapping in _pins:
        return ""
    torch.cuda.init()
    runtime = torch.cuda.cudart()
    code = runtime.cudaHostRegister(mapping.address, mapping.size_bytes, 0)
    if int(code) != 0:
        with contextlib.suppress(RuntimeError):  # CUDA would tell whoever asks it for something next
            torch.zeros(1, device="cuda")
        return str(runtime.cudaGetErrorString(code))
    _pins.add(mapping)
    # Finalizers run before the memory goes.
    weakref.finalize(mapping, runtime.cudaHostUnregister, mapping.address)
    return ""


def _register_later(mapping: _core.Mapping) -> None:
    # In the middle of somebody's step: slower is better than not at all.
    refusal = _register(mapping)
    if refusal:
        say_once(f"CUDA did not register memory of results ({refusal}); copies from it are slower")


def _lender(what: Any) -> Any:
    inner = getattr(what, "unwrapped", what)  # Gymnasium's wrappers
    return inner.leased_memory if isinstance(inner, VectorEnv) else None


def _mappings(what: Any) -> list[_core.Mapping]:
    if isinstance(what, Segment):
        return [what.mapping]
    if isinstance(what, Rollout):
        what = [what.observations]
    found: list[_core.Mapping] = []
    _mapped(lambda array: found.append(_mapping(array)), what)
    return list({mapping.address: mapping for mapping in found}.values())


def _mapping(array: Any) -> _core.Mapping:
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, _core.Mapping):
        return base
    raise TypeError(
        "pin takes a vector environment, a Rollout, a Segment or arrays of them; found "
        + ("an array that is not in a segment" if isinstance(array, np.ndarray) else type(array).__name__)
    )


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """A value with a function applied to each of its arrays or tensors."""
    if isinstance(value, dict):
        return {key: _mapped(function, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_mapped(function, item) for item in value)
    return function(value)
