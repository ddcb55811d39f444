"""Policies for the fleet's tests. They run on the nodes, in other processes, so they communicate by files."""

import time
from pathlib import Path

import numpy as np


class Constant:
    """Takes the action in the weights; 0 before the first weights."""

    def __init__(self, envs, rng):
        self.actions = np.zeros(envs.num_envs, np.int64)

    def __call__(self, observations):
        return self.actions

    def set_weights(self, weights):
        self.actions = np.full_like(self.actions, weights["action"][0])


class Leaning(Constant):
    """Pushes towards the side the pole falls to; returns the angle and its version as extras."""

    version = 0

    def __call__(self, observations):
        lean = observations[:, 2].copy()
        return (lean > 0).astype(np.int64), {"lean": lean, "version": np.full(len(lean), self.version)}

    def set_weights(self, weights):
        self.version = int(weights["version"])


class Broken(Constant):
    """Raises once, at its third step."""

    def __init__(self, envs, rng):
        super().__init__(envs, rng)
        self.steps = 0

    def __call__(self, observations):
        self.steps += 1
        if self.steps == 3:
            raise ZeroDivisionError("the third step of a policy")
        return self.actions


class Gated(Constant):
    """Waits at each rollout's first step for the file `allowed`; creates a file for each start."""

    def __init__(self, envs, rng, directory, length):
        super().__init__(envs, rng)
        self.directory, self.length, self.steps = Path(directory), length, 0

    def __call__(self, observations):
        if self.steps % self.length == 0:
            begun = self.steps // self.length
            (self.directory / f"{id(self)}-{begun}").touch()
            while int((self.directory / "allowed").read_text() or 0) <= begun:
                time.sleep(0.005)
        self.steps += 1
        return self.actions


class OneIsSlow(Constant):
    """The first of two policies (the one that makes a directory) waits until a file exists."""

    def __init__(self, envs, rng, directory):
        super().__init__(envs, rng)
        self.go = Path(directory) / "go"
        try:
            (Path(directory) / "slow").mkdir()
            self.slow = True
        except FileExistsError:
            self.slow = False

    def __call__(self, observations):
        while self.slow and not self.go.exists():
            time.sleep(0.005)
        return self.actions
