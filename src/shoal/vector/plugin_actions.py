"""Actions of C environments in worker processes, with the same checks and errors as the native backend."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.memory import Layout, Segment
from shoal.memory.layout import FieldSpec
from shoal.native.plugin import PluginInfo
from shoal.vector.hooks import ActionHooks

__all__ = ["PluginActions"]


class PluginActions:
    """One shared array per field; all actions are checked before anything is stepped."""

    kind = "array"

    def __init__(self, info: PluginInfo, num_envs: int, checks: Container[str]) -> None:
        fields = self._fields = info.actions
        self._num_envs = num_envs
        self._hooks = ActionHooks(fields)
        layout: dict[str, FieldSpec] = {
            f"action/{number}": (field.dtype, (num_envs, *field.shape)) for number, field in enumerate(fields)
        }
        self.segment = Segment(Layout(layout))
        self._arrays = [self.segment[name] for name in self.segment]
        self._checks = _core.ActionChecks(info.plugin, info.values)
        self._checked = [
            "actions" in checks or ("nan" in checks and field.dtype.kind == "f") for field in fields
        ]

    @property
    def shared(self) -> Any:
        """The action buffer, or a dict of one per field."""
        if self._fields[0].name is None:
            return self._arrays[0]
        return {field.name: array for field, array in zip(self._fields, self._arrays, strict=True)}

    def take(self, actions: Any) -> None:
        """Checks the actions and copies them into shared memory."""
        parts = [actions]
        if self._fields[0].name is not None:
            parts = list(self._hooks.as_dict(actions).values())
        given = [self._convert(number, part) for number, part in enumerate(parts)]
        self._check(given)
        for array, part in zip(self._arrays, given, strict=True):
            array[...] = part

    def check_shared(self) -> None:
        """Checks the actions that were written into the buffer."""
        self._check(self._arrays)

    def _convert(self, number: int, part: Any) -> NDArray[Any]:
        array = self._arrays[number]
        if type(part) is np.ndarray and part.dtype == array.dtype and part.shape == array.shape:
            return part
        return self._hooks.convert(number, part, self._num_envs)

    def _check(self, parts: Sequence[NDArray[Any]]) -> None:
        for number, part in enumerate(parts):
            if self._checked[number]:  # as in a stepper: discrete ranges and NaN; a Box is not checked
                part = np.require(part, requirements=["C", "A"])
                row = self._checks.find_bad(number, part)
                if row >= 0:
                    self._hooks.raise_bad_action(number, row, part[row].tobytes())

    def close(self) -> None:
        self.segment.close()
