"""What a vector environment asks of the code that steps its environments, and one call on its way.

VectorEnv                 arguments, spaces, leases, rollouts, infos, sessions, errors, the guard
  Backend                 start, bind, post a call, wait for it, look, close
    native | process
"""

from __future__ import annotations

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
from shoal.spaces import Bounds
from shoal.state.session import check_session
from shoal.state.snapshot import Field
from shoal.vector import arguments
from shoal.vector.exchange import Rows
from shoal.vector.infos import InfoRows
from shoal.vector.lending import Lender

__all__ = ["IN_PLACE", "Backend", "Call", "Common", "Facts", "State"]

IN_PLACE = object()
"""In place of actions: those that were written into `envs.actions`."""


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

    @classmethod
    def checked(
        cls,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        buffers: str = "leased",
        max_slots: int = 64,
        check: Any = None,
        episode_stats: bool = False,
        batch_size: int | None = None,
        session: str | None = None,
        default_check: tuple[str, ...] = ("actions",),
    ) -> Common:
        asked = check_session(session)
        return cls(
            arguments.autoreset_mode(autoreset_mode),
            arguments.choice("buffers", buffers, ("leased", "live", "copy")),
            arguments.count("max_slots", max_slots, 2**20),
            arguments.checks(check, default_check),
            episode_stats,
            batch_size,
            asked,
        )

    @property
    def same_step(self) -> bool:
        return self.autoreset_mode == AutoresetMode.SAME_STEP

    @property
    def disabled(self) -> bool:
        return self.autoreset_mode == AutoresetMode.DISABLED


@dataclass(slots=True)
class Facts:
    """What a backend knows of its environments once it has started."""

    name: str
    num_worlds: int
    """Environments; each has `agents` rows of every array."""
    agents: int
    padded: int
    """Rows that are written: with those behind the last environment that a vectorised plug-in fills."""
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


class State(Enum):
    """Where a call is."""

    UNCLAIMED = "unclaimed"
    """It was posted and nobody is known to wait for it: Ctrl-C may have come in between."""
    PENDING = "pending"
    """`step_async` or the like posted it: the user is to wait for it."""
    ABANDONED = "abandoned"
    """Nobody waits for it, after a timeout or a death that was raised, but workers may be busy with it."""
    DONE = "done"


@dataclass(slots=True, eq=False)
class Call:
    """One call to all environments, from its posting to its results."""

    kind: Literal["step", "reset", "call"]
    slot: int
    into: Rows
    row: int = 0
    state: State = State.UNCLAIMED
    actions: Any = None
    """Of a step: those that the backend has not taken yet."""
    seeds: list[int | None] = field(default_factory=list)
    options: Any = None
    mask: NDArray[Any] | None = None
    """Of a reset: which environments; None: all."""
    ends_episodes: bool = True
    """Of a reset: whether it resets environments that had not ended."""
    restarts_workers: bool = False
    """Of a reset: whether it brings back workers that died."""
    arguments: tuple[str, list[tuple[Any, ...]]] = ("", [])
    """Of a call: its kind, and the arguments for each chunk."""
    reports: list[Any] = field(default_factory=list)
    """What environments reported before it was posted."""


class Backend(Protocol):
    """Starts environments, steps them and waits. Each method runs inside the guard."""

    name: str
    """ "native" or "process"."""
    guard: _core.Guard
    checks_nan: bool
    """Whether it looks for NaN itself (check="nan")."""
    infos_ns: int
    """How long infos took to batch."""
    info_rows: InfoRows | None
    """The infos that environments write into shared memory."""

    def start(self) -> Facts:
        """Makes the environments."""

    def bind(self, lender: Lender, infos: Any, meanwhile: Callable[[], None]) -> None:
        """Makes the memory that is exchanged known. `meanwhile` may be called while workers take notice."""

    def session_sources(self) -> tuple[Segment, Any]:
        """The memory that watchers write their wishes to, and what counts steps and episodes."""

    @property
    def announce(self) -> Callable[[Rows], None] | None:
        """Tells workers of memory for results. It does not refer to the backend: slots hold it."""

    def drop_block(self, number: int) -> None:
        """The memory of a rollout is gone."""

    def require_rollout(self) -> None:
        """Raises where values cannot be in a rollout."""

    def begin_session(self) -> None:
        """There is a session now: what is watched can be published."""

    @property
    def actions(self) -> Any:
        """The action buffer itself; None: there is none."""

    def require_ready(self, name: str) -> None:
        """Raises a death that was not mended."""

    def take_actions(self, call: Call, actions: Any) -> None:
        """Checks actions, lays them down, and leaves in the call what `post` is to send."""

    def parts(self) -> list[slice]:
        """The environments of each chunk."""

    def set_pending(self, kind: str | None) -> None:
        """The user is to wait for a call of this kind; None: for none."""

    def prepare_reset(self, call: Call) -> None:
        """Before a reset is posted: brings back workers that died."""

    def post(self, call: Call) -> None:
        """Begins a call, which all environments do."""

    def wait(self, call: Call, timeout: float | None = None, *, patient: bool = False) -> list[Any]:
        """Until a call is done; what environments reported. `patient`: a death does not end the wait."""

    def rollout_step(
        self, observations: Any, actions: Any, flags: Sequence[NDArray[Any]]
    ) -> Callable[[int, Any], Any] | None:
        """What steps into row t of these blocks of a rollout; None: `post` and `wait` do."""

    def moves(self) -> int:
        """Counts steps, restores, and resets of environments that had not ended."""

    @property
    def direct(self) -> dict[str, Any]:
        """Methods that stand for the vector environment's own, and enter the guard themselves."""

    def async_reset(self, seeds: list[int | None], reset: Callable[[], list[Any]]) -> None:
        """`reset` resets all environments into slot 0, and returns what they reported."""

    def send(self, actions: Any, env_ids: Any) -> None:
        """Enters the guard itself, as `recv` does."""

    def recv(self, env_ids: Any = None) -> Any: ...

    def of_env(self, method: str, env: int, *rest: Any) -> Any:
        """`save`, `restore`, `require_checkpoint` or `render` of one C environment."""

    def look(self, env: int | None) -> list[dict[str, Field]]:
        """What one environment exports, or each of them."""

    @property
    def statistics(self) -> dict[str, Any]: ...

    @property
    def worker_pids(self) -> list[int | None]: ...

    def finalize(self, envs: Any) -> weakref.finalize[Any, Any] | None:
        """Ends the environments when `envs` is forgotten; None: memory management does."""

    def interrupt(self) -> None:
        """For close(): makes a call that is inside end soon."""

    def close(self, limit_s: float) -> None: ...
