"""The learner's side of one runner: its requests, their results, and how often the runner was lost."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from shoal.cluster.messages import FleetRollout, Request
from shoal.errors import WorkerDied, WorkerError, WorkerTimeout
from shoal.process.mail import RemoteTraceback

__all__ = ["Station", "Weights", "unwrap_error", "wait_for_answers"]

Weights: TypeAlias = "tuple[int, list[Any]]"
"""A version, and a list with the reference of the weights, which is empty before the first."""

_MAX_DEATHS = 3
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Station:
    """The pending requests of one runner, oldest first. The learner only waits for the oldest.

    It therefore sees a failure before any later result, and drops the requests that Ray may have sent to a
    new process in the meantime.
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
        self._first = 0 if facts["life"] < 0 else -1  # -1: another learner began this life
        self._asked: deque[tuple[Any, int]] = deque()
        self._fault: dict[str, Any] | None = None
        self._deaths = 0
        self.sizes: dict[int, int] = {}
        """The size of a rollout in bytes, by its length."""

    @property
    def oldest(self) -> Any:
        """The reference of the oldest request; None if there is no request."""
        return self._asked[0][0] if self._asked else None

    @property
    def in_flight(self) -> int:
        """The number of rollouts requested and not delivered yet."""
        return len(self._asked)

    def ask(self, length: int, limit: int, weights: Weights) -> None:
        """Requests rollouts of this length until `limit` are pending; drops requests of other lengths."""
        if any(asked != length for _, asked in self._asked):
            self._asked.clear()
        while len(self._asked) < limit:
            self._number += 1
            named = self._learner, self._branch, self._number, self._life, self._first
            request = Request(*named, length, *weights)
            self._asked.append((self.actor.collect.remote(request), length))

    def forget(self) -> None:
        """Drops all pending requests."""
        self._asked.clear()

    def receive(self) -> FleetRollout | None:
        """Returns the rollout that is ready, or None if it was lost with the runner.

        Raises the runner's exception if it raised one.
        """
        errors = self._ray.exceptions
        reference, length = self._asked.popleft()
        try:
            rollout: FleetRollout | None = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise unwrap_error(error)  # noqa: B904 - its cause is the traceback of the runner
        except (errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError) as error:
            self._record_loss(error)
            return None
        if rollout is None:
            self._record_loss(WorkerDied("the runner was lost while it had no request"))
            return None
        if self._fault is not None:
            rollout.info["fault"], self._fault = self._fault, None
        self._deaths = 0
        self.node, self.sizes[length] = rollout.node, rollout.nbytes
        return rollout

    def _record_loss(self, error: Exception) -> None:
        lost = len(self._asked) + 1
        self._asked.clear()
        self._life += 1
        self._first = self._number + 1
        if self._fault is None:  # several requests in a row can fail because of one loss
            self._fault = {"runner": self.index, "node": self.node, "lost": lost, "error": str(error)}
        if isinstance(error, self._ray.exceptions.ActorDiedError):  # final if it is repeated
            self._deaths += 1
            if self._deaths >= _MAX_DEATHS:
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


def unwrap_error(error: Any) -> Exception:
    """Returns the exception inside Ray's error, with the remote traceback as its cause."""
    cause: Exception = error.cause
    if not isinstance(cause, Exception):
        cause = WorkerError(f"a runner raised {cause!r}")
    cause.__cause__ = RemoteTraceback(_COLOUR.sub("", str(error)))
    return cause


def wait_for_answers(ray: Any, ask: Callable[[], list[Any]], timeout_s: float) -> list[Any]:
    """Returns the results of the calls that `ask` makes; calls again if a runner is being restarted."""
    deadline = time.monotonic() + timeout_s
    while True:
        calls, left = ask(), deadline - time.monotonic()
        try:
            return list(ray.get(calls, timeout=max(left, 0.1)))
        except ray.exceptions.RayTaskError as error:
            raise unwrap_error(error)  # noqa: B904 - its cause is the traceback of the runner
        except ray.exceptions.ActorUnavailableError as error:
            if left < 0:
                raise WorkerDied(f"a runner is unavailable, and Ray does not restart it: {error}") from error
        except ray.exceptions.GetTimeoutError as error:
            raise WorkerTimeout(
                f"no answer from {len(calls)} runners within {timeout_s:g} s; `ray status` shows which nodes "
                "are alive and which requests wait for resources"
            ) from error
        except ray.exceptions.RayActorError as error:
            raise WorkerDied(f"a runner could not be started: {error}") from error
