"""Checks the arguments that users pass to a vector environment, before anything is done with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from shoal import _core

__all__ = [
    "AUTORESET_CODES",
    "CHECK_FLAGS",
    "autoreset_mode",
    "batched",
    "checks",
    "choice",
    "count",
    "describe_undrawable",
    "env_id",
    "no_options",
    "render_metadata",
    "render_mode",
    "reset_mask",
    "seconds",
    "seeds",
    "timeout",
]

AUTORESET_CODES = {mode: getattr(_core, f"AUTORESET_{mode.name}") for mode in AutoresetMode}
"""The core's numbers for Gymnasium's modes."""
CHECK_FLAGS = {"actions": _core.STEPPER_CHECK_ACTIONS, "nan": _core.STEPPER_CHECK_NAN}
"""The core's numbers for what a step checks; kernels for a GPU use the same."""
_LONGEST_S = 1e9
_FRAMES_PER_S = 30  # of a video, if the plug-in does not say


def seeds(seed: int | Sequence[int | None] | None, number: int) -> list[int | None]:
    """Returns one seed per environment, as Gymnasium does; None keeps an environment's generator."""
    if seed is None:
        return [None] * number
    if isinstance(seed, (int, np.integer)):
        values: list[Any] = list(range(int(seed), int(seed) + number))
        if not isinstance(seed, bool) and seed >= 0:
            return values
    elif isinstance(seed, (str, bytes)) or not isinstance(seed, Iterable):
        raise TypeError(f"seed must be an int, a list of ints or None, got {seed!r}")
    else:
        values = list(seed)
    if len(values) != number:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={number} "
            f"but got length={len(values)}."
        )
    for env, value in enumerate(values):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
            raise ValueError(f"a seed must be an int of at least 0, got {value!r} for environment {env}")
    return [None if value is None else int(value) for value in values]


def render_metadata(plugin: _core.Plugin) -> dict[str, Any]:
    """Returns the entries of `metadata` about pictures, as Gymnasium names them."""
    if not plugin.has_extension("shoal.render/1"):
        return {"render_modes": []}
    return {"render_modes": ["rgb_array"], "render_fps": plugin.render_fps or _FRAMES_PER_S}


def render_mode(mode: str | None, plugin: _core.Plugin) -> str | None:
    """Returns the render mode of environments in C; raises ValueError if they do not have it."""
    modes = render_metadata(plugin)["render_modes"]
    if mode is None or mode in modes:
        return mode
    allowed = " or ".join(map(repr, [None, *modes]))
    reason = f"; {describe_undrawable(plugin.name)}"
    if modes:
        reason = "; `shoal watch` shows a run in the browser" if mode == "human" else ""
    raise ValueError(f"render_mode must be {allowed} for {plugin.name}, got {mode!r}{reason}")


def describe_undrawable(name: str) -> str:
    """Returns a sentence: this C environment cannot be drawn, and what to use instead."""
    advice = ""
    if name in gymnasium.registry:
        advice = (
            "; Gymnasium's own version can: pass a function in place of the id, "
            f"lambda: gymnasium.make({name!r}, render_mode='rgb_array')"
        )
    return f"{name} in C cannot be drawn{advice}"


def reset_mask(
    options: Any, rows: int, worlds: int
) -> tuple[NDArray[np.bool_] | None, dict[str, Any] | None]:
    """Returns which environments to reset (None: all), and the other options. Errors are Gymnasium's."""
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options must be a dict, got {type(options).__name__}: {options!r}")
    if options is None or "reset_mask" not in options:
        return None, None if options is None else dict(options)
    others = dict(options)
    mask = others.pop("reset_mask")
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (rows,):
        raise ValueError(f"`options['reset_mask']` must have shape `({rows},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            "`options['reset_mask']` must contain a boolean array with at least one True value, "
            f"got reset_mask={mask}"
        )
    return np.asarray(mask.reshape(worlds, -1).any(axis=1)), others


def no_options(options: dict[str, Any] | None) -> None:
    """Raises ValueError if there are options: C environments have none for a reset."""
    if options:
        raise ValueError(f"reset of C environments takes only the option 'reset_mask', got {sorted(options)}")


def batched(space: Space[Any], rows: int) -> Space[Any]:
    """Returns Gymnasium's space of `rows` values."""
    try:
        return batch_space(space, rows)
    except MemoryError as error:  # Gymnasium keeps the bounds of every element of every row
        raise MemoryError(
            f"Gymnasium's batched space of {rows} x {space} does not fit into memory ({error}); use fewer "
            "environments"
        ) from error


def autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Returns Gymnasium's mode, given by value ("SameStep") or by name ("SAME_STEP")."""
    if isinstance(mode, str) and mode.upper() in AutoresetMode.__members__:
        return AutoresetMode[mode.upper()]
    try:
        return AutoresetMode(mode)
    except ValueError:
        names = ", ".join(AutoresetMode.__members__)
        raise ValueError(f"autoreset_mode must be one of {names}, got {mode!r}") from None


def env_id(given: Any, worlds: int) -> int:
    """Returns the number of an environment; raises TypeError or IndexError if there is none."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise TypeError(f"an environment's id must be an int, got {type(given).__name__}: {given!r}")
    if not 0 <= given < worlds:
        raise IndexError(
            f"environment {given} is out of range for {worlds} environments; ids are 0 to {worlds - 1}"
        )
    return int(given)


def count(name: str, value: Any, most: int) -> int:
    """Returns `value` if it is an int from 1 to `most`; raises otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be from 1 to {most}, got {value}")
    return int(value)


def flag(name: str, value: Any, *others: str) -> bool:
    """Returns a bool, also for NumPy's; `others` are further choices that the error names."""
    if not isinstance(value, (bool, np.bool_)):
        choices = ", ".join(["True", "False", *map(repr, others)])
        raise TypeError(f"{name} must be one of {choices}, got {type(value).__name__}: {value!r}")
    return bool(value)


def choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns `value` if it is one of `choices`; raises otherwise."""
    if value not in choices:
        shown = ", ".join(map(repr, choices[:-1]))
        raise ValueError(f"{name} must be {shown} or {choices[-1]!r}, got {value!r}")
    return str(value)


def seconds(name: str, value: Any) -> float | None:
    """Returns a positive number of seconds, or None."""
    if value is None:
        return None
    _require_number(name, value)
    if not value > 0:
        raise ValueError(f"{name} must be more than 0 seconds, got {value}")
    return float(value)


def timeout(value: Any) -> float | None:
    """How long to wait, or None; as in Gymnasium, 0 or less does not wait."""
    if value is None:
        return None
    _require_number("timeout", value)
    if value != value:
        raise ValueError("timeout must be a number of seconds or None, got NaN")
    return min(value, _LONGEST_S)  # type: ignore[no-any-return]  # an int may be too large for a float


def _require_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number of seconds or None, got {type(value).__name__}: {value!r}")


def checks(check: Iterable[str] | None, default: Iterable[str]) -> set[str]:
    """Returns what is checked in each step."""
    names = set(default) if check is None else {check} if isinstance(check, str) else set(check)
    if not names <= {"actions", "nan"}:
        raise ValueError(f"check may name ['actions', 'nan'], got {sorted(names)}")
    return names
