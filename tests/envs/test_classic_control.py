"""The classic-control plug-ins against Gymnasium's own environments, and against themselves: other
instruction sets, other splits of a batch, other batch sizes.

SHOAL_EPISODES=5000 plays that many episodes of each environment in each comparison with Gymnasium.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from .plugin_harness import Host, compiled, play

Array = np.ndarray[Any, Any]


@dataclass
class Case:
    source: str
    limits: tuple[float, ...]  # of each number of Gymnasium's state, about
    drive: Callable[[Array], Array]  # the way to push to reach the goal, by its sign, from observations


CASES = {
    "CartPole-v1": Case("cartpole", (2.4, 5, 0.25, 5), lambda seen: seen[:, 2] + seen[:, 3]),
    "MountainCar-v0": Case("mountain_car", (1.2, 0.07), lambda seen: seen[:, 1]),
    "MountainCarContinuous-v0": Case("mountain_car_continuous", (1.2, 0.07), lambda seen: seen[:, 1]),
    "Pendulum-v1": Case("pendulum", (30, 8), lambda seen: seen[:, 2]),
    "Acrobot-v1": Case("acrobot", (3.2, 3.2, 12.6, 28.3), lambda seen: -seen[:, 4]),
}
EVERY = pytest.mark.parametrize("name", CASES)
EPISODES = int(os.environ.get("SHOAL_EPISODES", 0))
PRECISIONS = pytest.mark.parametrize("precision", ["double", "float"])


def make(name: str, num_envs: int, *flags: str, seed: int = 0, **options: Any) -> Host:
    source = CASES[name].source
    return Host(compiled(f"envs/{source}/{source}.c", *flags), num_envs, seed, **options)


def choose(host: Host, rng: np.random.Generator, push: Array | None) -> Array:
    """Random actions, half of them replaced by the strongest along `push`."""
    if isinstance(host.action_space, gym.spaces.Discrete):
        low, high = np.int64(0), host.action_space.n - 1
        actions = rng.integers(low, high, host.num_envs, endpoint=True)
    else:
        low, high = host.action_space.low, host.action_space.high
        actions = rng.uniform(low, high, host.num_envs)
    if push is not None:
        actions = np.where(rng.random(host.num_envs) < 0.5, np.where(push > 0, high, low), actions)
    return actions.astype(host.actions.dtype).reshape(host.actions.shape)


# -- against Gymnasium ------------------------------------------------------------------------------


@EVERY
def test_spaces_and_time_limit_match_gymnasium(name):
    host, theirs = make(name, 1), gym.make(name)
    assert host.name == name
    assert host.observation_space == theirs.observation_space
    assert host.action_space == theirs.action_space
    assert host.max_episode_steps == gym.spec(name).max_episode_steps


@EVERY
def test_a_seed_gives_the_same_first_states_bit_by_bit(name):
    host, theirs = make(name, 100, seed=7), gym.make(name).unwrapped
    for _ in range(3):  # the second and third time from the generators as the first left them
        host.reset_all()
    for env in range(host.num_envs):
        theirs.reset(seed=7 + env)
        theirs.reset()
        observation, _ = theirs.reset()
        state = np.frombuffer(host.save(env))[: len(CASES[name].limits)]
        assert np.array_equal(state, theirs.state.astype(np.float64))
        if name == "Acrobot-v1":  # NumPy takes its first sines in float32
            np.testing.assert_allclose(host.observations[env], observation, rtol=2e-7, atol=0)
        else:
            assert np.array_equal(host.observations[env], observation)


def play_both(
    name: str, episodes: int, drive: bool, resync: bool, seed: int, **options: Any
) -> tuple[int, int]:
    """The same actions in both, with NEXT_STEP resets; how many episodes ended, and how many by themselves.

    `drive` mixes pushes towards the goal with random actions; `resync` starts each step from Gymnasium's.
    """
    num_envs, case, rng = 40, CASES[name], np.random.default_rng(seed)
    host = make(name, num_envs, seed=seed, **options)
    theirs = [gym.make(name, **options).unwrapped for _ in range(num_envs)]
    for i, env in enumerate(theirs):
        env.reset(seed=seed + i)
    host.reset_all()
    ended = by_themselves = 0
    done, length = np.zeros(num_envs, bool), np.zeros(num_envs, int)
    while ended < episodes:
        actions = choose(host, rng, case.drive(host.observations) if drive else None)
        if resync:
            for i, env in enumerate(theirs):
                host.states()[i // host.lanes, : len(case.limits), i % host.lanes] = env.state
        host.step(actions, done)
        results = [
            (env.reset()[0], 0.0, False) if done[i] else env.step(actions[i])[:3]
            for i, env in enumerate(theirs)
        ]
        observations, rewards, terminated = (np.array(column) for column in zip(*results, strict=True))
        assert np.array_equal(host.terminated, terminated)
        np.testing.assert_allclose(host.observations, observations, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(host.rewards, rewards, rtol=1e-6, atol=1e-6)
        if resync:
            states = host.states().transpose(0, 2, 1).reshape(host.padded, -1)[:num_envs, : len(case.limits)]
            np.testing.assert_allclose(states, [env.state for env in theirs], rtol=1e-9, atol=1e-9)
        if name == "MountainCarContinuous-v0":  # where all rounds to float32 as in NumPy
            assert np.array_equal(host.observations, observations)
        length = np.where(done, 0, length + 1)
        done = terminated | (length >= host.max_episode_steps)
        ended += int(done.sum())
        by_themselves += int(terminated.sum())
    return ended, by_themselves


@pytest.mark.parametrize("name", [name for name in CASES if name != "Acrobot-v1"])
def test_whole_episodes_match_gymnasium(name):
    # A balanced pole multiplies every rounding by 1.08 a step, 1e10 in 300; random actions end it before.
    ended, by_themselves = play_both(name, EPISODES or 250, name != "CartPole-v1", resync=False, seed=11)
    assert by_themselves > ended // 5 or name == "Pendulum-v1"


@EVERY
def test_every_step_from_the_same_state_matches_gymnasium(name):
    ended, by_themselves = play_both(name, EPISODES or 100, drive=True, resync=True, seed=12)
    assert by_themselves > ended // 5 or name == "Pendulum-v1"


@EVERY
def test_step_from_any_state_matches_gymnasium(name):
    host, theirs, rng = make(name, 1000), gym.make(name).unwrapped, np.random.default_rng(13)
    theirs.reset()
    numbers = len(CASES[name].limits)
    states = rng.uniform(-1, 1, (host.padded, numbers)) * CASES[name].limits
    states = states.astype(np.float32 if name == "MountainCarContinuous-v0" else np.float64)
    host.reset_all()
    host.states()[:, :numbers] = states.reshape(-1, host.lanes, numbers).transpose(0, 2, 1)
    actions = choose(host, rng, None)
    host.step(actions)
    for i in range(host.num_envs):
        theirs.reset()
        theirs.state = states[i]
        observation, reward, terminated, _, _ = theirs.step(actions[i])
        np.testing.assert_allclose(host.observations[i], observation, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(host.rewards[i], reward, rtol=1e-6, atol=1e-6)
        assert host.terminated[i] == terminated


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("CartPole-v1", "sutton_barto_reward", [0, 1]),
        ("MountainCar-v0", "goal_velocity", [0.02, -0.01]),
        ("MountainCarContinuous-v0", "goal_velocity", [0.02, -0.01]),
        ("Pendulum-v1", "g", [9.81, 0.0]),
    ],
)
def test_options_mean_what_they_mean_in_gymnasium(name, option, values):
    for value in values:
        play_both(name, 80, drive=True, resync=True, seed=13, **{option: value})


@PRECISIONS
def test_checkpoint_of_a_fallen_pole_is_rejected(precision):
    host = make("CartPole-v1", 3, precision=precision)
    host.reset_all()
    data = np.frombuffer(host.save(1), np.float64 if precision == "double" else np.float32).copy()
    host.restore(1, data.tobytes())
    for angle in (0.79, -3.0, np.nan, np.inf):
        data[2] = angle
        assert "too far down" in host.restore(1, data.tobytes())


@EVERY
def test_float_precision_follows_double_for_some_steps(name):
    double, single = make(name, 50), make(name, 50, precision="float")
    double.reset_all()
    single.reset_all()
    np.testing.assert_allclose(single.observations, double.observations, rtol=1e-6, atol=1e-6)
    rng = np.random.default_rng(15)
    for _ in range(8):
        actions = choose(double, rng, None)
        double.step(actions)
        single.step(actions)
        np.testing.assert_allclose(single.observations, double.observations, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(single.rewards, double.rewards, rtol=1e-4, atol=1e-4)
    assert len(single.save(0)) * 2 == len(double.save(0))


# -- against themselves -----------------------------------------------------------------------------


def instruction_sets() -> list[str]:
    """Flags of those that this machine has, beside the one that a plug-in picks itself."""
    able = set(Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else [])
    sets = {"-O3": set(), "-mavx2 -mfma": {"avx2", "fma"}, "-march=x86-64-v4": {"avx512vl", "avx512dq"}}
    return [flags for flags, needed in sets.items() if needed <= able]


@EVERY
@PRECISIONS
def test_every_instruction_set_gives_the_same_bytes(name, precision):
    expected = play(make(name, 70, precision=precision), 60)
    for flags in instruction_sets():
        host = make(name, 70, "-DSHOAL_ONE_ISA", *flags.split(), precision=precision)
        assert play(host, 60) == expected, flags


@EVERY
@PRECISIONS
def test_any_split_of_a_batch_gives_the_same_bytes(name, precision):
    host = make(name, 200, precision=precision)

    def splits(step: int) -> list[tuple[int, int]]:
        rng = np.random.default_rng(step)
        cuts = [0, *(np.flatnonzero(rng.random(6) < 0.5) + 1) * host.lanes, host.num_envs]
        return rng.permutation(list(zip(cuts[:-1], cuts[1:], strict=True))).tolist()

    assert play(host, 40, splits) == play(make(name, 200, precision=precision), 40)


@EVERY
@PRECISIONS
def test_any_number_of_environments_gives_the_rows_of_a_larger_batch(name, precision):
    large = [make(name, 96, precision=precision) for _ in range(2)]
    for resets in (0, 1):  # without resets some poles fall far, and others beside them do not
        play(large[resets], 40, resets=bool(resets))
    for count in range(1, 41):
        small, same = make(name, count, precision=precision), large[count % 2]
        play(small, 40, resets=bool(count % 2))
        for array in ("observations", "rewards", "terminated", "truncated", "rng"):
            assert getattr(small, array).tobytes() == getattr(same, array)[:count].tobytes(), (count, array)
        assert small.save(count - 1) == same.save(count - 1)


@EVERY
@PRECISIONS
def test_a_checkpoint_continues_in_another_environment_and_disturbs_no_other(name, precision):
    first, second, third = (make(name, 40, seed=seed, precision=precision) for seed in (0, 100, 100))
    for host in (first, second, third):
        play(host, 15)
    assert second.restore(37, first.save(5)) is None
    second.rng[37] = first.rng[5]
    for step in range(30):
        actions = choose(first, np.random.default_rng(step), None)
        first.step(actions, first.terminated)
        actions[37] = actions[5]
        second.step(actions, second.terminated)
        third.step(actions, third.terminated)
        assert np.array_equal(second.observations[37], first.observations[5])
        assert second.rewards[37] == first.rewards[5]
        assert np.array_equal(np.delete(second.observations, 37, 0), np.delete(third.observations, 37, 0))


@EVERY
def test_a_checkpoint_of_another_size_is_refused(name):
    host = make(name, 2)
    host.reset_all()
    before = host.results()
    assert "another size" in str(host.restore(0, make(name, 1, precision="float").save(0)))
    assert host.results() == before
    assert not host.has_extension("shoal.unheard-of/1")


@EVERY
def test_resets_touch_only_the_environments_asked_for(name):
    host = make(name, 40)
    host.reset_all()
    saved, rng = [host.save(env) for env in range(40)], host.rng.copy()
    host.reset_all(33, 34)
    assert [env for env in range(40) if host.save(env) != saved[env]] == [33]
    assert np.flatnonzero((host.rng != rng).any(1)).tolist() == [33]
    flags = np.zeros(40, np.uint8)
    flags[[0, 7, 8, 31, 39]] = 1
    host.step(choose(host, np.random.default_rng(16), None), flags)
    assert np.flatnonzero((host.rng != rng).any(1)).tolist() == [0, 7, 8, 31, 33, 39]
    assert not host.rewards[flags == 1].any() and not host.terminated[flags == 1].any()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        *[(name, {"precision": "half"}, "precision must be double or float") for name in CASES],
        ("CartPole-v1", {"sutton_barto_reward": 2}, "sutton_barto_reward must be 0 or 1"),
        ("MountainCar-v0", {"goal_velocity": math.nan}, "goal_velocity must be finite"),
        ("MountainCarContinuous-v0", {"goal_velocity": math.inf}, "goal_velocity must be finite"),
        ("Pendulum-v1", {"g": math.nan}, "g must be finite"),
    ],
)
def test_a_bad_option_is_refused_in_words(name, options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make(name, 1, **options)


# -- sines and cosines ------------------------------------------------------------------------------


@pytest.mark.parametrize(("real", "dtype", "most"), [("double", np.float64, 1e6), ("float", np.float32, 1e4)])
def test_sines_and_cosines_are_within_two_units_in_the_last_place(tmp_path, real, dtype, most):
    functions = {"lanes_sin": math.sin, "lanes_cos": math.cos}
    source = tmp_path / "sines.c"
    text = f'#define REAL {real}\n#include "lanes.h"\n'
    for name in ("lanes_sin", "lanes_cos", "lanes_sin_near", "lanes_cos_near"):
        text += f"void all_{name}(REAL *x, int n) {{ for (int i = 0; i < n; i++) x[i] = {name}(x[i]); }}\n"
    source.write_text(text)
    library = ctypes.CDLL(str(compiled(str(source))))

    def call(function: str, x: Array) -> Array:
        y = x.copy()
        library[f"all_{function}"](y.ctypes.data_as(ctypes.c_void_p), len(y))
        return y

    rng = np.random.default_rng(17)
    sizes = 10 ** rng.uniform(-9, math.log10(most), 100_000)
    multiples = rng.integers(-most / 2, most / 2, 50_000) * (math.pi / 2)
    x = np.concatenate([sizes, -sizes, multiples, [0.0, -0.0]]).astype(dtype)
    for function, exact in functions.items():
        y = np.array([exact(value) for value in x])
        unit = np.spacing(np.abs(y)) if real == "double" else 7e-8 / 2  # of a number close to 1
        assert (np.abs(call(function, x) - y) <= 2 * unit).all()
        close = x[np.abs(x) <= dtype(0.785)]
        assert call(f"{function}_near", close).tobytes() == call(function, close).tobytes()
