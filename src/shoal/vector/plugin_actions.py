"""Actions of C environments in worker processes, with the same checks and errors as the native backend.

step(actions):  actions, int64  --check, copy-->  bytes, uint8    --each worker-->  its own rows, int64
step():         envs.actions, the shared array    ----check---->  --each worker-->  its own rows

Only the parent can read the caller's array, and all workers wait for it. So actions that are known to be
small integers, such as those of a Discrete space, are copied as bytes: an eighth of the memory. Threads of
the parent share the work if there are many actions.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.memory import Layout, Segment
from shoal.memory.layout import FieldSpec
from shoal.native.plugin import PluginInfo
from shoal.process.native_chunk import read_actions
from shoal.vector.hooks import ActionHooks

__all__ = ["PluginActions"]


class PluginActions:
    """One shared array per field; all actions are checked before anything is stepped."""

    kind = "array"

    def __init__(self, info: PluginInfo, num_envs: int, checks: Container[str]) -> None:
        fields = self._fields = info.actions
        self._num_envs = num_envs
        self._hooks = ActionHooks(fields)
        self._checks = _core.ActionChecks(info.plugin, info.values)
        self._checked = [
            "actions" in checks or ("nan" in checks and field.dtype.kind == "f") for field in fields
        ]
        layout: dict[str, FieldSpec] = {"is_bytes": (np.dtype(np.uint8), (1,))}
        for number, field in enumerate(fields):
            layout[f"action/{number}"] = field.dtype, (num_envs, *field.shape)
            if self._checked[number] and self._checks.fit_bytes(number):  # an unchecked one might not fit
                layout[f"bytes/{number}"] = np.dtype(np.uint8), (num_envs, *field.shape)
        self.segment = Segment(Layout(layout))
        self._is_bytes, self._arrays, self._bytes = read_actions(self.segment)

    @property
    def shared(self) -> Any:
        """The action buffer, or a dict of one per field."""
        return self._nest(self._arrays)

    def _nest(self, arrays: list[NDArray[Any]]) -> Any:
        if self._fields[0].name is None:
            return arrays[0]
        return {field.name: array for field, array in zip(self._fields, arrays, strict=True)}

    def take(self, actions: Any) -> Any:
        """Checks the actions and copies them into shared memory. Returns them in the dtypes of the space."""
        parts = [actions]
        if self._fields[0].name is not None:
            parts = list(self._hooks.as_dict(actions).values())
        given = [self._convert(number, part) for number, part in enumerate(parts)]
        for number, part in enumerate(given):
            self._check(number, part, self._bytes[number])
        for array, narrow, part in zip(self._arrays, self._bytes, given, strict=True):
            if narrow is None:
                array[...] = part
        self._is_bytes[0] = 1
        return self._nest(given)

    def check_shared(self) -> None:
        """Checks the actions that were written into the buffer."""
        for number, array in enumerate(self._arrays):
            self._check(number, array, None)
        self._is_bytes[0] = 0

    def _convert(self, number: int, part: Any) -> NDArray[Any]:
        array = self._arrays[number]
        if type(part) is np.ndarray and part.dtype == array.dtype and part.shape == array.shape:
            return part
        return self._hooks.convert(number, part, self._num_envs)

    def _check(self, number: int, part: NDArray[Any], into: NDArray[np.uint8] | None) -> None:
        """Checks the actions as a stepper does: discrete ranges and NaN. Copies them to `into`, if given."""
        if not self._checked[number]:
            return
        part = np.require(part, requirements=["C", "A"])
        if into is None:
            row = self._checks.find_bad(number, part)
        else:
            row = self._checks.to_bytes(number, part, into)
        if row >= 0:
            self._hooks.raise_bad_action(number, row, part[row].tobytes())

    def close(self) -> None:
        self._checks.close()
        self.segment.close()
