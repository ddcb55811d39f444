"""Shoal's functions put in the place of Gymnasium's, wherever Gymnasium keeps them."""

import multiprocessing.reduction
import pickle

import gymnasium.vector.async_vector_env
import gymnasium.vector.utils
import gymnasium.vector.utils.shared_memory
import numpy as np
import pytest
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Box, Dict, Discrete, Space, Text
from gymnasium.utils.env_checker import data_equivalence

import shoal.spaces as ours
from tests.spaces.samples import FIXED
from tests.spaces.test_functions import Celsius, filled, register

NAMES = ("create_shared_memory", "read_from_shared_memory", "write_to_shared_memory")
PLACES = (
    gymnasium.vector.utils,
    gymnasium.vector.utils.shared_memory,
    gymnasium.vector.async_vector_env,
)


class Thermometer(Box):
    pass


@pytest.fixture
def swap(monkeypatch):
    def swap_functions():
        for place in PLACES:
            for name in NAMES:
                monkeypatch.setattr(place, name, getattr(ours, name))

    return swap_functions


@pytest.mark.parametrize("space", FIXED, ids=str)
def test_every_space_works_with_the_functions_swapped(space, swap):
    values = [space.sample() for _ in range(3)]
    _, expected = filled(gymnasium.vector.utils, space, 3, values)
    swap()
    for functions in (ours, gymnasium.vector.utils, gymnasium.vector.utils.shared_memory):
        _, found = filled(functions, space, 3, values)
        assert data_equivalence(found, expected)


def test_memory_that_gymnasium_made_before_the_swap_is_still_read_and_written(swap):
    space = Dict(a=Box(-1, 1, (2,)), t=Text(3))
    memory = gymnasium.vector.utils.create_shared_memory(space, 2)
    swap()
    gymnasium.vector.utils.write_to_shared_memory(space, 1, {"a": [0.5, 1], "t": "ab"}, memory)
    found = gymnasium.vector.utils.read_from_shared_memory(space, memory, 2)
    assert found["a"].tolist() == [[0, 0], [0.5, 1]] and found["t"][1] == "ab"


@pytest.mark.parametrize("swap_first", [False, True])
@pytest.mark.parametrize(("base", "arguments"), [(Celsius, ()), (Thermometer, (-300, 300, ()))])
def test_a_custom_space_keeps_its_functions_across_the_swap(swap, swap_first, base, arguments):
    kind = type("Custom", (base,), {})
    if swap_first:
        swap()
    register(gymnasium.vector.utils, kind)
    swap()
    _, found = filled(gymnasium.vector.utils, Dict(t=kind(*arguments), n=Discrete(3)), 2, [{"t": 4, "n": 1}])
    assert found["t"].tolist() == [4, 0] and found["t"].dtype == np.float64


@pytest.mark.parametrize("swap_first", [False, True])
@pytest.mark.parametrize("functions", [ours, gymnasium.vector.utils], ids=["ours", "swapped"])
def test_a_custom_space_that_is_in_no_other_keeps_its_functions_across_the_swap(swap, swap_first, functions):
    kind = type("Custom", (Celsius,), {})
    if swap_first:
        swap()
    register(gymnasium.vector.utils, kind)
    swap()
    _, found = filled(functions, kind(), 2, [4])
    assert found.tolist() == [4, 0] and found.dtype == np.float64


def test_memory_with_a_custom_space_crosses_to_a_process_after_the_swap(swap):
    register(gymnasium.vector.utils, Thermometer)
    space = Dict(t=Thermometer(-300, 300, ()), n=Discrete(3))
    swap()
    memory, _ = filled(ours, space, 2, [{"t": 4.0, "n": 1}])
    again = pickle.loads(multiprocessing.reduction.ForkingPickler.dumps(memory))
    assert ours.read_from_shared_memory(space, again, 2)["t"].tolist() == [4, 0]


@pytest.mark.parametrize("space", [Space(), "space", Dict(a=Space())], ids=["unknown", "str", "dict"])
def test_an_unknown_space_raises_gymnasiums_error_after_the_swap(space, swap):
    swap()
    with pytest.raises((CustomSpaceError, TypeError), match="create_shared_memory"):
        gymnasium.vector.utils.create_shared_memory(space)
