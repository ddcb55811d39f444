"""Sequence and Graph in shared memory, given a bound."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, GraphInstance, Sequence
from gymnasium.utils.env_checker import data_equivalence

import shoal.spaces as ours
from shoal.errors import SpaceError, SpaceIndexError
from tests.spaces.samples import DYNAMIC

BOUNDS = {"max_length": 64, "max_nodes": 10, "max_edges": 90}


@pytest.mark.parametrize("space", DYNAMIC, ids=str)
def test_every_dynamic_space_reads_back_what_was_written(space):
    space.seed(7)
    values = [space.sample() for _ in range(5)]
    memory = ours.create_shared_memory(space, 5, **BOUNDS)
    for index, value in enumerate(values):
        ours.write_to_shared_memory(space, index, value, memory)
    batch = ours.read_from_shared_memory(space, memory, 5)
    for index, value in enumerate(values):
        assert data_equivalence(memory.read_one(index), value)
        if isinstance(batch, tuple):
            assert data_equivalence(batch[index], value)
            assert space.contains(batch[index])


def test_a_shorter_value_after_a_longer_one_leaves_nothing_of_it():
    space = Sequence(Discrete(9))
    memory = ours.create_shared_memory(space, 2, max_length=4)
    ours.write_to_shared_memory(space, 1, (1, 2, 3, 4), memory)
    ours.write_to_shared_memory(space, 1, (5,), memory)
    assert ours.read_from_shared_memory(space, memory, 2) == ((), (5,))


@pytest.mark.parametrize("stack", [False, True])
def test_an_empty_and_a_full_sequence_fit_and_one_more_does_not(stack):
    space = Sequence(Box(0, 1, (2,)), stack=stack)
    memory = ours.create_shared_memory(space, 1, max_length=3)
    for length in (3, 0, 2):
        value = np.full((length, 2), 0.5, np.float32)
        ours.write_to_shared_memory(space, 0, value if stack else tuple(value), memory)
        (found,) = ours.read_from_shared_memory(space, memory, 1)
        assert len(found) == length
    value = np.zeros((4, 2), np.float32)
    with pytest.raises(SpaceIndexError, match="4 elements, .* at most 3; raise max_length"):
        ours.write_to_shared_memory(space, 0, value if stack else tuple(value), memory)
    (found,) = ours.read_from_shared_memory(space, memory, 1)
    assert np.array_equal(np.asarray(found), np.full((2, 2), 0.5))


def test_stacked_parts_of_different_length_are_refused():
    space = Sequence(Dict(a=Discrete(3), b=Discrete(3)), stack=True)
    memory = ours.create_shared_memory(space, 1, max_length=3)
    with pytest.raises(SpaceError, match="the same number of elements"):
        ours.write_to_shared_memory(space, 0, {"a": [1, 2], "b": [1]}, memory)


GRAPH = Graph(Box(-1, 1, (2,)), Discrete(5))


def graph(nodes=3, edges=2, links=None):
    links = np.zeros((edges, 2), np.int32) if links is None else np.array(links, np.int32)
    return GraphInstance(np.ones((nodes, 2), np.float32), np.arange(edges), links)


def test_graph_without_edges_reads_back_without_edges():
    memory = ours.create_shared_memory(GRAPH, 2, max_nodes=3, max_edges=2)
    ours.write_to_shared_memory(GRAPH, 0, graph(), memory)
    ours.write_to_shared_memory(GRAPH, 0, GraphInstance(np.ones((1, 2)), None, None), memory)
    found, untouched = ours.read_from_shared_memory(GRAPH, memory, 2)
    assert (found.edges, found.edge_links) == (None, None)
    assert found.nodes.shape == (1, 2)
    assert untouched.nodes.shape == (0, 2)


BAD_GRAPHS = {
    "too many nodes": (graph(nodes=4), "4 elements, .* at most 3"),
    "too many edges": (graph(edges=3), "3 elements, .* at most 2"),
    "links without edges": (
        GraphInstance(np.ones((1, 2)), None, np.zeros((1, 2))),
        "both be given or both be",
    ),
    "edges without links": (GraphInstance(np.ones((1, 2)), np.zeros(1), None), "both be given or both be"),
    "fewer links than edges": (
        graph(edges=2, links=[[0, 0]]),
        "expected 2 edge_links, one per edge, found 1",
    ),
    "a link to no node": (graph(links=[[0, 3], [0, 0]]), "a node from 0 to 2"),
    "a negative link": (graph(links=[[0, -1], [0, 0]]), "a node from 0 to 2"),
    "wrong node shape": (
        GraphInstance(np.ones((1, 3)), None, None),
        r"elements of shape \(2,\), found \(3,\)",
    ),
    "no graph": ((1, 2, 3), "expected a GraphInstance, found tuple"),
}


@pytest.mark.parametrize("case", BAD_GRAPHS)
def test_a_bad_graph_raises_and_writes_nothing(case):
    value, message = BAD_GRAPHS[case]
    memory = ours.create_shared_memory(GRAPH, 1, max_nodes=3, max_edges=2)
    ours.write_to_shared_memory(GRAPH, 0, graph(), memory)
    segment = memory.counts.segment
    before = {name: array.tobytes() for name, array in segment.items()}
    with pytest.raises(SpaceError, match=message):
        ours.write_to_shared_memory(GRAPH, 0, value, memory)
    assert {name: array.tobytes() for name, array in segment.items()} == before


def test_a_space_without_edges_refuses_them():
    space = Graph(Discrete(3), None)
    memory = ours.create_shared_memory(space, 1, max_nodes=3)
    with pytest.raises(SpaceError, match="the space has no edge space, but the value has edges"):
        ours.write_to_shared_memory(space, 0, GraphInstance([1], [1], [[0, 0]]), memory)


def test_a_graph_read_is_a_view():
    memory = ours.create_shared_memory(GRAPH, 1, max_nodes=3, max_edges=2)
    ours.write_to_shared_memory(GRAPH, 0, graph(), memory)
    (one,) = ours.read_from_shared_memory(GRAPH, memory, 1)
    (other,) = ours.read_from_shared_memory(GRAPH, memory, 1)
    one.nodes[0, 0] = 0.125
    assert other.nodes[0, 0] == 0.125
