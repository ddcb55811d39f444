"""Where runners go: the nodes of a cluster, and a placement group with a bundle for each runner."""

from __future__ import annotations

import math
from typing import Any

from shoal.cluster.messages import Plan
from shoal.errors import WorkerError, WorkerTimeout

__all__ = ["STORE_SHARE", "chosen", "placed", "store_bytes"]

STORE_SHARE = 0.5
"""Of a node's object store, for rollouts on their way; the rest is for weights and for what is being read."""


def chosen(ray: Any, nodes: Any, num_cpus: float) -> tuple[int, str]:
    """How many runners, and the strategy by which Ray can place them."""
    fitting = [node for node in _alive(ray) if node["Resources"].get("CPU", 0) >= num_cpus]
    if nodes == "all":
        count = len(fitting)
    elif isinstance(nodes, int) and not isinstance(nodes, bool) and nodes >= 1:
        count = nodes
    else:
        raise ValueError(f'nodes must be "all" or a number of at least 1, got {nodes!r}')
    room = sum(math.floor(node["Resources"]["CPU"] / num_cpus) for node in fitting)
    if count == 0 or count > room:
        found = [f"{node['NodeManagerAddress']}: {node['Resources'].get('CPU', 0):g}" for node in _alive(ray)]
        raise WorkerError(
            f"{max(count, 1)} runners of {num_cpus:g} CPUs each do not fit on this cluster's nodes, whose "
            f"CPUs are {', '.join(found)}; add nodes, or ask for fewer (nodes=, num_cpus=)"
        )
    return count, "STRICT_SPREAD" if count <= len(fitting) else "SPREAD"


def placed(ray: Any, plan: Plan, num_cpus: float, detached: bool, timeout_s: float) -> Any:
    """A placement group that is ready, or WorkerTimeout and no group."""
    lifetime = "detached" if detached else None
    bundles = [{"CPU": num_cpus}] * plan.runners
    group = ray.util.placement_group(bundles, strategy=plan.strategy, lifetime=lifetime)
    if group.wait(timeout_s):
        return group
    free = ray.available_resources().get("CPU", 0)
    ray.util.remove_placement_group(group)
    raise WorkerTimeout(
        f"no room for {plan.runners} runners of {num_cpus:g} CPUs within {timeout_s:g} s: {free:g} CPUs are "
        "free in all; end what uses the others, ask for fewer, or wait longer (start_timeout_s=)"
    )


def store_bytes(ray: Any) -> dict[str, int]:
    """The size of the object store of each living node."""
    return {node["NodeID"]: int(node["Resources"].get("object_store_memory", 0)) for node in _alive(ray)}


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]
