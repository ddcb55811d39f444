"""A history file behind the interface of a session that has ended, so that the viewer shows it as one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from shoal.errors import SessionError
from shoal.state import names
from shoal.state.history import History, read_history
from shoal.state.snapshot import Snapshot

__all__ = ["Recorded", "find_file"]

_UNKNOWN = {
    "env": "unknown",
    "pid": 0,
    "num_envs": 1,
    "num_worlds": 1,
    "agents": 1,
    "workers": 0,
    "started": 0,
}


class Recorded:
    """The history of a run that was saved to a file. It has no environments to show."""

    alive = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._history = read_history(path)
        known = self._history.facts
        facts = {
            name: known[name] if type(known.get(name)) is type(value) else value
            for name, value in _UNKNOWN.items()
        }
        if isinstance(known.get("started"), float):
            facts["started"] = known["started"]
        # `file` tells the page that there are no environments.
        self.facts: dict[str, Any] = {**known, **facts, "file": Path(path).name}

    def history(self) -> History:
        return self._history

    def counters(self) -> dict[str, Any]:
        """Returns the counters at the end of the run, as far as the history has them."""
        bins, returns = self._history.bins, self._history["return"]
        lengths = self._history["length"]
        if not len(bins):
            return {
                "time_ns": 0,
                "steps": 0,
                "episodes": 0,
                "return_sum": 0.0,
                "length_sum": 0,
                "odd_returns": 0,
            }
        there, ended = returns.weight > 0, lengths.weight > 0
        return {
            "time_ns": int(bins["end"][-1] * 1e9),
            "steps": int(bins["steps"][-1]),
            "episodes": int(bins["episodes"][-1]),
            "return_sum": float((returns.mean[there] * returns.weight[there]).sum()),
            "length_sum": int((lengths.mean[ended] * lengths.weight[ended]).sum()),
            "odd_returns": int(lengths.weight.sum() - returns.weight.sum()),
        }

    def returns(self) -> dict[str, Any]:
        raise SessionError("a history file has no histogram of returns")

    def watch(self, env_ids: Sequence[int], rate_hz: float = 20.0) -> None:
        """Watches nothing: the environments are gone."""

    def latest(self, env_id: int, after: int = 0) -> tuple[int, Snapshot] | None:
        return None

    def close(self) -> None: ...

    def __enter__(self) -> Recorded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def find_file(name: str | None) -> Path | None:
    """Returns the file that `name` means: a path, or a file that exists and no running session's name."""
    if name is None:
        return None
    path = Path(name)
    if path.name != name:
        return path
    is_running = any(found.name == name for found in names.list_paths())
    return path if not is_running and os.path.lexists(path) else None
