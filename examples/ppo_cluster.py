"""PPO across the nodes of a Ray cluster: nodes send rollouts as they finish, the learner sends weights back.

python examples/ppo_cluster.py                      # CartPole on 2 nodes, simulated on this machine
python examples/ppo_cluster.py --nodes 3 --lose-node 1
RAY_ADDRESS=head:6379 python examples/ppo_cluster.py --nodes 8   # a real cluster

On each node a Ray actor steps an ordinary vector environment with its own copy of the policy, and fills
rollouts in place. Whole rollouts reach the learner through Ray's object store as read-only arrays, which need
no unpacking. They may be a few updates old: each node also sends the log-probabilities of its actions, and
PPO's ratios use those.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, fields

import numpy as np

from shoal.cluster import ActorPolicy, Fleet, FleetLearner, SimulatedCluster

try:
    import ray
except ImportError:
    print('this example needs Ray, which is not installed: pip install "shoal[ray]"')
    raise SystemExit(0) from None


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    goal: float = 400.0  # stop at this mean return of the last 100 episodes
    steps: int = 400_000  # give up after this many environment steps
    seed: int = 0
    nodes: int = 2
    num_envs: int = 64  # environments on each node
    lose_node: int = 0  # 1: remove a node of the simulated cluster during the run, and add another

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for field in fields(cls):
            flag, default = "--" + field.name.replace("_", "-"), field.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


def train(args: Args, fleet: Fleet, cluster: SimulatedCluster | None) -> float:
    """Trains until the goal or the limit of steps; returns the mean return."""
    learner = FleetLearner(fleet, args.seed, args.steps)
    mean_return, start, last_print, ages = float("-inf"), time.perf_counter(), 0.0, []
    remove_a_node = args.lose_node > 0 and cluster is not None
    while mean_return < args.goal and learner.steps < args.steps:
        learner.collect()  # the first rollout that is ready, from any node
        rollout = learner.rollout
        ages.append(fleet.version - rollout.version)
        learner.update()  # also sends the weights, once to each node
        if learner.episodes >= 100:
            mean_return = float(np.mean(learner.returns))
        if "fault" in rollout.info:
            print(f"runner {rollout.runner} was restarted on another node")
            remove_a_node = False
        if remove_a_node and learner.steps > 20_000 and cluster is not None:
            here = ray.get_runtime_context().get_node_id()
            removed = next(node for node in fleet.nodes if node != here)
            print(f"removing the node of runner {fleet.nodes.index(removed)}", flush=True)
            cluster.remove_node(removed)
            cluster.add_node()
            remove_a_node = False
        if time.perf_counter() - last_print > 1:
            last_print = time.perf_counter()
            rate = learner.steps / (last_print - start)
            progress = f"{learner.steps:8,} steps, mean return {mean_return:6.1f}"
            print(f"{progress}, {rate:,.0f} steps/s", flush=True)
    print(f"{learner.steps:8,} steps, {time.perf_counter() - start:.1f} s")
    print(f"mean age of the rollouts: {np.mean(ages):.1f} updates, maximum {max(ages)}")
    verdict = "reached" if mean_return >= args.goal else "NOT REACHED"
    print(f"{verdict}: mean return {mean_return:.1f}, goal {args.goal:g}")
    return mean_return


def main(args: Args) -> float:
    with ExitStack() as stack:
        cluster = None
        if "RAY_ADDRESS" not in os.environ:
            cluster = stack.enter_context(SimulatedCluster(args.nodes))
        fleet = Fleet(
            args.env_id,
            args.num_envs,
            nodes=args.nodes,
            policy=ActorPolicy,
            seed=args.seed,
            max_in_flight=1,  # a node starts a rollout only after the learner has used its last one
        )
        stack.enter_context(fleet)
        alive = sum(node["Alive"] for node in ray.nodes())
        print(f"{fleet}, learner on one of {alive} nodes", flush=True)
        return train(args, fleet, cluster)


if __name__ == "__main__":
    args = Args.parse()
    raise SystemExit(0 if main(args) >= args.goal else 1)
