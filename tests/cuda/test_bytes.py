"""A device gives the CPU's bytes: results, final observations, checkpoints, pictures, state, statistics."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import shoal
from shoal.vector import device_state
from tests.cuda.device import host, make, put
from tests.native.conftest import REAL
from tests.vector.latched import occasional
from tests.vector.test_process_envs import assert_same

pytestmark = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")

PLUGINS = Path(__file__).parents[1] / "native" / "plugins"
LANES = Path(__file__).parent / "lanes.c"
BUNDLED = [
    ("Acrobot-v1", {}),
    ("CartPole-v1", {}),
    ("CartPole-v1", {"precision": "float", "sutton_barto_reward": 1}),
    ("MountainCar-v0", {}),
    ("MountainCarContinuous-v0", {}),
    ("Pendulum-v1", {"precision": "float"}),
    ("Pixels-v0", {"height": 12, "width": 20}),
    ("Reef-v0", {}),
    ("Snake-v0", {"agents": 3}),
    ("Squared-v0", {"size": 7}),
]
PLAIN = Path(__file__).parent / "plain.c"
OWN = [(LANES, {}), (PLAIN, {"length": 5}), (PLUGINS / "echo.c", {}), (PLUGINS / "team.c", {})]


def pair(env, num_envs, **kwargs):
    return shoal.make_vec(env, num_envs, session=None, num_threads=1, **kwargs), make(env, num_envs, **kwargs)


def compare(env, num_envs, steps, mode, **kwargs):
    """Steps both and compares everything they return; finished environments of DISABLED are reset."""
    cpu, device = pair(env, num_envs, autoreset_mode=mode, episode_stats=True, **kwargs)
    cpu.action_space.seed(5)
    assert_same(host(device.reset(seed=4)[0]), cpu.reset(seed=4)[0])
    for _ in range(steps):
        actions = cpu.action_space.sample()
        *expected, expected_infos = cpu.step(actions)
        *found, infos = device.step(put(actions))
        assert_same(host(tuple(found)), tuple(expected))
        assert_same(occasional(host(infos)), occasional(expected_infos))
        over = expected[2] | expected[3]
        if mode == "DISABLED" and over.any():
            whole = over.reshape(cpu.num_worlds, -1).all(axis=1).repeat(cpu.num_envs // cpu.num_worlds)
            if whole.any():
                first = cpu.reset(options={"reset_mask": whole})[0]
                assert_same(host(device.reset(options={"reset_mask": put(whole)})[0]), first)
    for name in ("steps", "episodes", "mean_length"):
        assert device.stats[name] == pytest.approx(cpu.stats[name], nan_ok=True), name
    assert device.stats["mean_return"] == pytest.approx(cpu.stats["mean_return"], nan_ok=True)
    device.close()
    cpu.close()


@pytest.mark.parametrize(("env", "options"), BUNDLED, ids=lambda value: str(value))
def test_every_bundled_environment_gives_the_bytes_of_the_cpu(env, options):
    compare(env, 70, 60, "NEXT_STEP", max_episode_steps=25, **options)


@pytest.mark.parametrize("mode", [mode.name for mode in AutoresetMode])
@pytest.mark.parametrize(("env", "options"), OWN, ids=lambda value: str(getattr(value, "stem", "")))
def test_plug_ins_give_the_bytes_of_the_cpu_in_every_mode(env, options, mode):
    compare(env, 9, 40, mode, max_episode_steps=11, **options)


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Snake-v0", "Squared-v0"])
def test_the_other_modes_give_the_bytes_of_the_cpu(env, mode):
    compare(env, 70, 60, mode, max_episode_steps=25)


@pytest.mark.parametrize("mode", [mode.name for mode in AutoresetMode])
@pytest.mark.parametrize("env", ["CartPole-v1", "Squared-v0", LANES], ids=lambda value: str(value)[-8:])
@pytest.mark.parametrize("most", [0, 1024])
def test_many_environments_give_the_bytes_of_the_cpu(env, mode, most, monkeypatch):
    """Several blocks, with spare threads, and without them and backward in every second step."""
    monkeypatch.setattr(device_state, "_SMALL", most)
    compare(env, 300, 40, mode, max_episode_steps=13)


@pytest.mark.parametrize("env", ["CartPole-v1", "Snake-v0", "Squared-v0"])
def test_checkpoints_pictures_and_state_are_those_of_the_cpu(env):
    cpu, device = pair(env, 40)
    cpu.reset(seed=1)
    device.reset(seed=1)
    for _ in range(7):
        actions = cpu.action_space.sample()
        cpu.step(actions)
        device.step(put(actions))
    assert device.save_env(33) == cpu.save_env(33)
    device.restore_env(2, cpu.save_env(33))
    assert device.save_env(2) == cpu.save_env(33) and device.save_env(3) == cpu.save_env(3)
    cpu.restore_env(2, cpu.save_env(33))
    assert np.array_equal(device.render_env(33), cpu.render_env(33))
    assert_same(device.state(33), cpu.state(33))
    assert_same(device.states(), cpu.states())
    device.close()
    cpu.close()


@pytest.mark.parametrize("mode", [mode.name for mode in AutoresetMode])
@pytest.mark.parametrize("env", ["CartPole-v1", "Squared-v0", "Snake-v0"])
def test_an_ended_episode_that_another_mode_saved_goes_on_as_on_the_cpu(env, mode):
    with shoal.make_vec(env, 2, session=None, max_episode_steps=3) as other:  # NEXT_STEP
        other.reset(seed=7)
        for _ in range(3):
            other.step(other.action_space.sample() * 0)
        ended = other.save_env(0)
    cpu, device = pair(env, 4, autoreset_mode=mode)
    cpu.reset(seed=1)
    device.reset(seed=1)
    cpu.restore_env(2, ended)
    device.restore_env(2, ended)
    if mode == "DISABLED":
        mask = np.arange(cpu.num_envs) // (cpu.num_envs // 4) == 2
        cpu.reset(options={"reset_mask": mask})
        device.reset(options={"reset_mask": put(mask)})
    for _ in range(4):
        actions = cpu.action_space.sample() * 0
        assert_same(host(tuple(device.step(put(actions))[:4])), tuple(cpu.step(actions)[:4]))
    assert device.save_env(2) == cpu.save_env(2)
    device.close()
    cpu.close()


@pytest.mark.parametrize("env", ["CartPole-v1", "Squared-v0", "Snake-v0"])
def test_a_rollout_holds_the_rows_of_the_cpu(env):
    cpu, device = pair(env, 5, max_episode_steps=6)
    stored, rollout = cpu.rollout(9), device.rollout(9)
    for _ in range(2):
        stored.start(cpu.reset(seed=2)[0])
        rollout.start(device.reset(seed=2)[0])
        for _ in range(9):
            actions = cpu.action_space.sample()
            stored.step(actions)
            rollout.step(put(actions))
    for name in ("observations", "actions", "rewards", "terminated", "truncated"):
        assert_same(host(getattr(rollout, name)), np.array(getattr(stored, name)))
    with pytest.raises(IndexError, match="full after 9 steps"):
        rollout.step(put(actions))
    device.close()
    cpu.close()


def test_seeds_are_an_int_a_list_or_none():
    cpu, device = pair("CartPole-v1", 3)
    for seed in (5, [5, 9, 0], [2**40, 1, 2**64 - 1], None, [None, 3, None]):
        assert_same(host(device.reset(seed=seed)[0]), cpu.reset(seed=seed)[0])
    with pytest.raises(ValueError, match="a seed on a device must fit 64 bits, got"):
        device.reset(seed=2**70)
    device.close()
    cpu.close()
    first, second = make("CartPole-v1", 3), make("CartPole-v1", 3)
    assert not np.array_equal(host(first.reset()[0]), host(second.reset()[0]))
