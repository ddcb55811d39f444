"""The learner's side of one runner: what it was asked for, what became of that, and how often it was lost."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from shoal.cluster.messages import FleetRollout, Request
from shoal.errors import WorkerDied, WorkerError, WorkerTimeout
from shoal.process.mail import RemoteTraceback

__all__ = ["Station", "Weights", "answers", "original"]

Weights: TypeAlias = "tuple[int, list[Any]]"
"""A version, and the reference of what `set_weights` was given in a list; an empty one before the first."""

_DEATHS = 3
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Station:
    """Requests of one runner, oldest first. Only the oldest is ever waited for.

    So a failure is seen before anything that came after it, and what Ray may have sent to a new process in
    the meantime is dropped with it.
    """

    def __init__(
        self, ray: Any, actor: Any, index: int, learner: int, branch: int, facts: dict[str, Any]
    ) -> None:
        self._ray, self.actor, self.index = ray, actor, index
        self._learner, self._branch = learner, branch
        self.node: str = facts["node"]
        self._pid: int = facts["pid"]
        self._number: int = facts["number"]
        self._life = max(facts["life"], 0)
        self._first = 0 if facts["life"] < 0 else -1  # -1: begun, under another learner
        self._asked: deque[tuple[Any, int]] = deque()
        self._fault: dict[str, Any] | None = None
        self._deaths = 0
        self.sizes: dict[int, int] = {}
        """Bytes of a rollout, by its length."""

    @property
    def oldest(self) -> Any:
        """The reference that is waited for; None if nothing was asked for."""
        return self._asked[0][0] if self._asked else None

    @property
    def in_flight(self) -> int:
        """Rollouts asked for and not delivered yet."""
        return len(self._asked)

    def ask(self, length: int, limit: int, weights: Weights) -> None:
        """Has up to `limit` rollouts of this length under way; those of other lengths are given up."""
        if any(asked != length for _, asked in self._asked):
            self._asked.clear()
        while len(self._asked) < limit:
            self._number += 1
            named = self._learner, self._branch, self._number, self._life, self._first
            request = Request(*named, length, *weights)
            self._asked.append((self.actor.collect.remote(request), length))

    def forget(self) -> None:
        """Gives up what was asked for."""
        self._asked.clear()

    def receive(self) -> FleetRollout | None:
        """The rollout that is ready; None if it was lost with the runner. Raises what the runner raised."""
        errors = self._ray.exceptions
        reference, length = self._asked.popleft()
        try:
            rollout: FleetRollout | None = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise original(error)  # noqa: B904 - its cause is the traceback of the runner
        except (errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError) as error:
            self._lose(error)
            return None
        if rollout is None:
            self._lose(WorkerDied("the runner was lost while nothing was asked of it"))
            return None
        if self._fault is not None:
            rollout.info["fault"], self._fault = self._fault, None
        self._deaths = 0
        self.node, self.sizes[length] = rollout.node, rollout.nbytes
        return rollout

    def _lose(self, error: Exception) -> None:
        lost = len(self._asked) + 1
        self._asked.clear()
        self._life += 1
        self._first = self._number + 1
        if self._fault is None:  # it may be away for longer than one request
            self._fault = {"runner": self.index, "node": self.node, "lost": lost, "error": str(error)}
        if isinstance(error, self._ray.exceptions.ActorDiedError):  # for good, where it is said again
            self._deaths += 1
            if self._deaths >= _DEATHS:
                self._deaths = 0
                raise WorkerDied(
                    f"runner {self.index} on node {self.node} died, and Ray does not restart it: {error}",
                    env_ids=[],
                    pid=self._pid,
                    signal=None,
                    exitcode=None,
                    stderr="",
                    summary=str(error),
                ) from error


def original(error: Any) -> Exception:
    """What a policy or an environment raised, as itself, of Ray's error; its cause is the traceback there."""
    cause: Exception = error.cause
    if not isinstance(cause, Exception):
        cause = WorkerError(f"a runner raised {cause!r}")
    cause.__cause__ = RemoteTraceback(_COLOUR.sub("", str(error)))
    return cause


def answers(ray: Any, ask: Callable[[], list[Any]], patience_s: float) -> list[Any]:
    """What runners answer to the calls that `ask` makes; one that is being restarted is asked again."""
    deadline = time.monotonic() + patience_s
    while True:
        calls, left = ask(), deadline - time.monotonic()
        try:
            return list(ray.get(calls, timeout=max(left, 0.1)))
        except ray.exceptions.RayTaskError as error:
            raise original(error)  # noqa: B904 - its cause is the traceback of the runner
        except ray.exceptions.ActorUnavailableError as error:
            if left < 0:
                raise WorkerDied(f"a runner is not there, and Ray does not bring it back: {error}") from error
        except ray.exceptions.GetTimeoutError as error:
            raise WorkerTimeout(
                f"no answer from {len(calls)} runners within {patience_s:g} s; `ray status` says which nodes "
                "live and what waits for room"
            ) from error
        except ray.exceptions.RayActorError as error:
            raise WorkerDied(f"a runner could not be started: {error}") from error
