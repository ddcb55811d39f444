"""Writes rollouts into a learner's replay buffer, whole arrays at a time."""

from __future__ import annotations

from shoal.cluster.messages import FleetRollout, map_arrays
from shoal.errors import ShoalError
from shoal.replay import ReplayBuffer, TrajectoryBuffer

__all__ = ["Writers"]


class Writers:
    """Adds rollouts of a fleet to a buffer; each runner has its own trajectories.

    buffer = shoal.ReplayBuffer.for_env(fleet, 1_000_000)
    writers = Writers(buffer)
    for rollout in fleet.rollouts(32):
        writers.add(rollout)

    Any other ReplayBuffer gets those fields of `rollout.transitions()` that it has.

    >>> from shoal.cluster import Fleet
    >>> fields = {"obs": (np.float32, (4,)), "reward": (np.float64, ())}
    >>> with Fleet("CartPole-v1", 4, nodes=1) as fleet, shoal.ReplayBuffer(1000, fields) as buffer:
    ...     Writers(buffer).add(next(fleet.rollouts(8)))
    ...     len(buffer)
    32
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._handles: dict[int, tuple[TrajectoryBuffer, int, int]] = {}
        """For each runner: its own handle of the buffer, and the number and life of its last rollout."""

    def add(self, rollout: FleetRollout) -> None:
        """Stores every transition of the rollout."""
        if isinstance(self._buffer, TrajectoryBuffer):
            self._add_steps(self._handle(rollout), rollout)
            return
        rows = rollout.transitions()
        wanted = {name.split("/")[0] for name in self._buffer.fields}
        if missing := wanted - rows.keys() - rollout.extras.keys():
            raise ShoalError(
                f"the buffer has fields {sorted(missing)}, which the rollout has not; it has "
                f"{[*rows, *rollout.extras]}: return the missing ones from the policy as extras"
            )
        if beside := wanted & rollout.extras.keys():
            counts = rollout.counts
            rows |= {name: rollout.extras[name][counts] for name in beside}
        self._buffer.extend({name: rows[name] for name in rows if name in wanted})

    def _handle(self, rollout: FleetRollout) -> TrajectoryBuffer:
        """Returns the runner's handle, positioned at the rollout's first observations."""
        handle, number, life = self._handles.get(rollout.runner, (None, 0, 0))
        follows = (number + 1, life) == (rollout.number, rollout.life) and "fault" not in rollout.info
        if handle is None or not follows:
            rebuild, given = self._buffer.__reduce__()
            handle = rebuild(*given)
            if handle.num_envs != len(rollout.over):
                raise ShoalError(
                    f"the buffer stores steps of {handle.num_envs} environments, but the rollout has "
                    f"{len(rollout.over)}; make the buffer with ReplayBuffer.for_env(fleet, capacity)"
                )
            handle.begin(map_arrays(lambda array: array[0], rollout.observations), ~rollout.over)
        self._handles[rollout.runner] = handle, rollout.number, rollout.life
        return handle

    def _add_steps(self, handle: TrajectoryBuffer, rollout: FleetRollout) -> None:
        faults = rollout.info.get("worker_faults", {})
        for t in range(rollout.length):
            handle.add(
                map_arrays(lambda array: array[t], rollout.actions),  # noqa: B023
                map_arrays(lambda array: array[t + 1], rollout.observations),  # noqa: B023
                rollout.rewards[t],
                rollout.terminated[t],
                rollout.truncated[t],
                {"_fault": faults[t]} if t in faults else None,
            )
