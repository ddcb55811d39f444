"""Results as torch tensors: in the same memory on the CPU, and copied to a GPU asynchronously.

    leased slot --tensors()--> CPU tensors in the same memory; each tensor holds the lease
      |  pin(): registers the memory with CUDA once, until it is unmapped
      +--to_device()--> asynchronous copy ... event --> only now may the slot be filled again

torch tracks asynchronous copies from memory that it allocated, but not from shared memory: a tensor that is
deleted right after `.to("cuda", non_blocking=True)` returns its lease while the copy still reads the memory.
`to_device` and `Prefetcher` hold the lease until the copy has finished.
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
from shoal.replay.tensors import has_cuda, resolve_device, warn_once
from shoal.vector import Rollout, VectorEnv

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "shoal.torch needs PyTorch, which is not installed: pip install torch", name=error.name
    ) from error

__all__ = ["Prefetcher", "Step", "pin", "tensors", "to_device"]


def tensors(value: Any) -> Any:
    """Returns nested arrays as tensors in the same memory. A tensor holds the lease of its array.

    >>> envs = shoal.make_vec("CartPole-v1", 8)
    >>> observation = shoal.torch.tensors(envs.reset(seed=0)[0])
    >>> observation.shape
    torch.Size([8, 4])
    """
    return _map_arrays(torch.from_numpy, value)


def to_device(value: Any, device: Any) -> Any:
    """Returns nested arrays as tensors on a device; the asynchronous copy holds the leases until it ends.

    For the CPU, and if there is no CUDA device, the result is `tensors(value)`.
    """
    place = resolve_device(torch, device)
    if place.type == "cpu":
        return tensors(value)
    moved = _map_arrays(lambda array: torch.from_numpy(array).to(place, non_blocking=True), value)
    if place.type == "cuda":
        _leases.hold_until(_record_event(place), value)
    return moved


def pin(what: Any) -> bool:
    """Registers memory with CUDA (page-locks it), so that copies from it are fast and asynchronous.

    `what` is a vector environment (all memory that it lends, now and later), a Rollout, a Segment, or arrays
    of them. The memory stays registered until it is unmapped: when the environments are closed and their
    arrays are deleted. Returns False if there is no CUDA device, and warns about it once.

    >>> envs = shoal.make_vec("CartPole-v1", 8)
    >>> pinned = shoal.torch.pin(envs)
    """
    if isinstance(what, ReplayBuffer):
        raise TypeError(
            'a ReplayBuffer cannot be pinned as a whole; use sample(n, device="cuda"), which copies through '
            "pinned memory"
        )
    lent = _lender(what)
    mappings = [] if lent is not None else _mappings(what)
    if not has_cuda(torch):
        return False
    for mapping in mappings:
        problem = _register(mapping)
        if problem:
            raise RuntimeError(
                f"CUDA does not register these {mapping.size_bytes} bytes: {problem}. Use an anonymous or "
                "named segment (file segments cannot be registered), and check `ulimit -l`"
            )
    if lent is not None:
        lent.subscribe(_register_later)
    return True


class Step(NamedTuple):
    """The results of some of the environments, on the device; `info["env_id"]` has their ids."""

    observations: Any
    rewards: Any
    terminated: Any
    truncated: Any
    info: dict[str, Any]


class Prefetcher:
    """Steps one part of the environments while the results of another are copied or used by the policy.

    envs = shoal.make_vec("Pixels-v0", 512, batch_size=256)
    prefetch = shoal.torch.Prefetcher(envs, seed=0)
    for step in prefetch:                          # 256 environments, on the GPU
        prefetch.send(policy(step.observations))

    part A   policy on the GPU        | stepped                    | copied | policy ...
    part B   stepped         | copied | policy on the GPU          | stepped ...
    """

    def __init__(self, envs: VectorEnv, device: Any = None, *, seed: int | None = None) -> None:
        """Resets the environments. `device` None: the GPU if there is one, else the CPU."""
        if not isinstance(envs, VectorEnv):
            raise TypeError(f"Prefetcher needs the result of shoal.make_vec, got {type(envs).__name__}")
        batch = envs.batch_size
        if batch is None or 2 * batch > envs.num_envs:
            raise ValueError(
                f"Prefetcher needs at least two parts: make the {envs.num_envs} environments with "
                f"batch_size={envs.num_envs // 2 or 1} or less, found batch_size={batch}"
            )
        if device is None:
            device = "cuda" if has_cuda(torch) else "cpu"
        self.envs, self.device = envs, resolve_device(torch, device)
        self._stream: Any = None
        if self.device.type == "cuda":
            pin(envs)
            self._stream = torch.cuda.Stream(self.device)
        envs.async_reset(seed)
        self._num_stepping = envs.num_envs  # environments that were sent and not yet received
        self._waiting_ids: NDArray[Any] | None = None  # environments that wait for actions
        self._next: tuple[Step, Any] | None = None  # the next part, and the event after its copy
        self._actions: dict[Any, Any] = {}  # page-locked memory for actions, by shape and type

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        if self._waiting_ids is not None:
            raise ShoalError("the last step has no actions yet; call send() before you take the next step")
        step, copied = self._next or self._receive()
        self._next = None
        self._waiting_ids = step.info["env_id"]
        if copied is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(copied)
            # The tensors were allocated in the copy stream, which must not reuse their memory too early.
            _map_arrays(lambda tensor: tensor.record_stream(stream), step[:4])
        return step

    def send(self, actions: Any) -> None:
        """Sends the actions of the last step, from any device; meanwhile it receives the next part."""
        if self._waiting_ids is None:
            raise ShoalError("no step waits for actions; take a step first: `for step in prefetch`")
        ready = torch.cuda.Event() if self._stream is not None else None
        chosen = _map_arrays(self._copy_to_host, actions)
        if ready is not None:
            ready.record(torch.cuda.current_stream(self.device))
        if self._next is None and self._num_stepping >= int(self.envs.batch_size or 0):
            self._next = self._receive()
        if ready is not None:
            ready.synchronize()
        self.envs.send(_map_arrays(np.asarray, chosen), self._waiting_ids)
        self._num_stepping += len(self._waiting_ids)
        self._waiting_ids = None

    def _receive(self) -> tuple[Step, Any]:
        *results, info = self.envs.recv()
        self._num_stepping -= len(info["env_id"])
        if self._stream is None:
            return Step._make((*to_device(results, self.device), info)), None
        with torch.cuda.stream(self._stream):
            return Step._make((*to_device(results, self.device), info)), _record_event(self.device)

    def _copy_to_host(self, actions: Any) -> Any:
        """Starts copying actions to the host; returns the tensor that they are copied into."""
        if not isinstance(actions, torch.Tensor):
            return actions
        actions = actions.detach()
        if self._stream is None or actions.device.type != "cuda":
            return actions.cpu()
        key = tuple(actions.shape), actions.dtype
        if key not in self._actions:
            self._actions[key] = torch.empty(actions.shape, dtype=actions.dtype, pin_memory=True)
        return self._actions[key].copy_(actions, non_blocking=True)


# -- leases held until a copy has finished ----------------------------------------------------------------


class _LeaseHolder:
    """Holds the arrays that asynchronous copies read until their events are reached; checked at each copy."""

    def __init__(self) -> None:
        self._copies: list[tuple[Any, Any]] = []
        self._lock = threading.Lock()

    def hold_until(self, event: Any, value: Any) -> None:
        with self._lock:
            self._copies = [copy for copy in self._copies if not copy[0].query()]
            self._copies.append((event, value))


_leases = _LeaseHolder()


def _record_event(device: Any) -> Any:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


# -- memory registered with CUDA --------------------------------------------------------------------------

_pins: weakref.WeakSet[_core.Mapping] = weakref.WeakSet()


def _register(mapping: _core.Mapping) -> str:
    """Registers a mapping once; returns "" or CUDA's error. It is unregistered before it is unmapped."""
    if mapping in _pins:
        return ""
    torch.cuda.init()
    runtime = torch.cuda.cudart()
    code = runtime.cudaHostRegister(mapping.address, mapping.size_bytes, 0)
    if int(code) != 0:
        with contextlib.suppress(RuntimeError):  # clears the error, which the next call would raise
            torch.zeros(1, device="cuda")
        return str(runtime.cudaGetErrorString(code))
    _pins.add(mapping)
    # Finalizers run before the memory is unmapped.
    weakref.finalize(mapping, runtime.cudaHostUnregister, mapping.address)
    return ""


def _register_later(mapping: _core.Mapping) -> None:
    # This runs inside a step, so a failure only warns: copies still work, but slower.
    problem = _register(mapping)
    if problem:
        warn_once(f"CUDA did not register memory of results ({problem}); copies from it are slower")


def _lender(what: Any) -> Any:
    inner = getattr(what, "unwrapped", what)  # Gymnasium's wrappers
    return inner.leased_memory if isinstance(inner, VectorEnv) else None


def _mappings(what: Any) -> list[_core.Mapping]:
    if isinstance(what, Segment):
        return [what.mapping]
    if isinstance(what, Rollout):
        what = [what.observations]
    found: list[_core.Mapping] = []
    _map_arrays(lambda array: found.append(_mapping(array)), what)
    return list({mapping.address: mapping for mapping in found}.values())


def _mapping(array: Any) -> _core.Mapping:
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, _core.Mapping):
        return base
    raise TypeError(
        "pin needs a vector environment, a Rollout, a Segment or arrays of them; found "
        + ("an array that is not in a segment" if isinstance(array, np.ndarray) else type(array).__name__)
    )


def _map_arrays(function: Callable[[Any], Any], value: Any) -> Any:
    """Returns a value with a function applied to each of its arrays or tensors."""
    if isinstance(value, dict):
        return {key: _map_arrays(function, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_map_arrays(function, item) for item in value)
    return function(value)
