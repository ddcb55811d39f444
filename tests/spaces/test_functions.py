"""The three functions against Gymnasium's: same results, same errors, same extension points."""

import gymnasium.vector.utils as theirs
import numpy as np
import pytest
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Box, Dict, Discrete, Space, Text, Tuple
from gymnasium.utils.env_checker import data_equivalence
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal.spaces as ours
from shoal.memory import Layout, Segment
from shoal.spaces.memory import LeafMemory
from tests.spaces.samples import DYNAMIC, FIXED, NESTED_ONEOF, any_spaces, fixed_spaces


def filled(functions, space, n, values, **bounds):
    memory = functions.create_shared_memory(space, n, **bounds)
    for index, value in enumerate(values):
        functions.write_to_shared_memory(space, index, value, memory)
    return memory, functions.read_from_shared_memory(space, memory, n)


def types(value):
    if isinstance(value, dict):
        return {key: types(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return (type(value), tuple(types(item) for item in value))
    return type(value)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("space", FIXED, ids=str)
def test_every_fixed_space_reads_back_exactly_as_from_gymnasium(space, n):
    space.seed(1)
    values = [space.sample() for _ in range(n)]
    _, expected = filled(theirs, space, n, values)
    _, found = filled(ours, space, n, values)
    assert data_equivalence(found, expected)
    assert types(found) == types(expected)
    assert theirs.batch_space(space, n).contains(found)


@pytest.mark.parametrize("space", FIXED, ids=str)
def test_untouched_memory_reads_as_in_gymnasium(space):
    _, expected = filled(theirs, space, 3, [])
    _, found = filled(ours, space, 3, [])
    assert data_equivalence(found, expected)


@settings(max_examples=80, deadline=None)
@given(space=fixed_spaces, seed=st.integers(0, 2**31), n=st.integers(1, 4))
def test_random_nested_spaces_agree_with_gymnasium(space, seed, n):
    space.seed(seed)
    values = [space.sample() for _ in range(n)]
    _, expected = filled(theirs, space, n, values)
    _, found = filled(ours, space, n, values)
    assert data_equivalence(found, expected)


@settings(max_examples=80, deadline=None)
@given(space=any_spaces, seed=st.integers(0, 2**31), n=st.integers(1, 3))
def test_any_nesting_gives_every_environment_its_own_value_back(space, seed, n):
    space.seed(seed)
    values = [space.sample() for _ in range(n)]
    memory, _ = filled(ours, space, n, values, max_length=64)
    for index, value in enumerate(values):
        assert same(memory.read_one(index), value)


def same(found, expected):
    """Equal values of equal dtype; a 0-d array and a NumPy scalar are one, as indexing a batch makes them."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, str):
        return found == expected
    return np.asarray(found).dtype == np.asarray(expected).dtype and np.array_equal(found, expected)


@pytest.mark.parametrize("space", NESTED_ONEOF, ids=str)
def test_oneof_over_dicts_and_tuples_reads_back_where_gymnasium_cannot(space):
    space.seed(3)
    values = [space.sample() for _ in range(16)]
    _, found = filled(ours, space, 16, values)
    for value, back in zip(values, found, strict=True):
        assert back[0] == value[0]
        assert data_equivalence(back[1], value[1])


def test_float128_reads_back_exactly():
    longdouble = np.dtype(np.longdouble)
    space = Box(-1, 1, (2,), longdouble)
    value = np.array([1, 3], longdouble) / 7
    _, found = filled(ours, space, 1, [value])
    assert found.dtype == longdouble
    assert (found[0] == value).all()


def test_read_gives_writeable_views_of_the_same_memory_every_time():
    space = Dict(a=Box(-1, 1, (2,)), b=Tuple((Discrete(3), Box(0, 255, (2, 2), np.uint8))))
    memory, first = filled(ours, space, 4, [])
    second = ours.read_from_shared_memory(space, memory, 4)
    pairs = [
        (first["a"], second["a"]),
        (first["b"][0], second["b"][0]),
        (first["b"][1], second["b"][1]),
    ]
    for one, other in pairs:
        assert one is other
        assert one.flags.writeable
    first["b"][0][2] = 2
    assert second["b"][0].tolist() == [0, 0, 2, 0]


def test_one_segment_holds_a_whole_nested_space():
    space = Dict(a=Box(-1, 1, (2,)), b=Tuple((Discrete(3), Text(4))))
    memory = ours.create_shared_memory(space, 2)
    leaves = [memory["a"], memory["b"][0], memory["b"][1]]
    assert len({id(leaf.segment) for leaf in leaves}) == 1
    assert leaves[0].segment.layout == Layout(
        {"value/a": ("f4", (2, 2)), "value/b/0": ("i8", (2,)), "value/b/1": ("i4", (2, 4))}
    )


def test_gymnasiums_functions_work_on_our_memory_and_ours_on_theirs():
    space = Dict(a=Box(-1, 1, (2,)), t=Text(3))
    value = {"a": np.array([0.25, -1], np.float32), "t": "ab"}
    mixed = ours.create_shared_memory(space, 2)
    theirs.write_to_shared_memory(space, 1, value, mixed)
    assert data_equivalence(ours.read_from_shared_memory(space, mixed, 2)["a"][1], value["a"])
    assert theirs.read_from_shared_memory(space, mixed, 2)["t"][1] == "ab"
    mixed = theirs.create_shared_memory(space, 2)
    ours.write_to_shared_memory(space, 1, value, mixed)
    assert ours.read_from_shared_memory(space, mixed, 2)["t"][1] == "ab"


class Unknown(Space):
    pass


@pytest.mark.parametrize(
    "space", [Unknown(), "space", None, 3, Box], ids=["unknown", "str", "None", "int", "class"]
)
@pytest.mark.parametrize("name", ["create", "read_from", "write_to"])
def test_unknown_space_raises_gymnasiums_error(space, name):
    arguments = {"create": (), "read_from": (None, 1), "write_to": (0, None, None)}[name]
    with pytest.raises((CustomSpaceError, TypeError)) as expected:
        getattr(theirs, f"{name}_shared_memory")(space, *arguments)
    with pytest.raises((CustomSpaceError, TypeError)) as found:
        getattr(ours, f"{name}_shared_memory")(space, *arguments)
    assert found.type is expected.type
    assert str(found.value) == str(expected.value)


def test_an_unknown_space_inside_a_dict_raises_gymnasiums_error():
    with pytest.raises(CustomSpaceError, match="doesn't have an registered `create_shared_memory`"):
        ours.create_shared_memory(Dict(a=Discrete(2), b=Unknown()))


@pytest.mark.parametrize("space", DYNAMIC, ids=str)
def test_without_bounds_dynamic_spaces_raise_gymnasiums_error(space):
    with pytest.raises(TypeError) as expected:
        theirs.create_shared_memory(space)
    with pytest.raises(TypeError) as found:
        ours.create_shared_memory(space)
    assert str(found.value) == str(expected.value)
    if hasattr(found.value, "__notes__"):
        assert "max_" in found.value.__notes__[0]


@pytest.mark.parametrize("n", [-1, 1.5, "3", True, None])
def test_a_bad_number_of_environments_is_an_error(n):
    with pytest.raises((TypeError, ValueError), match="number of environments"):
        ours.create_shared_memory(Discrete(2), n)


def test_reading_another_number_of_environments_is_an_error():
    memory = ours.create_shared_memory(Discrete(2), 3)
    with pytest.raises(ValueError, match="holds 3 environments, but n is 1"):
        ours.read_from_shared_memory(Discrete(2), memory)


class Celsius(Space):
    """A custom space: a temperature, kept as a float."""

    def sample(self, mask=None, probability=None):
        return 36.6


def register(functions, kind):
    """The three functions a Gymnasium user writes for a custom space."""
    functions.create_shared_memory.register(kind, lambda space, n=1, ctx=None: np.zeros(n))
    functions.read_from_shared_memory.register(kind, lambda space, memory, n=1: memory * 1)

    def write(space, index, value, memory):
        if value < -273.15:
            raise ArithmeticError("colder than nothing")
        memory[index] = value

    functions.write_to_shared_memory.register(kind, write)


@pytest.mark.parametrize("functions", [ours, theirs], ids=["shoal", "gymnasium"])
def test_a_custom_space_registered_with_either_library_works_alone_and_nested(functions):
    kind = type("Custom", (Celsius,), {})
    register(functions, kind)
    space = kind()
    memory, found = filled(ours, space, 2, [20.0, 30.0])
    assert found.tolist() == [20, 30]
    assert isinstance(memory, np.ndarray)

    nested = Dict(temperature=kind(), camera=Box(0, 1, (2,)))
    memory, found = filled(ours, nested, 2, [{"temperature": 1.5, "camera": [1, 0]}])
    assert found["temperature"].tolist() == [1.5, 0]
    assert found["camera"].tolist() == [[1, 0], [0, 0]]
    assert isinstance(memory["temperature"], np.ndarray)
    with pytest.raises(ArithmeticError):
        ours.write_to_shared_memory(nested, 1, {"temperature": -300, "camera": [1, 1]}, memory)
    assert found["camera"].tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize("functions", [ours, theirs], ids=["shoal", "gymnasium"])
def test_a_function_registered_for_a_subclass_of_box_wins_over_ours(functions):
    kind = type("Thermometer", (Box,), {})
    register(functions, kind)
    _, found = filled(ours, Dict(t=kind(-300, 300, ())), 2, [{"t": 4.0}])
    assert found["t"].tolist() == [4, 0]
    assert type(found["t"]) is np.ndarray and found["t"].dtype == np.float64


def test_one_registered_declaration_is_enough_for_a_new_space():
    kind = type("Declared", (Celsius,), {})
    ours.declare.register(kind, lambda space, into, path, rows: into.leaf(path, np.float32, (rows,)))
    space = Dict(temperature=kind(), other=Discrete(3))
    memory, found = filled(ours, space, 2, [{"temperature": 1.5, "other": 2}])
    assert found["temperature"].tolist() == [1.5, 0]
    alone, found = filled(ours, kind(), 2, [36.6])
    assert isinstance(alone, LeafMemory)
    assert isinstance(alone.segment, Segment)
    assert found[0] == np.float32(36.6)
