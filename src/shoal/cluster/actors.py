"""Runners as actors of Ray: how they are started, found again by name, and asked who they are."""

from __future__ import annotations

import secrets
from typing import Any

from shoal.cluster import engine
from shoal.cluster.messages import Plan
from shoal.cluster.runner import Runner
from shoal.errors import NameInUse

__all__ = ["asked_for_facts", "found", "in_use", "learner_after", "started"]


def started(ray: Any, plan: Plan, index: int, group: Any, name: str | None, bundle: dict[str, float]) -> Any:
    """A runner in its place, which Ray starts again whenever it is lost."""
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=index
    )
    settings: dict[str, Any] = {
        "num_cpus": bundle["CPU"],
        "resources": {what: amount for what, amount in bundle.items() if what != "CPU"},
        "max_restarts": -1,
        "max_task_retries": 0,  # a rollout that was lost is not made again: it would be another
        "scheduling_strategy": strategy,
    }
    if name is not None:
        settings |= {"name": f"{name}/{index}", "namespace": engine.NAMESPACE, "lifetime": "detached"}
    actor = ray.remote(concurrency_groups={"aside": 1})(Runner)
    try:
        return actor.options(**settings).remote(plan, index)
    except ray.exceptions.ActorAlreadyExistsError as error:
        assert name is not None
        raise in_use(name) from error


def learner_after(latest: int) -> int:
    """A number that is larger than that of the learner there was last, and nobody else's."""
    return ((latest >> 64) + 1 << 64) + secrets.randbits(64)


def asked_for_facts(actors: list[Any]) -> list[Any]:
    """Asks runners for what they are, past the queue of rollouts."""
    return [actor.facts.options(concurrency_group="aside").remote() for actor in actors]


def found(ray: Any, name: str, index: int) -> Any:
    """A runner of the fleet of that name; None if there is none."""
    try:
        return ray.get_actor(f"{name}/{index}", namespace=engine.NAMESPACE)
    except ValueError:
        return None


def in_use(name: str) -> NameInUse:
    """The error of a name that another fleet has."""
    return NameInUse(f"a fleet called {name!r} lives on this cluster; Fleet.attach({name!r}) takes it over")
