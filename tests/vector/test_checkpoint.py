"""Save one environment, restore it anywhere: a search can fork from any state."""

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

import shoal


def trace(envs, steps, seed):
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(steps):
        parts.append([part[0].tobytes() for part in envs.step(rng.integers(0, 2, envs.num_envs))[:4]])
    return parts


def test_a_restored_environment_goes_on_exactly_as_the_saved_one_did():
    envs = shoal.make_vec("CartPole-v1", 6, max_episode_steps=40)
    envs.reset(seed=0)
    trace(envs, 25, 1)
    saved = envs.save_env(0)
    expected = trace(envs, 120, 2)  # through several episodes: generator, limit and statistics too
    envs.restore_env(0, saved)
    assert trace(envs, 120, 2) == expected
    other = shoal.make_vec("CartPole-v1", 1, max_episode_steps=40)
    other.restore_env(0, saved)
    first = [np.random.default_rng(2)]
    for part in expected[:50]:
        action = first[0].integers(0, 2, 6)[:1]
        assert [value[0].tobytes() for value in other.step(action)[:4]] == part


def test_saving_changes_nothing():
    envs, other = shoal.make_vec("CartPole-v1", 3), shoal.make_vec("CartPole-v1", 3)
    envs.reset(seed=0)
    other.reset(seed=0)
    assert envs.save_env(1) == envs.save_env(1)
    assert trace(envs, 50, 0) == trace(other, 50, 0)


@pytest.mark.parametrize("cut", [0, 5, 40, -1])
def test_a_truncated_checkpoint_is_refused_and_changes_nothing(cut):
    envs = shoal.make_vec("CartPole-v1", 2)
    envs.reset(seed=0)
    saved = envs.save_env(0)
    with pytest.raises(ValueError, match="not a checkpoint of this environment"):
        envs.restore_env(0, saved[:cut])
    assert envs.save_env(0) == saved


def test_a_checkpoint_of_another_environment_is_refused():
    envs, other = shoal.make_vec("CartPole-v1", 2), shoal.make_vec("Squared-v0", 2)
    envs.reset(seed=0)
    with pytest.raises((ValueError, shoal.ShoalError), match="not a checkpoint|cannot be saved"):
        other.restore_env(0, envs.save_env(0))
    with pytest.raises(TypeError, match="a checkpoint must be bytes, got str"):
        envs.restore_env(0, "x")


def test_restored_environment_that_had_ended_is_reset_before_a_step():
    off = {"autoreset_mode": AutoresetMode.DISABLED, "session": None}
    ended, fresh = (shoal.make_vec("CartPole-v1", 2, **off) for _ in range(2))
    with ended, fresh:
        ended.reset(seed=0), fresh.reset(seed=1)
        over = np.zeros(2, bool)
        while not over[0]:
            if over[1]:
                ended.reset(options={"reset_mask": over})
            _, _, terminated, truncated, _ = ended.step(np.array([1, 0]))
            over = terminated | truncated
        saved = ended.save_env(0)
        fresh.restore_env(1, saved)
        with pytest.raises(ResetNeeded):
            fresh.step(np.zeros(2, np.int64))
        fresh.reset(options={"reset_mask": np.array([False, True])})
        alive = fresh.save_env(0)
        fresh.restore_env(1, saved)
        fresh.restore_env(1, alive)  # it lives again
        fresh.step(np.zeros(2, np.int64))


def test_a_checkpoint_with_any_byte_changed_is_refused_and_changes_nothing():
    """What an environment keeps in its memory may be places in it: Snake looped for ever in a damaged one."""
    for name in ("CartPole-v1", "Snake-v0"):
        with shoal.make_vec(name, 2, session=None) as envs:
            envs.reset(seed=0)
            saved = envs.save_env(0)
            for at in range(0, len(saved), max(1, len(saved) // 300)):
                damaged = saved[:at] + bytes([saved[at] ^ 1 << at % 8]) + saved[at + 1 :]
                with pytest.raises(ValueError, match="not a checkpoint of this environment"):
                    envs.restore_env(0, damaged)
            assert envs.save_env(0) == saved
            envs.restore_env(1, saved)
            assert envs.save_env(1) == saved


EARLIER = bytes.fromhex(
    "53484f414c454e565c5d8b62b0f219e820000000000000000100000000000000200000000000000025d2087bd0c1101b"
    "9703c75b7935856c0fbbfb9c2f86be2d2d188c1feb8d7b30000000000000000000000000000000000000000000001440"
    "05000000b93bafb5a652aabfbbe19f4a7fa5edbf82508ea50bb0a53ffc394fb6fdbbf73f"
)
"""Environment 1 of 3 CartPoles, reset(seed=7), five steps with action 0: saved before core/checkpoint.c."""


def test_a_checkpoint_of_an_earlier_release_restores():
    with shoal.make_vec("CartPole-v1", 3) as envs:
        envs.reset(seed=7)
        for _ in range(5):
            envs.step(np.zeros(3, np.int64))
        assert envs.save_env(1) == EARLIER
        envs.restore_env(2, EARLIER)
        observations = envs.step(np.zeros(3, np.int64))[0]
        assert observations[1].tobytes() == observations[2].tobytes()
