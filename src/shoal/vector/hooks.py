"""What the native stepper asks Python for, off the hot path: conversions, messages, new slots, infos.

The stepper holds this object, which holds neither the stepper nor the environment: there is no cycle.
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
    """What actions may be: conversions that lose nothing, and errors that say what was expected."""

    def __init__(self, actions: list[FieldInfo]) -> None:
        self._actions = actions

    def as_dict(self, given: Any) -> dict[str, Any]:
        names = [field.name for field in self._actions]
        try:
            return {str(name): given[name] for name in names}
        except (KeyError, TypeError, IndexError, ValueError):
            found = f"the keys {list(given)}" if isinstance(given, dict) else type(given).__name__
            raise ValueError(f"expected actions with the keys {names}, found {found}") from None

    def convert(self, number: int, given: Any, rows: int) -> NDArray[Any]:
        """Actions of another type, order or container as the field's own; never by losing anything."""
        field = self._actions[number]
        what = "actions" if field.name is None else f"actions[{field.name!r}]"
        try:
            array = np.asarray(given)
        except ValueError as error:
            raise ValueError(f"{what}: expected an array, found {type(given).__name__}: {error}") from None
        expected = (rows, *field.shape)
        if array.shape != expected:
            raise ValueError(f"{what}: expected shape {expected}, found {array.shape}; nothing was stepped")
        fits = array.dtype.kind in ("iub" if field.dtype.kind in "iu" else "iubf")
        if not fits or (field.dtype.kind == "b" and array.dtype.kind != "b"):
            raise TypeError(
                f"{what}: expected dtype {field.dtype}, found {array.dtype}; convert it yourself, so that "
                "nothing is lost unseen"
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
                f"{what}: a value does not fit dtype {field.dtype}, found {array.dtype}; nothing was stepped"
            )
        return converted.reshape(expected)

    def bad_action(self, number: int, row: int, data: bytes) -> NoReturn:
        field = self._actions[number]
        value = np.frombuffer(data, field.dtype).reshape(field.shape)
        what = "action" if field.name is None else f"action {field.name!r}"
        shown = value.item() if value.shape == () else value.tolist()
        raise ValueError(
            f"{what} {shown} of row {row} is not in {field.space}; nothing was stepped. "
            "Fix what chose it (check=() turns this check off)"
        )


class Hooks(ActionHooks):
    """Answers for one vector environment."""

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
        self.infos = infos
        self._observation_space = observation_space
        self.publish = publish
        """Called with the stepper, or the flow, when a watched environment is to be published."""

    def refuse(self, reason: str) -> NoReturn:
        refuse(reason)

    def refuse_pending(self, kind: str) -> NoReturn:
        refuse_pending("step", kind)

    def copied(self, value: Any) -> Any:
        """The same results in memory of their own."""
        return self._lender.lend(0, value)

    def nan_found(self, results: tuple[Any, ...], env_ids: Any = None) -> NoReturn:
        require_no_nan(self._observation_space, results, env_ids)
        raise AssertionError("the core found a NaN that is not there")

    def bad_ids(self, env_ids: Any, lanes: int) -> NoReturn:
        whole = "" if lanes == 1 else f" in whole groups of {lanes} neighbours, as recv returns them"
        raise ValueError(f"env_ids must name environments{whole}; got {np.asarray(env_ids).tolist()}")

    def too_few(self, under_way: int, batch: int) -> NoReturn:
        raise ShoalError(
            f"recv would wait for ever: it returns {batch} environments and only {under_way} are under way; "
            "call async_reset() or send() first"
        )
