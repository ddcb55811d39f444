"""Environments that say in every way who they are and how far, and the check of every row they give.

1. Each shows who it is, a number drawn when it was made, its episode and its step: in the observation, the
   reward and, every third step, the info.
2. A row without info["fault"] is exactly the next of that environment; one with it begins a new environment.

Workers import this module, so it loads nothing that is slow to load.
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

from shoal_lab.chaos.faults import CRASHES, HANGS, Dies, crash, trapped

__all__ = ["ACTIONS", "POINTS", "Checker", "Marked", "Violation"]

BODY = 1024

POINTS = ("row", "reward", "info")
"""Named points of a step: in the middle of the observation's copy, after it, and while the info is sent."""
ACTIONS = ("go on", *CRASHES, *HANGS, *POINTS)
"""What an environment does when it is stepped, by the action."""


class Violation(Exception):
    """A promise that was broken, and its number among the invariants."""

    def __init__(self, invariant: int, message: str) -> None:
        super().__init__(message)
        self.invariant = invariant


def mixed(number: int) -> int:
    number = (number ^ (number >> 17)) * 0x9E3779B97F4A7C15 % 2**64
    return (number ^ (number >> 29)) % 2**40


def episode_length(nonce: int, episode: int) -> int:
    return 3 + mixed(nonce + episode) % 40


def mark_of(env_id: int, nonce: int, episode: int, step: int) -> NDArray[np.int64]:
    return np.array([env_id, nonce, episode, step], np.int64)


def reward_of(env_id: int, nonce: int, episode: int, step: int) -> float:
    return float((nonce % 2**16) * 2**32 + episode % 2**10 * 2**22 + step * 2**12 + env_id)


def body_of(nonce: int, episode: int, step: int) -> int:
    return mixed(nonce * 31 + episode * 7 + step)


class Marked(gymnasium.Env[Any, Any]):
    """Says in every way it can who it is and how far; its action says how it is to fail.

    Args:
        env_id: Who it is.
        work_us: Mean time of a step.
        armed: A path; who makes or resets an environment and finds a file there removes it and dies.
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

    def _seen(self) -> dict[str, Any]:
        body = np.full(BODY, body_of(self.nonce, self.episode, self.count), np.int64)
        return {"mark": mark_of(self.env_id, self.nonce, self.episode, self.count), "body": body}

    def _info(self) -> dict[str, Any]:
        if self.count % 3:
            return {}
        return {"mark": mark_of(self.env_id, self.nonce, self.episode, self.count)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        self._die_if("reset")
        return self._seen(), self._info()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.count += 1
        until = time.perf_counter() + random.random() * 2e-6 * self.work_us
        while time.perf_counter() < until:  # at work, most of the time, when it is killed
            pass
        how = ACTIONS[int(action)]
        done = self.count == episode_length(self.nonce, self.episode)
        reward: Any = reward_of(self.env_id, self.nonce, self.episode, self.count)
        seen, info = self._seen(), self._info()
        if how == "row":
            seen["body"] = trapped(seen["body"], BODY * 2)
        elif how == "reward":
            reward = Dies()
        elif how == "info":
            info = {"dies": Dies()}
        elif how != "go on":
            crash(how)
        return seen, reward, done, False, info


_SAYS = ("SIGKILL", "SIGSEGV", "SIGABRT", "exit code 7", "did not answer")


class Checker:
    """What every environment must show next."""

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        self.mode = mode
        self.at: list[tuple[int, int, int] | None] = [None] * num_envs
        self.done = [False] * num_envs
        self.owed: set[int] = set()
        """Who began anew where no result could say so: the next one must."""
        self.rows = self.faults = self.episodes = 0

    def begun(self, env: int, observation: Any, row: int, *, anew: bool | None = None) -> None:
        """After an explicit reset: a new episode of what there was, or (`anew`) of a new environment."""
        _, nonce, episode, step = self._whole(env, observation, row)
        old = self.at[env]
        where = f"environment {env}: was {old}, shows {nonce, episode, step} after a reset"
        _require(step == 0, where)
        if anew is not None and old is not None:
            # The step that was given up may have reset it, too.
            again = nonce == old[0] and episode - old[1] in (1, 2)
            _require(nonce != old[0] if anew else again, where)
        self.at[env], self.done[env] = (nonce, episode, step), False

    def check(self, env: int, row: int, results: Any) -> bool:
        """Row `row` of the results is environment `env`'s; whether it is one with a fault."""
        observation, reward, terminated, truncated, info = results
        self.rows += 1
        _, nonce, episode, step = found = self._whole(env, observation, row)
        shown = float(reward[row]), bool(terminated[row]), bool(truncated[row])
        old = self.at[env]
        assert old is not None
        where = f"environment {env}, row {row}: was {old}, done {self.done[env]}; shows {found}, {shown}"
        if "fault" in info and info["_fault"][row]:
            _require(shown == (0.0, False, True), where)
            once_more = env in self.owed and (nonce, episode) == (old[0], old[1] + 1)
            _require((once_more or (nonce != old[0] and episode == 1)) and step == 0, where)
            self.owed.discard(env)
            _require(any(word in info["fault"][row] for word in _SAYS), where + info["fault"][row])
            if self.mode == AutoresetMode.SAME_STEP:
                _require(info["_final_obs"][row], where)
            self.faults += 1
            self.at[env], self.done[env] = (nonce, episode, step), True
            return True
        _require(nonce == old[0] and env not in self.owed, where)
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
                _require(np.array_equal(final, mark_of(env, nonce, old[1], count)), where)
        _require((nonce, episode, step) == expected and shown == flags, where)
        self._check_info(info, row, mark_of(env, nonce, *told), where)
        self.episodes += shown[1]
        self.at[env], self.done[env] = expected, shown[1]
        return False

    def _whole(self, env: int, observation: Any, row: int) -> tuple[int, int, int, int]:
        env_id, nonce, episode, step = map(int, observation["mark"][row])
        _require(env_id == env, f"the row of environment {env} shows {env_id}")
        expected = body_of(nonce, episode, step)
        whole = (observation["body"][row] == expected).all()
        _require(whole, f"environment {env}: a torn observation", 2)
        return env_id, nonce, episode, step

    def _check_info(self, info: Any, row: int, mark: NDArray[np.int64], where: str) -> None:
        has = "mark" in info and bool(info["_mark"][row])
        _require(has == (mark[3] % 3 == 0), where)
        if has:
            _require(np.array_equal(info["mark"][row], mark), where)


def _require(holds: Any, message: str, invariant: int = 3) -> None:
    if not holds:
        raise Violation(invariant, message)
