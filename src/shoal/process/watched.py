"""Publishes snapshots of watched Python environments: exported state, the last step, a picture."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shoal import _core
from shoal.memory import Segment
from shoal.spaces import Memory
from shoal.state.exports import from_python, named_arrays
from shoal.state.publish import Publisher
from shoal.state.recording import Glance
from shoal.state.snapshot import Field, Snapshot

__all__ = ["WatchedChunk"]


class WatchedChunk:
    """Publishes environments of a chunk. It does not refer to the chunk, so there is no cycle."""

    def __init__(self, envs: list[Any], plan: Any, board: Segment) -> None:
        """`envs` is the chunk's own list, in which the chunk replaces environments."""
        self._envs, self._plan = envs, plan
        self._publisher = Publisher(board, plan.first, plan.count, plan.worker)
        self._episode, self._length = board["episode"], board["length"]
        self._last_length = board["last_length"]
        self._slots: dict[int, tuple[Memory | None, tuple[Any, ...], int]] = {}
        self._last_action: Callable[[int], Any] = lambda local: None

    def begin(self, last_action: Callable[[int], Any]) -> None:
        self._last_action = last_action

    def add_slot(self, number: int, memory: Memory | None, flags: tuple[Any, ...], ahead: int) -> None:
        # Views, because the reference counts of the arrays themselves tell which slots are leased.
        self._slots[number] = memory, tuple(flag[:] for flag in flags), ahead

    def drop_slot(self, number: int) -> None:
        self._slots.pop(number, None)

    def close(self) -> None:
        self._publisher.close()
        self._last_action = lambda local: None

    def publish(self, slot: int, row: int) -> None:
        """Publishes the environments that are watched, after a step into that slot."""
        self._publisher(partial(self._snapshot, slot, row), partial(self._glance, slot, row))

    def _glance(self, slot: int, row: int, env_id: int) -> Glance:
        _, (rewards, terminated, truncated), _ = self._slots[slot]
        at = row + env_id
        is_over = bool(terminated[at] or truncated[at])
        episode = max(0, int(self._episode[env_id]) - 1)
        is_in_it = is_over and self._plan.autoreset != _core.AUTORESET_SAME_STEP  # the episode has just ended
        tick = int(self._last_length[env_id] if is_in_it else self._length[env_id])
        return Glance(episode, tick, float(rewards[at]), is_over)

    def _snapshot(self, slot: int, row: int, env_id: int) -> Snapshot:
        local = env_id - self._plan.first
        env = self._envs[local]
        errors: list[str] = []
        world = _attempt(lambda: from_python(env), "export_state", errors)
        step = _attempt(lambda: self._step(slot, row, local, env), "the last step", errors)
        if getattr(env, "render_mode", None) == "rgb_array":
            step |= _attempt(lambda: _frame(env), "render", errors)
        episodes = int(self._episode[env_id])
        return Snapshot(
            env_id,
            max(0, episodes - 1),
            self._tick(env_id, step),
            time.monotonic_ns(),
            world,
            step,
            "; ".join(errors),
        )

    def _tick(self, env_id: int, step: dict[str, Field]) -> int:
        over = any(bool(step[name].data) for name in ("terminated", "truncated") if name in step)
        if over and self._plan.autoreset != _core.AUTORESET_SAME_STEP:  # the episode has just ended
            return int(self._last_length[env_id])
        return int(self._length[env_id])

    def _step(self, slot: int, row: int, local: int, env: Any) -> dict[str, Field]:
        memory, flags, ahead = self._slots[slot]
        at = row + self._plan.first + local
        seen: dict[str, Field] = {}
        if memory is not None:
            seen |= named_arrays("observation", memory.read_one(at + ahead))
        action = self._last_action(local)
        if action is not None:
            seen |= named_arrays("action", action)
        for name, flag in zip(("reward", "terminated", "truncated"), flags, strict=True):
            seen[name] = Field(name, flag[at])
        return seen


def _attempt(get: Callable[[], dict[str, Field]], what: str, errors: list[str]) -> dict[str, Field]:
    try:
        return get()
    except Exception as error:
        errors.append(f"{what}: {type(error).__name__}: {error}")
        return {}


def _frame(env: Any) -> dict[str, Field]:
    picture = np.asarray(env.render())
    if picture.dtype != np.uint8 or picture.ndim != 3:
        raise TypeError(f"expected uint8 [height, width, 3], got {picture.dtype} of shape {picture.shape}")
    return {"frame": Field("frame", picture, "image")}
