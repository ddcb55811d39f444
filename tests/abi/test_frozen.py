"""A plug-in built from the 1.0 contract loads and runs for ever, from its source and as the binary it was."""

import platform
import shutil
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.native.build import build

HERE = Path(__file__).parent
BINARY = HERE / f"plugin_1_0.{platform.machine()}"


def assert_runs(library):
    envs = shoal.make_vec(library, 3, goal=4, episode_stats=True)
    assert envs.single_observation_space["count"].shape == (2,)
    assert envs.single_action_space["add"].n == 4
    first, _ = envs.reset(seed=[7, 8, 9])
    state = np.random.PCG64(np.random.SeedSequence(8)).state["state"]["state"]
    assert first["count"][1].tolist() == [0, state >> 108]
    _, rewards, terminated, *_ = envs.step({"add": np.array([1, 2, 3])})
    assert rewards.tolist() == [1, 2, 3] and not terminated.any()
    observation, rewards, terminated, _, info = envs.step({"add": np.array([1, 2, 3])})
    assert observation["count"][:, 0].tolist() == [2, 4, 6]
    assert terminated.tolist() == [False, True, True]
    assert info["episode"]["r"].tolist() == [0, 6, 9] and info["episode"]["l"].tolist() == [0, 2, 2]
    observation, rewards, *_ = envs.step({"add": np.array([1, 2, 3])})
    assert observation["count"][:, 0].tolist() == [3, 0, 0] and rewards.tolist() == [3, 0, 0]
    envs.close()


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_the_frozen_source_runs():
    assert_runs(build(HERE / "plugin_1_0.c"))


@pytest.mark.skipif(not BINARY.exists(), reason=f"machine: no frozen binary for {platform.machine()}")
def test_the_frozen_binary_runs(tmp_path):
    library = tmp_path / "frozen.so"
    shutil.copy(BINARY, library)
    assert_runs(library)
