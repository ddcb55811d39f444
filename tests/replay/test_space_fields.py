"""Fields from spaces: values of any space of fixed size are read back unchanged, by field name."""

import string

import numpy as np
import pytest
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
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import LayoutError, SpaceError, SpaceKeyError
from shoal.replay import ReplayBuffer, TrajectoryBuffer

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
LEAVES = st.one_of(
    SHAPES.map(lambda shape: Box(-1, 1, shape, np.float32)),
    SHAPES.map(lambda shape: Box(0, 255, shape, np.uint8)),
    st.integers(1, 9).map(Discrete),
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(MultiDiscrete),
    st.integers(1, 5).map(MultiBinary),
)
KEYS = st.text(string.ascii_lowercase + "/~0", max_size=3)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=3).map(Dict),
        st.lists(inner, max_size=3).map(Tuple),
    ),
    max_leaves=6,
)
ROBOT = Dict(joints=Box(-1, 1, (2,), np.float32), grip=Discrete(2), eyes=Tuple([MultiBinary(3), Discrete(5)]))


def leaves(value):
    """Returns the arrays of a nested value in the order of its space."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


@given(SPACES, st.integers(0, 2**31 - 1), st.booleans())
def test_values_of_any_space_of_fixed_size_are_read_back(space, seed, named):
    fields = {"obs": space, "reward": (np.float32, ())} if named else space
    space.seed(seed)
    rows = [space.sample() for _ in range(3)]
    if not leaves(rows[0]):
        if not named:
            with pytest.raises(LayoutError, match="at least one field"):
                ReplayBuffer(4, fields)
        return
    batched = batch_space(space, 2)
    batched.seed(seed)
    more = batched.sample()
    with ReplayBuffer(8, fields) as buffer:
        for number, row in enumerate(rows):
            assert buffer.push({"obs": row, "reward": 1.0} if named else row) == number
        assert list(buffer.extend({"obs": more, "reward": np.ones(2)} if named else more)) == [3, 4]
        stored = buffer.latest(5)
        assert list(stored) == list(buffer.fields)
        parts = [array for name, array in stored.items() if name != "reward" or not named]
        assert len(parts) == len(leaves(more))
        for number, row in enumerate(rows):
            for array, leaf in zip(parts, leaves(row), strict=True):
                assert array.dtype == np.asarray(leaf).dtype
                assert np.array_equal(array[number], leaf)
        for array, leaf in zip(parts, leaves(more), strict=True):
            assert np.array_equal(array[3:], leaf)
        assert list(buffer.extend(dict(stored))) == [5, 6, 7, 8, 9]  # what came out goes in


def test_fields_are_named_by_their_path():
    with ReplayBuffer(4, {"obs": ROBOT, "action": (np.int64, ()), "aim": Box(-1, 1, (3,))}) as buffer:
        assert list(buffer.fields) == [
            "obs/joints", "obs/grip", "obs/eyes/0", "obs/eyes/1", "action", "aim",
        ]  # fmt: skip
        assert buffer.fields["obs/joints"] == (np.float32, (2,)) and buffer.fields["aim"][1] == (3,)
    with ReplayBuffer(4, ROBOT) as buffer:
        assert list(buffer.fields) == ["joints", "grip", "eyes/0", "eyes/1"]
    with ReplayBuffer(4, Tuple([Discrete(2), ROBOT])) as buffer:
        assert list(buffer.fields) == ["0", "1/joints", "1/grip", "1/eyes/0", "1/eyes/1"]
    with ReplayBuffer(4, Dict({"a/b": Discrete(2), "a": Dict(b=Discrete(3))})) as buffer:
        assert set(buffer.fields) == {"a~1b", "a/b"}
        buffer.push({"a/b": 1, "a": {"b": 2}})
        assert {name: int(array[0]) for name, array in buffer.latest(1).items()} == {"a~1b": 1, "a/b": 2}


def test_a_given_field_name_is_kept():
    with ReplayBuffer(4, {"obs/camera": Dict(left=Discrete(9)), "x~y": (np.int64, ())}) as buffer:
        assert list(buffer.fields) == ["obs/camera/left", "x~y"]
        buffer.push({"obs/camera": {"left": 7}, "x~y": 3})
        buffer.push({"obs/camera/left": 8, "x~y": 4})
        assert buffer.latest(2)["obs/camera/left"].tolist() == [7, 8]


def test_a_space_of_one_array_is_the_field_value():
    with ReplayBuffer(4, Box(-9, 9, (3,), np.float32)) as buffer:
        assert list(buffer.fields) == ["value"]
        buffer.push(np.ones(3, np.float32))
        buffer.push((1, 2, 3))
        buffer.push({"value": [4, 5, 6]})
        buffer.extend(np.zeros((1, 3), np.float32))
        assert buffer.latest(4)["value"].tolist() == [[1, 1, 1], [1, 2, 3], [4, 5, 6], [0, 0, 0]]


@pytest.mark.parametrize(
    "space", [Text(5), Sequence(Discrete(2)), OneOf([Discrete(2)]), Graph(Box(0, 1), None)]
)
def test_error_for_a_space_without_a_fixed_size_names_its_path(space):
    with pytest.raises(SpaceError, match=f"the space: {type(space).__name__} has no fixed size.* use Box"):
        ReplayBuffer(4, space)
    with pytest.raises(SpaceError, match=f"^obs/deep/1: {type(space).__name__} has no fixed size"):
        ReplayBuffer(4, {"obs": Dict(deep=Tuple([Discrete(2), space]))})
    with pytest.raises(SpaceError, match=f"^obs: {type(space).__name__} has no fixed size"):
        TrajectoryBuffer(4, space, Discrete(2), 1, AutoresetMode.NEXT_STEP)


def test_row_that_does_not_fit_its_space_raises_and_stores_nothing():
    fitting = {"joints": [0, 0], "grip": 1, "eyes": (np.zeros(3, np.int8), 4)}
    with ReplayBuffer(4, ROBOT) as buffer:
        for change, error, match in [
            ({"eyes": (np.zeros(3, np.int8),)}, SpaceKeyError, "expected the keys .* found"),
            ({"eyes": (np.zeros(3, np.int8), 4, 4)}, SpaceKeyError, "eyes/2"),
            ({"grip": {"left": 1}}, SpaceError, "field 'grip'"),
            ({"more": 1}, SpaceKeyError, "more"),
            ({"joints": [0, 0, 0]}, SpaceError, "field 'joints'"),
            ({"eyes/0": np.zeros(3, np.int8)}, SpaceKeyError, "expected the keys"),  # given twice
        ]:
            with pytest.raises(error, match=match):
                buffer.push(fitting | change)
        for other in (5, [1, 2], "text"):
            with pytest.raises(TypeError, match="expected a dict with the keys \\['joints'"):
                buffer.push(other)
        assert buffer.total_pushed == 0
        buffer.push(fitting)
        assert buffer.latest(1)["eyes/1"].tolist() == [4]


def test_duplicate_names_and_invalid_fields_raise():
    with pytest.raises(LayoutError, match="two fields have the name 'obs/x'"):
        ReplayBuffer(4, {"obs": Dict(x=Discrete(2)), "obs/x": (np.int64, ())})
    with pytest.raises(LayoutError, match="fields must be a space, or a mapping"):
        ReplayBuffer(4, 5)
    with pytest.raises(LayoutError, match="name must be a str"):
        ReplayBuffer(4, {3: Discrete(2)})


def test_fields_of_a_space_are_kept_in_a_file(tmp_path):
    with ReplayBuffer(4, ROBOT, path=tmp_path / "rows") as buffer:
        ROBOT.seed(0)
        buffer.push(ROBOT.sample())
        buffer.save(tmp_path / "saved")
    for again in (ReplayBuffer.open(tmp_path / "rows"), ReplayBuffer.load(tmp_path / "saved")):
        with again:
            again.push(ROBOT.sample())
            assert list(again.fields) == ["joints", "grip", "eyes/0", "eyes/1"] and len(again) == 2


def test_keys_with_slashes_work_in_observations_of_vector_environments():
    space = Dict({"a/b": Discrete(9), "~": Tuple([Discrete(9)])})
    with TrajectoryBuffer(20, space, MultiDiscrete([3, 3]), 2, AutoresetMode.SAME_STEP, seed=0) as buffer:
        buffer.begin({"a/b": np.zeros(2, np.int64), "~": (np.zeros(2, np.int64),)})
        seen = {"a/b": np.ones(2, np.int64), "~": (np.ones(2, np.int64),)}
        last = {"a/b": 5, "~": (6,)}
        infos = {"final_obs": np.array([last, None], object)}
        flags = np.array([True, False]), np.zeros(2, np.bool_)
        buffer.add(np.zeros((2, 2), np.int64), seen, np.zeros(2), *flags, infos)
        batch = buffer.sample(50)
        assert set(batch["next_obs/a~1b"]) == {1, 5} and set(batch["next_obs/~0/0"]) == {1, 6}
