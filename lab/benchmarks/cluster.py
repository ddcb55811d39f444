"""Rollouts through Ray against the same vector environment in this process, in turns, policy in the loop.

    pip install "ray[default]==2.60.*" && python lab/benchmarks/cluster.py [--smoke]

`local` fills rollouts in place in this process. `same node` is a Fleet of one runner that shares its object
store with this process; `other node` is a runner with its own store, whose rollouts come over the loopback
interface. Each runs only in its own turns and is idle in those of the others.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # the same for both sides; more threads do not help such small networks

import argparse
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

import shoal
from shoal.cluster import ActorPolicy, Fleet, SimulatedCluster
from shoal.learner.model import Categorical, Model
from shoal_lab.bench.interleave import interleave_bursts
from shoal_lab.bench.load import watch_load

GOALS = {"4 floats, demo policy": 0.8, "84x84x4, demo policy": 0.6}


class PicturePolicy(ActorPolicy):
    """The demo's policy on all pixels of a picture."""

    def __init__(self, envs: Any, rng: np.random.Generator) -> None:
        space = envs.single_observation_space
        self._model = Model(int(np.prod(space.shape)), Categorical(int(envs.single_action_space.n)), 64, rng)
        self._rng, self._categorical = rng, True
        self._drawn = np.zeros(envs.num_envs, np.int64)

    def __call__(self, observations: Any) -> Any:
        return super().__call__(observations.reshape(len(observations), -1))


class Still:
    """Takes the same action at each step, so that only the transport of rollouts costs time."""

    def __init__(self, envs: Any, rng: np.random.Generator) -> None:
        self._actions = np.zeros(envs.num_envs, np.int64)

    def __call__(self, observations: Any) -> Any:
        return self._actions


SETUPS: dict[str, tuple[str, int, int, Callable[..., Any]]] = {
    "4 floats, demo policy": ("CartPole-v1", 256, 128, ActorPolicy),
    "84x84x4, demo policy": ("Pixels-v0", 32, 32, PicturePolicy),
    "4 floats, no policy": ("CartPole-v1", 256, 128, Still),
    "84x84x4, no policy": ("Pixels-v0", 32, 32, Still),
}


def local_burst(env: str, num_envs: int, length: int, kind: Callable[..., Any]) -> Callable[[int], float]:
    envs = shoal.make_vec(env, num_envs, session=None)
    policy = kind(envs, np.random.default_rng(0))
    now, _ = envs.reset(seed=0)
    rollout = envs.rollout(length)
    scores = np.empty((length, num_envs), np.float32)

    def burst(count: int) -> float:
        nonlocal now
        begin = time.perf_counter()
        for _ in range(count):
            rollout.start(now)
            for t in range(length):
                acted = policy(rollout.observations[t])
                if isinstance(acted, tuple):
                    acted, beside = acted
                    scores[t] = beside["score"]
                rollout.step(acted)
            now = rollout.observations[-1]
        return time.perf_counter() - begin

    return burst


def fleet_burst(fleet: Fleet, arriving: Iterator[Any]) -> Callable[[int], float]:
    import ray

    def burst(count: int) -> float:
        for _ in range(fleet.in_flight + 1):  # skips rollouts that were started before this turn
            next(arriving)
        begin = time.perf_counter()
        for _ in range(count):
            next(arriving)
        elapsed = time.perf_counter() - begin
        waiting = [one for station in fleet._stations for one, _ in station._asked]
        ray.wait(waiting, num_returns=len(waiting), timeout=60)  # idle during the turns of others
        return elapsed

    return burst


def compare(name: str, addresses: list[str], turns: int, burst_s: float) -> None:
    env, num_envs, length, kind = SETUPS[name]
    with ExitStack() as stack:
        rivals: dict[str, Callable[[int], float]] = {"local": local_burst(env, num_envs, length, kind)}
        fleets = {}
        for where, address in zip(("same node", "other node"), addresses, strict=True):
            only = {f"node:{address}": 0.01}
            fleet = Fleet(env, num_envs, nodes=1, policy=kind, seed=0, resources=only)
            fleets[where] = stack.enter_context(fleet)
            rivals[where] = fleet_burst(fleet, fleet.rollouts(length))
        with watch_load() as others:
            found = interleave_bursts(rivals, turns, burst_s)
        sample = next(fleets["same node"].rollouts(length))
        first = sample.observations[0].nbytes + sample.actions.nbytes
        beside = sum(array.nbytes for array in sample.extras.values())
        goal = f", goal {GOALS[name]}" if name in GOALS else ""
        print(f"\n{name}: {length} steps x {num_envs} environments, {others}")
        for where, timing in found.items():
            ratio = found["local"].median_s / timing.median_s
            paired = timing.speedup(found["local"])
            shown = f"{timing.median_s * 1e3:8.2f} ms a rollout, {1 / timing.median_s:7.1f}/s"
            told = "" if where == "local" else f"   {paired:.2f} of local (medians: {ratio:.2f}{goal})"
            print(f"  {where:10} {shown}{told}")
        print(
            f"  copied per rollout: {sample.nbytes / 1e6:.2f} MB once, into the object store (other node: "
            f"once more, over the network); {(first + beside) / 1e6:.2f} MB in the runner, as without Ray"
        )


def times(turns: int) -> None:
    """Measures the time to a fleet's first rollout, and from a runner's kill to its next rollout."""
    started, recovered = [], []
    for _ in range(turns):
        begin = time.perf_counter()
        with Fleet("CartPole-v1", 256, nodes=2, policy=ActorPolicy) as fleet:
            arriving = fleet.rollouts(128)
            next(arriving)
            started.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            os.kill(fleet._stations[0]._pid, signal.SIGKILL)
            while "fault" not in next(arriving).info:
                pass
            recovered.append(time.perf_counter() - begin)
    print(f"\nstart of a fleet of 2 to its first rollout: {statistics.median(started):.2f} s")
    print(f"kill of a runner to its next rollout: {statistics.median(recovered):.2f} s, the others going on")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=9, help="turns of each rival (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of a turn (default: %(default)s)")
    parser.add_argument("--only", nargs="*", metavar="SETUP", choices=list(SETUPS))
    parser.add_argument(
        "--smoke", action="store_true", help="only check that it runs: two setups, one short turn of each"
    )
    args = parser.parse_args()
    if args.smoke:
        args.turns, args.seconds = 1, 0.01
    names = args.only or (["4 floats, demo policy", "84x84x4, no policy"] if args.smoke else list(SETUPS))
    import ray

    begin = time.perf_counter()
    with SimulatedCluster(nodes=1, num_cpus=2, object_store_bytes=512 << 20) as cluster:
        print(f"start of a simulated node of Ray: {time.perf_counter() - begin:.1f} s")
        cluster.add_node()
        here = ray.util.get_node_ip_address()
        addresses = sorted((node["NodeManagerAddress"] for node in ray.nodes()), key=lambda one: one != here)
        for name in names:
            compare(name, addresses, args.turns, args.seconds)
        times(1 if args.smoke else 3)


if __name__ == "__main__":
    main()
