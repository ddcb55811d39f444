"""Builds the infos of a step in which episodes ended."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.native.env_logs import EnvLogs
from shoal.native.plugin import FieldInfo

__all__ = ["EpisodeInfos"]


class EpisodeInfos:
    """Builds the info dict of a step in which episodes ended."""

    def __init__(
        self,
        observations: list[FieldInfo],
        episode_stats: bool,
    ) -> None:
        self._observations = observations
        self._episode_stats = episode_stats
        self.last: tuple[NDArray[np.float64], NDArray[np.uint32]]
        """Return and length of each row's last episode; the backend sets it."""
        self.env_logs: EnvLogs | None = None
        """The logs that some C environments keep; the backend sets it."""

    def __call__(
        self, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], finals: list[NDArray[Any]]
    ) -> dict[str, Any]:
        done = terminated | truncated
        info: dict[str, Any] = {}
        if finals:
            whole = np.full(len(done), None, dtype=object)
            for row in np.flatnonzero(done):
                if self._observations[0].name is None:
                    whole[row] = finals[0][row].copy()
                else:
                    names = [field.name for field in self._observations]
                    whole[row] = {name: part[row].copy() for name, part in zip(names, finals, strict=True)}
            info["final_obs"], info["_final_obs"] = whole, done.copy()
            info["final_info"], info["_final_info"] = {}, done.copy()
        if self._episode_stats:
            returns, lengths = self.last
            info["episode"] = {
                "r": np.where(done, returns, 0.0),
                "l": np.where(done, lengths, 0).astype(np.int64),
            }
            info["_episode"] = done.copy()
        if self.env_logs is not None:
            info["log"], info["_log"] = self.env_logs(done), done.copy()
        return info
