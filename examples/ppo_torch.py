"""PPO in PyTorch on rollouts in place: environments write every result where the loss reads it.

python examples/ppo_torch.py                       # CartPole to a mean return of 400, within 200,000 steps
python examples/ppo_torch.py --goal 475 --seed 1
python examples/ppo_torch.py --env-id Acrobot-v1 --goal -100 --gamma 0.99

`envs.rollout(length)` lends blocks of [length + 1, num_envs, ...] in shared memory, whose row t is written by
step t. `torch.from_numpy` of them, once, are the tensors of the whole training: there is no buffer to fill
and nothing to stack. The rest is PPO as everyone writes it.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, fields

import numpy as np
from gymnasium.spaces import Box, Discrete

import shoal

try:
    import torch
    from torch import nn
    from torch.distributions import Categorical
except ImportError:
    print("this example needs PyTorch, which is not installed: pip install torch")
    raise SystemExit(0) from None


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    goal: float = 400.0  # mean return of the last 100 episodes
    steps: int = 200_000  # within which to reach it
    seed: int = 0
    num_envs: int = 32
    length: int = 64  # steps of a rollout
    epochs: int = 8
    minibatch: int = 256
    rate: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.0
    value: float = 0.5
    max_norm: float = 0.5
    hidden: int = 64
    num_threads: int = 1  # of torch: networks as small as this one are slower with more

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for one in fields(cls):
            flag, default = "--" + one.name.replace("_", "-"), one.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


def network(inputs: int, hidden: int, outputs: int, last_gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Agent(nn.Module):
    def __init__(self, inputs: int, num_actions: int, hidden: int) -> None:
        super().__init__()
        self.actor = network(inputs, hidden, num_actions, 0.01)
        self.critic = network(inputs, hidden, 1, 1.0)


def advantages(
    rewards: torch.Tensor, values: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor, args: Args
) -> torch.Tensor:
    """Generalised advantages. `values` has a row more, what comes after the last step.

    Row t + 1 holds the last observation of an episode that ended at t, so one that was only cut off goes on
    from its value; nothing of the episode after it is let in.
    """
    found, ahead = torch.empty_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        surprise = rewards[t] + args.gamma * values[t + 1] * ~terminated[t] - values[t]
        ahead = surprise + args.gamma * args.gae_lambda * ahead * ~(terminated[t] | truncated[t])
        found[t] = ahead
    return found


def loss_of(
    agent: Agent,
    seen: torch.Tensor,
    actions: torch.Tensor,
    scores: torch.Tensor,
    gains: torch.Tensor,
    targets: torch.Tensor,
    args: Args,
) -> torch.Tensor:
    policy = Categorical(logits=agent.actor(seen))
    ratio = (policy.log_prob(actions) - scores).exp()
    bounded = ratio.clamp(1 - args.clip, 1 + args.clip)
    worth = torch.minimum(ratio * gains, bounded * gains).mean() + args.entropy * policy.entropy().mean()
    error = agent.critic(seen).squeeze(-1) - targets
    loss: torch.Tensor = args.value * error.square().mean() - worth
    return loss


def train(args: Args) -> tuple[float, int]:
    """The mean return at the end, and the steps it took."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.num_threads)
    envs = shoal.make_vec(args.env_id, args.num_envs)
    space, choice = envs.single_observation_space, envs.single_action_space
    if not isinstance(space, Box) or len(space.shape) != 1 or not isinstance(choice, Discrete):
        raise SystemExit(f"this PPO is for Box(n) and Discrete(n), found {space} and {choice}")
    agent = Agent(space.shape[0], int(choice.n), args.hidden)
    adam = torch.optim.Adam(agent.parameters(), lr=args.rate, eps=1e-5)

    rollout = envs.rollout(args.length)
    # The rollout's own memory as tensors, made once: what the environments write next is seen through them.
    observations = torch.from_numpy(rollout.observations)  # [length + 1, num_envs, ...]
    actions, rewards = torch.from_numpy(rollout.actions), torch.from_numpy(rollout.rewards)
    terminated, truncated = torch.from_numpy(rollout.terminated), torch.from_numpy(rollout.truncated)
    scores = torch.zeros(args.length, args.num_envs)
    # An environment begins anew in the step after an end; what was done in that step counted for nothing.
    counts = torch.ones(args.length + 1, args.num_envs, dtype=torch.bool)

    latest, _ = envs.reset(seed=args.seed)
    returned, returns, steps = np.zeros(args.num_envs), deque[float](maxlen=100), 0
    mean, begin, told = float("-inf"), time.perf_counter(), time.perf_counter()
    while mean < args.goal and steps < args.steps:
        rollout.start(latest)
        with torch.no_grad():
            for t in range(args.length):
                policy = Categorical(logits=agent.actor(observations[t]))
                action = policy.sample()
                scores[t] = policy.log_prob(action)
                rollout.step(action.numpy())
                returned += rollout.rewards[t]
                for i in np.flatnonzero(rollout.terminated[t] | rollout.truncated[t]):
                    returns.append(float(returned[i]))
                    returned[i] = 0
            values = agent.critic(observations).squeeze(-1)
            gains = advantages(rewards.float(), values, terminated, truncated, args)
        latest = rollout.observations[-1]
        counts[0] = counts[-1]
        counts[1:] = ~(terminated | truncated)
        rows = counts[:-1].flatten().nonzero().squeeze(-1)
        steps += len(rows)

        for group in adam.param_groups:
            group["lr"] = args.rate * max(0.0, 1 - steps / args.steps)
        flat = (observations[:-1], actions, scores, gains, gains + values[:-1])
        seen, acted, scored, gained, targets = (part.flatten(0, 1) for part in flat)  # views
        gained = (gained - gained[rows].mean()) / (gained[rows].std() + 1e-8)
        for _ in range(args.epochs):
            for part in rows[torch.randperm(len(rows))].split(args.minibatch):
                adam.zero_grad()
                loss = loss_of(
                    agent, seen[part], acted[part], scored[part], gained[part], targets[part], args
                )
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_norm)
                adam.step()

        if len(returns) == 100:
            mean = float(np.mean(returns))
        if time.perf_counter() - told > 1:
            told = time.perf_counter()
            print(f"{steps:8,} steps, mean return {mean:6.1f}, {steps / (told - begin):,.0f}/s", flush=True)
    print(f"{steps:8,} steps, {time.perf_counter() - begin:.1f} s, results copied: {envs.stats['copies']}")
    print(f"{'reached' if mean >= args.goal else 'NOT REACHED'}: mean return {mean:.1f}, goal {args.goal:g}")
    envs.close()
    return mean, steps


if __name__ == "__main__":
    args = Args.parse()
    raise SystemExit(0 if train(args)[0] >= args.goal else 1)
