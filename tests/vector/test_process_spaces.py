"""Every space as observation and as action, in shared memory or as messages, equals SyncVectorEnv."""

import copy
import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)
from gymnasium.vector import SyncVectorEnv

import shoal
from shoal.errors import SpaceIndexError
from shoal.vector import ProcessVectorEnv
from tests.spaces.samples import DTYPES, DYNAMIC, FIXED, NESTED_ONEOF
from tests.vector.test_process_envs import Counter, Sampler, Words, assert_same, logged

BOUNDS = {"max_length": 24, "max_nodes": 12, "max_edges": 128}
STEPS = 6
BOXES = Dict({np.dtype(dtype).name: Box(0, 1, (2, 3), dtype) for dtype in DTYPES})
IN_MEMORY = [
    BOXES,
    Box(0, 1, (2,), np.float16),
    Box(-1, 1, (), np.float64),
    *FIXED[len(DTYPES) :],
    *NESTED_ONEOF,
]


def assert_same_as_sync(space, num_envs=3, **kwargs):
    """Observations and actions of `space`, step by step; gives the vector environment, still open."""
    maker = functools.partial(Sampler, space, space)
    theirs = SyncVectorEnv([maker] * num_envs)
    ours = ProcessVectorEnv([maker] * num_envs, num_workers=2, **kwargs)
    try:
        ours.action_space.seed(3)
        assert ours.single_observation_space == theirs.single_observation_space
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        kept, copies = [], []
        found, expected = ours.reset(seed=5)[0], theirs.reset(seed=5)[0]
        for _ in range(STEPS):
            assert_same(found, expected)
            kept.append(found)
            copies.append(copy.deepcopy(expected))
            actions = ours.action_space.sample()
            (found, *_, info), (expected, *_, told) = ours.step(actions), theirs.step(actions)
            for one, other in zip(info["seen"], told["seen"], strict=True):
                assert_equal_values(one, other)
        for one, other in zip(kept, copies, strict=True):  # what was kept has not changed
            assert_same(one, other)
        if space != Box(-1, 1, (0,)):
            assert len({repr(one) for one in kept}) > 1  # and every step gave something new
    except BaseException:
        ours.close()
        raise
    return ours


def assert_equal_values(found, expected):
    """Equal, though a scalar may be a Python or a NumPy one."""
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for key in expected:
            assert_equal_values(found[key], expected[key])
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal_values(one, other)
    elif isinstance(expected, np.ndarray):
        assert_same(np.asarray(found), expected)
    else:
        assert found == expected


@pytest.mark.parametrize("space", IN_MEMORY, ids=lambda space: repr(space)[:60])
def test_every_space_of_fixed_size_is_in_shared_memory(space):
    with assert_same_as_sync(space) as envs:
        assert envs._facts.in_segment and envs._backend._actions.kind != "message"


@pytest.mark.parametrize("space", DYNAMIC, ids=lambda space: repr(space)[:60])
def test_a_space_without_a_size_is_bounded_or_travels_by_message(space):
    with assert_same_as_sync(space, num_envs=2, **BOUNDS) as envs:
        assert envs._facts.in_segment and envs._backend._actions.kind == "memory"
    with assert_same_as_sync(space, num_envs=2) as envs:
        assert not envs._facts.in_segment and envs._backend._actions.kind == "message"


@pytest.mark.parametrize(
    "space",
    [Words(), Dict(word=Words(), number=Discrete(5)), Tuple((Box(0, 1, (2,)), Words()))],
    ids=["alone", "in a Dict", "in a Tuple"],
)
def test_custom_space_needs_shared_memory_false(space):
    with assert_same_as_sync(space, shared_memory=False) as envs:
        assert not envs._facts.in_segment
    with pytest.raises(ValueError, match="no layout in shared memory: use shared_memory=False") as caught:
        ProcessVectorEnv([functools.partial(Sampler, space, Discrete(2))] * 2)
    assert isinstance(caught.value.__cause__, CustomSpaceError)


def test_custom_action_space_works():
    with ProcessVectorEnv([functools.partial(Sampler, Discrete(3), Words())] * 2, num_workers=2) as envs:
        envs.reset(seed=0)
        actions = (["a", "b"], ["c"])
        assert [seen[0] for seen in envs.step(actions)[4]["seen"]] == list(actions)
        with pytest.raises(ValueError, match="expected 2 actions, one per environment, found 3"):
            envs.step((["a"], ["b"], ["c"]))


@pytest.mark.parametrize(
    "space", [Text(5, min_length=1), OneOf((Discrete(9), Text(3), Box(0, 1, (2,))))], ids=repr
)
def test_text_and_oneof_observations_change_unlike_gymnasiums(space):
    with ProcessVectorEnv([functools.partial(Sampler, space, Discrete(2))] * 2) as envs:
        seen = [envs.reset(seed=0)[0]]
        seen += [envs.step([0, 0])[0] for _ in range(8)]
        assert len({repr(one) for one in seen}) > 5
        assert all(one in envs.observation_space for one in seen)


@pytest.mark.parametrize(
    ("space", "bound", "value"),
    [
        (Sequence(Discrete(4)), {"max_length": 2}, (1, 2, 3)),
        (Graph(Discrete(4), None), {"max_nodes": 1}, None),
    ],
    ids=["Sequence", "Graph"],
)
def test_value_beyond_its_bound_raises_for_that_environment(space, bound, value):
    class Long(Counter):
        observation_space = space

        def reset(self, *, seed=None, options=None):
            return space.sample(mask=(1, None)) if value else space.sample(num_nodes=1), {}

        def step(self, action):
            long = value or space.sample(num_nodes=3)
            return (long if action else self.reset()[0]), 0.0, False, False, {}

    with ProcessVectorEnv([Long] * 2, num_workers=2, **bound) as envs:
        envs.reset()
        with (
            logged(),
            pytest.raises(SpaceIndexError, match="raise max_length, max_nodes or max_edges") as caught,
        ):
            envs.step([0, 1])
        assert caught.value.env_id == 1
        envs.step([0, 0])


@pytest.mark.parametrize(
    ("space", "bad", "message"),
    [
        (Box(0, 1, (3,)), np.zeros(4, np.float32), r"expected shape \(3,\), found \(4,\)"),
        (Dict(a=Discrete(2)), {"b": 1}, "the key 'a' is missing"),
        (Tuple((Discrete(2), Discrete(2))), (1,), "expected 2 values, found 1"),
        (Text(3), "abcd", "at most 3 characters, found 4"),
        (MultiBinary(2), None, "expected int8"),
    ],
    ids=repr,
)
def test_observation_that_does_not_fit_raises(space, bad, message):
    class Wrong(Counter):
        observation_space = space

        def reset(self, *, seed=None, options=None):
            return space.sample(), {}

        def step(self, action):
            return (bad if action else space.sample()), 0.0, False, False, {}

    with ProcessVectorEnv([Wrong] * 2, num_workers=2) as envs:
        envs.reset()
        with logged(), pytest.raises(ValueError, match=message) as caught:
            envs.step([1, 0])
        assert caught.value.env_id == 0
        envs.step([0, 0])


def test_observations_of_another_dtype_are_converted_to_the_spaces_own():
    class Mixed(Counter):
        observation_space = Dict(
            a=Box(0, 255, (2,), np.uint8), b=Box(-1, 1, (), np.float16), c=Discrete(9, start=-3)
        )

        def reset(self, *, seed=None, options=None):
            return {"a": [3, 250], "b": 0.1, "c": 2}, {}

        def step(self, action):
            return {"a": np.array([1, 2]), "b": np.float64(0.3), "c": np.int8(4)}, 0.0, False, False, {}

    def batch(a, b, c):
        return {"a": np.array([a] * 2, np.uint8), "b": np.array([b] * 2, np.float16), "c": np.array([c] * 2)}

    with ProcessVectorEnv([Mixed] * 2, num_workers=2) as envs:
        assert_same(envs.reset()[0], batch([3, 250], 0.1, 2))
        assert_same(envs.step([0, 0])[0], batch([1, 2], 0.3, 4))


def test_given_spaces_are_used():
    given = Box(-1e6, 1e6, (3,)), Discrete(10)
    with ProcessVectorEnv([Counter] * 2, observation_space=given[0], action_space=given[1]) as envs:
        assert envs.single_observation_space is given[0] and envs.single_action_space is given[1]
        envs.reset()
    with pytest.raises(RuntimeError, match="environments 0, 1 differ from"):
        ProcessVectorEnv([Counter] * 2, observation_space=Box(0, 1, (3,)))
    with pytest.raises(RuntimeError, match="different from `MultiDiscrete"):
        ProcessVectorEnv([Counter] * 2, action_space=MultiDiscrete([2, 2]))


def test_make_vec_passes_bounds_and_shared_memory():
    class Listing(gymnasium.Env):
        observation_space, action_space = Sequence(Discrete(9)), Discrete(2)

        def reset(self, *, seed=None, options=None):
            return (1, 2, 3), {}

        def step(self, action):
            return (4,) * (int(action) + 1), 0.0, False, False, {}

    with shoal.make_vec(Listing, 2, num_workers=1, max_length=4) as envs:
        envs.reset()
        assert envs.step([0, 1])[0] == ((4,), (4, 4))
        assert envs._facts.in_segment  # in shared memory
    with pytest.raises(TypeError, match="max_length is for worker processes"):
        shoal.make_vec("CartPole-v1", 2, max_length=4)
