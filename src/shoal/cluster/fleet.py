"""`Fleet`: vector environments on every node of a Ray cluster; yields their rollouts as they finish."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

from gymnasium.vector import AutoresetMode

from shoal.cluster import engine
from shoal.cluster.actors import (
    find_runner,
    name_in_use_error,
    next_learner_number,
    request_facts,
    start_runner,
)
from shoal.cluster.messages import FleetRollout, Plan
from shoal.cluster.placement import STORE_SHARE, place_runners, store_bytes
from shoal.cluster.station import Station, Weights, wait_for_answers
from shoal.errors import ClosedError, SessionError, ShoalError, WorkerTimeout
from shoal.vector import arguments

__all__ = ["Fleet"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ATTACH_S = 60.0
_CLOSE_S = 5.0
_SLICE_S = 1.0


class Fleet:
    """One vector environment of `num_envs` on each node; the policy that steps it runs on the same node.

    with Fleet("CartPole-v1", 256, policy=MyPolicy) as fleet:
        for rollout in fleet.rollouts(128):  # in the order in which they finish
            ...
            fleet.set_weights(weights)

    >>> with Fleet("CartPole-v1", 4, nodes=1, seed=0) as fleet:
    ...     rollout = next(fleet.rollouts(8))
    >>> rollout
    <FleetRollout 0 of runner 0: 8 steps x 4 rows, version 0>

    Args:
        env: The environment as `shoal.make_vec` takes it: an id, a path or a function. It is made on the
            nodes, so the nodes must have it.
        num_envs: The number of environments on each node.
        nodes: The number of runners; each gets a node of its own if there are enough nodes. "all" starts
            one runner for each node.
        policy: A class or function, called on each node as `policy(envs, rng)`. The object it returns is
            called with the observations of one step and returns actions, or a tuple of actions and a dict of
            arrays [N, ...], which arrive as the rollout's `extras`. Its `set_weights(weights)` is called
            between rollouts. None: random actions.
        seed: Seeds all environments and policies. Each runner and each restart of a runner has other seeds.
        name: Keeps the fleet running when the learner ends; `Fleet.attach(name)` finds it again.
        max_in_flight: The maximum number of rollouts of a node that are queued, being collected or waiting
            to be read. With 1, a node starts the next rollout when the last one was read; with 2, it
            collects one while the learner reads the other. Rollouts in flight never use more than half of
            the node's object store, which can lower the number.
        num_cpus: The number of CPUs that each runner reserves in Ray's resource accounting. The environments
            use all cores unless `num_threads` or `num_workers` set another number.
        resources: Other Ray resources that each runner reserves: {"actors": 1} places runners only on nodes
            that have this resource.
        address: The cluster's address, if `ray.init` was not called. None: RAY_ADDRESS, or a Ray on this
            machine alone.
        start_timeout_s: The maximum number of seconds to wait for free resources on the cluster.
        options: Further options of `shoal.make_vec` and of the environment.
    """

    def __init__(
        self,
        env: Any,
        num_envs: int = 1,
        *,
        nodes: int | Literal["all"] = "all",
        policy: Callable[..., Any] | None = None,
        seed: int | None = None,
        name: str | None = None,
        max_in_flight: int = 2,
        num_cpus: float = 1.0,
        resources: dict[str, float] | None = None,
        address: str | None = None,
        start_timeout_s: float = 60.0,
        **options: Any,
    ) -> None:
        num_envs = arguments.count("num_envs", num_envs, 2**24)
        if policy is not None and not callable(policy):
            raise TypeError(
                f"policy must be a function or a class, called as policy(envs, rng); got {policy!r}"
            )
        bundle = {"CPU": num_cpus, **(resources or {})}
        for kind, amount in bundle.items():
            if not isinstance(amount, (int, float)) or not 0 < amount < math.inf:
                argument = "num_cpus" if kind == "CPU" else f"resources[{kind!r}]"
                raise ValueError(f"{argument} must be a number above 0, got {amount!r}")
        if seed is not None and (not isinstance(seed, int) or seed < 0):
            raise ValueError(f"seed must be an int of at least 0 or None, got {seed!r}")
        timeout_s = arguments.seconds("start_timeout_s", start_timeout_s) or 60.0
        self._prepare(name, max_in_flight)
        _check_options(options)
        ray = self._ray = engine.load()
        self._joined = engine.connect(ray, address)
        self._group: Any = None
        actors: list[Any] = []
        try:
            if name is not None and find_runner(ray, name, 0) is not None:
                raise name_in_use_error(name)
            detached = name is not None
            self._group, runners, strategy = place_runners(ray, nodes, bundle, detached, timeout_s)
            seed = secrets.randbits(62) if seed is None else seed
            plan = Plan(env, num_envs, policy, seed, options, runners, strategy)
            for index in range(runners):
                actors.append(start_runner(ray, plan, index, self._group, name, bundle))
            self._adopt(plan, actors, next_learner_number(0), 0, timeout_s)
        except BaseException:
            self._end(actors)
            raise

    @classmethod
    def attach(cls, name: str, *, max_in_flight: int = 2, address: str | None = None) -> Fleet:
        """Takes over the fleet called `name`, whose learner has ended or is to be replaced.

        The policies keep their weights, and `version` continues from theirs.
        """
        self = cls.__new__(cls)
        self._prepare(name, max_in_flight)
        ray = self._ray = engine.load()
        self._joined = engine.connect(ray, address)
        try:
            first = find_runner(ray, name, 0)
            if first is None:
                raise SessionError(
                    f"no fleet is called {name!r} on this cluster; make one with Fleet(..., name=)"
                )
            (facts,) = wait_for_answers(ray, lambda: request_facts([first]), _ATTACH_S)
            plan, self._group = facts["plan"], facts["placement"]
            actors = [find_runner(ray, name, index) for index in range(plan.runners)]
            all_facts = wait_for_answers(ray, lambda: request_facts(actors), _ATTACH_S)
            latest = max(facts["learner"] for facts in all_facts)
            self._adopt(plan, actors, next_learner_number(latest), secrets.randbits(62), _ATTACH_S)
        except BaseException:
            if self._joined:
                ray.shutdown()
            raise
        return self

    def _prepare(self, name: str | None, max_in_flight: int) -> None:
        self.closed = True  # until construction has finished
        self.name = name
        self.max_in_flight = arguments.count("max_in_flight", max_in_flight, 1024)
        if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ValueError(f"name must be 1 to 64 letters, digits, '.', '_' or '-', got {name!r}")

    def _adopt(self, plan: Plan, actors: list[Any], learner: int, branch: int, timeout_s: float) -> None:
        """Connects these runners to this learner; from then on they reject requests of earlier learners."""
        ray, self.learner = self._ray, learner
        facts = wait_for_answers(ray, lambda: [actor.take.remote(learner) for actor in actors], timeout_s)
        self._stations = [
            Station(ray, actor, index, learner, branch, facts[index]) for index, actor in enumerate(actors)
        ]
        self.strategy = plan.strategy
        self.seed = plan.seed
        self.num_envs: int = facts[0]["num_envs"]
        """The number of rows of a rollout: the environments of one node, times their agents."""
        self.agents_per_env: int = facts[0]["agents_per_env"]
        self.single_observation_space = facts[0]["single_observation_space"]
        self.single_action_space = facts[0]["single_action_space"]
        self.autoreset_mode = AutoresetMode.NEXT_STEP
        self.metadata = {"autoreset_mode": self.autoreset_mode}  # for ReplayBuffer.for_env(fleet, capacity)
        self._weights: Weights = max(fact["version"] for fact in facts), []
        self._stores = store_bytes(ray)
        self.closed = False

    # -- rollouts -------------------------------------------------------------------------------------

    def rollouts(self, length: int, timeout_s: float | None = None) -> Iterator[FleetRollout]:
        """Yields rollouts of `length` steps, without end, in the order in which they finish.

        Ray restarts a runner that is lost. The next rollout of that runner has `info["fault"]`; the rollouts
        that it was collecting are lost. An exception of a policy or an environment is raised here; call this
        method again to continue. Raises WorkerTimeout if no rollout arrives within `timeout_s` seconds.
        """
        arguments.count("length", length, 2**31)
        limit_s = arguments.seconds("timeout_s", timeout_s)
        self._require_open()
        return self._rollouts(length, limit_s)

    def _rollouts(self, length: int, limit_s: float | None) -> Iterator[FleetRollout]:
        while True:
            rollout = None
            deadline = math.inf if limit_s is None else time.monotonic() + limit_s
            while rollout is None:
                rollout = self._next(length, deadline, limit_s)
            yield rollout

    def _next(self, length: int, deadline: float, limit_s: float | None) -> FleetRollout | None:
        """Requests as many rollouts as allowed; returns the first that is ready, or None if it was lost."""
        self._require_open()
        residents = Counter(station.node for station in self._stations)
        for station in self._stations:
            station.ask(length, self._limit(station, length, residents[station.node]), self._weights)
        waiting = {station.oldest: station for station in self._stations}
        ready: list[Any] = []
        while not ready:
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=_SLICE_S)
            if not ready and time.monotonic() > deadline:
                raise WorkerTimeout(
                    f"no rollout of {len(self._stations)} runners arrived within {limit_s:g} s; `ray status` "
                    "shows which nodes are alive"
                )
        station = waiting[ready[0]]
        # The station moves to the end of the list, so that a fast node does not starve the others.
        self._stations.remove(station)
        self._stations.append(station)
        rollout = station.receive()
        if rollout is None or rollout.node not in self._stores:
            self._stores = store_bytes(self._ray)
        return rollout

    def _limit(self, station: Station, length: int, residents: int) -> int:
        size = station.sizes.get(length)
        if size is None:
            return 1  # until the size of a rollout is known
        room = self._stores.get(station.node, 0) * STORE_SHARE / residents
        return max(1, min(self.max_in_flight, int(room / size)))

    @property
    def in_flight(self) -> int:
        """The number of rollouts requested and not delivered yet, of all runners."""
        return sum(station.in_flight for station in self._stations)

    # -- weights --------------------------------------------------------------------------------------

    def set_weights(self, weights: Any) -> int:
        """Gives every policy new weights, arrays in any nesting, for its next rollout; returns their version.

        The weights are put into the object store once and sent once to each node. One version of the
        weights makes a whole rollout.
        """
        self._require_open()
        reference = [self._ray.put(weights)]
        self._weights = self.version + 1, reference
        for station in self._stations:
            station.actor.offer.options(concurrency_group="aside").remote(*self._weights)
        return self.version

    @property
    def version(self) -> int:
        """The version of the weights given last; 0 before the first."""
        return self._weights[0]

    # -- the rest -------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        """The Ray id of the node that each runner was last seen on."""
        return [station.node for station in self._stations_by_index()]

    def vector_env(self) -> Any:
        """Returns all environments of the fleet as one `gymnasium.vector.VectorEnv`.

        It is slow, because each step is a remote call.
        """
        from shoal.cluster.stepping import FleetVectorEnv

        self._require_open()
        return FleetVectorEnv(self, self._ray, [station.actor for station in self._stations_by_index()])

    def detach(self) -> None:
        """Disconnects from a fleet that has a name; it keeps running, for `Fleet.attach`."""
        if self.name is None:
            raise ShoalError("a fleet without a name ends with its learner; make it with Fleet(..., name=)")
        self._leave()

    def close(self) -> None:
        """Ends environments, actors and the placement group, and Ray if this fleet joined it. Idempotent."""
        if not self.closed:
            self._end([station.actor for station in self._stations])

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<Fleet, closed>"
        return f"<Fleet of {len(self._stations)} x {self.num_envs} environments, {self.strategy}>"

    # -- inside ---------------------------------------------------------------------------------------

    def _stations_by_index(self) -> list[Station]:
        return sorted(self._stations, key=lambda station: station.index)

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError("the fleet is closed")

    def _end(self, actors: list[Any]) -> None:
        ray = self._ray
        if ray.is_initialized():
            for station in () if self.closed else self._stations:
                station.forget()
            for actor in actors:  # this call does not wait behind queued rollouts, and cuts them short
                actor.leave.options(concurrency_group="aside").remote()
            closing = [actor.close.remote() for actor in actors]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
            for actor in actors:
                ray.kill(actor, no_restart=True)
            if self._group is not None:
                ray.util.remove_placement_group(self._group)
        self._leave()

    def _leave(self) -> None:
        self.closed = True
        self._stations = []
        if self._joined:
            self._joined = False
            self._ray.shutdown()


def _check_options(options: dict[str, Any]) -> None:
    """Raises ValueError for options of `make_vec` that a fleet does not support."""
    mode = options.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if arguments.autoreset_mode(mode) != AutoresetMode.NEXT_STEP:
        raise ValueError(f"autoreset_mode of a fleet must be NEXT_STEP, got {mode!r}; leave the argument out")
    if options.get("batch_size") is not None:
        raise ValueError(
            f"a fleet steps all environments of a node together, so batch_size must be None, "
            f"got {options['batch_size']!r}"
        )
