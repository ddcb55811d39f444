"""The logs of PufferLib's environments as arrays; infos report them when episodes end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.native.plugin import PluginInfo

__all__ = ["EnvLogs", "find_env_logs"]

_PREFIX = "log/"


class EnvLogs:
    """Reads the logs of all worlds in place."""

    def __init__(self, names: list[str], tables: list[NDArray[np.float64]], agents: int) -> None:
        """`tables` has one array [worlds, names] for each part of the memory, in order."""
        self._names, self._tables, self._agents = names, tables, agents

    def __call__(self, done: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
        """Returns each number for each row; 0 if no episode ended."""
        table = np.repeat(np.concatenate(self._tables), self._agents, axis=0)[: len(done)]
        return {name: np.where(done, table[:, i], 0.0) for i, name in enumerate(self._names)}


def find_env_logs(
    info: PluginInfo, raw: Sequence[Any], parts: Sequence[tuple[NDArray[np.uint8], int]]
) -> EnvLogs | None:
    """Finds the logs by the exported fields of one environment and (memory, worlds) of each part.

    Returns None if the environment keeps no log.
    """
    fields = [(name, offset) for name, *_, offset, _ in raw if name.startswith(_PREFIX)]
    if not fields:
        return None
    first = fields[0][1] % info.instance_bytes
    tables = [
        np.ndarray((worlds, len(fields)), np.float64, memory.reshape(-1), first, (info.instance_bytes, 8))
        for memory, worlds in parts
    ]
    return EnvLogs([name.removeprefix(_PREFIX) for name, _ in fields], tables, info.agents)
