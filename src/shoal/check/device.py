"""The checks of `shoal check --device`: the kernels of a plug-in give the bytes that the CPU gives.

    CPU     make_vec(library)                            reset, step, step, ...   \
    device  CudaBackend on a GPU, or on the CPU          reset, step, step, ...   / compared after every call
            with a loop as the grid ("emulated")

A call on the device is waited for, so a kernel that fails or loops is known by the call that started it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.check.guards import GuardedEnvs
from shoal.check.subject import CheckDoubt, CheckFailed, Subject, Target, Watched
from shoal.check.traces import (
    Moment,
    Moves,
    count_steps,
    find_difference,
    name_array,
    name_results,
)
from shoal.cuda.arrays import choose_arrays
from shoal.cuda.device import Device, Emulated, open_device
from shoal.cuda.driver import DriverError
from shoal.errors import ShoalError
from shoal.native.plugin import FieldInfo, PluginInfo
from shoal.vector import VectorEnv
from shoal.vector.backend import Common
from shoal.vector.cuda import CudaBackend

__all__ = ["DEVICE_CHECKS", "DeviceLost", "find_pointers"]

_ENVS = 150  # more than a block of threads
_STEPS = 120
_BLOCKS = 4
_SEED = 11


class DeviceLost(ShoalError):
    """A kernel failed, after which this process cannot use the GPU."""


class OnDevice:
    """Environments on the device that take and return NumPy arrays; every call has a time limit."""

    def __init__(self, subject: Subject, num_envs: int, **keywords: Any) -> None:
        self._subject, self._target = subject, _target_of(subject)
        info = subject.describe()
        device: Device = Emulated(tuple(self._target.flags))
        if self._is_gpu:
            device = open_device(self._target.device)
            # Before a call is timed: importing torch, and the driver's compiler, take seconds.
            choose_arrays(None, device)
            device.load(info, Path(self._target.source))
        common = Common.from_arguments(**keywords)
        self.agents = info.agents

        def make() -> VectorEnv:
            backend = CudaBackend(info, Path(self._target.source), num_envs, common, device)
            return VectorEnv(backend, common)

        self._envs: VectorEnv = self._call("init", make)

    @property
    def _is_gpu(self) -> bool:
        return self._target.device != "emulated"

    def _call(self, name: str, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        def call() -> Any:
            result = function(*args, **keywords)
            if name in ("reset", "step"):
                self._envs.check()
            return result

        try:
            return _to_host(self._subject.watch(call, name)())
        except DriverError as error:
            if not error.is_lost:
                raise
            reason = str(error).partition(". ")[0]
            raise DeviceLost(
                f"the kernel of {name} failed on the GPU: {reason}\n`shoal check --device emulated --asan "
                f"{self._target.source}` runs the same code on the CPU and names the line of a bad access"
            ) from None

    def reset(self, seed: list[int] | None = None, mask: NDArray[np.bool_] | None = None) -> Any:
        options = None if mask is None else {"reset_mask": self._to_device(mask)}
        return self._call("reset", self._envs.reset, seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        return self._call("step", self._envs.step, self._to_device(actions))

    def close(self) -> None:
        self._call("close", self._envs.close)

    def _to_device(self, value: Any) -> Any:
        if not self._is_gpu:
            return value
        if isinstance(value, dict):
            return {name: self._to_device(part) for name, part in value.items()}
        torch = importlib.import_module("torch")
        return torch.as_tensor(value, device=torch.device(self._target.device))


def _to_host(value: Any) -> Any:
    """Returns results with NumPy arrays in place of tensors."""
    if isinstance(value, dict):
        return {name: _to_host(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_to_host, value))
    return value.cpu().numpy() if hasattr(value, "cpu") else value


def _target_of(subject: Subject) -> Target:
    assert subject.target is not None
    return subject.target


# -- checks --------------------------------------------------------------------------------------------


def pointers(subject: Subject) -> None:
    """It keeps no pointers in its struct."""
    envs = GuardedEnvs(subject, _BLOCKS * subject.describe().lanes)
    envs.start()
    envs.reset(seed=0)
    structs = envs.instances.read().reshape(_BLOCKS, -1)
    mappings = _read_mappings()
    envs.close()
    # In every struct at the same place: a number may look like an address by chance.
    found = set.intersection(*(find_pointers(one, mappings) for one in structs))
    if found:
        raise CheckDoubt(
            f"after reset its struct has addresses of this process, at byte "
            f"{', '.join(map(str, sorted(found)[:4]))}. Memory of the host is not there on a GPU, and "
            "addresses of a GPU mean nothing to render, state and checkpoints, which run on the host. Store "
            "an index or an offset in place of a pointer"
        )


def find_pointers(data: NDArray[np.uint8], mappings: list[tuple[int, int]]) -> set[int]:
    """Returns the offsets of words that are addresses in memory which is mapped."""
    words = data[: len(data) // 8 * 8].view(np.uint64)
    inside = np.zeros(len(words), bool)
    for begin, end in mappings:
        inside |= (words >= begin) & (words < end)
    return {int(at) * 8 for at in np.flatnonzero(inside)}


def _read_mappings() -> list[tuple[int, int]]:
    """Returns what memory this process has; nothing where the system does not say."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    ranges = (line.split(maxsplit=1)[0].split("-") for line in lines)
    return [(int(begin, 16), int(end, 16)) for begin, end in ranges]


def starts(subject: Subject) -> None:
    """It starts on the device."""
    envs = OnDevice(subject, _ENVS)
    envs.reset(seed=list(range(_ENVS)))
    envs.close()


def next_step(subject: Subject) -> None:
    """The device gives the CPU's bytes."""
    _compare(subject, AutoresetMode.NEXT_STEP)


def same_step(subject: Subject) -> None:
    """It gives the CPU's bytes with autoreset SAME_STEP, with the last observations of episodes."""
    _compare(subject, AutoresetMode.SAME_STEP)


def disabled(subject: Subject) -> None:
    """It gives the CPU's bytes with autoreset DISABLED, where ended environments are reset by a mask."""
    _compare(subject, AutoresetMode.DISABLED)


def masks(subject: Subject) -> None:
    """It gives the CPU's bytes if some environments are reset in the middle of their episodes."""
    _compare(subject, AutoresetMode.NEXT_STEP, resets_any_time=True)


def _compare(subject: Subject, mode: AutoresetMode, resets_any_time: bool = False) -> None:
    info, target = subject.describe(), _target_of(subject)
    keywords: dict[str, Any] = {"autoreset_mode": mode, "episode_stats": True}
    cpu, device = subject.make(_ENVS, **keywords), OnDevice(subject, _ENVS, **keywords)
    difference = None
    for found, expected in _run_both(info, cpu, device, mode, resets_any_time):
        difference = find_difference([found], [expected], info.agents)
        if difference is not None:
            break
    cpu.close()
    device.close()
    if difference is None:
        return
    if target.uses_libm and target.device != "emulated":
        raise CheckDoubt(
            "a GPU's functions of libm (sin, exp, pow, ...) differ from the CPU's in the last bits, and it "
            f"calls some\nthe first difference: {difference}"
        )
    raise CheckFailed(
        "the device and the CPU differ: does it use a global variable, uninitialised memory, or memory of "
        f"another environment?\nthe first difference: {difference}"
    )


def _run_both(
    info: PluginInfo, cpu: Watched, device: OnDevice, mode: AutoresetMode, resets_any_time: bool
) -> Iterator[tuple[Moment, Moment]]:
    """Yields the results of the device and of the CPU for each call of a random run."""
    fields, rng = info.observations, np.random.default_rng(_SEED)
    seeds = [_SEED + env for env in range(_ENVS)]

    def reset(when: str, mask: NDArray[np.bool_] | None = None) -> tuple[Moment, Moment]:
        given = seeds if mask is None else None
        options = None if mask is None else {"reset_mask": mask}
        results = device.reset(given, mask)[0], cpu.reset(seed=given, options=options)[0]
        found, expected = (Moment(when, name_results(fields, one, ())) for one in results)
        return found, expected

    yield reset("after reset")
    steps = count_steps(info, _ENVS, _STEPS)
    for step, actions in enumerate(Moves(info.actions, _SEED)(cpu, steps), 1):
        both = device.step(actions), cpu.step(actions)
        found, expected = (_name_step(f"at step {step}", info, one) for one in both)
        yield found, expected
        mask = np.zeros(_ENVS, bool)
        if mode == AutoresetMode.DISABLED:
            over = expected.results["terminated"] | expected.results["truncated"]
            mask = over.reshape(_ENVS, -1).all(axis=1)
        elif resets_any_time and step % 5 == 0:
            mask = rng.random(_ENVS) < 0.3
        if mask.any():
            yield reset(f"after a reset of some environments after step {step}", np.repeat(mask, info.agents))


def _name_step(when: str, info: PluginInfo, step: Any) -> Moment:
    """Returns the results of a step with those of finished episodes; rows of other episodes are zeros."""
    observation, *others, infos = step
    named = name_results(info.observations, observation, others)
    nothing = {"r": np.zeros(len(others[0])), "l": np.zeros(len(others[0]), np.int64)}
    for key, array in infos.get("episode", nothing).items():
        named[f"info['episode'][{key!r}]"] = array
    return Moment(when, {**named, **_name_finals(info.observations, others, infos)})


def _name_finals(fields: list[FieldInfo], others: list[Any], infos: dict[str, Any]) -> dict[str, Any]:
    ended = np.asarray(others[1]) | np.asarray(others[2])
    if "final_obs" not in infos or not ended.any():
        return {}
    found = infos["final_obs"]
    named = {}
    for field in fields:
        final = np.zeros((len(ended), *field.shape), field.dtype)
        for row in np.flatnonzero(ended):
            if isinstance(found, dict):
                final[row] = found[field.name][row]
            else:  # the CPU's: an object for each row
                final[row] = found[row] if field.name is None else found[row][field.name]
        named[name_array("last observation", field)] = final
    return named


DEVICE_CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__: check for check in (pointers, starts, next_step, same_step, disabled, masks)
}
