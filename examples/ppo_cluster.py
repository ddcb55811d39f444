"""PPO across the nodes of a Ray cluster: rollouts come as they finish, weights go back to every node.

python examples/ppo_cluster.py                      # CartPole on 2 nodes, simulated on this machine
python examples/ppo_cluster.py --nodes 3 --lose-node 1
RAY_ADDRESS=head:6379 python examples/ppo_cluster.py --nodes 8   # a real one

On each node an actor of Ray steps an ordinary vector environment with a policy of its own, and fills rollouts
in place. Whole rollouts come here through Ray's object store, as read-only arrays that nobody unpacks. They
may be a few updates old: the policy says how likely its actions were, and PPO's ratios go by that.
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
    goal: float = 400.0  # mean return of the last 100 episodes
    steps: int = 400_000  # within which to reach it
    seed: int = 0
    nodes: int = 2
    num_envs: int = 64  # on each node
    lose_node: int = 0  # 1: a node of the simulated cluster loses power on the way, and another joins

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for one in fields(cls):
            flag, default = "--" + one.name.replace("_", "-"), one.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


def train(args: Args, fleet: Fleet, cluster: SimulatedCluster | None) -> float:
    """The mean return at the end."""
    learner = FleetLearner(fleet, args.seed, args.steps)
    mean, begin, told, ages = float("-inf"), time.perf_counter(), 0.0, []
    losing = args.lose_node > 0 and cluster is not None
    while mean < args.goal and learner.steps < args.steps:
        learner.collect()  # the first rollout that is ready, whichever node made it
        rollout = learner.rollout
        ages.append(fleet.version - rollout.version)
        learner.update()  # which sends the weights: once to each node
        if learner.episodes >= 100:
            mean = float(np.mean(learner.returns))
        if "fault" in rollout.info:
            print(f"runner {rollout.runner} is back, on another node: life {rollout.life}")
            losing = False
        if losing and learner.steps > 20_000 and cluster is not None:
            here = ray.get_runtime_context().get_node_id()
            lost = next(node for node in fleet.nodes if node != here)
            print(f"runner {fleet.nodes.index(lost)}'s node loses power", flush=True)
            cluster.remove_node(lost)
            cluster.add_node()
            losing = False
        if time.perf_counter() - told > 1:
            told = time.perf_counter()
            rate = learner.steps / (told - begin)
            print(f"{learner.steps:8,} steps, mean return {mean:6.1f}, {rate:,.0f}/s", flush=True)
    print(f"{learner.steps:8,} steps, {time.perf_counter() - begin:.1f} s")
    print(f"rollouts were {np.mean(ages):.1f} updates old, {max(ages)} at most")
    print(f"{'reached' if mean >= args.goal else 'NOT REACHED'}: mean return {mean:.1f}, goal {args.goal:g}")
    return mean


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
            max_in_flight=1,  # a node begins anew when its last rollout was learned from
        )
        stack.enter_context(fleet)
        alive = sum(node["Alive"] for node in ray.nodes())
        print(f"{fleet}, learner on one of {alive} nodes", flush=True)
        return train(args, fleet, cluster)


if __name__ == "__main__":
    args = Args.parse()
    raise SystemExit(0 if main(args) >= args.goal else 1)
