"""Compares transitions, n-step returns, sequences and stacks with a simple model of the environments."""

import functools
import os

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import shoal
from shoal.errors import ShoalError, SpaceError
from shoal.replay import PrioritizedSampler, ReplayBuffer
from shoal.vector import ProcessVectorEnv

GAMMA = 0.9


class Walk(gymnasium.Env):
    """Observations hold the environment, episode and step; episodes terminate or are truncated at random."""

    observation_space = Box(-1e6, 1e6, (3,), np.float32)
    action_space = Discrete(5)

    def __init__(self, number):
        self.number, self.episode = number, -1

    def _seen(self):
        return np.array([self.number, self.episode, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        self.end = int(self.np_random.integers(1, 9))
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        over = self.t >= self.end
        cut = over and self.episode % 2 == 1
        return self._seen(), float(action + self.t), over and not cut, cut, {}


class WideWalk(Walk):
    """Observations that repeat these numbers in 8 KB, which large batches write by non-temporal stores."""

    observation_space = Box(-1e6, 1e6, (2048, 3), np.float32)

    def _seen(self):
        return np.tile(super()._seen(), (2048, 1))


def run(mode, capacity, steps, num_envs=3, make=Walk):
    """Returns a buffer and the model: {(env, episode, t): (action, reward, terminated, truncated)}."""
    envs = SyncVectorEnv([lambda i=i: make(i) for i in range(num_envs)], autoreset_mode=AutoresetMode[mode])
    buffer = ReplayBuffer.for_env(envs, capacity, seed=0)
    observations, _ = envs.reset(seed=1)
    buffer.begin(observations)
    envs.action_space.seed(2)
    model, over = {}, np.zeros(num_envs, bool)
    for _ in range(steps):
        actions = envs.action_space.sample()
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        for env in range(num_envs):
            if mode == "NEXT_STEP" and over[env]:
                continue
            seen = observations[env]
            if mode == "SAME_STEP" and (terminated[env] or truncated[env]):
                seen = infos["final_obs"][env]
            model[key_of(seen)] = (
                int(actions[env]),
                float(rewards[env]),
                bool(terminated[env]),
                bool(truncated[env]),
            )
        buffer.add(actions, observations, rewards, terminated, truncated, infos)
        over = terminated | truncated
        if mode == "DISABLED" and over.any():
            observations, _ = envs.reset(options={"reset_mask": over})
            buffer.begin(observations, over)
    envs.close()
    return buffer, model


def key_of(observation):
    return tuple(int(value) for value in observation.flat[:3])


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("capacity", [40, 10_000])
def test_transitions_are_correct_and_never_cross_the_end_of_an_episode(mode, capacity):
    buffer, model = run(mode, capacity, 200)
    batch = buffer.sample(2000)
    ends = 0
    for i in range(2000):
        before, after = key_of(batch["obs"][i]), key_of(batch["next_obs"][i])
        assert before[:2] == after[:2] and after[2] == before[2] + 1
        expected = model[after]
        found = (batch["action"][i], batch["reward"][i], batch["terminated"][i], batch["truncated"][i])
        assert found == expected
        ends += expected[2] or expected[3]
    assert ends > 100 and batch["truncated"].any() and batch["terminated"].any()
    assert len(set(map(key_of, batch["next_obs"]))) > (15 if capacity == 40 else 300)
    buffer.close()


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("steps", [1, 3, 20])
def test_an_n_step_return_ends_with_the_episode(mode, steps):
    buffer, model = run(mode, 10_000, 200)
    batch = buffer.sample_n_step(1000, steps, GAMMA)
    taken_all = set()
    for i in range(1000):
        env, episode, t = key_of(batch["obs"][i])
        total, taken = 0.0, 0
        while taken < steps and (env, episode, t + taken + 1) in model:
            action, reward, terminated, truncated = model[env, episode, t + taken + 1]
            if taken == 0:
                assert batch["action"][i] == action
            total += GAMMA**taken * reward
            taken += 1
            if terminated or truncated:
                break
        assert key_of(batch["next_obs"][i]) == (env, episode, t + taken)
        assert batch["reward"][i] == pytest.approx(total, rel=1e-6)
        assert batch["discount"][i] == pytest.approx(GAMMA**taken, rel=1e-6)
        assert (batch["terminated"][i], batch["truncated"][i]) == (terminated, truncated)
        taken_all.add(taken)
    assert taken_all == set(range(1, min(steps, 8) + 1))
    buffer.close()


def test_n_step_return_ends_at_an_early_reset_or_a_replaced_worker():
    envs = SyncVectorEnv([lambda: Walk(0)])
    for fault in (False, True):
        buffer = ReplayBuffer.for_env(envs, 100, seed=0)
        none = np.zeros(1, bool)
        buffer.begin(np.array([[0, 0, 0]], np.float32))
        for t in (1, 2):
            buffer.add(np.ones(1, np.int64), np.array([[0, 0, t]], np.float32), np.ones(1), none, none)
        if fault:
            again = np.array([[0, 1, 0]], np.float32)
            buffer.add(np.ones(1, np.int64), again, np.full(1, 50.0), none, none, {"_fault": ~none})
        else:
            buffer.begin(np.array([[0, 1, 0]], np.float32))
        batch = buffer.sample_n_step(50, 3, GAMMA)
        assert (batch["next_obs"] == [0, 0, 2]).all() and batch["reward"].max() == np.float32(1 + GAMMA)
        buffer.close()
    envs.close()


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_sequence_stays_in_its_episode_by_default(mode):
    buffer, model = run(mode, 10_000, 200)
    batch = buffer.sample_sequences(300, 6)
    for i in range(300):
        length = int(batch["mask"][i].sum())
        assert batch["mask"][i, :length].all() and length >= 1
        keys = [key_of(batch["obs"][i, t]) for t in range(length)]
        first = keys[0]
        assert keys == [(first[0], first[1], first[2] + t) for t in range(length)]
        for t, key in enumerate(keys):
            assert batch["first"][i, t] == (key[2] == 0)
            if key[2] > 0:
                assert (batch["action"][i, t], batch["reward"][i, t]) == model[key][:2]
        whole = (first[0], first[1], first[2] + length) in model
        assert length == 6 or not whole  # it ends early only with its episode
    across = buffer.sample_sequences(300, 12, across_episodes=True)
    assert any(len(set(across["obs"][i][across["mask"][i]][:, 1])) > 1 for i in range(300))
    buffer.close()


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("capacity", [37, 10_000])
def test_a_stack_repeats_the_first_frame_and_never_crosses_an_episode_or_the_wrap(mode, capacity):
    buffer, _ = run(mode, capacity, 300)
    batch = buffer.sample(1000, stack=4)
    assert batch["obs"].shape == (1000, 4, 3)
    for i in range(1000):
        for name in ("obs", "next_obs"):
            env, episode, t = key_of(batch[name][i, -1])
            expected = [(env, episode, max(0, t - back)) for back in (3, 2, 1, 0)]
            assert [key_of(frame) for frame in batch[name][i]] == expected
    several = buffer.sample_n_step(200, 3, GAMMA, stack=2)
    for i in range(200):
        env, episode, t = key_of(several["next_obs"][i, -1])
        assert key_of(several["next_obs"][i, 0]) == (env, episode, max(0, t - 1))
    buffer.close()


def test_large_batches_of_long_rows_hold_the_same_as_small_ones():
    buffer, _ = run("NEXT_STEP", 200, 100, make=WideWalk)
    for ways in ({}, {"stack": 4}):
        batch = buffer.sample(200, **ways)
        for name in ("obs", "next_obs"):
            frames = batch[name].reshape(200, -1, 2048, 3)
            assert (frames == frames[:, :, :1]).all()  # every frame is whole
        for i in range(200):
            env, episode, t = key_of(batch["next_obs"].reshape(200, -1, 2048, 3)[i, -1])
            assert key_of(batch["obs"].reshape(200, -1, 2048, 3)[i, -1]) == (env, episode, t - 1)
    for i in range(200):
        for name in ("obs", "next_obs"):
            env, episode, t = key_of(batch[name][i, -1])
            expected = [(env, episode, max(0, t - back)) for back in (3, 2, 1, 0)]
            assert [key_of(frame) for frame in batch[name][i]] == expected
    buffer.close()


def test_transitions_are_drawn_uniformly():
    buffer, model = run("NEXT_STEP", 10_000, 60)
    counts = {}
    for _ in range(100):
        for key in map(key_of, buffer.sample(500)["next_obs"]):
            counts[key] = counts.get(key, 0) + 1
    assert set(counts) == set(model)
    expected = 50_000 / len(model)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert statistic < len(model) + 6 * np.sqrt(2 * len(model))
    buffer.close()


def test_prioritized_transitions_are_correct():
    buffer, model = run("NEXT_STEP", 10_000, 60)
    sampler = PrioritizedSampler(buffer, alpha=1.0, seed=3)
    batch = sampler.sample(200)
    assert sampler.update_priorities(batch.ids, np.full(200, 100.0)) == 200
    liked = set(map(key_of, batch["next_obs"]))
    again = sampler.sample(500)
    for i in range(500):
        assert key_of(again["next_obs"][i])[:2] == key_of(again["obs"][i])[:2]
        assert model[key_of(again["next_obs"][i])][0] == again["action"][i]
    assert np.mean([key_of(row) in liked for row in again["next_obs"]]) > 0.9
    buffer.close()


def test_saved_trajectories_are_still_linked(tmp_path):
    buffer, model = run("NEXT_STEP", 100, 80)  # it has wrapped: links lead to rows that are gone
    buffer.save(tmp_path / "saved")
    buffer.snapshot(tmp_path / "snap")
    for other in (
        ReplayBuffer.load(tmp_path / "saved", seed=1),
        ReplayBuffer.open(tmp_path / "snap", seed=1),
    ):
        batch = other.sample_n_step(300, 3, GAMMA)
        for i in range(300):
            env, episode, t = key_of(batch["obs"][i])
            assert model[env, episode, t + 1][0] == batch["action"][i]
            assert key_of(batch["next_obs"][i])[:2] == (env, episode)
        assert (batch["discount"] < GAMMA).any()
        other.close()
    buffer.close()


class Nested(Walk):
    observation_space = Dict(where=Box(-1e6, 1e6, (3,), np.float32), deep=Dict(time=Discrete(100)))

    def _seen(self):
        return {"where": super()._seen(), "deep": {"time": self.t}}


def test_parts_of_nested_observations_are_separate_fields():
    envs = SyncVectorEnv([lambda i=i: Nested(i) for i in range(2)])
    buffer = ReplayBuffer.for_env(envs, 100, seed=0)
    buffer.begin(envs.reset(seed=0)[0])
    for _ in range(30):
        actions = envs.action_space.sample()
        buffer.add(actions, *envs.step(actions))
    batch = buffer.sample(50)
    assert set(batch) == {
        "obs/where", "obs/deep/time", "next_obs/where", "next_obs/deep/time",
        "action", "reward", "terminated", "truncated",
    }  # fmt: skip
    assert (batch["next_obs/deep/time"] == batch["obs/deep/time"] + 1).all()
    assert (batch["obs/where"][:, 2] == batch["obs/deep/time"]).all()
    envs.close(), buffer.close()


def test_errors_name_what_is_missing():
    envs = SyncVectorEnv([lambda: Walk(0)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    buffer = ReplayBuffer.for_env(envs, 100)
    observations, _ = envs.reset(seed=0)
    step = (np.zeros(2, np.int64), observations, np.zeros(2), np.ones(2, bool), np.zeros(2, bool))
    with pytest.raises(ShoalError, match="begin"):
        buffer.add(*step)
    buffer.begin(observations)
    with pytest.raises(ValueError, match="no complete transition"):
        buffer.sample(1)
    with pytest.raises(SpaceError, match="final_obs"):
        buffer.add(*step)
    with pytest.raises(SpaceError, match="one for each environment"):
        buffer.begin(observations[:1])
    with pytest.raises(ValueError, match="mask"):
        buffer.begin(observations, np.ones(3, bool))
    for bad in (0, -1):
        with pytest.raises(ValueError, match="steps"):
            buffer.sample_n_step(1, bad, GAMMA)
    with pytest.raises(TypeError, match="stack"):
        buffer.sample(1, stack=1.5)
    envs.close(), buffer.close()


class Fragile(Walk):
    """Exits its process, or raises, at a given step."""

    action_space = Discrete(7)

    def reset(self, *, seed=None, options=None):
        seen = super().reset(seed=seed)
        self.episode = int(self.np_random.integers(1, 10**6))  # known apart from those before a death
        return self._seen(), seen[1]

    def step(self, action):
        if action == 5:
            os._exit(3)
        if action == 6:
            raise RuntimeError("broken")
        return super().step(action)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("fault", [5, 6])
def test_no_transition_leads_to_the_first_row_of_a_replaced_worker(mode, fault):
    makers = [functools.partial(Fragile, i) for i in range(3)]
    with ProcessVectorEnv(
        makers, num_workers=3, autoreset_mode=AutoresetMode[mode], on_fault="restart"
    ) as envs:
        buffer = ReplayBuffer.for_env(envs, 10_000, seed=0)
        buffer.begin(envs.reset(seed=0)[0])
        rng = np.random.default_rng(0)
        faults = 0
        for step in range(60):
            actions = rng.integers(0, 5, 3)
            if step % 10 == 5:
                actions[step // 10 % 3] = fault
            results = envs.step(actions)
            faults += int(results[4].get("_fault", np.zeros(3)).sum())
            buffer.add(actions, *results)
            over = results[2] | results[3]
            if mode == "DISABLED" and over.any():
                buffer.begin(envs.reset(options={"reset_mask": over})[0], over)
        assert faults >= 4  # the action of a step that only resets is not used
        batch = buffer.sample(2000)
        assert (batch["obs"][:, :2] == batch["next_obs"][:, :2]).all()
        assert (batch["next_obs"][:, 2] == batch["obs"][:, 2] + 1).all()
        assert not (batch["action"] == fault).any()
        buffer.close()


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_fast_and_general_paths_of_add_store_the_same_rows(mode):
    """Lists instead of arrays do not fit the fast path, so Python handles them."""
    with shoal.make_vec("CartPole-v1", 8, autoreset_mode=mode) as envs:
        quick = ReplayBuffer.for_env(envs, 200, seed=0)
        careful = ReplayBuffer.for_env(envs, 200, seed=0)
        observations, _ = envs.reset(seed=0)
        for buffer in (quick, careful):
            buffer.begin(observations)
        for step in range(120):
            actions = envs.action_space.sample()
            observations, rewards, terminated, truncated, infos = envs.step(actions)
            quick.add(actions, observations, rewards, terminated, truncated, infos)
            careful.add(actions, observations, list(rewards), terminated, truncated, infos)
            over = terminated | truncated
            if mode == AutoresetMode.DISABLED and over.any():
                observations, _ = envs.reset(options={"reset_mask": over})
                for buffer in (quick, careful):
                    buffer.begin(observations, over)
            if step % 40 == 39:
                found, expected = quick.latest(200), careful.latest(200)
                assert all(np.array_equal(found[name], expected[name]) for name in quick.fields)
                links = [buffer._records.segment["next"] for buffer in (quick, careful)]
                assert np.array_equal(*links)
        batches = [buffer.sample_n_step(64, steps=3, gamma=0.9) for buffer in (quick, careful)]
        assert all(np.array_equal(batches[0][name], batches[1][name]) for name in batches[0])
        quick.close()
        careful.close()


@pytest.mark.parametrize("made_for", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_steps_of_another_autoreset_mode_raise_before_a_row_is_stored(made_for):
    envs = shoal.make_vec("CartPole-v1", 2, autoreset_mode=AutoresetMode.SAME_STEP)
    of_others = shoal.make_vec("CartPole-v1", 2, autoreset_mode=made_for)
    buffer = ReplayBuffer.for_env(of_others, 1000)
    buffer.begin(envs.reset(seed=0)[0])
    actions, added = np.zeros(2, np.int64), 2
    with pytest.raises(ShoalError, match=rf"made for .*{made_for.name}.*these are SAME_STEP"):
        for _ in range(100):
            buffer.add(actions, *envs.step(actions))
            added += 2
    assert len(buffer) == added and not buffer.latest(added)["terminated"].any()
    buffer.close(), envs.close(), of_others.close()


def test_reward_too_large_for_float32_raises_and_infinity_is_stored():
    envs = shoal.make_vec("CartPole-v1", 2)
    buffer = ReplayBuffer.for_env(envs, 100)
    observations = envs.reset(seed=0)[0]
    buffer.begin(observations)
    flags, actions = np.zeros(2, np.bool_), np.zeros(2, np.int64)
    with pytest.raises(SpaceError, match=r"'reward': expected values that fit float32, found .*e\+300"):
        buffer.add(actions, observations, np.array([1.0, 1e300]), flags, flags, {})
    assert len(buffer) == 2
    buffer.add(actions, observations, np.array([np.inf, -3e38]), flags, flags, {})
    assert buffer.latest(2)["reward"].tolist() == [np.inf, float(np.float32(-3e38))]
    for gamma in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="gamma must be from 0 to 1"):
            buffer.sample_n_step(2, 2, gamma)
    buffer.close(), envs.close()
