"""Simulates the limits of a fleet of 100 and of 1,000 nodes; docs/cluster.md quotes its tables.

    python lab/benchmarks/cluster_model.py [--smoke]

    node: makes a rollout (make_s, +-20 %) -> the learner's link, first come first served (size / link), only
          the oldest rollout of each node -> the learner (learn_s each)
          a node has at most max_in_flight rollouts between their start and the learner
    learner: an update every `batch` rollouts; new weights reach a node broadcast_s later

It prints three tables: a learner that takes no time, a learner that reads 2 GB/s, and the time until all
nodes have new weights. This does not use Ray: it computes links and queues, with figures of one node from
cluster.py.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from collections import deque
from dataclasses import dataclass

GBIT = 1e9 / 8


@dataclass(frozen=True)
class Case:
    """A fleet and its hardware; sizes in bytes, links in bytes per second."""

    nodes: int
    size: float
    make_s: float
    link: float
    learn_s: float = 0.0
    batch: int = 64
    weights: float = 10e6
    max_in_flight: int = 2


@dataclass(frozen=True)
class Outcome:
    delivered: float
    """Rollouts per second."""
    busy: float
    """The share of time in which nodes make rollouts; otherwise they wait for the learner."""
    link: float
    """The used share of the learner's link."""
    store: float
    """The maximum number of bytes in the learner's object store: arrived and not learned from yet."""
    age_s: float
    """The average age of a rollout's first row when the learner uses it."""
    updates: float
    """The average number of updates since the weights that made a rollout."""


def broadcast_s(nodes: int, weights: float, link: float) -> tuple[float, float]:
    """Returns the time to send weights to all nodes: if nodes forward them, and if one link sends all."""
    return math.ceil(math.log2(nodes + 1)) * weights / link, nodes * weights / link


ROLLOUTS = 20_000


def simulate(case: Case, rollouts: int = ROLLOUTS) -> Outcome:
    """Runs until the learner has taken `rollouts` rollouts; the averages leave out the first half."""
    rng = random.Random(0)
    late_s = broadcast_s(case.nodes, case.weights, case.link)[0]
    per_transfer = case.size / case.link
    events: list[tuple[float, int, str, int]] = []
    in_flight, making = [0] * case.nodes, [False] * case.nodes
    begun: list[deque[tuple[float, int]]] = [deque() for _ in range(case.nodes)]
    behind, ahead = (
        [0] * case.nodes,
        [False] * case.nodes,
    )  # made and not sent; one is being sent or has arrived
    queue: deque[int] = deque()
    arrived: deque[int] = deque()
    versions: deque[tuple[float, int]] = deque([(-math.inf, 0)])  # (time from which nodes have it, version)
    now, order, sending, learning = 0.0, 0, False, False
    taken = version = 0
    busy_s = link_s = age_s = old = 0.0
    most = half = 0
    half_at = 0.0

    def push(after_s: float, what: str, node: int) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (now + after_s, order, what, node))

    def make(node: int) -> None:
        nonlocal busy_s
        if not making[node] and in_flight[node] < case.max_in_flight:
            while len(versions) > 1 and versions[1][0] <= now:
                versions.popleft()
            making[node] = True
            in_flight[node] += 1
            begun[node].append((now, versions[0][1]))
            took = case.make_s * rng.uniform(0.8, 1.2)
            if half:
                busy_s += took
            push(took, "made", node)

    def send(node: int) -> None:
        if behind[node] and not ahead[node]:
            behind[node] -= 1
            ahead[node] = True
            queue.append(node)

    for node in range(case.nodes):
        push(rng.uniform(0, case.make_s), "begin", node)
    while taken < rollouts:
        now, _, what, node = heapq.heappop(events)
        if what == "begin":
            make(node)
        elif what == "made":
            making[node] = False
            behind[node] += 1
            send(node)
            make(node)
        elif what == "sent":
            sending = False
            link_s += per_transfer if half else 0.0
            arrived.append(node)
            most = max(most, len(arrived) + learning)
        else:  # learned
            learning = False
            started, made_with = begun[node].popleft()
            taken += 1
            if half:
                age_s += now - started
                old += version - made_with
            elif taken >= rollouts // 2:
                half, half_at = taken, now
            if taken % case.batch == 0:
                version += 1
                versions.append((now + late_s, version))
        if arrived and not learning:
            learning = True
            next_one = arrived.popleft()
            in_flight[next_one] -= 1  # the learner has it, so the node may start another
            ahead[next_one] = False
            send(next_one)
            push(case.learn_s, "learned", next_one)
            make(next_one)
        if queue and not sending:
            sending = True
            push(per_transfer, "sent", queue.popleft())
    count, span = taken - half, now - half_at
    return Outcome(
        count / span,
        min(1.0, busy_s / span / case.nodes),
        link_s / span,
        most * case.size,
        age_s / count,
        old / count,
    )


KINDS = {
    "4 floats, 128 x 256": (1.25e6, 0.030),
    "84x84x4, 32 x 32": (29.8e6, 0.160),
}


def table(read_s: float, links: tuple[int, ...], rollouts: int) -> list[str]:
    """Returns a table of fleets whose learner takes `read_s` for each byte."""
    names = "nodes", "link", "rollouts/s", "nodes busy", "link used", "learner's store", "age", "updates old"
    lines = [f"| observation, steps x environments | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for kind, (size, make_s) in KINDS.items():
        for nodes in (10, 100, 1000):
            for gbits in links:
                case = Case(nodes, size, make_s, gbits * GBIT, size * read_s, min(64, nodes))
                found = simulate(case, rollouts)
                cells = [
                    f"{nodes:,}",
                    f"{gbits} Gb/s",
                    f"{found.delivered:,.0f}",
                    f"{found.busy:.0%}",
                    f"{found.link:.0%}",
                    f"{found.store / 1e6:,.0f} MB",
                    f"{found.age_s:.2f} s",
                    f"{found.updates:.1f}",
                ]
                lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


def weights_table() -> list[str]:
    lines = ["| size of the weights | nodes | 25 Gb/s | 100 Gb/s |", "|---|---|---|---|"]
    for weights in (10e6, 400e6):
        for nodes in (100, 1000):
            cells = []
            for gbits in (25, 100):
                best, worst = broadcast_s(nodes, weights, gbits * GBIT)
                cells.append(f"{best:.3g} to {worst:.3g} s")
            lines.append(f"| {weights / 1e6:.0f} MB | {nodes:,} | {cells[0]} | {cells[1]} |")
    return lines


def tables(rollouts: int = ROLLOUTS) -> list[str]:
    """Returns every line that the page quotes."""
    at_once = table(0.0, (25, 100), rollouts)
    reading = table(1 / 2e9, (100,), rollouts)
    return [*at_once, "", *reading, "", *weights_table()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="only check that it runs: few rollouts")
    args = parser.parse_args()
    print("\n".join(tables(100 if args.smoke else ROLLOUTS)))


if __name__ == "__main__":
    main()
