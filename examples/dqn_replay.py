"""DQN with actor processes: they all write to one replay buffer, and the learner samples it by priority.

python examples/dqn_replay.py                       # CartPole to a mean return of 195, in a few seconds
python examples/dqn_replay.py --goal 400 --steps 400000 --seed 1

    actor 0 --rows--> ReplayBuffer (shared memory) --PrioritizedSampler--> learner: Double DQN, Adam
    actor 1 --rows-->                                                        |
        ^                        board (a Segment)                           |
        `------------------------ weights, max_steps, stop <-----------------'
                                  steps, episode returns ---------------> the learner's progress report

There are no queues, no messages and no serialisation: actors write rows where the learner reads them, and
the learner writes weights where the actors read them. The network is plain NumPy, so this runs wherever Shoal
does. The learner limits how far ahead the actors may step, so the number of steps that learning takes does
not depend on how busy the machine is.
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
    goal: float = 195.0  # stop at this mean return of the last 100 episodes, exploration included
    steps: int = 150_000  # give up after this many steps of all actors
    seed: int = 0
    num_actors: int = 2
    num_envs: int = 8  # environments of each actor
    capacity: int = 50_000
    warmup: int = 2_000  # steps before the first update
    steps_per_update: int = 8
    batch_size: int = 64
    gamma: float = 0.98
    learning_rate: float = 1e-3
    target_every: int = 100  # updates between two copies into the target network
    publish_every: int = 10  # updates between two copies of the weights to the actors
    explore_steps: int = 20_000  # epsilon decreases from 1 to final_epsilon over this many steps
    final_epsilon: float = 0.02
    hidden: int = 64

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for field in fields(cls):
            flag, default = "--" + field.name.replace("_", "-"), field.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


# -- the network ------------------------------------------------------------------------------------------


class QNetwork:
    """A multilayer perceptron with ReLU; all weights are in one flat vector, its own or the one passed in."""

    def __init__(self, sizes: list[int], weights: Array | None = None) -> None:
        self.shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
        size = sum((rows + 1) * columns for rows, columns in self.shapes)
        self.weights = np.zeros(size, np.float32) if weights is None else weights
        self.layers = self.split(self.weights)

    def split(self, vector: Array) -> list[tuple[Array, Array]]:
        """Returns views of the vector: one (matrix, bias) for each layer."""
        layers, start = [], 0
        for rows, columns in self.shapes:
            middle, end = start + rows * columns, start + (rows + 1) * columns
            layers.append((vector[start:middle].reshape(rows, columns), vector[middle:end]))
            start = end
        return layers

    def initialize(self, rng: np.random.Generator) -> None:
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
        """Writes the gradient of the weights, given the gradient `d` of the last output of `forward`."""
        for (matrix, _), (d_matrix, d_bias) in reversed(
            list(zip(self.layers, self.split(gradient), strict=True))
        ):
            x = self.inputs.pop()
            np.matmul(x.T, d, out=d_matrix)
            d.sum(axis=0, out=d_bias)
            d = (d @ matrix.T) * (x > 0)


class Adam:
    def __init__(self, size: int, learning_rate: float) -> None:
        self.mean, self.square = np.zeros((2, size), np.float32)
        self.learning_rate, self.count = learning_rate, 0

    def step(self, weights: Array, gradient: Array) -> None:
        gradient *= min(1.0, 10 / (float(np.linalg.norm(gradient)) + 1e-8))
        self.count += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient * gradient - self.square)
        step_size = self.learning_rate * np.sqrt(1 - 0.999**self.count) / (1 - 0.9**self.count)
        weights -= np.float32(step_size) * self.mean / (np.sqrt(self.square) + 1e-7)


# -- shared by the processes ------------------------------------------------------------------------------


def make_board(args: Args, num_weights: int) -> Segment:
    """Returns shared memory for everything that actors and learner exchange, except the transitions."""
    return Segment(
        Layout(
            {
                "weights": (np.float32, (num_weights,)),
                "max_steps": (np.int64, ()),  # each actor pauses when it has made this many steps
                "stop": (np.bool_, ()),
                "steps": (np.int64, (args.num_actors,)),
                "episodes": (np.int64, (args.num_actors,)),
                "episode_returns": (np.float64, (args.num_actors, 100)),  # each actor's last 100 episodes
            }
        )
    )


def act(args: Args, actor_id: int, sizes: list[int], buffer: Any, board: Segment) -> None:
    """Steps the environments of one actor, epsilon-greedy, until the learner sets `stop`.

    The actor's network uses the weights in shared memory directly. The learner can write them during a
    forward pass, so an actor may see a mix of two successive networks; that does no harm to exploration. Rows
    of the replay buffer are never seen half written.
    """
    network = QNetwork(sizes, board["weights"])
    learner: Any = multiprocessing.parent_process()
    rng = np.random.default_rng([args.seed, actor_id + 1])
    envs = shoal.make_vec(args.env_id, args.num_envs, num_threads=1)
    observations, _ = envs.reset(seed=args.seed * 1000 + actor_id * args.num_envs)
    buffer.begin(observations)
    running_returns = np.zeros(args.num_envs)
    steps = episodes = 0
    while not board["stop"]:
        if steps >= board["max_steps"]:  # wait for the learner
            if not learner.is_alive():  # a killed learner cannot set `stop`
                break
            time.sleep(0.0005)
            continue
        actions = network.forward(observations).argmax(axis=1)
        epsilon = max(args.final_epsilon, 1 - steps * args.num_actors / args.explore_steps)
        explore = rng.random(args.num_envs) < epsilon
        actions[explore] = rng.integers(sizes[-1], size=explore.sum())

        result = envs.step(actions)
        buffer.add(actions, *result)  # keeps the true last observation of each episode
        observations, rewards, terminated, truncated, _ = result
        running_returns += rewards
        for i in np.flatnonzero(terminated | truncated):
            board["episode_returns"][actor_id, episodes % 100] = running_returns[i]
            episodes += 1
            running_returns[i] = 0
        steps += args.num_envs
        board["episodes"][actor_id], board["steps"][actor_id] = episodes, steps
    envs.close()


def compute_mean_return(board: Segment) -> float:
    """Returns the mean return of the last 100 episodes of all actors, or -inf if there were fewer."""
    per_actor = 100 // len(board["episodes"])
    if board["episodes"].min() < per_actor:
        return float("-inf")
    last = (board["episodes"][:, None] - 1 - np.arange(per_actor)) % 100
    return float(np.take_along_axis(board["episode_returns"], last, axis=1).mean())


# -- learning ---------------------------------------------------------------------------------------------


class Learner:
    """Double DQN: the online network chooses the next action, and the target network evaluates it."""

    def __init__(self, args: Args, sizes: list[int], buffer: ReplayBuffer) -> None:
        self.args, self.network, self.target = args, QNetwork(sizes), QNetwork(sizes)
        self.network.initialize(np.random.default_rng(args.seed))
        self.target.weights[:] = self.network.weights
        self.optimizer = Adam(len(self.network.weights), args.learning_rate)
        self.gradient = np.zeros_like(self.network.weights)
        self.sampler = PrioritizedSampler(buffer, alpha=0.6, beta=0.4, seed=args.seed)
        self.updates = 0
        self.rows, self.num_actions = np.arange(args.batch_size), sizes[-1]

    def update(self, beta: float) -> None:
        args, rows = self.args, self.rows
        batch = self.sampler.sample(args.batch_size, beta=beta)
        next_actions = self.network.forward(batch["next_obs"]).argmax(axis=1)
        next_values = self.target.forward(batch["next_obs"])[rows, next_actions]
        targets = batch["reward"] + args.gamma * next_values * ~batch["terminated"]

        td_errors = self.network.forward(batch["obs"])[rows, batch["action"]] - targets
        d_q = np.zeros((args.batch_size, self.num_actions), np.float32)  # d loss / d Q values
        d_q[rows, batch["action"]] = td_errors * batch.weights / args.batch_size
        self.network.backward(d_q, self.gradient)
        self.optimizer.step(self.network.weights, self.gradient)

        self.sampler.update_priorities(batch.ids, np.abs(td_errors) + 1e-3)  # ignores overwritten rows
        self.updates += 1
        if self.updates % args.target_every == 0:
            self.target.weights[:] = self.network.weights


def train(args: Args) -> tuple[float, int]:
    """Trains until the goal or the limit of steps; returns the mean return and the number of steps."""
    with shoal.make_vec(args.env_id, args.num_envs, session=None) as envs:  # only to read its spaces
        obs_space, action_space = envs.single_observation_space, envs.single_action_space
        is_flat_box = isinstance(obs_space, Box) and len(obs_space.shape) == 1
        if not is_flat_box or not isinstance(action_space, Discrete):
            raise SystemExit(
                f"this DQN needs observations in a Box of shape (n,) and Discrete actions, but {args.env_id} "
                f"has {obs_space} and {action_space}; choose another --env-id"
            )
        buffer = ReplayBuffer.for_env(envs, args.capacity, seed=args.seed)
    sizes = [obs_space.shape[0], args.hidden, args.hidden, int(action_space.n)]
    learner = Learner(args, sizes, buffer)
    board = make_board(args, len(learner.network.weights))
    board["weights"][:] = learner.network.weights

    spawn = multiprocessing.get_context("spawn")  # buffer and board are passed as file descriptors
    actors = [
        spawn.Process(target=act, args=(args, actor_id, sizes, buffer, board), daemon=True)
        for actor_id in range(args.num_actors)
    ]
    for actor in actors:
        actor.start()
    start = last_print = time.perf_counter()
    mean_return, steps = float("-inf"), 0
    try:
        while mean_return < args.goal and steps < args.steps:
            needed_steps = args.warmup + learner.updates * args.steps_per_update
            board["max_steps"][...] = (needed_steps + 32 * args.num_actors * args.num_envs) // args.num_actors
            steps = int(board["steps"].sum())
            if steps < needed_steps:  # wait for the actors
                if not all(actor.is_alive() for actor in actors):
                    raise SystemExit("an actor died; its error message is above")
                time.sleep(0.0005)
                continue
            learner.update(beta=min(1.0, 0.4 + 0.6 * steps / args.steps))
            if learner.updates % args.publish_every == 0:
                board["weights"][:] = learner.network.weights
                mean_return = compute_mean_return(board)
            if time.perf_counter() - last_print > 1:
                last_print = time.perf_counter()
                progress = f"{steps:8,} steps, {learner.updates:7,} updates"
                print(f"{progress}, mean return {mean_return:6.1f}", flush=True)
    finally:
        board["stop"][...] = True
        for actor in actors:
            actor.join(timeout=10)
    print(f"{steps:8,} steps, {learner.updates:7,} updates, {time.perf_counter() - start:.1f} s")
    verdict = "reached" if mean_return >= args.goal else "NOT REACHED"
    print(f"{verdict}: mean return {mean_return:.1f}, goal {args.goal:g}")
    buffer.close()
    board.close()
    return mean_return, steps


if __name__ == "__main__":
    args = Args.parse()
    raise SystemExit(0 if train(args)[0] >= args.goal else 1)
