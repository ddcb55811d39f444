"""Values that fit are copied once, values that do not raise and leave every byte as it was."""

import multiprocessing
import os

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, OneOf, Sequence, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import shoal.spaces as ours
from shoal.errors import SpaceError, SpaceIndexError, SpaceKeyError

NESTED = Dict(
    camera=Box(0, 255, (2, 2), np.uint8),
    pair=Tuple((Discrete(5), Box(-1, 1, (3,)))),
    choice=OneOf((Discrete(3), Box(0, 1, (2,)))),
    name=Text(4, charset="abc"),
    items=Sequence(MultiBinary(2)),
)


def good():
    return {
        "camera": np.ones((2, 2), np.uint8),
        "pair": (np.int64(3), np.full(3, 0.5, np.float32)),
        "choice": (1, np.array([0.25, 0.75], np.float32)),
        "name": "cab",
        "items": (np.array([1, 0], np.int8), np.array([1, 1], np.int8)),
    }


def changed(**parts):
    return {**good(), **parts}


def missing(key):
    value = good()
    del value[key]
    return value


BAD = {
    "wrong shape": (
        changed(camera=np.ones((2, 3), np.uint8)),
        SpaceError,
        r"camera: expected shape \(2, 2\)",
    ),
    "scalar for an array": (changed(camera=7), SpaceError, r"expected shape \(2, 2\), found \(\)"),
    "same size, other shape": (changed(camera=np.ones(4, np.uint8)), SpaceError, r"found \(4,\)"),
    "array for a scalar": (changed(pair=(np.array([1]), np.zeros(3))), SpaceError, r"found \(1,\)"),
    "not a number": (changed(camera="x"), SpaceError, "cannot convert"),
    "ragged": (changed(camera=[[1], [1, 2]]), SpaceError, "cannot convert"),
    "tuple too short": (changed(pair=(1,)), SpaceError, "pair: expected 2 values, found 1"),
    "tuple too long": (changed(pair=(1, np.zeros(3), 2)), SpaceError, "expected 2 values, found 3"),
    "no tuple": (changed(pair=3), SpaceError, "expected a tuple of 2 values, found int"),
    "missing key": (missing("pair"), SpaceKeyError, "the key 'pair' is missing"),
    "missing last key": (missing("items"), SpaceKeyError, "the key 'items' is missing"),
    "no dict": (3, SpaceError, "expected a dict with the keys"),
    "array for a dict": (np.zeros(3), SpaceError, "expected a dict"),
    "unknown character": (changed(name="abd"), SpaceKeyError, "the character 'd' of 'abd' is not in"),
    "text too long": (changed(name="abcab"), SpaceIndexError, "at most 4 characters, found 5"),
    "no text": (changed(name=b"ab"), SpaceError, "expected a str, found bytes"),
    "oneof index too large": (changed(choice=(2, 0)), SpaceIndexError, "from 0 to 1, found 2"),
    "oneof index negative": (changed(choice=(-1, 0)), SpaceIndexError, "from 0 to 1, found -1"),
    "oneof wrong value": (changed(choice=(1, [1, 2, 3])), SpaceError, r"choice/1: expected shape \(2,\)"),
    "oneof no pair": (changed(choice=3), SpaceError, r"expected \(index, value\)"),
    "oneof float index": (changed(choice=(0.0, 1)), SpaceError, r"expected \(index, value\)"),
    "sequence too long": (changed(items=(np.zeros(2),) * 4), SpaceIndexError, "4 elements, .* at most 3"),
    "sequence bad element": (changed(items=([0, 1], [1])), SpaceError, r"feature: expected shape \(2,\)"),
    "no sequence": (changed(items=np.zeros((2, 2))), SpaceError, "expected a tuple, found ndarray"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_raises_and_writes_nothing(case):
    value, kind, message = BAD[case]
    memory = ours.create_shared_memory(NESTED, 3, max_length=3)
    ours.write_to_shared_memory(NESTED, 1, good(), memory)
    segment = memory["camera"].segment
    before = {name: array.tobytes() for name, array in segment.items()}
    with pytest.raises(kind, match=message) as caught:
        ours.write_to_shared_memory(NESTED, 1, value, memory)
    assert isinstance(caught.value, ValueError)
    assert {name: array.tobytes() for name, array in segment.items()} == before


@pytest.mark.parametrize("index", [3, 4, -1, 10**12])
@pytest.mark.parametrize("space", [Box(-1, 1, (2,)), Dict(a=Discrete(2)), Text(3)], ids=str)
def test_an_environment_index_out_of_range_raises_and_writes_nothing(space, index):
    memory = ours.create_shared_memory(space, 3)
    leaf = memory["a"] if isinstance(space, Dict) else memory
    with pytest.raises(IndexError, match="out of range for 3 environments"):
        ours.write_to_shared_memory(space, index, space.sample(), memory)
    assert not leaf.segment[leaf.path].any()


def test_a_bad_index_is_an_error_even_when_the_memory_is_empty():
    memory = ours.create_shared_memory(Discrete(2), 0)
    with pytest.raises(IndexError, match="out of range for 0 environments"):
        ours.write_to_shared_memory(Discrete(2), 0, 1, memory)


# Every way an array can be laid out must end as the same bytes, whichever path copies it.
arrays = hnp.arrays(
    dtype=st.sampled_from(["f4", "f8", "f2", ">f4", "i8", "i4", "u1", "?"]),
    shape=st.sampled_from([(3, 2), (2, 3), (3, 4), (6, 2)]),
    elements={"min_value": 0, "max_value": 1},
)


@settings(max_examples=200, deadline=None)
@given(array=arrays, form=st.sampled_from(["plain", "transposed", "reversed", "strided", "readonly", "list"]))
def test_any_memory_order_dtype_and_container_is_written_as_numpy_converts_it(array, form):
    array = {
        "plain": lambda: array,
        "transposed": lambda: array.T,
        "reversed": lambda: array[::-1],
        "strided": lambda: array[:, ::2],
        "readonly": lambda: (array.setflags(write=False), array)[1],
        "list": array.tolist,
    }[form]()
    space = Box(0, 1, (3, 2), np.float32)
    expected = np.asarray(array, np.float32)
    memory = ours.create_shared_memory(space, 2)
    if expected.shape == (3, 2):
        ours.write_to_shared_memory(space, 1, array, memory)
        assert ours.read_from_shared_memory(space, memory, 2)[1].tolist() == expected.tolist()
    else:
        with pytest.raises(SpaceError):
            ours.write_to_shared_memory(space, 1, array, memory)
    assert not ours.read_from_shared_memory(space, memory, 2)[0].any()


def test_a_value_that_is_a_view_of_its_own_row_is_kept():
    space = Box(-1, 1, (4,))
    memory = ours.create_shared_memory(space, 2)
    rows = ours.read_from_shared_memory(space, memory, 2)
    rows[1] = [1, 2, 3, 4]
    ours.write_to_shared_memory(space, 1, rows[1], memory)
    ours.write_to_shared_memory(space, 0, rows[1], memory)
    assert rows.tolist() == [[1, 2, 3, 4], [1, 2, 3, 4]]


def test_dicts_of_other_types_and_extra_keys_are_accepted_as_in_gymnasium():
    from collections import OrderedDict
    from types import MappingProxyType

    space = Dict(a=Discrete(9), b=Box(-1, 1, (1,)))
    memory = ours.create_shared_memory(space, 3)
    for index, kind in enumerate((dict, OrderedDict, MappingProxyType)):
        ours.write_to_shared_memory(space, index, kind({"b": [0.5], "a": index, "extra": 1}), memory)
    assert ours.read_from_shared_memory(space, memory, 3)["a"].tolist() == [0, 1, 2]


def _write_in_child(memory):
    ours.write_to_shared_memory(NESTED, 1, good(), memory)
    assert ours.read_from_shared_memory(NESTED, memory, 2)["name"][0] == "bb"


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_the_memory_crosses_processes_by_any_start_method(method):
    memory = ours.create_shared_memory(NESTED, 2, max_length=3)
    ours.write_to_shared_memory(NESTED, 0, changed(name="bb"), memory)
    child = multiprocessing.get_context(method).Process(target=_write_in_child, args=(memory,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    found = ours.read_from_shared_memory(NESTED, memory, 2)
    assert found["name"] == ("bb", "cab")
    assert found["camera"].tolist() == [[[1, 1], [1, 1]]] * 2
    assert [item.tolist() for item in found["items"][1]] == [[1, 0], [1, 1]]


def test_memory_is_freed_when_it_is_deleted():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        ours.create_shared_memory(NESTED, 2, max_length=3)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("wrong", [1.5, "3", True])
def test_a_bound_must_be_an_int(wrong):
    with pytest.raises(TypeError, match="max_length must be an int"):
        ours.create_shared_memory(NESTED, 2, max_length=wrong)


def test_a_bound_must_not_be_negative():
    with pytest.raises(ValueError, match="max_nodes must be at least 0, got -1"):
        ours.create_shared_memory(NESTED, 2, max_length=1, max_nodes=-1)
