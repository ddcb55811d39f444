"""Two small reference pipelines that show what zero-copy means; their results can be checked by hand.

zero_copy_env_simulation     one process: the next step changes a view of the buffer, but not a copy
shared_memory_rl_pipeline    many processes: they write through one mapping and read through another
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from typing import Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.memory import Layout, Segment

__all__ = ["shared_memory_rl_pipeline", "zero_copy_env_simulation"]

_Step: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int8]]
_Write: TypeAlias = tuple[int, NDArray[np.float64], NDArray[np.float64], NDArray[np.int8]]

_COMMANDS = (
    '("step",), ("store_view", name), ("store_copy", name), ("read", name), ("read_buffer",), '
    '("check_alias", name) or ("auto_reset",)'
)


class SimulationResult(TypedDict):
    """The result of `zero_copy_env_simulation`. Floats are rounded to 4 decimals."""

    reads: list[list[list[float]]]
    alias_checks: list[bool]
    total_copies: int
    total_views: int
    total_bytes_saved: int
    """The bytes that copies would have taken in place of the views."""
    buffer_reallocs: int
    """The number of commands after which the buffer was not at its first address."""


class PipelineResult(TypedDict):
    """The result of `shared_memory_rl_pipeline`. Floats are rounded to 4 decimals, after the means."""

    observations: list[list[float]]
    rewards: list[float]
    dones: list[int]
    mean_obs: list[float]
    mean_reward: float
    num_done: int
    active_mean_reward: float
    """The mean reward of the environments that are not done; 0.0 if all are."""
    total_shared_bytes: int
    """The bytes of the data, without header and padding."""


def zero_copy_env_simulation(
    num_envs: int,
    obs_dim: int,
    step_data: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]],
    commands: Iterable[Sequence[str]],
) -> SimulationResult:
    """Steps environments in one buffer that is allocated once, and records what views and copies contain.

    `step_data` holds (observations, rewards, dones) per step. A view shares the buffer's memory: it costs
    nothing, and every later step changes it. A copy costs its bytes and never changes.

    >>> result = zero_copy_env_simulation(
    ...     num_envs=1,
    ...     obs_dim=2,
    ...     step_data=[([[1.0, 2.0]], [0.5], [0]), ([[3.0, 4.0]], [0.5], [1])],
    ...     commands=[("step",), ("store_view", "view"), ("store_copy", "copy"),
    ...               ("step",), ("read", "view"), ("read", "copy"), ("check_alias", "view")],
    ... )
    >>> result["reads"], result["alias_checks"], result["total_bytes_saved"], result["buffer_reallocs"]
    ([[[3.0, 4.0]], [[1.0, 2.0]]], [True], 16, 0)

    Raises ValueError for a wrong command or step and KeyError for a name that was never stored; both messages
    say which command it was.
    """
    num_envs, obs_dim = _count("num_envs", num_envs), _count("obs_dim", obs_dim)
    layout = Layout(
        {
            "observation": (np.float64, (num_envs, obs_dim)),
            "reward": (np.float64, (num_envs,)),
            "done": (np.int8, (num_envs,)),
        }
    )
    snapshots: dict[str, NDArray[np.float64]] = {}
    reads: list[list[list[float]]] = []
    alias_checks: list[bool] = []
    steps = copies = views = moves = 0
    with Segment(layout) as segment:
        first_address = segment["observation"].ctypes.data
        for index, command in enumerate(commands):
            where = f"commands[{index}] {reprlib.repr(command)}"
            match command:
                case ("step",):
                    entry = _check_step(step_data, steps, num_envs, obs_dim, where)
                    segment["observation"][:], segment["reward"][:], segment["done"][:] = entry
                    steps += 1
                case ("auto_reset",):
                    ended = segment["done"] != 0
                    segment["observation"][ended] = 0.0
                    segment["reward"][ended] = 0.0
                case ("store_view", str(name)):
                    snapshots[name] = segment["observation"][:]
                    views += 1
                case ("store_copy", str(name)):
                    snapshots[name] = segment["observation"].copy()
                    copies += 1
                case ("read_buffer",):
                    reads.append(_round_rows(segment["observation"]))
                case ("read", str(name)):
                    reads.append(_round_rows(_find_stored(snapshots, name, where)))
                case ("check_alias", str(name)):
                    snapshot = _find_stored(snapshots, name, where)
                    alias_checks.append(bool(np.shares_memory(snapshot, segment["observation"])))
                case _:
                    raise ValueError(f"{where}: expected {_COMMANDS}, where name is a str")
            moves += segment["observation"].ctypes.data != first_address
    return {
        "reads": reads,
        "alias_checks": alias_checks,
        "total_copies": copies,
        "total_views": views,
        "total_bytes_saved": views * layout["observation"].size_bytes,
        "buffer_reallocs": moves,
    }


def shared_memory_rl_pipeline(
    num_envs: int,
    obs_dim: int,
    step_data: Iterable[tuple[int, ArrayLike, float, bool]],
    *,
    num_workers: int = 0,
) -> PipelineResult:
    """Writes `(env_id, observation, reward, done)` into shared blocks and reads them back by name.

    Later writes to an environment win. With `num_workers`, that many processes write, each owning the
    environments with `env_id % num_workers` equal to its number; their start follows the rules of
    multiprocessing's "spawn", so a script needs `if __name__ == "__main__":`.

    >>> result = shared_memory_rl_pipeline(2, 1, [(0, [1.0], 2.0, False), (1, [4.0], 6.0, True)])
    >>> result["observations"], result["mean_obs"], result["active_mean_reward"]
    ([[1.0], [4.0]], [2.5], 2.0)
    >>> result["total_shared_bytes"]        # 2 float64 observations, 2 float64 rewards, 2 int8 flags
    34

    No shared memory is left behind, also after an error. Raises ValueError or IndexError for a bad entry; the
    message says which one.
    """
    num_envs, obs_dim = _count("num_envs", num_envs), _count("obs_dim", obs_dim)
    num_workers = _count("num_workers", num_workers, at_least=0)
    writes = [_check_write(i, entry, num_envs, obs_dim) for i, entry in enumerate(step_data)]
    layouts = {
        "observations": Layout({"observations": (np.float64, (num_envs, obs_dim))}),
        "rewards": Layout({"rewards": (np.float64, (num_envs,))}),
        "dones": Layout({"dones": (np.int8, (num_envs,))}),
    }
    with ExitStack() as stack:
        blocks = {field: stack.enter_context(Segment.named(layout)) for field, layout in layouts.items()}
        names = {field: str(block.name) for field, block in blocks.items()}
        if num_workers == 0:
            _write({field: block[field] for field, block in blocks.items()}, writes)
        else:
            _write_in_workers(names, writes, num_workers)
        copies = {}
        for field, name in names.items():
            attached = stack.enter_context(Segment.attach(name, layouts[field], readonly=True))
            copies[field] = attached[field].copy()
    observations, rewards, dones = copies["observations"], copies["rewards"], copies["dones"]
    active = rewards[dones == 0]
    return {
        "observations": _round_rows(observations),
        "rewards": [round(reward, 4) for reward in rewards.tolist()],
        "dones": dones.tolist(),
        "mean_obs": [round(mean, 4) for mean in observations.mean(axis=0).tolist()],
        "mean_reward": round(float(rewards.mean()), 4),
        "num_done": int(np.count_nonzero(dones)),
        "active_mean_reward": round(float(active.mean()), 4) if active.size else 0.0,
        "total_shared_bytes": sum(layout[field].size_bytes for field, layout in layouts.items()),
    }


def _write(arrays: Mapping[str, NDArray[Any]], writes: Sequence[_Write]) -> None:
    for env_id, observation, reward, done in writes:
        arrays["observations"][env_id] = observation
        arrays["rewards"][env_id] = reward
        arrays["dones"][env_id] = done


def _write_by_name(names: Mapping[str, str], writes: Sequence[_Write]) -> None:
    """Writes in a worker process, which attaches to the blocks by their names."""
    with ExitStack() as stack:
        blocks = {field: stack.enter_context(Segment.attach(name)) for field, name in names.items()}
        _write({field: block[field] for field, block in blocks.items()}, writes)


def _write_in_workers(names: Mapping[str, str], writes: Sequence[_Write], num_workers: int) -> None:
    """Returns when all workers have written; raises the first error of a worker, or that a worker died."""
    with ExitStack() as stack:
        futures = []
        for worker in range(num_workers):
            # One pool per worker, because a pool of several processes does not fix which process does what.
            process = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
            own = [write for write in writes if write[0] % num_workers == worker]
            futures.append(process.submit(_write_by_name, names, own))
        for future in futures:
            future.result()


def _check_step(step_data: Sequence[Any], position: int, num_envs: int, obs_dim: int, where: str) -> _Step:
    """Returns entry `position` as arrays; all of it is checked before the buffer is written."""
    if position >= len(step_data):
        raise ValueError(f"{where}: expected one more entry of step_data, found only {len(step_data)}")
    where = f"{where}: step_data[{position}]"
    observations, rewards, dones = _parts(step_data[position], "(observations, rewards, dones)", where)
    return (
        _numbers(observations, (num_envs, obs_dim), f"{where}: observations"),
        _numbers(rewards, (num_envs,), f"{where}: rewards"),
        _flags(dones, (num_envs,), f"{where}: dones"),
    )


def _check_write(position: int, entry: Any, num_envs: int, obs_dim: int) -> _Write:
    where = f"step_data[{position}]"
    env_id, observation, reward, done = _parts(entry, "(env_id, observation, reward, done)", where)
    number = _integer(env_id)
    if number is None:
        raise ValueError(f"{where}: expected an int as env_id, found {reprlib.repr(env_id)}")
    if not 0 <= number < num_envs:
        raise IndexError(f"{where}: expected an env_id from 0 to {num_envs - 1}, found {number}")
    return (
        number,
        _numbers(observation, (obs_dim,), f"{where}: observation"),
        _numbers(reward, (), f"{where}: reward"),
        _flags(done, (), f"{where}: done"),
    )


def _parts(entry: Any, expected: str, where: str) -> tuple[Any, ...]:
    if not isinstance(entry, (tuple, list)) or len(entry) != expected.count(",") + 1:
        raise ValueError(f"{where}: expected {expected}, found {reprlib.repr(entry)}")
    return tuple(entry)


def _numbers(value: ArrayLike, shape: tuple[int, ...], where: str) -> NDArray[np.float64]:
    expected = f"{where}: expected numbers of shape {shape}, found"
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # rows of unequal length, among others
        raise ValueError(f"{expected} {reprlib.repr(value)}") from None
    if array.dtype.kind not in "biuf":  # NumPy would parse a str and make None a NaN
        raise ValueError(f"{expected} {reprlib.repr(value)}")
    if array.shape != shape:
        raise ValueError(f"{expected} shape {array.shape}")
    return array.astype(np.float64)


def _flags(value: ArrayLike, shape: tuple[int, ...], where: str) -> NDArray[np.int8]:
    array = _numbers(value, shape, where)
    if not np.isin(array, (0, 1)).all():
        raise ValueError(f"{where}: expected False or True, 0 or 1, found {reprlib.repr(value)}")
    return array.astype(np.int8)


def _count(what: str, value: int, at_least: int = 1) -> int:
    number = _integer(value)
    if number is None:
        raise TypeError(f"expected {what} to be an int, found {reprlib.repr(value)}")
    if number < at_least:
        raise ValueError(f"expected {what} to be at least {at_least}, found {number}")
    return number


def _integer(value: Any) -> int | None:
    """Returns any kind of int as an int; None for other values, also for booleans."""
    try:
        return None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        return None


def _find_stored(snapshots: Mapping[str, NDArray[np.float64]], name: str, where: str) -> NDArray[np.float64]:
    if name not in snapshots:
        raise KeyError(
            f"{where}: expected the name of a stored view or copy, found {name!r}; "
            f"stored are {sorted(snapshots)}"
        )
    return snapshots[name]


def _round_rows(array: NDArray[np.float64]) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in array.tolist()]
