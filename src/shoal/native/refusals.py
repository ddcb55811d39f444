"""The reasons for which the native stepper rejects a call, and their exceptions."""

from __future__ import annotations

from typing import NoReturn

from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from shoal.errors import ClosedError, ShoalError

__all__ = ["describe_attribute", "refuse", "refuse_attribute", "refuse_pending"]

_REFUSALS: dict[str, tuple[type[Exception], str]] = {
    "closed": (
        ClosedError,
        "after a call to `close()` the environments cannot be used; arrays they returned are still valid",
    ),
    "not reset": (ResetNeeded, "call reset() before step()"),
    "never reset": (
        ResetNeeded,
        "reset_mask leaves out environments that were never reset; call reset() without a mask first",
    ),
    "not async reset": (ResetNeeded, "call async_reset() before send()"),
    "exiting": (ShoalError, "the interpreter is shutting down"),
    "over": (
        ResetNeeded,
        "an environment finished and autoreset is disabled: reset it with "
        'reset(options={"reset_mask": terminated | truncated}) before the next step',
    ),
    "under way": (ShoalError, "environments are under way; recv() them before this call"),
    "no checkpoint": (
        ShoalError,
        "this environment cannot be saved: it has no shoal.checkpoint/1; add the extension to the plug-in",
    ),
    "no render": (
        ShoalError,
        "this environment cannot be drawn: it has no shoal.render/1; add the extension to the plug-in",
    ),
    "bad checkpoint": (
        ValueError,
        "not a checkpoint of this environment with these options; pass what save_env returned",
    ),
}


def refuse_pending(name: str, kind: str) -> NoReturn:
    """Raises the error for a call of `name` before the results of an asynchronous call were received."""
    raise AlreadyPendingCallError(
        f"Calling `{name}` while waiting for a pending call to `{kind}` to complete.", kind
    )


def describe_attribute(name: str) -> str:
    """Returns the message for `call` or `get_attr` of environments in C."""
    return (
        f"environments written in C have no attribute {name!r}; they offer save_env, restore_env and "
        "render_env, and their options are in envs.options"
    )


def refuse_attribute(name: str) -> NoReturn:
    raise AttributeError(describe_attribute(name))


def refuse(reason: str) -> NoReturn:
    """Raises the exception for a reason that the native stepper gave."""
    kind, message = _REFUSALS[reason]
    raise kind(message)
