"""`Fleet`: vector environments on every node of a Ray cluster, and their rollouts as they finish."""

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
from shoal.cluster.actors import asked_for_facts, found, in_use, learner_after, started
from shoal.cluster.messages import FleetRollout, Plan
from shoal.cluster.placement import STORE_SHARE, placed, store_bytes
from shoal.cluster.station import Station, Weights, answers
from shoal.errors import ClosedError, SessionError, ShoalError, WorkerTimeout
from shoal.vector import arguments

__all__ = ["Fleet"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ATTACH_S = 60.0
_CLOSE_S = 5.0
_SLICE_S = 1.0


class Fleet:
    """One vector environment of `num_envs` on each node, stepped there by a policy that is there too.

    with Fleet("CartPole-v1", 256, policy=MyPolicy) as fleet:
        for rollout in fleet.rollouts(128):  # first ready, first served
            ...
            fleet.set_weights(weights)

    >>> with Fleet("CartPole-v1", 4, nodes=1, seed=0) as fleet:
    ...     rollout = next(fleet.rollouts(8))
    >>> rollout
    <FleetRollout 0 of runner 0: 8 steps x 4 rows, version 0>

    Args:
        env: What `shoal.make_vec` takes; made on the nodes, so it must be there: an id, a path, a function.
        num_envs: On each node.
        nodes: How many runners, a node for each where there are so many; "all": as many as there are nodes.
        policy: Called on each node as `policy(envs, rng)`, a class for example. What it gives is called with
            the observations of one step and returns actions, or a tuple of them and a dict of arrays [N, ...]
            which come with the rollout as `extras`; `set_weights(weights)` of it is called between rollouts.
            None: random actions.
        seed: Of all environments and policies; no two runners and no two lives of one share any.
        name: Keeps the fleet when the learner ends; `Fleet.attach(name)` finds it again.
        max_in_flight: Rollouts of a node that are being made, wait to be, or wait to be read: 1 makes the
            next when the last was read, 2 meanwhile. Fewer where half of the node's object store is full.
        num_cpus: What each runner takes of Ray's count of its node's CPUs. The environments use all cores
            unless `num_threads` or `num_workers` say otherwise.
        resources: What else of Ray's a runner takes: {"actors": 1} places them on nodes that have such.
        address: Of the cluster, if `ray.init` was not called; None: RAY_ADDRESS, or a Ray of this machine.
        start_timeout_s: How long there may be no room on the cluster.
        options: Those of `shoal.make_vec`, and of the environment.
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
        for what, amount in bundle.items():
            if not isinstance(amount, (int, float)) or not 0 < amount < math.inf:
                called = "num_cpus" if what == "CPU" else f"resources[{what!r}]"
                raise ValueError(f"{called} must be a number above 0, got {amount!r}")
        if seed is not None and (not isinstance(seed, int) or seed < 0):
            raise ValueError(f"seed must be an int of at least 0 or None, got {seed!r}")
        patience = arguments.seconds("start_timeout_s", start_timeout_s)
        self._prepare(name, max_in_flight)
        _refuse(options)
        ray = self._ray = engine.load()
        self._joined = engine.connect(ray, address)
        self._group: Any = None
        actors: list[Any] = []
        try:
            if name is not None and found(ray, name, 0) is not None:
                raise in_use(name)
            detached = name is not None
            self._group, runners, strategy = placed(ray, nodes, bundle, detached, patience or 60.0)
            seed = secrets.randbits(62) if seed is None else seed
            plan = Plan(env, num_envs, policy, seed, options, runners, strategy)
            for index in range(runners):
                actors.append(started(ray, plan, index, self._group, name, bundle))
            self._adopt(plan, actors, learner_after(0), 0, patience or 60.0)
        except BaseException:
            self._end(actors)
            raise

    @classmethod
    def attach(cls, name: str, *, max_in_flight: int = 2, address: str | None = None) -> Fleet:
        """Takes over the fleet of that name, whose learner has ended or is to be replaced.

        What the runners have learned stays with them; `version` goes on from theirs.
        """
        self = cls.__new__(cls)
        self._prepare(name, max_in_flight)
        ray = self._ray = engine.load()
        self._joined = engine.connect(ray, address)
        try:
            first = found(ray, name, 0)
            if first is None:
                raise SessionError(
                    f"no fleet is called {name!r} on this cluster; make one with Fleet(..., name=)"
                )
            (told,) = answers(ray, lambda: asked_for_facts([first]), _ATTACH_S)
            plan, self._group = told["plan"], told["placement"]
            actors = [found(ray, name, index) for index in range(plan.runners)]
            known = answers(ray, lambda: asked_for_facts(actors), _ATTACH_S)
            latest = max(facts["learner"] for facts in known)
            self._adopt(plan, actors, learner_after(latest), secrets.randbits(62), _ATTACH_S)
        except BaseException:
            if self._joined:
                ray.shutdown()
            raise
        return self

    def _prepare(self, name: str | None, max_in_flight: int) -> None:
        self.closed = True  # until it is whole
        self.name = name
        self.max_in_flight = arguments.count("max_in_flight", max_in_flight, 1024)
        if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ValueError(f"name must be 1 to 64 letters, digits, '.', '_' or '-', got {name!r}")

    def _adopt(self, plan: Plan, actors: list[Any], learner: int, branch: int, patience_s: float) -> None:
        """Makes these runners obey this learner."""
        ray, self.learner = self._ray, learner
        facts = answers(ray, lambda: [actor.take.remote(learner) for actor in actors], patience_s)
        self._stations = [
            Station(ray, actor, index, learner, branch, facts[index]) for index, actor in enumerate(actors)
        ]
        self.strategy = plan.strategy
        self.seed = plan.seed
        self.num_envs: int = facts[0]["num_envs"]
        """Rows of a rollout: the environments of one node, times their agents."""
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
        """Rollouts of `length` steps, first ready first, without end.

        A runner that is lost is started again by Ray; its next rollout has `info["fault"]`, once, and those
        that were under way are gone. What a policy or an environment raises is raised here, after which
        another call goes on. WorkerTimeout if nothing comes for `timeout_s`.
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
        """Asks for what may be asked for; the first that is ready, or None if that was lost."""
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
                    f"no rollout of {len(self._stations)} runners came within {limit_s:g} s; `ray status` "
                    "says which nodes live"
                )
        station = waiting[ready[0]]
        # Whoever was served goes to the end of the line, so that a quick node does not starve the others.
        self._stations.remove(station)
        self._stations.append(station)
        rollout = station.receive()
        if rollout is None or rollout.node not in self._stores:
            self._stores = store_bytes(self._ray)
        return rollout

    def _limit(self, station: Station, length: int, residents: int) -> int:
        size = station.sizes.get(length)
        if size is None:
            return 1  # until it is known how large they are
        room = self._stores.get(station.node, 0) * STORE_SHARE / residents
        return max(1, min(self.max_in_flight, int(room / size)))

    @property
    def in_flight(self) -> int:
        """Rollouts asked for and not delivered yet, of all runners."""
        return sum(station.in_flight for station in self._stations)

    # -- weights --------------------------------------------------------------------------------------

    def set_weights(self, weights: Any) -> int:
        """Gives every policy new weights, arrays in any nesting, for its next rollout; their version.

        They are put into the object store once, and sent once to each node. A rollout has one version.
        """
        self._require_open()
        reference = [self._ray.put(weights)]
        self._weights = self.version + 1, reference
        for station in self._stations:
            station.actor.offer.options(concurrency_group="aside").remote(*self._weights)
        return self.version

    @property
    def version(self) -> int:
        """Of the weights given last; 0 before the first."""
        return self._weights[0]

    # -- the rest -------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        """Ray's id of the node each runner was on last."""
        return [station.node for station in self._ordered()]

    def vector_env(self) -> Any:
        """All environments of the fleet as one `gymnasium.vector.VectorEnv`: slow, a remote call per step."""
        from shoal.cluster.stepping import FleetVectorEnv

        self._require_open()
        return FleetVectorEnv(self, self._ray, [station.actor for station in self._ordered()])

    def detach(self) -> None:
        """Leaves a fleet that has a name running, for `Fleet.attach`."""
        if self.name is None:
            raise ShoalError("a fleet without a name ends with its learner; make it with Fleet(..., name=)")
        self._leave()

    def close(self) -> None:
        """Ends environments, actors and placement group, and Ray if this fleet joined it. Idempotent."""
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

    def _ordered(self) -> list[Station]:
        return sorted(self._stations, key=lambda station: station.index)

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError("the fleet is closed")

    def _end(self, actors: list[Any]) -> None:
        ray = self._ray
        if ray.is_initialized():
            for station in () if self.closed else self._stations:
                station.forget()
            for actor in actors:  # past the queue of rollouts, which are then cut short
                actor.leave.options(concurrency_group="aside").remote()
            goodbyes = [actor.close.remote() for actor in actors]
            if goodbyes:
                ray.wait(goodbyes, num_returns=len(goodbyes), timeout=_CLOSE_S)
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


def _refuse(options: dict[str, Any]) -> None:
    """Options of `make_vec` that rollouts have no use for."""
    mode = options.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if arguments.autoreset_mode(mode) != AutoresetMode.NEXT_STEP:
        raise ValueError(f"a fleet's environments have autoreset_mode NEXT_STEP, got {mode!r}")
    if options.get("batch_size") is not None:
        raise ValueError("batch_size is for send and recv; a fleet steps all environments of a node together")
