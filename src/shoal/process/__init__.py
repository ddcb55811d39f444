"""Worker processes: how they are started, given commands, waited for and replaced."""

from __future__ import annotations

__all__: list[str] = []
