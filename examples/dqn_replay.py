"""DQN whose actors are other processes: all write one replay buffer, the learner draws from it by priority.

python examples/dqn_replay.py                       # CartPole to a mean return of 195, some seconds
python examples/dqn_replay.py --goal 400 --steps 400000 --seed 1

    actor 0 --rows--> ReplayBuffer (shared memory) --PrioritizedSampler--> learner: Double DQN, Adam
    actor 1 --rows-->                                                        |
        ^                        board (a Segment)                           |
        `------------------------ weights, allowed, stop <-------------------'
                                  progress ------------------------------> what the actors' episodes came to

No queue, no message, no serialising: rows go where the learner reads them, and weights where the actors do.
The network is plain NumPy, so that this runs wherever Shoal does. Actors act no faster than the learner
allows, so the steps that learning takes do not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

import shoal
from shoal import Layout, ReplayBuffer, Segment
from shoal.replay import PrioritizedSampler

Array = NDArray[np.float32]


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    goal: float = 195.0  # mean return of the last 100 episodes, exploration included
    steps: int = 150_000  # of all actors, within which to reach it
    seed: int = 0
    num_actors: int = 2
    num_envs: int = 8  # of each actor
    capacity: int = 50_000
    warmup: int = 2_000  # steps before the first update
    steps_per_update: int = 8
    batch: int = 64
    gamma: float = 0.98
    rate: float = 1e-3
    target_every: int = 100  # updates
    publish_every: int = 10
    explore_steps: int = 20_000  # over which epsilon falls
    epsilon: float = 0.02  # what it falls to
    hidden: int = 64

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for one in fields(cls):
            flag, default = "--" + one.name.replace("_", "-"), one.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


# -- the network ------------------------------------------------------------------------------------------


class QNetwork:
    """Layers with ReLU between them, over one flat vector of weights: its own, or one that it is given."""

    def __init__(self, sizes: list[int], weights: Array | None = None) -> None:
        self.shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
        size = sum((rows + 1) * columns for rows, columns in self.shapes)
        self.weights = np.zeros(size, np.float32) if weights is None else weights
        self.layers = self.split(self.weights)

    def split(self, vector: Array) -> list[tuple[Array, Array]]:
        """The vector's parts, as (matrix, bias) of each layer; views of it."""
        parts, at = [], 0
        for rows, columns in self.shapes:
            cut, end = at + rows * columns, at + (rows + 1) * columns
            parts.append((vector[at:cut].reshape(rows, columns), vector[cut:end]))
            at = end
        return parts

    def begin(self, rng: np.random.Generator) -> None:
        for matrix, _ in self.layers:
            matrix[:] = rng.standard_normal(matrix.shape) * np.sqrt(2 / len(matrix))

    def forward(self, x: Array) -> Array:
        self.inputs: list[Array] = []
        for matrix, bias in self.layers:
            if self.inputs:
                x = np.maximum(x, 0)
            self.inputs.append(x)
            x = x @ matrix + bias
        return x

    def backward(self, d: Array, gradient: Array) -> None:
        """Writes the gradient, given that of what `forward` returned last."""
        for (matrix, _), (d_matrix, d_bias) in reversed(
            list(zip(self.layers, self.split(gradient), strict=True))
        ):
            x = self.inputs.pop()
            np.matmul(x.T, d, out=d_matrix)
            d.sum(axis=0, out=d_bias)
            d = (d @ matrix.T) * (x > 0)


class Adam:
    def __init__(self, size: int, rate: float) -> None:
        self.mean, self.square = np.zeros((2, size), np.float32)
        self.rate, self.count = rate, 0

    def step(self, weights: Array, gradient: Array) -> None:
        gradient *= min(1.0, 10 / (float(np.linalg.norm(gradient)) + 1e-8))
        self.count += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient * gradient - self.square)
        rate = self.rate * np.sqrt(1 - 0.999**self.count) / (1 - 0.9**self.count)
        weights -= np.float32(rate) * self.mean / (np.sqrt(self.square) + 1e-7)


# -- what the processes share -----------------------------------------------------------------------------


def make_board(args: Args, num_weights: int) -> Segment:
    """All that actors and learner tell each other, but for the rows."""
    return Segment(
        Layout(
            {
                "weights": (np.float32, (num_weights,)),
                "allowed": (np.int64, ()),  # steps that each actor may have made by now
                "stop": (np.bool_, ()),
                "steps": (np.int64, (args.num_actors,)),
                "episodes": (np.int64, (args.num_actors,)),
                "returns": (np.float64, (args.num_actors, 100)),  # of each actor's last 100 episodes
            }
        )
    )


def act(args: Args, number: int, sizes: list[int], buffer: Any, board: Segment) -> None:
    """An actor: steps its environments, epsilon-greedy, until it is told to stop.

    Its network is the shared memory itself. The learner may be writing there: to an actor that explores, a
    mix of two neighbouring networks is as good as either. Rows are another matter: those are never torn.
    """
    network = QNetwork(sizes, board["weights"])
    learner: Any = multiprocessing.parent_process()
    rng = np.random.default_rng([args.seed, number + 1])
    envs = shoal.make_vec(args.env_id, args.num_envs, num_threads=1)
    observations, _ = envs.reset(seed=args.seed * 1000 + number * args.num_envs)
    buffer.begin(observations)
    returned = np.zeros(args.num_envs)
    steps = episodes = 0
    while not board["stop"]:
        if steps >= board["allowed"]:
            if not learner.is_alive():  # killed: it can tell nobody to stop
                break
            time.sleep(0.0005)  # it is behind
            continue
        actions = network.forward(observations).argmax(axis=1)
        epsilon = max(args.epsilon, 1 - steps * args.num_actors / args.explore_steps)
        at_random = rng.random(args.num_envs) < epsilon
        actions[at_random] = rng.integers(sizes[-1], size=at_random.sum())

        result = envs.step(actions)
        buffer.add(actions, *result)  # the true last observation of each episode is kept
        observations, rewards, terminated, truncated, _ = result
        returned += rewards
        for i in np.flatnonzero(terminated | truncated):
            board["returns"][number, episodes % 100] = returned[i]
            episodes += 1
            returned[i] = 0
        steps += args.num_envs
        board["episodes"][number], board["steps"][number] = episodes, steps
    envs.close()


def mean_return(board: Segment) -> float:
    """Of the last 100 episodes of all actors; less than any if there have been too few."""
    each = 100 // len(board["episodes"])
    if board["episodes"].min() < each:
        return float("-inf")
    last = (board["episodes"][:, None] - 1 - np.arange(each)) % 100
    return float(np.take_along_axis(board["returns"], last, axis=1).mean())


# -- learning ---------------------------------------------------------------------------------------------


class Learner:
    """Double DQN: the network chooses the next action, and an older one of itself says what that is worth."""

    def __init__(self, args: Args, sizes: list[int], buffer: ReplayBuffer) -> None:
        self.args, self.network, self.target = args, QNetwork(sizes), QNetwork(sizes)
        self.network.begin(np.random.default_rng(args.seed))
        self.target.weights[:] = self.network.weights
        self.adam = Adam(len(self.network.weights), args.rate)
        self.gradient = np.zeros_like(self.network.weights)
        self.sampler = PrioritizedSampler(buffer, alpha=0.6, beta=0.4, seed=args.seed)
        self.updates = 0
        self.every, self.num_actions = np.arange(args.batch), sizes[-1]

    def update(self, beta: float) -> None:
        args, every = self.args, self.every
        batch = self.sampler.sample(args.batch, beta=beta)
        best = self.network.forward(batch["next_obs"]).argmax(axis=1)
        ahead = self.target.forward(batch["next_obs"])[every, best]
        targets = batch["reward"] + args.gamma * ahead * ~batch["terminated"]

        errors = self.network.forward(batch["obs"])[every, batch["action"]] - targets
        d = np.zeros((args.batch, self.num_actions), np.float32)
        d[every, batch["action"]] = errors * batch.weights / args.batch  # of half the mean square
        self.network.backward(d, self.gradient)
        self.adam.step(self.network.weights, self.gradient)

        self.sampler.update_priorities(batch.ids, np.abs(errors) + 1e-3)  # rows gone meanwhile are left out
        self.updates += 1
        if self.updates % args.target_every == 0:
            self.target.weights[:] = self.network.weights


def train(args: Args) -> tuple[float, int]:
    """The mean return at the end, and the steps it took."""
    with shoal.make_vec(args.env_id, args.num_envs, session=None) as envs:  # only to ask for its spaces
        seen, acted = envs.single_observation_space, envs.single_action_space
        if not isinstance(seen, Box) or len(seen.shape) != 1 or not isinstance(acted, Discrete):
            raise SystemExit(f"this DQN is for Box(n) and Discrete(n), found {seen} and {acted}")
        buffer = ReplayBuffer.for_env(envs, args.capacity, seed=args.seed)
    sizes = [seen.shape[0], args.hidden, args.hidden, int(acted.n)]
    learner = Learner(args, sizes, buffer)
    board = make_board(args, len(learner.network.weights))
    board["weights"][:] = learner.network.weights

    spawn = multiprocessing.get_context("spawn")  # buffer and board travel as descriptors
    actors = [
        spawn.Process(target=act, args=(args, number, sizes, buffer, board), daemon=True)
        for number in range(args.num_actors)
    ]
    for actor in actors:
        actor.start()
    begin = told = time.perf_counter()
    mean, steps = float("-inf"), 0
    try:
        while mean < args.goal and steps < args.steps:
            wanted = args.warmup + learner.updates * args.steps_per_update
            board["allowed"][...] = (wanted + 32 * args.num_actors * args.num_envs) // args.num_actors
            steps = int(board["steps"].sum())
            if steps < wanted:  # the actors are behind
                if not all(actor.is_alive() for actor in actors):
                    raise SystemExit("an actor died; its last words are above")
                time.sleep(0.0005)
                continue
            learner.update(beta=min(1.0, 0.4 + 0.6 * steps / args.steps))
            if learner.updates % args.publish_every == 0:
                board["weights"][:] = learner.network.weights
                mean = mean_return(board)
            if time.perf_counter() - told > 1:
                told = time.perf_counter()
                print(f"{steps:8,} steps, {learner.updates:7,} updates, mean return {mean:6.1f}", flush=True)
    finally:
        board["stop"][...] = True
        for actor in actors:
            actor.join(timeout=10)
    print(f"{steps:8,} steps, {learner.updates:7,} updates, {time.perf_counter() - begin:.1f} s")
    print(f"{'reached' if mean >= args.goal else 'NOT REACHED'}: mean return {mean:.1f}, goal {args.goal:g}")
    buffer.close()
    board.close()
    return mean, steps


if __name__ == "__main__":
    args = Args.parse()
    raise SystemExit(0 if train(args)[0] >= args.goal else 1)
