"""Places runners on the nodes of a cluster, by a placement group with one bundle for each runner."""

from __future__ import annotations

import math
import time
from typing import Any

from shoal.errors import WorkerError, WorkerTimeout

__all__ = ["STORE_SHARE", "place_runners", "store_bytes"]

STORE_SHARE = 0.5
"""The share of a node's object store for rollouts in flight. Weights and rollouts being read use the rest."""


def _choose_layout(ray: Any, nodes: Any, bundle: dict[str, float]) -> tuple[int, str]:
    """Returns the number of runners, each of which reserves `bundle`, and Ray's strategy to place them."""
    room_on = [_count_bundles(node["Resources"], bundle) for node in _list_alive_nodes(ray)]
    room_on = [room for room in room_on if room]
    if nodes == "all":
        count = len(room_on)
    elif isinstance(nodes, int) and not isinstance(nodes, bool) and nodes >= 1:
        count = nodes
    else:
        raise ValueError(f'nodes must be "all" or a number of at least 1, got {nodes!r}')
    if count == 0 or count > sum(room_on):
        found = []
        for node in _list_alive_nodes(ray):
            available = {name: node["Resources"].get(name, 0) for name in bundle}
            found.append(f"{node['NodeManagerAddress']}: {_describe(available)}")
        raise WorkerError(
            f"{max(count, 1)} runners of {_describe(bundle)} each do not fit on this cluster's nodes, which "
            f"have {'; '.join(found)}: add nodes, or ask for less (nodes=, num_cpus=, resources=)"
        )
    return count, "STRICT_SPREAD" if count <= len(room_on) else "SPREAD"


def place_runners(
    ray: Any, nodes: Any, bundle: dict[str, float], detached: bool, timeout_s: float
) -> tuple[Any, int, str]:
    """Makes a placement group and waits for it; returns the group, the number of runners and the strategy.

    Ray notices a lost node some seconds late, so the nodes are counted again while there is no room. If this
    raises, the group is removed.
    """
    deadline = time.monotonic() + timeout_s
    lifetime = "detached" if detached else None
    while True:
        count, strategy = _choose_layout(ray, nodes, bundle)
        group = ray.util.placement_group([bundle] * count, strategy=strategy, lifetime=lifetime)
        ready = False
        try:
            while not ready and _choose_layout(ray, nodes, bundle) == (count, strategy):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _no_room_error(ray, count, bundle, timeout_s)
                ready = group.wait(min(left, 1.0))
        finally:
            if not ready:
                ray.util.remove_placement_group(group)
        if ready:
            return group, count, strategy


def _no_room_error(ray: Any, count: int, bundle: dict[str, float], timeout_s: float) -> WorkerTimeout:
    free = {name: ray.available_resources().get(name, 0) for name in bundle}
    return WorkerTimeout(
        f"no room for {count} runners of {_describe(bundle)} each within {timeout_s:g} s: the whole cluster "
        f"has {_describe(free)} free; end other jobs, ask for less, or wait longer (start_timeout_s=)"
    )


def store_bytes(ray: Any) -> dict[str, int]:
    """Returns the size of the object store of each node that is alive."""
    return {
        node["NodeID"]: int(node["Resources"].get("object_store_memory", 0))
        for node in _list_alive_nodes(ray)
    }


def _count_bundles(resources: dict[str, float], bundle: dict[str, float]) -> int:
    """Returns the number of bundles that a node could hold if it were empty."""
    return min(math.floor(resources.get(name, 0) / amount) for name, amount in bundle.items())


def _describe(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _list_alive_nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]
