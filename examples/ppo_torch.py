"""PPO in PyTorch on rollouts in place: environments write every result where the loss reads it.

python examples/ppo_torch.py                       # CartPole to a mean return of 400, within 200,000 steps
python examples/ppo_torch.py --goal 475 --seed 1
python examples/ppo_torch.py --env-id Acrobot-v1 --goal -100 --gamma 0.99

`envs.rollout(length)` returns arrays of [length + 1, num_envs, ...] in shared memory; step t writes row t.
`torch.from_numpy` turns them into tensors once, and the whole training uses these tensors: there is no buffer
to fill and nothing to stack. The rest is standard PPO.
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
    goal: float = 400.0  # stop at this mean return of the last 100 episodes
    steps: int = 200_000  # give up after this many environment steps
    seed: int = 0
    num_envs: int = 32
    rollout_length: int = 64  # steps of each environment per rollout
    epochs: int = 8
    minibatch_size: int = 256
    learning_rate: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_coef: float = 0.0
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    hidden: int = 64
    num_threads: int = 1  # threads of torch; more are slower with a network this small

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for field in fields(cls):
            flag, default = "--" + field.name.replace("_", "-"), field.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


def make_network(inputs: int, hidden: int, outputs: int, last_gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Agent(nn.Module):
    def __init__(self, inputs: int, num_actions: int, hidden: int) -> None:
        super().__init__()
        self.actor = make_network(inputs, hidden, num_actions, 0.01)
        self.critic = make_network(inputs, hidden, 1, 1.0)


def compute_advantages(
    rewards: torch.Tensor, values: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor, args: Args
) -> torch.Tensor:
    """Returns the generalised advantage estimates (GAE) of a rollout.

    `values` has one row more than `rewards`: the values after the last step. If an episode ended at step t,
    row t + 1 holds its last observation. A truncated episode is therefore bootstrapped from values[t + 1],
    and the next episode never contributes to it.
    """
    advantages, next_advantage = torch.empty_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + args.gamma * values[t + 1] * ~terminated[t] - values[t]
        done = terminated[t] | truncated[t]
        next_advantage = delta + args.gamma * args.gae_lambda * next_advantage * ~done
        advantages[t] = next_advantage
    return advantages


def compute_loss(
    agent: Agent,
    observations: torch.Tensor,
    actions: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    returns: torch.Tensor,
    args: Args,
) -> torch.Tensor:
    policy = Categorical(logits=agent.actor(observations))
    ratio = (policy.log_prob(actions) - old_log_probs).exp()
    clipped_ratio = ratio.clamp(1 - args.clip, 1 + args.clip)
    policy_loss = -torch.minimum(ratio * advantages, clipped_ratio * advantages).mean()
    value_loss = (agent.critic(observations).squeeze(-1) - returns).square().mean()
    loss: torch.Tensor = (
        policy_loss + args.value_coef * value_loss - args.entropy_coef * policy.entropy().mean()
    )
    return loss


def train(args: Args) -> tuple[float, int]:
    """Trains until the goal or the limit of steps; returns the mean return and the number of steps."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.num_threads)
    envs = shoal.make_vec(args.env_id, args.num_envs)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    is_flat_box = isinstance(obs_space, Box) and len(obs_space.shape) == 1
    if not is_flat_box or not isinstance(action_space, Discrete):
        raise SystemExit(
            f"this PPO needs observations in a Box of shape (n,) and Discrete actions, but {args.env_id} has "
            f"{obs_space} and {action_space}; choose another --env-id"
        )
    agent = Agent(obs_space.shape[0], int(action_space.n), args.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    rollout = envs.rollout(args.rollout_length)
    # These tensors share the rollout's memory, so they show whatever the environments write next.
    observations = torch.from_numpy(rollout.observations)  # [length + 1, num_envs, ...]
    actions, rewards = torch.from_numpy(rollout.actions), torch.from_numpy(rollout.rewards)
    terminated, truncated = torch.from_numpy(rollout.terminated), torch.from_numpy(rollout.truncated)
    log_probs = torch.zeros(args.rollout_length, args.num_envs)
    # The step after the end of an episode resets the environment and ignores the action: training skips it.
    valid = torch.ones(args.rollout_length + 1, args.num_envs, dtype=torch.bool)

    last_observations, _ = envs.reset(seed=args.seed)
    running_returns, episode_returns, steps = np.zeros(args.num_envs), deque[float](maxlen=100), 0
    mean_return, start, last_print = float("-inf"), time.perf_counter(), time.perf_counter()
    while mean_return < args.goal and steps < args.steps:
        rollout.start(last_observations)
        with torch.no_grad():
            for t in range(args.rollout_length):
                policy = Categorical(logits=agent.actor(observations[t]))
                action = policy.sample()
                log_probs[t] = policy.log_prob(action)
                rollout.step(action.numpy())
                running_returns += rollout.rewards[t]
                for i in np.flatnonzero(rollout.terminated[t] | rollout.truncated[t]):
                    episode_returns.append(float(running_returns[i]))
                    running_returns[i] = 0
            values = agent.critic(observations).squeeze(-1)
            advantages = compute_advantages(rewards.float(), values, terminated, truncated, args)
        last_observations = rollout.observations[-1]
        valid[0] = valid[-1]
        valid[1:] = ~(terminated | truncated)
        rows = valid[:-1].flatten().nonzero().squeeze(-1)
        steps += len(rows)

        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * max(0.0, 1 - steps / args.steps)
        returns = (advantages + values[:-1]).flatten()
        advantages = advantages.flatten()
        advantages = (advantages - advantages[rows].mean()) / (advantages[rows].std() + 1e-8)
        flat = observations[:-1].flatten(0, 1), actions.flatten(0, 1), log_probs.flatten()  # views
        for _ in range(args.epochs):
            for minibatch in rows[torch.randperm(len(rows))].split(args.minibatch_size):
                optimizer.zero_grad()
                inputs = [tensor[minibatch] for tensor in (*flat, advantages, returns)]
                compute_loss(agent, *inputs, args).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

        if len(episode_returns) == 100:
            mean_return = float(np.mean(episode_returns))
        if time.perf_counter() - last_print > 1:
            last_print = time.perf_counter()
            steps_per_s = steps / (last_print - start)
            print(f"{steps:8,} steps, mean return {mean_return:6.1f}, {steps_per_s:,.0f} steps/s", flush=True)
    print(f"{steps:8,} steps, {time.perf_counter() - start:.1f} s, results copied: {envs.stats['copies']}")
    verdict = "reached" if mean_return >= args.goal else "NOT REACHED"
    print(f"{verdict}: mean return {mean_return:.1f}, goal {args.goal:g}")
    envs.close()
    return mean_return, steps


if __name__ == "__main__":
    args = Args.parse()
    raise SystemExit(0 if train(args)[0] >= args.goal else 1)
