"""Turns a space into fields: register a function with `declare` to support a new kind of space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, NoReturn, TypeAlias

import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)

from shoal.memory import Segment
from shoal.memory.layout import FieldSpec
from shoal.spaces.bounded import GraphMemory, SequenceMemory
from shoal.spaces.decoded import OneOfMemory, TextMemory
from shoal.spaces.memory import DictMemory, LeafMemory, Memory, TupleMemory

__all__ = ["Bind", "Bounds", "Declaration", "declare", "escape_key"]

Bind: TypeAlias = Callable[[Segment], Memory]
"""A function that makes the memory when the segment exists."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The maximum sizes of Sequence and Graph values; None: not given.

    >>> Bounds(max_length=16)
    Bounds(max_length=16, max_nodes=None, max_edges=None)
    """

    max_length: int | None = None
    max_nodes: int | None = None
    max_edges: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_length", "max_nodes", "max_edges"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
            if value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}")


@dataclass(slots=True)
class Declaration:
    """Collects the fields of one segment from one or several spaces.

    >>> declaration = Declaration(Bounds(max_length=4))
    >>> bind = declaration.space(Sequence(Box(0, 1, (2,)), stack=True), "items", rows=8)
    >>> declaration.fields["items/feature"]
    (dtype('float32'), (32, 2))
    """

    bounds: Bounds = field(default_factory=Bounds)
    fields: dict[str, FieldSpec] = field(default_factory=dict)
    custom: Callable[[Space[Any], str, int], Bind | None] = lambda space, path, rows: None
    """Called first; returns None unless the space has custom functions."""

    def space(self, space: Space[Any], path: str, rows: int) -> Bind:
        """Adds the fields of `rows` values of `space` under `path`."""
        return self.custom(space, path, rows) or declare(space, self, path, rows)

    def leaf(self, path: str, dtype: Any, shape: tuple[int, ...]) -> Bind:
        """Adds one array."""
        self.fields[path] = (dtype, shape)
        return lambda segment: LeafMemory(segment, path)


@singledispatch
def declare(space: Any, into: Declaration, path: str, rows: int) -> Bind:
    """Adds the fields of `rows` values of `space` to `into`; returns a function that makes their memory.

    >>> declaration = Declaration()
    >>> bind = declare(Dict(camera=Box(0, 255, (2, 2), np.uint8)), declaration, "observation", 8)
    >>> declaration.fields
    {'observation/camera': (dtype('uint8'), (8, 2, 2))}
    """
    raise TypeError(f"no layout is registered for {type(space)}; register one with declare.register")


@declare.register(Box)
@declare.register(Discrete)
@declare.register(MultiDiscrete)
@declare.register(MultiBinary)
def _declare_array(space: Space[Any], into: Declaration, path: str, rows: int) -> Bind:
    assert space.shape is not None
    return into.leaf(path, space.dtype, (rows, *space.shape))


@declare.register(Text)
def _declare_text(space: Text, into: Declaration, path: str, rows: int) -> Bind:
    into.leaf(path, np.int32, (rows, space.max_length))
    characters = space.character_list
    return lambda segment: TextMemory(segment, path, characters)


@declare.register(Dict)
def _declare_dict(space: Dict, into: Declaration, path: str, rows: int) -> Bind:
    binds = [
        (key, into.space(subspace, f"{path}/{escape_key(key)}", rows))
        for key, subspace in space.spaces.items()
    ]
    return lambda segment: DictMemory(path, rows, [(key, bind(segment)) for key, bind in binds])


@declare.register(Tuple)
def _declare_tuple(space: Tuple[Any], into: Declaration, path: str, rows: int) -> Bind:
    binds = [into.space(subspace, f"{path}/{i}", rows) for i, subspace in enumerate(space.spaces)]
    return lambda segment: TupleMemory(path, rows, [bind(segment) for bind in binds])


@declare.register(OneOf)
def _declare_oneof(space: OneOf[Any], into: Declaration, path: str, rows: int) -> Bind:
    binds = [into.leaf(f"{path}/index", np.int64, (rows,))]
    binds += [into.space(subspace, f"{path}/{i}", rows) for i, subspace in enumerate(space.spaces)]
    return lambda segment: OneOfMemory(path, rows, [bind(segment) for bind in binds])


@declare.register(Sequence)
def _declare_sequence(space: Sequence, into: Declaration, path: str, rows: int) -> Bind:
    longest = into.bounds.max_length
    if longest is None:
        _raise_unbounded(space, "max_length")
    lengths = into.leaf(f"{path}/length", np.int64, (rows,))
    feature = into.space(space.feature_space, f"{path}/feature", rows * longest)
    stack = space.stack
    return lambda segment: SequenceMemory(path, _leaf(lengths, segment), feature(segment), longest, stack)


@declare.register(Graph)
def _declare_graph(space: Graph, into: Declaration, path: str, rows: int) -> Bind:
    max_nodes, max_edges = into.bounds.max_nodes, into.bounds.max_edges
    if max_nodes is None:
        _raise_unbounded(space, "max_nodes")
    counts = into.leaf(f"{path}/counts", np.int64, (rows, 2))
    nodes = into.space(space.node_space, f"{path}/nodes", rows * max_nodes)
    if space.edge_space is None:
        return lambda segment: GraphMemory(path, _leaf(counts, segment), nodes(segment), None, None)
    if max_edges is None:
        _raise_unbounded(space, "max_edges")
    edges = into.space(space.edge_space, f"{path}/edges", rows * max_edges)
    links = into.leaf(f"{path}/links", np.int32, (rows * max_edges, 2))
    return lambda segment: GraphMemory(
        path, _leaf(counts, segment), nodes(segment), edges(segment), _leaf(links, segment)
    )


def _leaf(bind: Bind, segment: Segment) -> LeafMemory:
    memory = bind(segment)
    assert isinstance(memory, LeafMemory)
    return memory


def _raise_unbounded(space: Space[Any], bound: str) -> NoReturn:
    # The message is exactly Gymnasium's, because callers match it; the advice is in a note.
    error = TypeError(
        f"As {space} has a dynamic shape so its not possible to make a static shared memory. "
        "For `AsyncVectorEnv`, disable `shared_memory`."
    )
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"Shoal can store it if it has a maximum size: pass {bound}=")
    raise error


def escape_key(key: object) -> str:
    """Returns a Dict key as one part of a path; different keys give different parts."""
    if isinstance(key, str):
        return key.replace("~", "~0").replace("/", "~1").replace("\0", "~4") or "~2"
    return f"~3{key!r}".replace("/", "~1")
