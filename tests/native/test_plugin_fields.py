"""Dict spaces of every kind of field, from the C declaration to actions and observations and back."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

import shoal
from shoal.native.build import build
from tests.native.conftest import REAL

pytestmark = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")

NUM_ENVS = 5


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    source = Path(__file__).parent / "plugins" / "echo.c"
    return build(source, output=tmp_path_factory.mktemp("echo") / "echo.so")


@pytest.fixture
def envs(library):
    with shoal.make_vec(library, NUM_ENVS) as made:
        made.reset(seed=0)
        made.action_space.seed(0)
        yield made


def assert_echoed(observation, actions):
    assert list(observation) == ["move", "gears", "keys", "push", "pixels", "brake"]
    for key, value in observation.items():
        assert np.array_equal(value, actions[key]), key


def test_fields_become_the_spaces_they_declare_in_their_order(library):
    with shoal.make_vec(library, 2) as envs:
        expected = {
            "move": Discrete(5, start=-1),
            "gears": MultiDiscrete([3, 5], dtype=np.int32, start=[0, -1]),
            "keys": MultiBinary(3),
            "push": Box(-1, 1, (2,), np.float32),
            "pixels": Box(0, 255, (4, 5, 3), np.uint8),
            "brake": Box(0, 1, (), np.bool_),
        }
        for space in (envs.single_observation_space, envs.single_action_space):
            assert isinstance(space, Dict)
            assert list(space) == list(expected)
            for key, part in expected.items():
                assert space[key] == part and space[key].dtype == part.dtype, key
        observation, info = envs.reset(seed=0)
        assert observation in envs.observation_space and info == {}
        for key, value in observation.items():
            assert value.dtype == expected[key].dtype
            assert value.shape == (2, *expected[key].shape)


def test_sampled_actions_of_every_kind_arrive_and_come_back(envs):
    for step in range(40):
        actions = envs.action_space.sample()
        observation, rewards, terminated, truncated, _ = envs.step(actions)
        assert observation in envs.observation_space
        assert not terminated.any()
        assert truncated.all() == (step % 4 == 2)
        if step % 4 == 3:  # the reset after the time limit
            assert not any(value.any() for value in observation.values()) and not rewards.any()
        else:
            assert_echoed(observation, actions)
            assert rewards.tolist() == [1] * NUM_ENVS


def test_the_extremes_of_every_field_pass(envs):
    actions = envs.action_space.sample()
    for pick in (0, 1):
        actions["move"][:] = (-1, 3)[pick]
        actions["gears"][:] = ([0, -1], [2, 3])[pick]
        actions["keys"][:] = pick
        actions["push"][:] = (-np.inf, np.inf)[pick]  # a Box is the environment's to clip
        actions["pixels"][:] = (0, 255)[pick]
        actions["brake"][:] = pick
        assert_echoed(envs.step(actions)[0], actions)


def test_dicts_of_any_kind_and_actions_of_other_types_are_converted(envs):
    actions = envs.action_space.sample()
    other = {
        "unknown": None,  # what nobody asks for is not looked at
        "brake": actions["brake"].tolist(),
        "pixels": np.asfortranarray(actions["pixels"]),
        "push": actions["push"].astype(np.float64),
        "keys": actions["keys"].astype(bool),
        "gears": actions["gears"].astype(">i8"),
        "move": tuple(actions["move"].tolist()),
    }
    assert_echoed(envs.step(other)[0], actions)

    class Fresh:
        """Whose arrays nobody holds but the caller."""

        def __getitem__(self, name):
            return actions[name].copy()

    assert_echoed(envs.step(Fresh())[0], actions)

    class Named(dict):
        pass

    assert_echoed(envs.step(Named(actions))[0], actions)


def spoiled(envs, key, value):
    actions = envs.action_space.sample()
    if isinstance(value, tuple):
        index, wrong = value
        actions[key][index] = wrong
    else:
        actions[key] = value
    return actions


@pytest.mark.parametrize(
    ("key", "value", "kind", "message"),
    [
        ("move", np.zeros(4, np.int64), ValueError, "actions['move']: expected shape (5,), found (4,)"),
        ("gears", np.zeros((5, 3), np.int32), ValueError, "actions['gears']: expected shape (5, 2), found"),
        ("keys", np.zeros((5, 3, 1), np.int8), ValueError, "actions['keys']: expected shape (5, 3), found"),
        ("pixels", np.zeros((5, 5, 4, 3), np.uint8), ValueError, "expected shape (5, 4, 5, 3), found"),
        ("brake", np.zeros(5, np.int8), TypeError, "actions['brake']: expected dtype bool, found int8"),
        ("keys", np.zeros((5, 3)), TypeError, "actions['keys']: expected dtype int8, found float64"),
        (
            "pixels",
            np.full((5, 4, 5, 3), 256),
            ValueError,
            "actions['pixels']: a value of the int64 array does not fit dtype uint8",
        ),
        ("push", np.zeros((5, 2), complex), TypeError, "actions['push']: expected dtype float32, found"),
        ("move", (3, 4), ValueError, "action 'move' 4 of row 3 is not in Discrete(5, start=-1)"),
        ("move", (0, -2), ValueError, "action 'move' -2 of row 0"),
        ("gears", ((2, 0), 3), ValueError, "action 'gears' [3, "),
        ("gears", ((2, 0), -1), ValueError, "action 'gears' [-1, "),
        ("gears", ((4, 1), 4), ValueError, "of row 4 is not in MultiDiscrete([3 5]"),
        ("gears", ((1, 1), -2), ValueError, "of row 1 is not in MultiDiscrete([3 5]"),
        ("keys", ((1, 2), 2), ValueError, "action 'keys' ["),
        ("keys", ((1, 2), -1), ValueError, "of row 1 is not in MultiBinary(3)"),
        ("push", ((2, 1), np.nan), ValueError, "of row 2 is not in Box(-1.0, 1.0, (2,), float32)"),
    ],
)
def test_a_bad_part_is_named_and_nothing_is_stepped(envs, key, value, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        envs.step(spoiled(envs, key, value))
    assert envs.stats["steps"] == 0
    actions = envs.action_space.sample()
    assert_echoed(envs.step(actions)[0], actions)


@pytest.mark.parametrize("key", ["move", "gears", "keys", "push", "pixels", "brake"])
def test_a_missing_key_is_an_error_that_shows_both_lists(envs, key):
    actions = envs.action_space.sample()
    del actions[key]
    expected = "expected actions with the keys ['move', 'gears', 'keys', 'push', 'pixels', 'brake'], found"
    with pytest.raises(ValueError, match=re.escape(f"{expected} the keys {list(actions)}")):
        envs.step(dict(actions))
    assert envs.stats["steps"] == 0


@pytest.mark.parametrize(
    "actions", [np.zeros(5), [1, 2, 3], 3, "move", object(), {}], ids=lambda one: type(one).__name__
)
def test_actions_that_are_not_a_dict_are_an_error(envs, actions):
    with pytest.raises(ValueError, match="expected actions with the keys"):
        envs.step(actions)


def test_the_action_buffer_is_a_dict_of_arrays(envs):
    actions = envs.action_space.sample()
    for key, value in actions.items():
        envs.actions[key][...] = value
    assert_echoed(envs.step()[0], actions)
    envs.actions["keys"][3, 0] = 7
    with pytest.raises(ValueError, match="action 'keys' .* of row 3"):
        envs.step()


def test_final_observations_are_dicts_of_their_row(library):
    with shoal.make_vec(library, 3, autoreset_mode="SameStep") as envs:
        envs.reset(seed=0)
        for _ in range(3):
            actions = envs.action_space.sample()
            observation, _, _, truncated, info = envs.step(actions)
        assert truncated.all() and info["_final_obs"].all()
        assert not any(value.any() for value in observation.values())
        for row in range(3):
            assert_echoed(info["final_obs"][row], {key: value[row] for key, value in actions.items()})


@pytest.mark.parametrize("buffers", ["leased", "live", "copy"])
def test_every_kind_of_buffer_serves_dicts(library, buffers):
    with shoal.make_vec(library, 2, buffers=buffers, num_threads=1) as envs:
        envs.reset(seed=0)
        kept = []
        for _ in range(3):
            actions = envs.action_space.sample()
            observation = envs.step(actions)[0]
            assert_echoed(observation, actions)
            kept.append((observation, actions))
        if buffers != "live":
            for observation, actions in kept:
                assert_echoed(observation, actions)


def test_nan_from_a_plug_in_is_returned(library):
    with shoal.make_vec(library, 2, nan=1, max_episode_steps=2) as envs:
        envs.reset(seed=0)
        for _ in range(6):
            observation, rewards, _, truncated, _ = envs.step(envs.action_space.sample())
            if not observation["push"].any():
                assert not rewards.any()  # a reset
                continue
            assert np.isnan(observation["push"][:, 1]).all() and not np.isnan(observation["push"][:, 0]).any()
            assert np.isnan(rewards).all()
        assert envs.stats["episodes"] == 4 and np.isnan(envs.stats["mean_return"])
        assert envs.stats["mean_length"] == 2


def test_unchecked_actions_are_passed_unchanged(library):
    with shoal.make_vec(library, 2, check=()) as envs:
        envs.reset(seed=0)
        actions = envs.action_space.sample()
        actions["move"][1] = 99
        actions["push"][0, 0] = np.nan
        observation = envs.step(actions)[0]
        assert observation["move"][1] == 99 and np.isnan(observation["push"][0, 0])
