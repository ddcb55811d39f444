"""The interface between a vector environment and the backend that steps its environments.

VectorEnv                 arguments, spaces, leases, rollouts, infos, sessions, errors, the guard
  Backend                 start, bind, post a call, wait for it, look, close
    native | process | cuda
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol

from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal import _core
from shoal.memory import Segment
from shoal.native.plugin import PluginInfo
from shoal.process.requests import CallMethod, SetAttribute, StepperMethod
from shoal.spaces import Bounds
from shoal.state.session import check_history, check_session
from shoal.state.snapshot import Field
from shoal.vector import arguments
from shoal.vector.exchange import Rows
from shoal.vector.infos import InfoRows
from shoal.vector.lending import LeasedMemory, Lender

__all__ = ["FROM_BUFFER", "Backend", "Call", "Common", "Facts", "State", "lend_segments"]

FROM_BUFFER = object()
"""Passed in place of actions: use those in the action buffer, `envs.actions`."""


@dataclass(frozen=True, slots=True)
class Common:
    """The arguments that all backends have, checked."""

    autoreset_mode: AutoresetMode
    buffers: str
    max_slots: int
    checks: set[str]
    episode_stats: bool
    batch_size: int | None
    session: str | None
    history: str | None

    @classmethod
    def from_arguments(
        cls,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        buffers: str = "leased",
        max_slots: int = 64,
        check: Any = None,
        episode_stats: bool = False,
        batch_size: int | None = None,
        session: str | None = None,
        default_check: tuple[str, ...] = ("actions",),
        history: str | os.PathLike[str] | None = None,
    ) -> Common:
        """Checks the arguments; raises for the first that is wrong."""
        session_name = check_session(session)
        return cls(
            arguments.autoreset_mode(autoreset_mode),
            arguments.choice("buffers", buffers, ("leased", "live", "copy")),
            arguments.count("max_slots", max_slots, 2**20),
            arguments.checks(check, default_check),
            episode_stats,
            batch_size,
            session_name,
            check_history(history, session_name),
        )

    @property
    def same_step(self) -> bool:
        return self.autoreset_mode == AutoresetMode.SAME_STEP

    @property
    def disabled(self) -> bool:
        return self.autoreset_mode == AutoresetMode.DISABLED


@dataclass(slots=True)
class Facts:
    """What a backend knows about its environments once it has started."""

    name: str
    num_worlds: int
    """Environments; each has `agents` rows of every array."""
    agents: int
    padded: int
    """Rows that are written, including those after the last environment that a vectorised plug-in fills."""
    observation_space: Space[Any]
    action_space: Space[Any]
    batched_observation_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    bounds: Bounds
    info: PluginInfo | None
    in_segment: bool = True
    """Whether observations have a layout; otherwise they travel as messages."""
    workers: int = 0
    builds_infos: bool = True
    """Whether the vector environment builds the infos of episodes; otherwise the results have them."""


class State(Enum):
    """The state of a call."""

    UNCLAIMED = "unclaimed"
    """It was posted, and this call itself waits for it unless Ctrl-C interrupted it."""
    PENDING = "pending"
    """`step_async` or the like posted it; the user calls `step_wait` for its results."""
    ABANDONED = "abandoned"
    """A timeout or a death was raised, so nobody takes its results, but workers may still be busy with it."""
    DONE = "done"


@dataclass(slots=True, eq=False)
class Call:
    """One call to all environments, from posting it to its results."""

    kind: Literal["step", "reset", "call"]
    slot: int
    into: Rows
    row: int = 0
    state: State = State.UNCLAIMED
    actions: Any = None
    """Step: actions that the backend has not copied into shared memory."""
    taken: Any = None
    """Step: actions as arrays of the space's dtypes, if they are not in `envs.actions`."""
    seeds: list[int | None] = field(default_factory=list)
    options: Any = None
    mask: NDArray[Any] | None = None
    """Reset: which environments; None: all."""
    ends_episodes: bool = True
    """Reset: whether it resets environments whose episode had not ended."""
    restarts_workers: bool = False
    """Reset: whether it restarts workers that died."""
    requests: Sequence[CallMethod | SetAttribute] = ()
    """Call: one request per chunk."""
    reports: list[Any] = field(default_factory=list)
    """Reports of environments from before the call was posted."""


class Backend(Protocol):
    """Starts environments, steps them and waits. The caller of each method has entered the guard."""

    name: str
    """ "native", "process" or "cuda"."""
    guard: _core.Guard
    checks_nan: bool
    """Whether it looks for NaN itself (check="nan")."""
    infos_ns: int
    """The time spent batching infos."""
    info_rows: InfoRows | None
    """The infos that environments write into shared memory."""

    def start(self) -> Facts:
        """Makes the environments."""

    def make_lender(self, facts: Facts, lent: LeasedMemory) -> Any:
        """Returns what chooses the memory for results: a Lender, or an object with the same methods."""

    def bind(self, lender: Any, infos: Any, meanwhile: Callable[[], None]) -> None:
        """Connects the environments to the shared memory; calls `meanwhile` while workers do their part."""

    def session_sources(self) -> tuple[Segment, Any]:
        """Returns the memory that watchers write requests into, and the counters of steps and episodes."""

    @property
    def announce(self) -> Callable[[Rows], None] | None:
        """Announces memory for results to workers. It does not refer to the backend: slots refer to it."""

    def drop_block(self, number: int) -> None:
        """Forgets the memory of a rollout."""

    def require_rollout(self) -> None:
        """Raises if values of these spaces cannot be in a rollout."""

    def begin_session(self) -> None:
        """Publishes watched environments from now on: there is a session."""

    @property
    def actions(self) -> Any:
        """The action buffer; None if there is none."""

    def require_ready(self, name: str) -> None:
        """Raises if a worker has died and was not replaced."""

    def take_actions(self, call: Call, actions: Any) -> None:
        """Checks actions and copies them into shared memory; those that `post` must send go into `call`."""

    def parts(self) -> list[slice]:
        """Returns the environments of each chunk."""

    def set_pending(self, kind: str | None) -> None:
        """Records that the user must wait for a call of this kind (None: for none)."""

    def read_mask(self, options: Any) -> tuple[Any, dict[str, Any] | None]:
        """Returns which environments `reset(options=...)` names (None: all), and the other options."""

    def check(self) -> None:
        """Raises what went wrong in earlier steps and could not be raised by them."""

    def prepare_reset(self, call: Call) -> None:
        """Restarts dead workers before a reset is posted."""

    def post(self, call: Call) -> None:
        """Starts a call in all environments."""

    def wait(self, call: Call, timeout: float | None = None, *, ignore_deaths: bool = False) -> list[Any]:
        """Waits until a call is done; returns the environments' reports.

        With `ignore_deaths`, the wait goes on for the other workers after a death.
        """

    def rollout_step(
        self, observations: Any, actions: Any, flags: Sequence[NDArray[Any]]
    ) -> Callable[[int, Any], Any] | None:
        """Returns a function that steps into row t of these blocks; None: use `post` and `wait`."""

    def count_changes(self) -> int:
        """Counts steps, restores, and resets of environments whose episode had not ended.

        A rollout compares the count, to notice that the environments were moved elsewhere.
        """

    @property
    def direct(self) -> dict[str, Any]:
        """Methods that replace the vector environment's own; they enter the guard themselves."""

    def async_reset(self, seeds: list[int | None], reset: Callable[[], list[Any]]) -> None:
        """Resets all environments for `recv`; `reset` does it into slot 0 and returns reports."""

    def send(self, actions: Any, env_ids: Any) -> None:
        """Starts a step of some environments. It enters the guard itself, as `recv` does."""

    def recv(self, env_ids: Any = None) -> Any:
        """Returns the results of the first environments that have finished."""

    def use_stepper(self, method: StepperMethod, env: int, *rest: Any) -> Any:
        """Calls a method of the native stepper for one C environment."""

    def look(self, env: int | None) -> list[dict[str, Field]]:
        """Returns the exported state of one environment, or of each of them."""

    @property
    def statistics(self) -> dict[str, Any]: ...

    @property
    def worker_pids(self) -> list[int | None]: ...

    def finalize(self, envs: Any) -> weakref.finalize[Any, Any] | None:
        """Ends the environments when `envs` is garbage collected; None if that needs no finalizer."""

    def interrupt(self) -> None:
        """Makes a call that runs in another thread end soon, for close()."""

    def close(self, limit_s: float) -> None: ...


def lend_segments(backend: Backend, facts: Facts, common: Common, lent: LeasedMemory) -> Lender:
    """Returns the lender of a backend whose results are in shared memory."""
    return Lender(
        lent,
        facts.observation_space,
        facts.num_worlds * facts.agents,
        facts.padded,
        facts.bounds,
        in_segment=facts.in_segment,
        buffers=common.buffers,
        max_slots=common.max_slots,
        finals=facts.info is not None and common.same_step,
        fields=None if facts.info is None else [field.name for field in facts.info.observations],
        announce=backend.announce,
    )
