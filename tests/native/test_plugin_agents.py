"""Several agents in one environment: rows are agents, and an environment is over when all of them are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

import shoal
from shoal.native.build import build
from tests.native.conftest import REAL

pytestmark = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")

GO_ON = [0, 0, 0, 0, 0, 0]
FIRST_ENDS = [1, 1, 2, 0, 0, 0]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    source = Path(__file__).parent / "plugins" / "team.c"
    return build(source, output=tmp_path_factory.mktemp("team") / "team.so")


@pytest.fixture
def make(library):
    made = []

    def make(mode=AutoresetMode.NEXT_STEP, num_envs=2, **kwargs):
        made.append(shoal.make_vec(library, num_envs, autoreset_mode=mode, **kwargs))
        made[-1].reset(seed=0)
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def where(observation):
    """Episode and step that each row is at; checks that the rows are the agents in order."""
    assert observation[:, 0].tolist() == [0, 1, 2] * (len(observation) // 3)
    return [tuple(row) for row in observation[:, 1:].astype(int).tolist()]


def test_rows_are_agents_and_num_envs_counts_them(make):
    envs = make()
    assert (envs.num_envs, envs.num_worlds, envs.agents_per_env) == (6, 2, 3)
    assert envs.observation_space.shape == (6, 3) and envs.action_space.shape == (6,)
    observation, rewards, terminated, truncated, info = envs.step(GO_ON)
    assert observation in envs.observation_space
    assert where(observation) == [(1, 1)] * 6
    assert rewards.tolist() == [1, 2, 3, 1, 2, 3]
    assert rewards.shape == terminated.shape == truncated.shape == (6,)
    assert info == {}
    with pytest.raises(ValueError, match=r"expected shape \(6,\), found \(2,\)"):
        envs.step([0, 0])


def test_next_step_resets_an_environment_when_all_its_agents_ended(make):
    envs = make()
    envs.step(GO_ON)
    observation, _, terminated, truncated, _ = envs.step(FIRST_ENDS)
    assert where(observation) == [(1, 2)] * 6
    assert terminated.tolist() == [True, True, False, False, False, False]
    assert truncated.tolist() == [False, False, True, False, False, False]
    observation, rewards, terminated, truncated, _ = envs.step(FIRST_ENDS)
    assert where(observation) == [(2, 0)] * 3 + [(1, 3)] * 3
    assert rewards.tolist() == [0, 0, 0, 1, 2, 3]
    assert not terminated.any() and not truncated.any()
    assert where(envs.step(GO_ON)[0]) == [(2, 1)] * 3 + [(1, 4)] * 3


def test_same_step_resets_it_at_once_and_keeps_the_final_observations(make):
    envs = make(AutoresetMode.SAME_STEP)
    envs.step(GO_ON)
    observation, rewards, _, _, info = envs.step(FIRST_ENDS)
    assert where(observation) == [(2, 0)] * 3 + [(1, 2)] * 3
    assert rewards.tolist() == [1, 2, 3, 1, 2, 3]
    assert info["_final_obs"].tolist() == [True, True, True, False, False, False]
    assert where(np.stack(info["final_obs"][:3])) == [(1, 2)] * 3
    assert info["final_obs"][3:].tolist() == [None] * 3


def test_disabled_waits_for_a_reset(make):
    envs = make(AutoresetMode.DISABLED)
    observation = envs.step(FIRST_ENDS)[0]
    assert where(observation) == [(1, 1)] * 6
    with pytest.raises(ResetNeeded, match="reset_mask"):
        envs.step(GO_ON)
    observation, _ = envs.reset(options={"reset_mask": np.array([True] * 3 + [False] * 3)})
    assert where(observation) == [(2, 0)] * 3 + [(1, 1)] * 3
    assert where(envs.step(GO_ON)[0]) == [(2, 1)] * 3 + [(1, 2)] * 3


@pytest.mark.parametrize(
    "mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name
)
def test_single_ended_agent_does_not_reset_its_environment(make, mode):
    envs = make(mode, episode_stats=True)
    envs.step(GO_ON)
    observation, _, terminated, _, info = envs.step([0, 1, 0, 0, 0, 0])
    assert where(observation) == [(1, 2)] * 6
    assert terminated.tolist() == [False, True, False, False, False, False]
    assert info["_episode"].tolist() == terminated.tolist()
    assert info["episode"]["r"].tolist() == [0, 4, 0, 0, 0, 0]
    assert info["episode"]["l"].tolist() == [0, 2, 0, 0, 0, 0]
    if mode == AutoresetMode.SAME_STEP:
        assert info["final_obs"][1].tolist() == [1, 1, 2]
    assert where(envs.step(GO_ON)[0]) == [(1, 3)] * 6
    info = envs.step([0, 2, 0, 0, 0, 0])[4]
    assert info["episode"]["l"][1] == 2  # since it ended
    info = envs.step([0, 0, 2, 0, 0, 0])[4]
    assert info["episode"]["r"].tolist() == [0, 0, 15, 0, 0, 0]  # nothing of episodes that ended before
    assert info["episode"]["l"].tolist() == [0, 0, 5, 0, 0, 0]
    assert envs.stats["episodes"] == 3 and envs.stats["mean_length"] == 3


def test_the_time_limit_ends_every_agent_of_an_environment(make):
    envs = make(max_episode_steps=3, episode_stats=True)
    envs.step([0, 1, 0, 0, 0, 0])
    envs.step(GO_ON)
    _, _, terminated, truncated, info = envs.step(GO_ON)
    assert truncated.all() and not terminated.any()
    assert info["episode"]["l"].tolist() == [3, 2, 3, 3, 3, 3]
    assert info["episode"]["r"].tolist() == [3, 4, 9, 3, 6, 9]
    assert where(envs.step(GO_ON)[0]) == [(2, 0)] * 6


def test_a_mask_over_any_agent_resets_its_environment(make):
    envs = make()
    envs.step(GO_ON)
    mask = np.array([False, False, False, False, True, False])
    assert where(envs.reset(options={"reset_mask": mask})[0]) == [(1, 1)] * 3 + [(2, 0)] * 3
    with pytest.raises(ValueError, match=r"shape `\(6,\)`"):
        envs.reset(options={"reset_mask": np.ones(2, bool)})


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_any_number_of_threads_gives_the_same_results(make, mode):
    def trace(threads):
        envs = make(mode, 300, num_threads=threads, max_episode_steps=5)
        rng = np.random.default_rng(0)
        parts = []
        for _ in range(40):
            results = envs.step(rng.choice(3, 900, p=[0.4, 0.4, 0.2]))[:4]
            parts += [part.tobytes() for part in results]
            over = results[2] | results[3]
            if mode == AutoresetMode.DISABLED and over.any():
                parts.append(envs.reset(options={"reset_mask": over})[0].tobytes())
        stats = envs.stats
        return parts, [stats[key] for key in ("steps", "episodes", "mean_return", "mean_length")]

    expected = trace(1)
    assert trace(2) == expected and trace(5) == expected
