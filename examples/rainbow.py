"""Rainbow in PyTorch: n-step returns, priorities and frame stacks on one ring that two actor processes fill.

python examples/rainbow.py                          # CartPole without velocities, to a mean return of 60
python examples/rainbow.py --goal 150 --steps 300000 --seed 1
python examples/rainbow.py --env-id Pixels-v0 --columns "" --stack 1 --steps 4000    # convolutions

    actor 0 --frames--> ReplayBuffer.for_env (shared memory) --sample_n_step(stack=4)--> learner
    actor 1 --frames-->   each frame is stored once            PrioritizedSampler          |
        ^                                                                                  |
        `------------------ parameters (a Segment): the actors' networks are that memory --'

The learner sees what Rainbow adds to DQN: double Q-learning, dueling and noisy networks, a distribution of
returns (C51), n-step returns, prioritized replay with importance weights. CartPole is shown without its
velocities, so one frame is not enough to balance the pole and a stack of frames is.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import shoal
from shoal import Layout, ReplayBuffer, Segment
from shoal.replay import PrioritizedSampler

try:
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import linear
except ImportError:
    print("this example needs PyTorch, which is not installed: pip install torch")
    raise SystemExit(0) from None


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    columns: str = "0,2"  # of an observation that the agent sees; "" for all
    goal: float = 60.0  # mean return of the last 100 episodes, exploration included
    steps: int = 120_000  # of all actors, within which to reach it
    seed: int = 0
    device: str = "cpu"
    num_actors: int = 2
    num_envs: int = 8  # of each actor
    capacity: int = 50_000  # frames
    warmup: int = 1_000  # steps before the first update
    steps_per_update: int = 8
    batch_size: int = 64
    stack: int = 4  # frames of an observation
    n_step: int = 3
    gamma: float = 0.98
    learning_rate: float = 1e-3
    alpha: float = 0.5  # of the priorities
    beta: float = 0.4  # of the importance weights at the beginning; 1 at the end
    atoms: int = 51
    v_min: float = 0.0
    v_max: float = 50.0
    sigma: float = 0.5  # noise of the noisy layers at the beginning
    hidden: int = 64
    target_every: int = 100  # updates
    publish_every: int = 10
    max_norm: float = 10.0

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for field in fields(cls):
            flag, default = "--" + field.name.replace("_", "-"), field.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


# -- the network ------------------------------------------------------------------------------------------


class NoisyLinear(nn.Module):
    """A linear layer whose weights are disturbed by noise that it learns to need less of."""

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))
        self.noise_in, self.noise_out = torch.zeros(inputs), torch.zeros(outputs)

    def resample(self) -> None:
        for name in ("noise_in", "noise_out"):
            noise = torch.randn(len(getattr(self, name)), device=self.weight.device)
            setattr(self, name, noise.sign() * noise.abs().sqrt())

    def forward(self, x: Tensor) -> Tensor:
        noise_in, noise_out = self.noise_in.to(x.device), self.noise_out.to(x.device)
        weight = self.weight + self.weight_sigma * torch.outer(noise_out, noise_in)
        return linear(x, weight, self.bias + self.bias_sigma * noise_out)


class QNetwork(nn.Module):
    """Dueling streams of a distribution over returns, from a stack of frames."""

    def __init__(self, args: Args, frame: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.num_actions, self.is_image = num_actions, len(frame) > 1
        self.support = torch.linspace(args.v_min, args.v_max, args.atoms)
        torso: list[nn.Module]
        if self.is_image:
            channels = args.stack * math.prod(frame[2:])
            torso = [
                nn.Conv2d(channels, 16, 8, 4),
                nn.ReLU(),
                nn.Conv2d(16, 32, 4, 2),
                nn.ReLU(),
                nn.Flatten(),
            ]
        else:
            torso = [nn.Flatten()]
        with torch.no_grad():
            size = nn.Sequential(*torso)(self.as_input(torch.zeros(1, args.stack, *frame))).shape[1]
        self.torso = nn.Sequential(*torso, nn.Linear(size, args.hidden), nn.ReLU())
        self.value_hidden = NoisyLinear(args.hidden, args.hidden, args.sigma)
        self.value = NoisyLinear(args.hidden, args.atoms, args.sigma)
        self.advantage_hidden = NoisyLinear(args.hidden, args.hidden, args.sigma)
        self.advantage = NoisyLinear(args.hidden, num_actions * args.atoms, args.sigma)

    def resample(self) -> None:
        for layer in self.modules():
            if isinstance(layer, NoisyLinear):
                layer.resample()

    def as_input(self, frames: Tensor) -> Tensor:
        """Frames [batch, stack, height, width, colours] as channels; numbers from 0 to 1."""
        if frames.ndim == 5:
            frames = frames.permute(0, 1, 4, 2, 3).flatten(1, 2)
        return frames.float() / 255 if frames.dtype == torch.uint8 else frames

    def forward(self, frames: Tensor) -> Tensor:
        """Log-probabilities of the atoms of each action's return, [batch, actions, atoms]."""
        x = self.torso(self.as_input(frames))
        value = self.value(torch.relu(self.value_hidden(x))).unsqueeze(1)
        advantage = self.advantage(torch.relu(self.advantage_hidden(x))).view(len(x), self.num_actions, -1)
        return (value + advantage - advantage.mean(1, keepdim=True)).log_softmax(-1)

    def q_values(self, frames: Tensor) -> Tensor:
        return (self(frames).exp() * self.support.to(frames.device)).sum(-1)


def project(log_probs: Tensor, returns: Tensor, support: Tensor) -> Tensor:
    """The distribution of returns that fall between atoms, on the atoms of the support, [batch, atoms]."""
    low, high = float(support[0]), float(support[-1])
    place = (returns.clamp(low, high) - low) / (high - low) * (len(support) - 1)
    below = place.floor().clamp(0, len(support) - 2)
    above_share = place - below
    probs, index = log_probs.exp(), below.long()
    target = torch.zeros_like(probs)
    target.scatter_add_(1, index, probs * (1 - above_share))
    return target.scatter_add_(1, index + 1, probs * above_share)


# -- what the processes share -----------------------------------------------------------------------------


class Columns(gymnasium.vector.VectorObservationWrapper):
    """Shows some columns of the observations."""

    def __init__(self, envs: Any, columns: list[int]) -> None:
        super().__init__(envs)
        self.columns, space = columns, envs.single_observation_space
        self.single_observation_space = Box(space.low[columns], space.high[columns], dtype=space.dtype)
        self.observation_space = gymnasium.vector.utils.batch_space(
            self.single_observation_space, self.num_envs
        )

    def observations(self, observations: Any) -> Any:
        return np.ascontiguousarray(observations[:, self.columns])


def make_envs(args: Args) -> Any:
    envs: Any = shoal.make_vec(args.env_id, args.num_envs, num_threads=1, session=None)
    space, action_space = envs.single_observation_space, envs.single_action_space
    if not isinstance(space, Box) or len(space.shape) > 3 or not isinstance(action_space, Discrete):
        envs.close()
        raise SystemExit(
            "this Rainbow is for observations Box(n) or Box(height, width, colours) and actions Discrete(n), "
            f"found {space} and {action_space}"
        )
    columns = [int(column) for column in args.columns.split(",") if column.strip()]
    return Columns(envs, columns) if columns else envs


def make_board(args: Args, num_parameters: int) -> Segment:
    """All that actors and learner tell each other, but for the frames."""
    return Segment(
        Layout(
            {
                "parameters": (np.float32, (num_parameters,)),
                "allowed": (np.int64, ()),  # steps that each actor may have made by now
                "stop": (np.bool_, ()),
                "steps": (np.int64, (args.num_actors,)),
                "episodes": (np.int64, (args.num_actors,)),
                "returns": (np.float64, (args.num_actors, 100)),  # of each actor's last 100 episodes
            }
        )
    )


def act(args: Args, number: int, buffer: Any, board: Segment) -> None:
    """An actor: steps its environments with the noisy network until it is told to stop.

    The parameters are the shared memory, which the learner may be writing: to an actor that explores, a mix
    of two neighbouring networks is as good as either. Frames are never torn.
    """
    torch.manual_seed(args.seed * 1000 + number)
    torch.set_num_threads(1)
    learner: Any = multiprocessing.parent_process()
    envs = make_envs(args)
    space = envs.single_observation_space
    network = QNetwork(args, space.shape, int(envs.single_action_space.n))
    nn.utils.vector_to_parameters(torch.from_numpy(board["parameters"]), network.parameters())
    observations, _ = envs.reset(seed=args.seed * 1000 + number * args.num_envs)
    buffer.begin(observations)
    frames = np.repeat(observations[:, None], args.stack, axis=1)
    episode_returns, done = np.zeros(args.num_envs), np.zeros(args.num_envs, np.bool_)
    steps = episodes = 0
    while not board["stop"]:
        if steps >= board["allowed"]:
            if not learner.is_alive():  # killed: it can tell nobody to stop
                break
            time.sleep(0.0005)  # it is behind
            continue
        with torch.no_grad():
            network.resample()
            actions = network.q_values(torch.from_numpy(frames)).argmax(1).numpy()
        results = envs.step(actions)
        buffer.add(actions, *results)  # the true last observation of each episode is kept
        observations, rewards, terminated, truncated, _ = results
        frames = np.concatenate([frames[:, 1:], observations[:, None]], axis=1)
        frames[done] = observations[done, None]  # the first of an episode: nothing before it
        episode_returns += rewards
        done = terminated | truncated
        for env in np.flatnonzero(done):
            board["returns"][number, episodes % 100] = episode_returns[env]
            episodes += 1
            episode_returns[env] = 0
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
    def __init__(self, args: Args, buffer: Any, num_actions: int) -> None:
        torch.manual_seed(args.seed)
        frame = buffer.fields["obs"][1]
        self.args, self.updates = args, 0
        self.network, self.target = (QNetwork(args, frame, num_actions).to(args.device) for _ in range(2))
        self.target.load_state_dict(self.network.state_dict())
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=args.learning_rate, eps=1e-5)
        self.sampler = PrioritizedSampler(buffer, alpha=args.alpha, beta=args.beta, seed=args.seed)
        self.support = self.network.support.to(args.device)

    def targets(self, batch: Any) -> Tensor:
        """Distributions of n-step returns: the network chooses an action, the target network values it."""
        with torch.no_grad():
            best = self.network.q_values(batch["next_obs"]).argmax(1)
            log_probs = self.target(batch["next_obs"])[torch.arange(len(best)), best]
            discount = batch["discount"] * ~batch["terminated"]  # an episode that was cut off goes on
            returns = batch["reward"].unsqueeze(1) + discount.unsqueeze(1) * self.support
            return project(log_probs, returns, self.support)

    def update(self, beta: float) -> float:
        args = self.args
        batch = self.sampler.sample_n_step(
            args.batch_size, args.n_step, args.gamma, beta, stack=args.stack, device=args.device
        )
        self.network.resample()
        self.target.resample()
        targets = self.targets(batch)
        log_probs = self.network(batch["obs"])[torch.arange(args.batch_size), batch["action"]]
        losses = -(targets * log_probs).sum(-1)
        loss = (losses * batch.weights).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), args.max_norm)
        self.optimizer.step()
        self.sampler.update_priorities(batch.ids, losses.detach().cpu().numpy() + 1e-3)
        self.updates += 1
        if self.updates % args.target_every == 0:
            self.target.load_state_dict(self.network.state_dict())
        return float(loss.detach())

    def publish(self, board: Segment) -> None:
        vector = nn.utils.parameters_to_vector(self.network.parameters())
        board["parameters"][:] = vector.detach().cpu().numpy()


def train(args: Args) -> tuple[float, int]:
    """The mean return at the end, and the steps it took."""
    torch.set_num_threads(1)
    envs = make_envs(args)  # only to ask for its spaces
    buffer = ReplayBuffer.for_env(envs, args.capacity, seed=args.seed)
    learner = Learner(args, buffer, int(envs.single_action_space.n))
    envs.close()
    board = make_board(args, sum(parameter.numel() for parameter in learner.network.parameters()))
    learner.publish(board)

    spawn = multiprocessing.get_context("spawn")  # buffer and board travel as descriptors
    actors = [
        spawn.Process(target=act, args=(args, number, buffer, board), daemon=True)
        for number in range(args.num_actors)
    ]
    for actor in actors:
        actor.start()
    begin = told = time.perf_counter()
    mean, steps, loss = float("-inf"), 0, float("nan")
    try:
        while mean < args.goal and steps < args.steps:
            wanted = args.warmup + learner.updates * args.steps_per_update
            board["allowed"][...] = (wanted + 8 * args.num_actors * args.num_envs) // args.num_actors
            steps = int(board["steps"].sum())
            if steps < wanted:  # the actors are behind
                if not all(actor.is_alive() for actor in actors):
                    raise SystemExit("an actor died; its last words are above")
                time.sleep(0.0005)
                continue
            loss = learner.update(min(1.0, args.beta + (1 - args.beta) * steps / args.steps))
            if learner.updates % args.publish_every == 0:
                learner.publish(board)
                mean = mean_return(board)
            if time.perf_counter() - told > 1:
                told = time.perf_counter()
                print(
                    f"{steps:8,} steps, {learner.updates:7,} updates, loss {loss:.3f}, return {mean:6.1f}",
                    flush=True,
                )
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
