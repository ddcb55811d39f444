"""Environments that say in every way who they are and how far, and the check of every row they give.

1. Each shows who it is, a number drawn when it was made, its episode and its step: in the observation, the
   reward and, every third step, the info.
2. A row without info["fault"] is exactly the next of that environment; one with it begins a new environment.
"""

from __future__ import annotations

import os
import random
import signal
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode

BODY = 512


def mixed(number: int) -> int:
    number = (number ^ (number >> 17)) * 0x9E3779B97F4A7C15 % 2**64
    return (number ^ (number >> 29)) % 2**40


def episode_length(nonce: int, episode: int) -> int:
    return 3 + mixed(nonce + episode) % 40


def mark_of(env_id: int, nonce: int, episode: int, step: int) -> np.ndarray:
    return np.array([env_id, nonce, episode, step], np.int64)


def reward_of(env_id: int, nonce: int, episode: int, step: int) -> float:
    return float((nonce % 2**16) * 2**32 + episode % 2**10 * 2**22 + step * 2**12 + env_id)


def body_of(nonce: int, episode: int, step: int) -> int:
    return mixed(nonce * 31 + episode * 7 + step)


class Marked(gymnasium.Env):
    """Says in every way it can who it is and how far."""

    observation_space = Dict(
        {
            "mark": Box(-(2**62), 2**62, (4,), np.int64),
            "body": Box(-(2**62), 2**62, (BODY,), np.int64),
        }
    )
    action_space = Discrete(3)

    def __init__(self, env_id: int, work_us: float = 0.0, die_making: float = 0.0) -> None:
        self.env_id, self.work_us = env_id, work_us
        self.nonce = int.from_bytes(os.urandom(5), "little")
        self.episode = self.count = 0
        if random.Random(os.urandom(8)).random() < die_making:
            os.kill(os.getpid(), signal.SIGKILL)

    def _seen(self):
        body = np.full(BODY, body_of(self.nonce, self.episode, self.count), np.int64)
        return {"mark": mark_of(self.env_id, self.nonce, self.episode, self.count), "body": body}

    def _info(self):
        if self.count % 3:
            return {}
        return {"mark": mark_of(self.env_id, self.nonce, self.episode, self.count)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._seen(), self._info()

    def step(self, action):
        self.count += 1
        until = time.perf_counter() + random.random() * 2e-6 * self.work_us
        while time.perf_counter() < until:  # at work, most of the time, when it is killed
            pass
        done = self.count == episode_length(self.nonce, self.episode)
        reward = reward_of(self.env_id, self.nonce, self.episode, self.count)
        return self._seen(), reward, done, False, self._info()


class Checker:
    """What every environment must show next."""

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        self.mode = mode
        self.at: list[tuple[int, int, int] | None] = [None] * num_envs
        self.done = [False] * num_envs
        self.rows = self.faults = self.episodes = 0

    def begun(self, env: int, observation: dict, row: int) -> None:
        """After an explicit reset: a new episode of what there was, or of a new environment."""
        _, nonce, episode, step = self._whole(env, observation, row)
        assert step == 0
        self.at[env], self.done[env] = (nonce, episode, step), False

    def check(self, env: int, row: int, results: tuple) -> None:
        """Row `row` of the results is environment `env`'s."""
        observation, reward, terminated, truncated, info = results
        self.rows += 1
        _, nonce, episode, step = found = self._whole(env, observation, row)
        shown = float(reward[row]), bool(terminated[row]), bool(truncated[row])
        old = self.at[env]
        assert old is not None
        where = f"environment {env}, row {row}: was {old}, done {self.done[env]}; shows {found}, {shown}"
        if "fault" in info and info["_fault"][row]:
            assert shown == (0.0, False, True), where
            assert nonce != old[0] and (episode, step) == (1, 0), where
            assert "SIGKILL" in info["fault"][row] or "did not answer" in info["fault"][row], where
            if self.mode == AutoresetMode.SAME_STEP:
                assert info["_final_obs"][row], where
            self.faults += 1
            self.at[env], self.done[env] = (nonce, episode, step), True
            return
        assert nonce == old[0], where
        if self.done[env] and self.mode == AutoresetMode.NEXT_STEP:
            expected, flags, told = (nonce, old[1] + 1, 0), (0.0, False, False), (old[1] + 1, 0)
        else:
            count = old[2] + 1
            ends = count == episode_length(nonce, old[1])
            flags = reward_of(env, nonce, old[1], count), ends, False
            expected, told = (nonce, old[1], count), (old[1], count)
            if ends and self.mode == AutoresetMode.SAME_STEP:
                expected, told = (nonce, old[1] + 1, 0), (old[1] + 1, 0)
                final = info["final_obs"][row]["mark"]
                assert np.array_equal(final, mark_of(env, nonce, old[1], count)), where
        assert (nonce, episode, step) == expected and shown == flags, where
        self._check_info(info, row, mark_of(env, nonce, *told), where)
        self.episodes += shown[1]
        self.at[env], self.done[env] = expected, shown[1]

    def _whole(self, env: int, observation: dict, row: int) -> tuple[int, int, int, int]:
        env_id, nonce, episode, step = map(int, observation["mark"][row])
        assert env_id == env, f"the row of environment {env} shows {env_id}"
        expected = body_of(nonce, episode, step)
        assert (observation["body"][row] == expected).all(), f"environment {env}: a torn observation"
        return env_id, nonce, episode, step

    def _check_info(self, info: dict, row: int, mark: np.ndarray, where: str) -> None:
        has = "mark" in info and bool(info["_mark"][row])
        assert has == (mark[3] % 3 == 0), where
        if has:
            assert np.array_equal(info["mark"][row], mark), where
