"""Hooks that the native stepper calls in rare cases: conversions, errors, infos, published environments.

`StepperHooks` and `FlowHooks` in _core.pyi list them. The stepper refers to this object, and this object
refers to neither the stepper nor the environments, so there is no cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from shoal.errors import ShoalError
from shoal.native.plugin import FieldInfo
from shoal.native.refusals import refuse, refuse_pending
from shoal.vector.lending import Lender
from shoal.vector.nans import require_no_nan

__all__ = ["ActionHooks", "Hooks"]


class ActionHooks:
    """Converts actions without loss, or raises an error that says what was expected."""

    def __init__(self, actions: list[FieldInfo]) -> None:
        self._actions = actions

    def as_dict(self, given: Any) -> dict[str, Any]:
        """Returns the actions by field name; raises ValueError if keys are missing."""
        names = [field.name for field in self._actions]
        try:
            return {str(name): given[name] for name in names}
        except (KeyError, TypeError, IndexError, ValueError):
            found = f"the keys {list(given)}" if isinstance(given, dict) else type(given).__name__
            raise ValueError(f"expected actions with the keys {names}, found {found}") from None

    def convert(self, number: int, given: Any, rows: int) -> NDArray[Any]:
        """Returns actions of another type, order or container as the field's dtype; raises if that loses
        anything."""
        field = self._actions[number]
        what = "actions" if field.name is None else f"actions[{field.name!r}]"
        try:
            array = np.asarray(given)
        except ValueError as error:
            raise ValueError(f"{what}: expected an array, found {type(given).__name__}: {error}") from None
        expected = (rows, *field.shape)
        if array.shape != expected:
            of_type = f" of type {type(given).__name__}" if array.dtype.kind == "O" else ""
            raise ValueError(
                f"{what}: expected shape {expected}, found {array.shape}{of_type}; nothing was stepped"
            )
        fits = array.dtype.kind in ("iub" if field.dtype.kind in "iu" else "iubf")
        if not fits or (field.dtype.kind == "b" and array.dtype.kind != "b"):
            why = "could lose precision" if array.dtype.kind in "iufb" else "is not a type of real numbers"
            raise TypeError(
                f"{what}: expected dtype {field.dtype}, found {array.dtype}, which {why}; "
                "convert it before step()"
            )
        with np.errstate(over="ignore"):
            converted = np.ascontiguousarray(array.astype(field.dtype))
        lost = (
            not np.array_equal(converted, array)
            if field.dtype.kind in "iu"
            else (field.dtype.kind == "f" and bool((np.isinf(converted) & np.isfinite(array)).any()))
        )
        if lost:
            raise ValueError(
                f"{what}: a value of the {array.dtype} array does not fit dtype {field.dtype}; nothing was "
                "stepped"
            )
        return converted.reshape(expected)

    def raise_bad_action(self, number: int, row: int, data: bytes) -> NoReturn:
        field = self._actions[number]
        value = np.frombuffer(data, field.dtype).reshape(field.shape)
        what = "action" if field.name is None else f"action {field.name!r}"
        shown = value.item() if value.shape == () else value.tolist()
        raise ValueError(
            f"{what} {shown} of row {row} is not in {field.space}; nothing was stepped. "
            "Fix the code that chose it (check=() turns this check off)"
        )


class Hooks(ActionHooks):
    """The hooks of one vector environment."""

    def __init__(
        self,
        actions: list[FieldInfo],
        lender: Lender,
        infos: Callable[..., dict[str, Any]] | None,
        observation_space: Space[Any],
        publish: Callable[[Any], None],
    ) -> None:
        super().__init__(actions)
        self._lender = lender
        self.build_infos = infos
        self._observation_space = observation_space
        self.publish = publish
        """Called with the stepper, or the flow, when a watched environment must be published."""

    def refuse(self, reason: str) -> NoReturn:
        refuse(reason)

    def refuse_pending(self, kind: str) -> NoReturn:
        refuse_pending("step", kind)

    def copy_results(self, value: Any) -> Any:
        """Returns a copy of results that are in slot 0."""
        return self._lender.lend(0, value)

    def raise_nan(self, results: tuple[Any, ...], env_ids: Any = None) -> NoReturn:
        require_no_nan(self._observation_space, results, env_ids)
        raise AssertionError("the core found a NaN that is not there")

    def raise_bad_ids(self, env_ids: Any, lanes: int, num_envs: int, index: int) -> NoReturn:
        """Raises for the group of `lanes` ids that begins at `index`."""
        whole = "" if lanes == 1 else f", in whole groups of {lanes} adjacent ones, as recv returns them"
        group = np.asarray(env_ids)[index : index + lanes].tolist()
        wrong = [k for k, env in enumerate(group) if env != group[0] + k]
        found = f"env_ids[{index}] is {group[0]}"
        if 0 <= group[0] < num_envs and group[0] % lanes != 0:
            found += ", which is not the first one of its group"
        elif 0 <= group[0] < num_envs and wrong:
            found += f" and env_ids[{index + wrong[0]}] is {group[wrong[0]]}"
        elif 0 <= group[0] < num_envs:
            found += f", and its group has {len(group)} of {lanes} ids"
        raise ValueError(
            f"env_ids must name environments from 0 to {num_envs - 1}{whole}; {found}; nothing was sent"
        )

    def raise_sent_twice(self, env_ids: Any, index: int) -> NoReturn:
        """Raises for an id that is under way, or that is in `env_ids` twice."""
        ids = np.asarray(env_ids)
        places = np.flatnonzero(ids == ids[index])
        if len(places) > 1:
            found = f"env_ids[{places[0]}] and env_ids[{places[1]}] are both {ids[index]}"
        else:
            found = f"env_ids[{index}] is {ids[index]}, which is under way already; recv() it first"
        raise ShoalError(f"an environment can be sent once; {found}; nothing was sent")

    def raise_too_few(self, under_way: int, batch: int) -> NoReturn:
        raise ShoalError(
            f"recv would wait for ever: it returns {batch} environments and only {under_way} are under way; "
            "call async_reset() or send() first"
        )
