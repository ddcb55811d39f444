"""Runners as Ray actors: start them, find them by name, request facts about them."""

from __future__ import annotations

import secrets
from typing import Any

from shoal.cluster import engine
from shoal.cluster.messages import Plan
from shoal.cluster.runner import Runner
from shoal.errors import NameInUse

__all__ = ["find_runner", "name_in_use_error", "next_learner_number", "request_facts", "start_runner"]


def start_runner(
    ray: Any, plan: Plan, index: int, group: Any, name: str | None, bundle: dict[str, float]
) -> Any:
    """Starts a runner in its bundle of the placement group. Ray restarts the runner whenever it is lost."""
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=index
    )
    settings: dict[str, Any] = {
        "num_cpus": bundle["CPU"],
        "resources": {kind: amount for kind, amount in bundle.items() if kind != "CPU"},
        "max_restarts": -1,
        "max_task_retries": 0,  # a retry would collect different steps, not the lost rollout
        "scheduling_strategy": strategy,
    }
    if name is not None:
        settings |= {"name": f"{name}/{index}", "namespace": engine.NAMESPACE, "lifetime": "detached"}
    actor = ray.remote(concurrency_groups={"aside": 1})(Runner)
    try:
        return actor.options(**settings).remote(plan, index)
    except ray.exceptions.ActorAlreadyExistsError as error:
        assert name is not None
        raise name_in_use_error(name) from error


def next_learner_number(latest: int) -> int:
    """Returns a unique learner number that is larger than `latest`, the number of the previous learner."""
    return ((latest >> 64) + 1 << 64) + secrets.randbits(64)


def request_facts(actors: list[Any]) -> list[Any]:
    """Requests the facts of runners; the calls do not wait behind queued rollouts."""
    return [actor.facts.options(concurrency_group="aside").remote() for actor in actors]


def find_runner(ray: Any, name: str, index: int) -> Any:
    """Returns runner `index` of the fleet called `name`, or None if there is no such runner."""
    try:
        return ray.get_actor(f"{name}/{index}", namespace=engine.NAMESPACE)
    except ValueError:
        return None


def name_in_use_error(name: str) -> NameInUse:
    """Returns the error for a name that another fleet already has."""
    return NameInUse(
        f"a fleet called {name!r} is running on this cluster; Fleet.attach({name!r}) takes it over"
    )
