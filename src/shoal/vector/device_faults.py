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
        "an action was not in {space}, so the environments were not stepped. Fix the code that chose it "
        "(check=() turns this check off)",
    ),
    2: (
        ResetNeeded,
        "their episode was over and autoreset is disabled, so they were not stepped: reset them with "
        'reset(options={{"reset_mask": terminated | truncated}})',
    ),
    3: (ValueError, "an observation or a reward was NaN"),
    4: (PluginError, "the plug-in's init refused them"),
}


def raise_faults(kinds: NDArray[np.uint8], info: PluginInfo) -> NoReturn:
    """Raises the first kind of fault; `kinds` has each environment's, 0 for none."""
    kind = int(kinds[np.flatnonzero(kinds)[0]])
    envs = np.flatnonzero(kinds == kind)
    shown = ", ".join(map(str, envs[:_SHOWN])) + (", ..." if len(envs) > _SHOWN else "")
    counted = "1 environment" if len(envs) == 1 else f"{len(envs)} environments"
    others = int(np.count_nonzero(kinds)) - len(envs)
    error, text = _FAULTS[kind]
    what = text.format(space=info.action_space)
    more = f"; {others} more had another fault" if others else ""
    raise error(f"{info.plugin.name}: {counted} ({shown}): {what}{more}")
