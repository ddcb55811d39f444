"""PettingZoo both ways: its own API test, and its own environments stepped beside ours."""

from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import shoal
from tests.adapters import needs, run_snippet

needs("pettingzoo")

import pettingzoo  # noqa: E402

from shoal.adapters.pettingzoo import ParallelEnv, make_vec  # noqa: E402

parallel_api_test = needs("pettingzoo.test").parallel_api_test


@pytest.mark.parametrize("options", [{}, {"agents": 1}, {"max_episode_steps": 30}], ids=str)
def test_snakes_pass_pettingzoos_test(options):
    env = ParallelEnv("Snake-v0", **options)
    parallel_api_test(env, num_cycles=300)
    env.close()


def test_fish_pass_pettingzoos_test():
    env = ParallelEnv("Reef-v0", num_agents=6, height=24, width=24)
    parallel_api_test(env, num_cycles=200)
    env.close()


def test_each_agent_sees_its_row_and_is_gone_once_it_ended():
    env = ParallelEnv("Snake-v0", idle_action=2, max_episode_steps=60)
    envs = shoal.make_vec("Snake-v0", 1, autoreset_mode="DISABLED", max_episode_steps=60)
    observations, infos = env.reset(seed=4)
    expected, _ = envs.reset(seed=4)
    agents = list(env.possible_agents)
    gone = set()
    rng = np.random.default_rng(0)
    for _ in range(60):
        assert env.agents == [one for one in agents if one not in gone]
        actions = rng.integers(0, 4, 4)
        for row, agent in enumerate(agents):
            if agent in gone:
                actions[row] = 2
            else:
                np.testing.assert_array_equal(observations[agent], expected[row])
        acting = list(env.agents)
        results = env.step({agent: actions[agents.index(agent)] for agent in acting})
        observations, rewards, terminated, truncated, infos = results
        assert all(list(one) == acting for one in results)
        expected, expected_rewards, *flags, _ = envs.step(actions)
        for row, agent in enumerate(agents):
            if agent in acting:
                assert rewards[agent] == expected_rewards[row]
                assert (terminated[agent], truncated[agent]) == (flags[0][row], flags[1][row])
                if terminated[agent] or truncated[agent]:
                    gone.add(agent)
    assert not env.agents and gone == set(agents) and all(type(one) is bool for one in truncated.values())
    env.close()
    envs.close()


def test_the_state_is_what_the_environment_exports():
    env = ParallelEnv("Snake-v0")
    env.reset(seed=4)
    state, begin = env.state(), 0
    with shoal.make_vec("Snake-v0", 1) as envs:
        envs.reset(seed=4)
        arrays = envs.state_arrays()
    for name, shape in env.state_fields.items():
        end = begin + int(np.prod(shape))
        np.testing.assert_array_equal(state[begin:end].reshape(shape), arrays[name])
        begin = end
    assert begin == len(state) and list(env.state_fields) == list(arrays)
    env.close()
    env = ParallelEnv(Path(__file__).parent.parent / "native" / "plugins" / "team.c")
    env.reset()
    with pytest.raises(NotImplementedError, match="exports no state"):
        env.state()
    env.close()


def test_pictures_and_refusals():
    env = ParallelEnv("Snake-v0", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().ndim == 3
    with pytest.raises(ValueError, match="an action for every agent, found none for agent_3"):
        env.step({agent: 0 for agent in env.agents[:3]})
    env.close()
    with pytest.raises(shoal.ShoalError, match="not an environment in C"):
        ParallelEnv("FrozenLake-v1")


class Race(pettingzoo.ParallelEnv):
    """Three runners; each ends after its own number of steps, the last one cut off."""

    metadata = {"name": "race"}
    possible_agents = ["a", "b", "c"]
    spaces = {
        "seen": gymnasium.spaces.Dict({"place": gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32)}),
        "act": gymnasium.spaces.Box(-5, 5, (2,), np.float32),
    }

    def observation_space(self, agent):
        return self.spaces["seen"]

    def action_space(self, agent):
        return self.spaces["act"]

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        self.places = {agent: self.rng.uniform(0, 1, 2) for agent in self.agents}
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def _seen(self, agents):
        return {agent: {"place": self.places[agent].astype(np.float32)} for agent in agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.steps += 1
        acting = list(self.agents)
        for agent in acting:
            self.places[agent] = self.places[agent] + actions[agent]
        rewards = {agent: float(actions[agent][0]) for agent in acting}
        terminated = {agent: self.steps == {"a": 2, "b": 4}.get(agent) for agent in acting}
        truncated = {agent: agent == "c" and self.steps == 6 for agent in acting}
        infos = {agent: {"steps": self.steps} if agent == "b" else {} for agent in acting}
        self.agents = [agent for agent in acting if not terminated[agent] and not truncated[agent]]
        return self._seen(acting), rewards, terminated, truncated, infos


class Mixed(Race):
    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2) if agent == "c" else self.spaces["act"]


def test_parallel_environments_become_rows():
    """Beside the same environments stepped one by one, through several episodes."""
    with closing(make_vec(Race, 2, num_workers=2)) as envs:
        assert envs.num_envs == 6 and envs.single_action_space == Race.spaces["act"]
        worlds = [Race() for _ in range(2)]
        observations, info = envs.reset(seed=5)
        assert info["alive"].all()
        for world, one in enumerate(worlds):
            seen, _ = one.reset(seed=5 + world)
            for row, agent in enumerate(one.possible_agents):
                np.testing.assert_array_equal(observations["place"][3 * world + row], seen[agent]["place"])
        assert envs.observation_space.contains(observations)
        ends = absent = 0
        for _ in range(30):
            actions = envs.action_space.sample()
            observations, rewards, terminated, truncated, info = envs.step(actions)
            for world, one in enumerate(worlds):
                rows = {agent: 3 * world + row for row, agent in enumerate(one.possible_agents)}
                if not one.agents:
                    results = [one.reset()[0], {}, {}, {}, {}]
                else:
                    results = one.step({agent: actions[rows[agent]] for agent in one.agents})
                for agent, row in rows.items():
                    there = agent in results[0]
                    assert info["alive"][row] == there
                    place = results[0][agent]["place"] if there else np.zeros(2)
                    np.testing.assert_array_equal(observations["place"][row], place)
                    assert rewards[row] == results[1].get(agent, 0)
                    assert terminated[row] == results[2].get(agent, not there)
                    assert truncated[row] == results[3].get(agent, False)
                    ends += truncated[row]
                    absent += not there
                if results[4].get("b"):
                    assert info["b"]["steps"][world] == results[4]["b"]["steps"]
        assert ends == 8 and absent == 2 * 4 * (4 + 2)
        with pytest.raises(ValueError, match=r"rows of shape \(6,\), found an array of shape \(2, 3, 2\)"):
            envs.step(actions.reshape(2, 3, 2))


class Stumbling(Race):
    def step(self, actions):
        if actions["a"][0] > 4:
            raise RuntimeError("stumbled")
        return super().step(actions)


def test_a_world_that_a_fault_ended_is_cut_off_in_all_its_rows():
    with closing(make_vec(Stumbling, 2, num_workers=2, on_fault="restart")) as envs:
        envs.reset(seed=0)
        actions = np.zeros((6, 2), np.float32)
        actions[3] = 4.5
        _, rewards, terminated, truncated, info = envs.step(actions)
        assert truncated.tolist() == [False] * 3 + [True] * 3 and not terminated.any()
        assert "stumbled" in info["fault"][1] and not rewards.any()


def test_agents_that_differ_are_refused():
    with pytest.raises(
        ValueError, match=r"same spaces for all agents, found Box.* of a and Discrete\(2\) of c"
    ):
        make_vec(Mixed, 2, num_workers=1)


def test_the_page_tells_the_truth(tmp_path):
    run_snippet("shoal.adapters.pettingzoo", tmp_path)
