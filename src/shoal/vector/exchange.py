"""The memory that a vector environment shares with its workers: actions, and slots for results."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.spaces import Dict as DictSpace
from gymnasium.spaces import Tuple as TupleSpace
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from shoal.errors import ShoalError
from shoal.memory import Layout, Segment
from shoal.memory.layout import FieldSpec
from shoal.spaces import Bounds, Declaration, Memory, declare
from shoal.spaces.memory import DictMemory, LeafMemory, TupleMemory

__all__ = ["Actions", "Rows", "blocks", "discrete_range", "is_laid_out", "slot_layout"]

_ARRAYS = (Box, Discrete, MultiDiscrete, MultiBinary)


def is_laid_out(space: Space[Any], bounds: Bounds, *, required: bool) -> bool:
    """Whether values of `space` can be in a segment. If `required`, raises ValueError for custom spaces."""
    try:
        Declaration(bounds).space(space, "value", 1)
        return True
    except TypeError as error:
        if required and _has_custom(space):
            raise ValueError(
                f"{space} has no layout in shared memory: use shared_memory=False (values then travel as "
                "messages, which is slower), or register a layout with shoal.spaces.declare"
            ) from CustomSpaceError(str(error))
        return False


def _has_custom(space: Space[Any]) -> bool:
    if isinstance(space, DictSpace):
        return any(map(_has_custom, space.spaces.values()))
    if isinstance(space, TupleSpace):
        return any(map(_has_custom, space.spaces))
    return declare.dispatch(type(space)) is declare.dispatch(object)


def slot_layout(
    space: Space[Any] | None, rows: int, ahead: int, bounds: Bounds, finals: bool, actions: Any, ids: int
) -> Layout:
    """Returns the layout of `rows` results: observations (unless they are messages), rewards, flags."""
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
    if ids:
        declaration.fields["env_id"] = (np.int64, (ids,))
    return Layout(declaration.fields)


class Rows:
    """Memory for results, one per row, in a segment that the workers map, too.

    A slot has one row per environment. A rollout has `ahead` more observations than results: if the rewards
    of a step begin at row r, its observations begin at row r + ahead.
    """

    def __init__(
        self,
        number: int,
        space: Space[Any] | None,
        rows: int,
        ahead: int,
        bounds: Bounds,
        *,
        finals: bool = False,
        actions: Space[Any] | None = None,
        ids: int = 0,
    ) -> None:
        self.number, self.rows, self.ahead = number, rows, ahead
        self.segment = segment = Segment(slot_layout(space, rows, ahead, bounds, finals, actions, ids))

        def memory(of: Space[Any] | None, path: str, count: int) -> Memory | None:
            return None if of is None else Declaration(bounds).space(of, path, count)(segment)

        self.memory = memory(space, "observation", rows + ahead)
        self.actions = memory(actions, "action", rows)
        self.reward: NDArray[np.float64] = segment["reward"]
        self.terminated: NDArray[np.bool_] = segment["terminated"]
        self.truncated: NDArray[np.bool_] = segment["truncated"]
        leaves = [segment[name] for name in segment if name.startswith("observation")]
        self.observations = [leaf.reshape(rows + ahead, -1) for leaf in leaves if leaf.size]
        """The fields of the observations, one row per result."""
        self.values: list[Any] = []
        """Observations that came as messages, by environment."""

    def observation(self, space: Space[Any], count: int) -> Any:
        """Returns the observations of the first `count` rows, batched as Gymnasium does it."""
        if self.memory is not None:
            return self.memory.read(0, count)
        if any(value is None for value in self.values):  # an environment raised before its first observation
            return tuple(self.values)
        empty: Any = create_empty_array(space, count, np.zeros)
        return concatenate(space, self.values, empty)

    def as_rollout(self, length: int, count: int) -> tuple[Any, Any, list[NDArray[Any]]]:
        """Returns a rollout's observations [length + 1, count], actions, and rewards and flags."""
        assert self.memory is not None and self.actions is not None
        shape, rows = (length, count), length * count
        parts: tuple[NDArray[Any], ...] = self.reward, self.terminated, self.truncated
        flags = [part[:rows].reshape(shape) for part in parts]
        return blocks(self.memory, length + 1, count), blocks(self.actions, *shape), flags

    def gather(self, other: Rows, env_ids: Sequence[int]) -> None:
        """Copies the results of `env_ids` from another slot, in that order."""
        chosen = list(env_ids)
        self.values = [other.values[env] for env in chosen] if other.values else []
        for mine, theirs in zip(self.observations, other.observations, strict=True):
            theirs.take(chosen, 0, mine)
        other.reward.take(chosen, 0, self.reward)
        other.terminated.take(chosen, 0, self.terminated)
        other.truncated.take(chosen, 0, self.truncated)


def blocks(memory: Memory, length: int, num_envs: int) -> Any:
    """Returns the arrays of a memory as [length, num_envs, ...], nested like the space."""
    if isinstance(memory, DictMemory):
        return {key: blocks(child, length, num_envs) for key, child in memory.children}
    if type(memory) is TupleMemory:
        return tuple(blocks(child, length, num_envs) for child in memory.children)
    if type(memory) is not LeafMemory:
        raise ShoalError(f"a rollout can only hold arrays, but the space of {memory.path} is not an array")
    shaped: NDArray[Any] = memory.array[: length * num_envs].reshape(length, num_envs, *memory.shape)
    return shaped


class Actions:
    """Actions on their way to workers: as one shared array, as fields of a segment, or as messages."""

    def __init__(
        self, space: Space[Any], batched: Space[Any], num_envs: int, bounds: Bounds, checked: bool
    ) -> None:
        self._space, self._batched, self._num_envs = space, batched, num_envs
        self._checked = checked
        self.segment: Segment | None = None
        self.shared: NDArray[Any] | None = None
        """The action buffer, if the space is one array."""
        self._memory: Memory | None = None
        if isinstance(space, _ARRAYS) and is_laid_out(space, bounds, required=False):
            self.kind = "array"
            assert space.shape is not None
            fields: dict[str, FieldSpec] = {"action": (space.dtype, (num_envs, *space.shape))}
            self.segment = Segment(Layout(fields))
            self.shared = self.segment["action"]
            self._range: tuple[Any, Any] = discrete_range(space)
            if isinstance(space, Box):
                self._range = space.low, space.high
        elif is_laid_out(space, bounds, required=False):
            self.kind = "memory"
            declaration = Declaration(bounds)
            bind = declaration.space(space, "action", num_envs)
            self.segment = Segment(Layout(declaration.fields))
            self._memory = bind(self.segment)
        else:
            self.kind = "message"

    def check_shared(self) -> None:
        """Checks the actions that were written into the buffer."""
        if self._checked and self.shared is not None:
            self._check(self.shared, range(self._num_envs))

    def take(self, actions: Any) -> Sequence[Any] | NDArray[Any] | None:
        """Copies the actions into shared memory; returns those that must be sent as messages instead."""
        array, everybody = self.shared, range(self._num_envs)
        if array is not None:
            is_exact = type(actions) is np.ndarray and actions.dtype == array.dtype
            given = actions if is_exact and actions.shape == array.shape else self._convert(actions)
            if given is not None:
                if self._checked:
                    self._check(given, everybody)
                if given.dtype != array.dtype:  # the environment gets the dtype that the user passed
                    return np.array(given)
                array[...] = given
                return None
        items = list(iterate(self._batched, actions))
        if len(items) != self._num_envs:
            raise ValueError(
                f"expected {self._num_envs} actions, one per environment, found {len(items)}; nothing was "
                "stepped"
            )
        if self._checked:
            self._check_items(items, everybody)
        # Actions that are not exactly of the space's types are sent unchanged; the environment decides.
        if self._memory is not None:
            with contextlib.suppress(ValueError):
                if _is_exact(self._space, actions):
                    self._write(items, everybody)
                    return None
        return items

    def take_some(self, actions: Any, env_ids: Sequence[int]) -> None:
        """Copies the actions of some environments into shared memory, in the order of `env_ids`."""
        if not env_ids and isinstance(actions, (list, tuple)) and not actions:
            return  # NumPy would make an array of floats of it
        array = self.shared
        if array is not None:
            given = np.asarray(actions)
            expected = (len(env_ids), *array.shape[1:])
            if given.shape != expected:
                raise ValueError(
                    f"expected actions of shape {expected}, found {given.shape}; nothing was sent"
                )
            if not np.can_cast(given.dtype, array.dtype, "same_kind"):
                raise TypeError(
                    f"expected actions of dtype {array.dtype}, found {given.dtype}; nothing was sent. "
                    "Convert them before send()"
                )
            converted = given if given.dtype == array.dtype else given.astype(array.dtype)
            if converted is not given and array.dtype.kind in "iu" and not np.array_equal(converted, given):
                raise ValueError(f"an action does not fit dtype {array.dtype}; nothing was sent")
            if self._checked:
                self._check(converted, env_ids)
            array[list(env_ids)] = converted
            return
        if self._memory is None:
            raise TypeError(
                f"send needs actions in shared memory, and {self._space} has no layout there; use step"
            )
        items = list(iterate(self._batched, actions))
        if len(items) != len(env_ids):
            raise ValueError(f"expected {len(env_ids)} actions, found {len(items)}; nothing was sent")
        if self._checked:
            self._check_items(items, env_ids)
        if not _is_exact(self._space, actions):
            raise ValueError(
                f"send needs actions of exactly the types of {self._space}, and these "
                f"({type(actions).__name__}) differ; nothing was sent"
            )
        self._write(items, env_ids)

    def _write(self, items: Sequence[Any], env_ids: Sequence[int]) -> None:
        assert self._memory is not None
        for number, item in zip(env_ids, items, strict=True):
            self._memory.write(number, item)

    def _convert(self, actions: Any) -> NDArray[Any] | None:
        """Returns the actions as an array, integers in the space's dtype; None if that is not possible."""
        array = self.shared
        assert array is not None
        try:
            given = np.asarray(actions)
        except ValueError:
            return None
        fits = given.dtype.kind in ("iub" if array.dtype.kind in "iu" else "iubf")
        if given.shape != array.shape or not fits:
            return None
        if array.dtype.kind in "iub":
            converted: NDArray[Any] = given.astype(array.dtype)
            if np.array_equal(converted, given):
                return converted
        return given if type(actions) is np.ndarray else None

    def _check(self, given: NDArray[Any], env_ids: Sequence[int]) -> None:
        low, high = self._range
        fine = (given >= low) & (given <= high)  # False for NaN
        if not fine.all():
            row = int(np.flatnonzero(~fine.reshape(len(given), -1).all(axis=1))[0])
            self._refuse(given[row].tolist(), env_ids[row])

    def _check_items(self, items: Sequence[Any], env_ids: Sequence[int]) -> None:
        for number, item in zip(env_ids, items, strict=True):
            if not _holds(self._space, item):
                self._refuse(item, number)

    def _refuse(self, action: Any, number: int) -> NoReturn:
        raise ValueError(
            f"action {action!r} of environment {number} is not in {self._space}; nothing was stepped"
        )

    def close(self) -> None:
        if self.segment is not None:
            self.segment.close()


def _is_exact(space: Space[Any], actions: Any) -> bool:
    """Whether a batch of actions can be stored in memory of this space without loss."""
    if isinstance(space, DictSpace):
        return all(_is_exact(part, actions[key]) for key, part in space.spaces.items())
    if isinstance(space, TupleSpace):
        return all(_is_exact(part, actions[number]) for number, part in enumerate(space.spaces))
    if not isinstance(space, _ARRAYS):
        return all(_holds(space, action) for action in actions)
    given = np.asarray(actions)
    assert space.dtype is not None
    if given.dtype == space.dtype:
        return True
    whole = given.dtype.kind in "iub" and space.dtype.kind in "iub"
    return whole and np.array_equal(given.astype(space.dtype), given)


def _holds(space: Space[Any], action: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Box warns about a number in place of an array
        return bool(space.contains(action))


def discrete_range(space: Space[Any]) -> tuple[Any, Any]:
    """Returns the bounds of a space of integers; (None, None) for a Box."""
    if isinstance(space, Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    if isinstance(space, MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, MultiBinary):
        return 0, 1
    return None, None
