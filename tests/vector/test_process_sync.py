"""The same environments, seeds and actions give the results, infos and masks of SyncVectorEnv."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Sequence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.vector import ProcessVectorEnv
from tests.vector.test_process_envs import (
    END,
    Counter,
    Talkative,
    assert_same,
    assert_same_history,
    counters,
    logged,
)


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_hundreds_of_steps_with_random_infos_equal_gymnasiums(mode):
    assert_same_history([Talkative] * 5, mode, steps=300, seed=7, num_workers=3)


@settings(max_examples=25)
@given(
    mode=st.sampled_from(AutoresetMode),
    num_envs=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    kwargs=st.fixed_dictionaries(
        {
            "num_workers": st.integers(1, 3),
            "caller_steps": st.booleans(),
            "buffers": st.sampled_from(["leased", "live", "copy"]),
            "max_slots": st.integers(1, 3),
            "shared_memory": st.booleans(),
        }
    ),
)
def test_any_number_of_workers_and_any_buffers_give_the_same_results(mode, num_envs, seed, kwargs):
    assert_same_history([Talkative] * num_envs, mode, steps=40, seed=seed, **kwargs)


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", ["FrozenLake-v1", "CartPole-v1", "Pendulum-v1"])
def test_gymnasiums_environments_give_the_same_results(mode, name):
    maker = functools.partial(gymnasium.make, name, max_episode_steps=20)
    assert_same_history([maker] * 3, mode, steps=60, seed=11, num_workers=2)


def test_make_vec_makes_them_by_id_by_spec_and_by_function():
    theirs = gymnasium.make_vec("FrozenLake-v1", 3, vectorization_mode="sync", map_name="8x8")
    expected = theirs.reset(seed=1)
    function = functools.partial(gymnasium.make, "FrozenLake-v1")
    for env in ("FrozenLake-v1", gymnasium.spec("FrozenLake-v1"), function):
        with shoal.make_vec(env, 3, num_workers=2, map_name="8x8") as envs:
            assert_same(envs.reset(seed=1), expected)
            assert envs.spec is None if callable(env) else envs.spec.id == "FrozenLake-v1"
            assert_same(envs.step([1, 2, 0]), theirs.step([1, 2, 0]))
        theirs.reset(seed=1)
    with shoal.make_vec("CartPole-v1", 2, backend="process") as envs:
        assert isinstance(envs, ProcessVectorEnv) and envs.options != {}  # the one in C
    with gymnasium.make_vec("shoal/CartPole-v1", 2, backend="process") as envs:
        assert isinstance(envs, ProcessVectorEnv) and envs.spec.id == "shoal/CartPole-v1"


def test_rewards_are_float64_whatever_the_environment_returns():
    class Paid(Counter):
        rewards = [1, 2.5, np.float32(0.1), np.int8(-3), True, np.array(4.0)]

        def step(self, action):
            seen, _, *rest = super().step(action)
            return seen, self.rewards[action], *rest

    with ProcessVectorEnv([Paid] * 6, num_workers=2) as envs:
        envs.reset()
        rewards = envs.step(np.arange(6))[1]
        assert rewards.dtype == np.float64
        assert rewards.tolist() == [1, 2.5, float(np.float32(0.1)), -3, 1, 4]


def test_flags_may_be_any_value_with_a_truth():
    class Flagged(Counter):
        flags = [0, 1, np.bool_(True), np.False_, np.array(True), None]

        def step(self, action):
            seen, reward, _, _, info = super().step(action)
            return seen, reward, self.flags[action], self.flags[-1 - action], info

    with ProcessVectorEnv([Flagged] * 6, num_workers=2) as envs:
        envs.reset()
        _, _, terminated, truncated, _ = envs.step(np.arange(6))
        assert terminated.tolist() == [False, True, True, False, True, False]
        assert truncated.tolist() == terminated[::-1].tolist()
        assert terminated.dtype == truncated.dtype == np.bool_


def test_info_of_one_environment_is_masked():
    class Rare(Counter):
        def step(self, action):
            *rest, _ = super().step(action)
            return *rest, {"lives": self.who, "where": {"x": np.ones(2)}} if action == 1 else {}

    makers = [lambda who=who: Rare(who) for who in range(4)]
    with ProcessVectorEnv(makers, num_workers=2) as envs:
        envs.reset()
        info = envs.step([0, 0, 0, 1])[4]
        assert_same(info["lives"], np.array([0, 0, 0, 3]))
        assert_same(info["_lives"], np.array([False, False, False, True]))
        assert_same(info["where"]["x"], np.array([[0, 0], [0, 0], [0, 0], [1.0, 1.0]]))
        assert_same(info["where"]["_x"], info["_lives"])
        assert_same(info["_where"], info["_lives"])
        assert envs.step([0] * 4)[4] == {}


def test_infos_that_gymnasium_cannot_batch_raise_its_error():
    class Odd(Counter):
        def step(self, action):
            *rest, _ = super().step(action)
            return *rest, {"odd": np.zeros(int(action))}

    with ProcessVectorEnv([Odd] * 2, num_workers=2) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="broadcast"):
            envs.step([1, 2])
        assert envs.step([3, 3])[1].tolist() == [2, 2]


def test_old_gym_environment_and_bad_info_raise():
    class Old(Counter):
        def step(self, action):
            result = super().step(action)
            return result[:4] if action == 0 else (*result[:4], "info")

    class OldReset(Counter):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0]

    class OlderReset(Counter):
        def reset(self):
            return super().reset()[0]

    with ProcessVectorEnv([Old]) as envs:
        envs.reset()
        with logged(), pytest.raises(ValueError, match="tuple of 5, found a tuple of 4; .* old Gym"):
            envs.step([0])
        envs.reset()
        with logged(), pytest.raises(TypeError, match="an info must be a dict, found str: 'info'"):
            envs.step([1])
    with ProcessVectorEnv([OldReset]) as envs:
        with logged(), pytest.raises(ValueError, match="tuple of 2, found ndarray"):
            envs.reset()
    with ProcessVectorEnv([OlderReset]) as envs:
        with logged(), pytest.raises(TypeError, match="keyword argument 'seed'; if .* old Gym interface"):
            envs.reset(seed=0)


def test_actions_reach_the_environment_as_gymnasium_would_pass_them():
    class Shown(Counter):
        action_space = Box(-1, 1, (2,))

        def step(self, action):
            *rest, _ = super().step(0)
            return *rest, {"seen": [action]}

    theirs = SyncVectorEnv([Shown] * 2)
    with ProcessVectorEnv([Shown] * 2, num_workers=2) as envs:
        for worlds in (envs, theirs):
            worlds.reset()
        same = np.array([[0.25, 1], [0.5, -1]], np.float32)
        wider = np.array([[0.1, 3.0], [1e300, np.nan]])  # neither its dtype nor in the space
        for actions in (same, same.astype(np.float16), wider, wider.tolist(), [same[0], same[1]]):
            found, expected = envs.step(actions)[4]["seen"], theirs.step(actions)[4]["seen"]
            for one, other in zip(found, expected, strict=True):
                assert type(one[0]) is type(other[0])
                assert np.array_equal(one[0], other[0], equal_nan=True)
                assert getattr(one[0], "dtype", None) == getattr(other[0], "dtype", None)


def test_action_outside_the_space_reaches_the_environment():
    class Judge(Counter):
        action_space = Discrete(3)

        def step(self, action):
            *rest, _ = super().step(0)
            return *rest, {"seen": float(action)}

    with ProcessVectorEnv([Judge] * 2, num_workers=2) as envs:
        envs.reset()
        for actions in ([7, -1], np.array([2.5, 1.0]), np.array([9, 9], np.int8)):
            assert envs.step(actions)[4]["seen"].tolist() == list(actions)


def test_messages_of_any_size_travel():
    class Big(Counter):
        action_space = Sequence(Box(0, 1, (50_000,)), stack=True)

        def reset(self, *, seed=None, options=None):
            seen, _ = super().reset(seed=seed)
            return seen, {"blob": options["blob"] * 2}

        def step(self, action):
            *rest, _ = super().step(0)
            return *rest, {"sum": float(action.sum()), "blob": np.full(100_000, self.who)}

        def echo(self, value):
            return value * 2

    makers = [lambda who=who: Big(who) for who in range(3)]
    with ProcessVectorEnv(makers, num_workers=2) as envs:
        assert [len(one) for one in envs.reset(options={"blob": "x" * 300_000})[1]["blob"]] == [600_000] * 3
        for _ in range(3):
            info = envs.step(tuple(np.full((2, 50_000), who, np.float32) for who in range(3)))[4]
            assert info["sum"].tolist() == [0, 100_000, 200_000]
            assert info["blob"].sum(axis=1).tolist() == [0, 100_000, 200_000]
        assert [len(one) for one in envs.call("echo", b"y" * 1_000_000)] == [2_000_000] * 3


def test_episode_stats_are_those_of_gymnasiums_wrapper():
    theirs = gymnasium.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv(counters(3)))
    with ProcessVectorEnv(counters(3), num_workers=2, episode_stats=True) as envs:
        rng = np.random.default_rng(0)
        for worlds in (envs, theirs):
            worlds.reset(seed=0)
        ends = 0
        for _ in range(60):
            actions = np.where(rng.random(3) < 0.1, END, 0)
            found, expected = envs.step(actions)[4], theirs.step(actions)[4]
            assert ("episode" in found) == ("episode" in expected)
            if "episode" in found:
                ends += found["_episode"].sum()
                for key in ("r", "l"):
                    assert np.array_equal(found["episode"][key], expected["episode"][key])
                assert_same(found["_episode"], expected["_episode"])
        assert envs.stats["episodes"] == ends > 5
