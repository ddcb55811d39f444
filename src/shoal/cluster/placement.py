"""Where runners go: the nodes of a cluster, and a placement group with a bundle for each runner."""

from __future__ import annotations

import math
import time
from typing import Any

from shoal.errors import WorkerError, WorkerTimeout

__all__ = ["STORE_SHARE", "placed", "store_bytes"]

STORE_SHARE = 0.5
"""Of a node's object store, for rollouts on their way; the rest is for weights and for what is being read."""


def _chosen(ray: Any, nodes: Any, bundle: dict[str, float]) -> tuple[int, str]:
    """How many runners, each of which takes `bundle`, and the strategy by which Ray can place them."""
    room_on = [_room(node["Resources"], bundle) for node in _alive(ray)]
    room_on = [room for room in room_on if room]
    if nodes == "all":
        count = len(room_on)
    elif isinstance(nodes, int) and not isinstance(nodes, bool) and nodes >= 1:
        count = nodes
    else:
        raise ValueError(f'nodes must be "all" or a number of at least 1, got {nodes!r}')
    if count == 0 or count > sum(room_on):
        found = []
        for node in _alive(ray):
            has = {name: node["Resources"].get(name, 0) for name in bundle}
            found.append(f"{node['NodeManagerAddress']}: {_told(has)}")
        raise WorkerError(
            f"{max(count, 1)} runners of {_told(bundle)} each do not fit on this cluster's nodes, which have "
            f"{'; '.join(found)}: add nodes, or ask for less (nodes=, num_cpus=, resources=)"
        )
    return count, "STRICT_SPREAD" if count <= len(room_on) else "SPREAD"


def placed(
    ray: Any, nodes: Any, bundle: dict[str, float], detached: bool, timeout_s: float
) -> tuple[Any, int, str]:
    """A placement group that is ready, how many it is for, and how they are spread; or an error and no group.

    Ray learns of a lost node some seconds late, so nodes are counted again while there is no room.
    """
    deadline = time.monotonic() + timeout_s
    lifetime = "detached" if detached else None
    while True:
        count, strategy = _chosen(ray, nodes, bundle)
        group = ray.util.placement_group([bundle] * count, strategy=strategy, lifetime=lifetime)
        ready = False
        try:
            while not ready and _chosen(ray, nodes, bundle) == (count, strategy):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _no_room(ray, count, bundle, timeout_s)
                ready = group.wait(min(left, 1.0))
        finally:
            if not ready:
                ray.util.remove_placement_group(group)
        if ready:
            return group, count, strategy


def _no_room(ray: Any, count: int, bundle: dict[str, float], timeout_s: float) -> WorkerTimeout:
    free = {name: ray.available_resources().get(name, 0) for name in bundle}
    return WorkerTimeout(
        f"no room for {count} runners of {_told(bundle)} within {timeout_s:g} s: {_told(free)} is free in "
        "all; end what uses the rest, ask for less, or wait longer (start_timeout_s=)"
    )


def store_bytes(ray: Any) -> dict[str, int]:
    """The size of the object store of each living node."""
    return {node["NodeID"]: int(node["Resources"].get("object_store_memory", 0)) for node in _alive(ray)}


def _room(resources: dict[str, float], bundle: dict[str, float]) -> int:
    """How many such bundles a node could hold if it were empty."""
    return min(math.floor(resources.get(name, 0) / amount) for name, amount in bundle.items())


def _told(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]
