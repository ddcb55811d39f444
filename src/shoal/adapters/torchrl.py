"""Shoal's environments as one TorchRL environment of batch size [num_envs].

    ShoalEnv("CartPole-v1", 64)                # was: ParallelEnv(64, lambda: GymEnv("CartPole-v1"))

TorchRL resets finished environments itself, by partial resets with a `_reset` mask, so the autoreset mode is
DISABLED. Tensors are views of the leased result arrays: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded
from torchrl.envs import EnvBase

from shoal.vector import VectorEnv, make_vec

__all__ = ["ShoalEnv"]


class ShoalEnv(EnvBase):
    """`num_envs` environments as one TorchRL environment; `options` are those of `shoal.make_vec`.

    Discrete actions are numbers (TorchRL's Categorical), not one-hot vectors. The parts of a Dict observation
    are entries under their own names; any other observation is the entry "observation". Actions are in
    "action".
    """

    batch_locked = True

    def __init__(
        self,
        env: str | Path | EnvSpec | Callable[[], Any],
        num_envs: int = 1,
        *,
        device: Any = "cpu",
        **options: Any,
    ) -> None:
        if options.get("buffers") == "live":
            raise ValueError('buffers="live" changes tensors that TorchRL still needs; use "leased"')
        envs = make_vec(env, num_envs, autoreset_mode=AutoresetMode.DISABLED, **options)
        try:
            if envs.agents_per_env > 1:
                raise ValueError(
                    f"{env} has several agents, which are reset together, but TorchRL resets rows separately"
                )
            super().__init__(device=device, batch_size=[num_envs])
            self.envs: VectorEnv = envs
            self._next_seed: int | None = None
            seen, act = envs.single_observation_space, envs.single_action_space
            named = seen if isinstance(seen, spaces.Dict) else spaces.Dict({"observation": seen})
            self.observation_spec = _make_spec(named, num_envs).to(self.device)
            self.full_action_spec = _make_spec(spaces.Dict({"action": act}), num_envs).to(self.device)
            self.reward_spec = Unbounded(shape=(num_envs, 1), device=self.device)
            flag = Binary(1, shape=(num_envs, 1), dtype=torch.bool, device=self.device)
            flags = {name: flag.clone() for name in ("done", "terminated", "truncated")}
            self.done_spec = Composite(flags, shape=(num_envs,), device=self.device)
        except BaseException:
            envs.close()
            raise

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        options = None if mask is None else {"reset_mask": mask.cpu().numpy().reshape(-1)}
        seed, self._next_seed = self._next_seed, None
        observations, _ = self.envs.reset(seed=seed, options=options)
        return self._make_tensordict(observations, *np.zeros((2, self.envs.num_envs), np.bool_))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        observations, rewards, terminated, truncated, info = self.envs.step(_to_numpy(tensordict["action"]))
        if "_fault" in info:  # the last observation is lost, so TorchRL must not bootstrap from it
            terminated, truncated = terminated | info["_fault"], truncated & ~info["_fault"]
        result = self._make_tensordict(observations, terminated, truncated)
        return result.set("reward", torch.from_numpy(rewards.astype(np.float32)).unsqueeze(-1))

    def _set_seed(self, seed: int | None) -> None:
        self._next_seed = seed

    def close(self, *, raise_if_closed: bool = True) -> None:
        self.envs.close()
        super().close(raise_if_closed=raise_if_closed)

    def _make_tensordict(self, observations: Any, terminated: Any, truncated: Any) -> TensorDictBase:
        flags = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        values = _to_tensors(
            observations if isinstance(observations, dict) else {"observation": observations}
        )
        values.update({name: torch.from_numpy(flag).unsqueeze(-1) for name, flag in flags.items()})
        return TensorDict(values, batch_size=self.batch_size, device=self.device)


def _to_tensors(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _to_tensors(one) if isinstance(one, dict) else torch.from_numpy(one)
        for key, one in values.items()
    }


def _to_numpy(action: Any) -> Any:
    if isinstance(action, TensorDictBase):
        return {key: _to_numpy(one) for key, one in action.items()}
    return action.cpu().numpy()


def _make_spec(space: spaces.Space[Any], rows: int) -> Any:
    """Returns TorchRL's spec for `rows` values of a space."""
    dtype = None if space.dtype is None else torch.from_numpy(np.zeros(0, space.dtype)).dtype
    if isinstance(space, spaces.Dict):
        return Composite({key: _make_spec(one, rows) for key, one in space.items()}, shape=(rows,))
    if isinstance(space, spaces.Box):
        shape = (rows, *space.shape)
        if not space.is_bounded("both"):
            return Unbounded(shape=shape, dtype=dtype)
        low, high = (torch.from_numpy(np.broadcast_to(one, shape).copy()) for one in (space.low, space.high))
        return Bounded(low, high, shape=shape, dtype=dtype)
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Categorical(int(space.n), shape=(rows,), dtype=dtype)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
        return MultiCategorical(space.nvec.tolist(), dtype=dtype).expand(rows, len(space.nvec))
    if isinstance(space, spaces.MultiBinary):
        return Binary(shape=(rows, *space.shape), dtype=dtype)
    known = "Box, Discrete and MultiDiscrete from 0, MultiBinary or Dict"
    raise TypeError(f"TorchRL has no spec for {space}; expected {known}")
