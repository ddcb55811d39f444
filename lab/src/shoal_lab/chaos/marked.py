"""Environments whose results identify them, and the check of every row they return.

1. Each environment returns its id, a random number chosen when it was made (the nonce), its episode and its
step:
   in the observation, the reward and, every third step, the info.
2. A row without info["fault"] is exactly the next row of that environment; a row with it starts a new
environment.

Workers import this module, so it imports nothing that is slow to load.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal_lab.chaos.faults import CRASHES, HANGS, Dies, copy_with_trap, crash

__all__ = ["ACTIONS", "POINTS", "Checker", "Marked", "Violation"]

BODY = 1024

POINTS = ("row", "reward", "info")
"""Named points of a step: in the middle of the observation's copy, after it, and while the info is sent."""
ACTIONS = ("continue", *CRASHES, *HANGS, *POINTS)
"""The behaviour of an environment's step, by the action."""


class Violation(Exception):
    """A broken invariant, with its number."""

    def __init__(self, invariant: int, message: str) -> None:
        super().__init__(message)
        self.invariant = invariant


def mix_bits(number: int) -> int:
    number = (number ^ (number >> 17)) * 0x9E3779B97F4A7C15 % 2**64
    return (number ^ (number >> 29)) % 2**40


def episode_length(nonce: int, episode: int) -> int:
    return 3 + mix_bits(nonce + episode) % 40


def make_mark(env_id: int, nonce: int, episode: int, step: int) -> NDArray[np.int64]:
    return np.array([env_id, nonce, episode, step], np.int64)


def compute_reward(env_id: int, nonce: int, episode: int, step: int) -> float:
    return float((nonce % 2**16) * 2**32 + episode % 2**10 * 2**22 + step * 2**12 + env_id)


def compute_body(nonce: int, episode: int, step: int) -> int:
    return mix_bits(nonce * 31 + episode * 7 + step)


class Marked(gymnasium.Env[Any, Any]):
    """Returns its identity and progress in every result; the action chooses how it fails.

    Args:
        env_id: The environment's number.
        work_us: The mean time of a step in microseconds.
        armed: A path; a process that makes or resets an environment and finds a file there removes it and
            dies.
    """

    observation_space = Dict(
        {
            "mark": Box(-(2**62), 2**62, (4,), np.int64),
            "body": Box(-(2**62), 2**62, (BODY,), np.int64),
        }
    )
    action_space = Discrete(len(ACTIONS))

    def __init__(self, env_id: int, work_us: float = 0.0, armed: str | None = None) -> None:
        self.env_id, self.work_us, self.armed = env_id, work_us, armed
        self.nonce = int.from_bytes(os.urandom(5), "little")
        self.episode = self.count = 0
        self._die_if("made")

    def _die_if(self, at: str) -> None:
        if self.armed is not None:
            try:
                os.unlink(f"{self.armed}.{at}")
            except FileNotFoundError:
                return
            crash("kill")

    def _observe(self) -> dict[str, Any]:
        body = np.full(BODY, compute_body(self.nonce, self.episode, self.count), np.int64)
        return {"mark": make_mark(self.env_id, self.nonce, self.episode, self.count), "body": body}

    def _make_info(self) -> dict[str, Any]:
        if self.count % 3:
            return {}
        return {"mark": make_mark(self.env_id, self.nonce, self.episode, self.count)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        self._die_if("reset")
        return self._observe(), self._make_info()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.count += 1
        until = time.perf_counter() + random.random() * 2e-6 * self.work_us
        while time.perf_counter() < until:  # so that a kill usually hits a busy worker
            pass
        how = ACTIONS[int(action)]
        done = self.count == episode_length(self.nonce, self.episode)
        reward: Any = compute_reward(self.env_id, self.nonce, self.episode, self.count)
        seen, info = self._observe(), self._make_info()
        if how == "row":
            seen["body"] = copy_with_trap(seen["body"], BODY * 2)
        elif how == "reward":
            reward = Dies()
        elif how == "info":
            info = {"dies": Dies()}
        elif how != "continue":
            crash(how)
        return seen, reward, done, False, info


_FAULT_TEXTS = ("SIGKILL", "SIGSEGV", "SIGABRT", "exit code 7", "did not answer")


class Checker:
    """Checks the rows of all environments against the rows that must come next."""

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        self.mode = mode
        self.at: list[tuple[int, int, int] | None] = [None] * num_envs
        self.done = [False] * num_envs
        self.unreported: set[int] = set()
        """Environments that restarted when no result could report it: their next row must report a fault."""
        self.rows = self.faults = self.episodes = 0

    def check_reset(self, env: int, observation: Any, row: int, *, is_new: bool | None = None) -> None:
        """Checks the row of an explicit reset: a new episode, or (`is_new`) a new environment."""
        _, nonce, episode, step = self._check_observation(env, observation, row)
        old = self.at[env]
        where = f"environment {env}: was {old}, shows {nonce, episode, step} after a reset"
        _require(step == 0, where)
        if is_new is not None and old is not None:
            # The abandoned step may have reset it, too.
            again = nonce == old[0] and episode - old[1] in (1, 2)
            _require(nonce != old[0] if is_new else again, where)
        self.at[env], self.done[env] = (nonce, episode, step), False

    def check(self, env: int, row: int, results: Any) -> bool:
        """Checks row `row` of the results, of environment `env`; returns whether it reports a fault."""
        observation, reward, terminated, truncated, info = results
        self.rows += 1
        _, nonce, episode, step = found = self._check_observation(env, observation, row)
        shown = float(reward[row]), bool(terminated[row]), bool(truncated[row])
        old = self.at[env]
        assert old is not None
        where = f"environment {env}, row {row}: was {old}, done {self.done[env]}; shows {found}, {shown}"
        if "fault" in info and info["_fault"][row]:
            _require(shown == (0.0, False, True), where)
            once_more = env in self.unreported and (nonce, episode) == (old[0], old[1] + 1)
            _require((once_more or (nonce != old[0] and episode == 1)) and step == 0, where)
            self.unreported.discard(env)
            _require(any(word in info["fault"][row] for word in _FAULT_TEXTS), where + info["fault"][row])
            if self.mode == AutoresetMode.SAME_STEP:
                _require(info["_final_obs"][row], where)
            self.faults += 1
            self.at[env], self.done[env] = (nonce, episode, step), True
            return True
        _require(nonce == old[0] and env not in self.unreported, where)
        if self.done[env] and self.mode == AutoresetMode.NEXT_STEP:
            expected, flags, in_info = (nonce, old[1] + 1, 0), (0.0, False, False), (old[1] + 1, 0)
        else:
            count = old[2] + 1
            ends = count == episode_length(nonce, old[1])
            flags = compute_reward(env, nonce, old[1], count), ends, False
            expected, in_info = (nonce, old[1], count), (old[1], count)
            if ends and self.mode == AutoresetMode.SAME_STEP:
                expected, in_info = (nonce, old[1] + 1, 0), (old[1] + 1, 0)
                final = info["final_obs"][row]["mark"]
                _require(np.array_equal(final, make_mark(env, nonce, old[1], count)), where)
        _require((nonce, episode, step) == expected and shown == flags, where)
        self._check_info(info, row, make_mark(env, nonce, *in_info), where)
        self.episodes += shown[1]
        self.at[env], self.done[env] = expected, shown[1]
        return False

    def _check_observation(self, env: int, observation: Any, row: int) -> tuple[int, int, int, int]:
        env_id, nonce, episode, step = map(int, observation["mark"][row])
        _require(env_id == env, f"the row of environment {env} has the id {env_id}")
        expected = compute_body(nonce, episode, step)
        whole = (observation["body"][row] == expected).all()
        _require(whole, f"environment {env}: the observation is torn", 2)
        return env_id, nonce, episode, step

    def _check_info(self, info: Any, row: int, mark: NDArray[np.int64], where: str) -> None:
        has = "mark" in info and bool(info["_mark"][row])
        _require(has == (mark[3] % 3 == 0), where)
        if has:
            _require(np.array_equal(info["mark"][row], mark), where)


def _require(holds: Any, message: str, invariant: int = 3) -> None:
    if not holds:
        raise Violation(invariant, message)
