"""The memory a vector environment exchanges with its workers: actions in, results out, lent slot by slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.spaces import Dict as DictSpace
from gymnasium.spaces import Tuple as TupleSpace
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from shoal import _core
from shoal.memory import Layout, Segment
from shoal.memory.layout import FieldSpec
from shoal.spaces import Bounds, Declaration, Memory, declare

__all__ = ["Actions", "Rows", "Slot", "is_laid_out", "slot_layout"]

_ARRAYS = (Box, Discrete, MultiDiscrete, MultiBinary)


def is_laid_out(space: Space[Any], bounds: Bounds, *, required: bool) -> bool:
    """Whether values of `space` can live in a segment. A space nobody laid out: ValueError if `required`."""
    try:
        Declaration(bounds).space(space, "value", 1)
        return True
    except TypeError as error:
        if required and _has_custom(space):
            raise ValueError(
                f"{space} has no layout in shared memory: use shared_memory=False (its values then travel as "
                "messages, slower), or register one with shoal.spaces.declare"
            ) from CustomSpaceError(str(error))
        return False


def _has_custom(space: Space[Any]) -> bool:
    if isinstance(space, DictSpace):
        return any(map(_has_custom, space.spaces.values()))
    if isinstance(space, TupleSpace):
        return any(map(_has_custom, space.spaces))
    return declare.dispatch(type(space)) is declare.dispatch(object)


def slot_layout(
    space: Space[Any] | None, rows: int, ahead: int, bounds: Bounds, finals: bool, actions: Any = None
) -> Layout:
    """Observations (unless they travel as messages), rewards and flags of `rows` results."""
    declaration = Declaration(bounds)
    if space is not None:
        declaration.space(space, "observation", rows + ahead)
    declaration.fields["reward"] = (np.float64, (rows,))
    declaration.fields["terminated"] = (np.bool_, (rows,))
    declaration.fields["truncated"] = (np.bool_, (rows,))
    if finals and space is not None:
        declaration.space(space, "final", rows)
    if actions is not None:
        declaration.space(actions, "action", rows)
    return Layout(declaration.fields)


class Rows(Protocol):
    """Memory for results by row: a slot, or a whole rollout."""

    number: int
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    memory: Memory | None


class Slot:
    """Where the results of one step go, and whether anybody still looks at them."""

    def __init__(
        self, number: int, space: Space[Any] | None, num_envs: int, rows: int, bounds: Bounds, finals: bool
    ) -> None:
        self.number = number
        self._num_envs, self._rows = num_envs, rows
        self.segment = segment = Segment(slot_layout(space, rows, 0, bounds, finals))
        self.memory: Memory | None = None
        self.finals: Memory | None = None
        if space is not None:
            self.memory = Declaration(bounds).space(space, "observation", rows)(segment)
        if space is not None and finals:
            self.finals = Declaration(bounds).space(space, "final", rows)(segment)
        self.reward: NDArray[np.float64] = segment["reward"]
        self.terminated: NDArray[np.bool_] = segment["terminated"]
        self.truncated: NDArray[np.bool_] = segment["truncated"]
        self._leaves = [segment[name] for name in segment if name.startswith("observation")]
        self._lease = _core.Lease([segment[name] for name in segment])
        self.values: list[Any] = [None] * num_envs
        """Observations that came as messages, by environment."""

    def settle(self) -> None:
        """The workers have it: closes the descriptor and counts who refers to it now."""
        self.segment.close()
        self._lease.settle()

    @property
    def free(self) -> bool:
        return self._lease.free

    def observation(self, space: Space[Any]) -> Any:
        if self.memory is not None:
            return self.memory.read(0, self._num_envs)
        return concatenate(space, self.values, create_empty_array(space, self._num_envs, np.zeros))

    def flags(self) -> tuple[Any, Any, Any]:
        count = self._num_envs
        if self._rows == count:
            return self.reward, self.terminated, self.truncated
        return self.reward[:count], self.terminated[:count], self.truncated[:count]

    def copy_rows(self, other: Slot, rows: NDArray[np.bool_]) -> None:
        """Takes over the observations of `other` in the rows named."""
        if other is self:
            return
        self.values = list(other.values)
        for mine, theirs in zip(self._leaves, other._leaves, strict=True):
            if mine.size:
                mine.reshape(self._rows, -1)[: len(rows)][rows] = theirs.reshape(self._rows, -1)[: len(rows)][rows]

    def gather(self, other: Slot, env_ids: Sequence[int]) -> None:
        """Takes over whole results of `other`: those of `env_ids`, in that order."""
        chosen = list(env_ids)
        self.values = [other.values[env] for env in chosen]
        for mine, theirs in zip(self._leaves, other._leaves, strict=True):
            if mine.size:
                mine.reshape(self._rows, -1)[...] = theirs.reshape(other._rows, -1)[chosen]
        self.reward[...] = other.reward[chosen]
        self.terminated[...] = other.terminated[chosen]
        self.truncated[...] = other.truncated[chosen]

    def holds(self, array: NDArray[Any]) -> bool:
        return self.segment.shares_memory(array)


class Actions:
    """How actions reach the workers: as one shared array, as fields of a segment, or as messages."""

    def __init__(
        self, space: Space[Any], batched: Space[Any], num_envs: int, bounds: Bounds, checked: bool, strict: bool
    ) -> None:
        self._space, self._batched, self._num_envs = space, batched, num_envs
        self._checked = checked
        self._strict = strict
        self.segment: Segment | None = None
        self.array: NDArray[Any] | None = None
        self._memory: Memory | None = None
        if isinstance(space, _ARRAYS) and is_laid_out(space, bounds, required=False):
            self.kind = "array"
            assert space.shape is not None
            fields: dict[str, FieldSpec] = {"action": (space.dtype, (num_envs, *space.shape))}
            self.segment = Segment(Layout(fields))
            self.array = self.segment["action"]
            self._low, self._high = _range(space)
        elif is_laid_out(space, bounds, required=False):
            self.kind = "memory"
            declaration = Declaration(bounds)
            bind = declaration.space(space, "action", num_envs)
            self.segment = Segment(Layout(declaration.fields))
            self._memory = bind(self.segment)
        else:
            self.kind = "message"

    @property
    def shared(self) -> Any:
        """The memory itself, to be written in place."""
        return self.array if self.array is not None else None

    def take(self, actions: Any) -> Sequence[Any] | NDArray[Any] | None:
        """Lays the actions down for the workers; gives those that must travel as a message."""
        array = self.array
        if array is not None:
            if type(actions) is np.ndarray and actions.shape == array.shape and actions.dtype == array.dtype:
                if self._checked:
                    self._check(actions)
                array[...] = actions
                return None
            given = self._converted(actions)
            if given is not None:
                if self._checked:
                    self._check(given)
                if given.dtype != array.dtype:
                    return np.array(given)  # other floats than the space's: the environment sees what you gave
                array[...] = given
                return None
        items = list(iterate(self._batched, actions))
        if len(items) != self._num_envs:
            raise ValueError(
                f"expected {self._num_envs} actions, one per environment, found {len(items)}; nothing was stepped"
            )
        if self._checked:
            for number, item in enumerate(items):
                if not self._space.contains(item):
                    raise ValueError(
                        f"action {item!r} of environment {number} is not in {self._space}; nothing was stepped"
                    )
        if self._memory is not None:
            try:
                for number, item in enumerate(items):
                    self._memory.write(number, item)
                return None
            except ValueError:  # what does not fit the space travels as it is: the environment is the judge
                if self._strict:
                    raise
        return items

    def take_some(self, actions: Any, env_ids: Sequence[int]) -> None:
        """Lays the actions of some environments down, in the order of `env_ids`."""
        if self.array is not None:
            given = np.asarray(actions)
            expected = (len(env_ids), *self.array.shape[1:])
            if given.shape != expected:
                raise ValueError(f"expected actions of shape {expected}, found {given.shape}; nothing was sent")
            if not np.can_cast(given.dtype, self.array.dtype, "same_kind"):
                raise TypeError(f"expected actions of dtype {self.array.dtype}, found {given.dtype}")
            if self._checked:
                self._check(given)
            self.array[list(env_ids)] = given
            return
        if self._memory is None:
            raise TypeError(f"send needs actions that live in shared memory; {self._space} does not")
        items = list(iterate(self._batched, actions))
        if len(items) != len(env_ids):
            raise ValueError(f"expected {len(env_ids)} actions, found {len(items)}; nothing was sent")
        for number, item in zip(env_ids, items, strict=True):
            self._memory.write(number, item)

    def _converted(self, actions: Any) -> NDArray[Any] | None:
        """The actions as an array, integers in the space's own dtype; None if they do not fit one."""
        array = self.array
        assert array is not None
        try:
            given = np.asarray(actions)
        except ValueError:
            return None
        fits = given.dtype.kind in ("iub" if array.dtype.kind in "iu" else "iubf")
        if given.shape == array.shape and fits:
            with np.errstate(over="ignore", invalid="ignore"):
                converted: NDArray[Any] = given.astype(array.dtype)
            if self._strict or (array.dtype.kind in "iub" and np.array_equal(converted, given)):
                return converted
            return given if type(actions) is np.ndarray else None
        if self._strict and given.shape == array.shape:
            raise TypeError(f"actions: expected dtype {array.dtype}, found {given.dtype}; convert it yourself")
        if self._strict:
            raise ValueError(f"actions: expected shape {array.shape}, found {given.shape}")
        return None

    def _check(self, given: NDArray[Any]) -> None:
        if self._low is None:
            bad = np.isnan(given) if given.dtype.kind == "f" else None
        else:
            bad = (given < self._low) | (given > self._high)
        if bad is not None and bad.any():
            row = int(np.flatnonzero(bad.reshape(len(given), -1).any(axis=1))[0])
            raise ValueError(
                f"action {given[row].tolist()} of environment {row} is not in {self._space}; nothing was stepped"
            )

    def close(self) -> None:
        if self.segment is not None:
            self.segment.close()


def _range(space: Space[Any]) -> tuple[Any, Any]:
    if isinstance(space, Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    if isinstance(space, MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, MultiBinary):
        return 0, 1
    return None, None

