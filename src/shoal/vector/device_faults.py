"""Turns what a kernel found wrong into an exception that names the environments."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from shoal.errors import PluginError
from shoal.native.plugin import PluginInfo

__all__ = ["raise_faults"]

_SHOWN = 8
_FAULTS: dict[int, tuple[type[Exception], str]] = {
    1: (
        ValueError,
        "{envs} {were} not stepped, because an action was not in {space}. Fix the code that chose it "
        "(check=() turns this check off)",
    ),
    2: (
        ResetNeeded,
        "{envs} {were} not stepped, because the episode was over and autoreset is disabled; call "
        'reset(options={{"reset_mask": terminated | truncated}})',
    ),
    3: (ValueError, "{envs} had a NaN in an observation or a reward"),
    4: (PluginError, "the plug-in's init failed for {envs}"),
}


def raise_faults(kinds: NDArray[np.uint8], info: PluginInfo) -> NoReturn:
    """Raises the first kind of fault; `kinds` has each environment's, 0 for none."""
    kind = int(kinds[np.flatnonzero(kinds)[0]])
    envs = np.flatnonzero(kinds == kind)
    shown = ", ".join(map(str, envs[:_SHOWN]))
    named = f"environment {shown}" if len(envs) == 1 else f"environments {shown}"
    if len(envs) > _SHOWN:
        named = f"{len(envs)} environments ({shown}, ...)"
    others = int(np.count_nonzero(kinds)) - len(envs)
    error, text = _FAULTS[kind]
    what = text.format(envs=named, were="was" if len(envs) == 1 else "were", space=info.action_space)
    more = f"; {others} more had another fault" if others else ""
    raise error(f"{info.plugin.name}: {what}{more}")
