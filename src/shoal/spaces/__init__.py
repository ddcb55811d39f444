"""Gymnasium spaces in shared memory: replacements for the functions of `gymnasium.vector.utils`.

One segment holds a whole nested space, so it can be sent to other processes under any start method. A custom
space works as in Gymnasium: register a function for it here, or keep the one that is registered there.

This module imports Gymnasium's functions when it is loaded, so a program can replace them by these.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import singledispatch
from typing import Any

from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Space
from gymnasium.vector.utils.shared_memory import create_shared_memory as _create_theirs
from gymnasium.vector.utils.shared_memory import read_from_shared_memory as _read_theirs
from gymnasium.vector.utils.shared_memory import write_to_shared_memory as _write_theirs

from shoal.memory import Layout, Segment
from shoal.spaces.declare import Bind, Bounds, Declaration, declare
from shoal.spaces.memory import CustomMemory, Memory

__all__ = [
    "Bounds",
    "Declaration",
    "Memory",
    "create_shared_memory",
    "declare",
    "read_from_shared_memory",
    "write_to_shared_memory",
]


@singledispatch
def create_shared_memory(
    space: Space[Any],
    n: int = 1,
    ctx: Any = multiprocessing,
    *,
    max_length: int | None = None,
    max_nodes: int | None = None,
    max_edges: int | None = None,
) -> Any:
    """Returns zeroed shared memory for `n` values of `space`, nested as in Gymnasium.

    >>> from gymnasium.spaces import Box
    >>> memory = create_shared_memory(Box(-1, 1, (3,)), n=2)
    >>> write_to_shared_memory(Box(-1, 1, (3,)), 1, [0.5, 0.0, 1.0], memory)
    >>> read_from_shared_memory(Box(-1, 1, (3,)), memory, n=2)
    array([[0. , 0. , 0. ],
           [0.5, 0. , 1. ]], dtype=float32)

    The result can be sent to processes of any start method, so `ctx` is accepted but not used. Sequence
    needs `max_length`; Graph needs `max_nodes` and, with an edge space, `max_edges`. Without them it raises
    TypeError, as Gymnasium does.
    """
    if _is_declared(space):
        return _create(space, n, ctx, max_length=max_length, max_nodes=max_nodes, max_edges=max_edges)
    return _find_gymnasium_function(_create_theirs, space)(space, n=n, ctx=ctx)


@singledispatch
def read_from_shared_memory(space: Space[Any], shared_memory: Any, n: int = 1) -> Any:
    """Returns the batched values as views of the memory; Text and OneOf are decoded into tuples.

    >>> from gymnasium.spaces import Discrete
    >>> memory = create_shared_memory(Discrete(4), n=3)
    >>> values = read_from_shared_memory(Discrete(4), memory, n=3)
    >>> write_to_shared_memory(Discrete(4), 1, 2, memory)
    >>> values
    array([0, 2, 0])
    """
    if isinstance(shared_memory, Memory):
        return _read(space, shared_memory, n)
    return _find_gymnasium_function(_read_theirs, space)(space, shared_memory, n=n)


@singledispatch
def write_to_shared_memory(space: Space[Any], index: int, value: Any, shared_memory: Any) -> None:
    """Writes one environment's value; if it does not fit, raises SpaceError and writes nothing.

    >>> from gymnasium.spaces import Dict, Discrete
    >>> space = Dict(lives=Discrete(4))
    >>> memory = create_shared_memory(space, n=2)
    >>> write_to_shared_memory(space, 1, {"lives": 3}, memory)
    >>> read_from_shared_memory(space, memory, n=2)["lives"]
    array([0, 3])
    """
    if isinstance(shared_memory, Memory):
        shared_memory.write(index, value)
    else:
        _find_gymnasium_function(_write_theirs, space)(space, index, value, shared_memory)


def _find_gymnasium_function(function: Any, space: Any) -> Callable[..., Any]:
    """Returns the function registered with Gymnasium for this space; raises Gymnasium's errors if none is."""
    name = function.__name__
    if not isinstance(space, Space):
        raise TypeError(
            f"The space provided to `{name}` is not a gymnasium Space instance, type: {type(space)}, {space}"
        )
    registered = function.dispatch(type(space))
    if registered is function.dispatch(object):
        raise CustomSpaceError(
            f"Space of type `{type(space)}` doesn't have an registered `{name}` function. "
            f"Register `{type(space)}` for `{name}` to support it."
        )
    return registered  # type: ignore[no-any-return]


def _create(
    space: Space[Any],
    n: int = 1,
    ctx: Any = multiprocessing,
    *,
    max_length: int | None = None,
    max_nodes: int | None = None,
    max_edges: int | None = None,
) -> Any:
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise TypeError(f"n, the number of environments, must be an int, got {type(n).__name__}: {n!r}")
    if n < 0:
        raise ValueError(f"n, the number of environments, must be at least 0, got {n}")

    def custom(subspace: Space[Any], path: str, rows: int) -> Bind | None:
        functions = _find_custom_functions(subspace)
        if functions is None:
            return None
        create, read, write = functions
        memory = create(subspace, rows, ctx)
        return lambda segment: CustomMemory(path, rows, subspace, memory, read, write)

    declaration = Declaration(Bounds(max_length, max_nodes, max_edges), {}, custom)
    bind = declaration.space(space, "value", int(n))
    memory = bind(Segment(Layout(declaration.fields)))
    return memory.public if isinstance(memory, CustomMemory) else memory


def _is_declared(space: object) -> bool:
    return declare.dispatch(type(space)) is not declare.dispatch(object)


def _find_custom_functions(space: Space[Any]) -> tuple[Callable[..., Any], ...] | None:
    """Returns the custom (create, read, write) registered for this space; None if Shoal's own apply."""
    own = create_shared_memory.dispatch(type(space))
    if own is not _create and own is not create_shared_memory.dispatch(object):
        return create_shared_memory, read_from_shared_memory, write_to_shared_memory
    theirs: Any = _create_theirs
    if theirs.dispatch(type(space)).__module__ == theirs.__module__ and _is_declared(space):
        return None
    return theirs, _read_registered, _write_registered


def _read_registered(space: Space[Any], shared_memory: Any, n: int = 1) -> Any:
    """Calls Gymnasium's function; can be pickled also when a program has replaced that function."""
    return _read_theirs(space, shared_memory, n)


def _write_registered(space: Space[Any], index: int, value: Any, shared_memory: Any) -> None:
    """Calls Gymnasium's function; can be pickled also when a program has replaced that function."""
    _write_theirs(space, index, value, shared_memory)


def _read(space: Space[Any], shared_memory: Any, n: int = 1) -> Any:
    if not isinstance(shared_memory, Memory):  # made by Gymnasium's function
        return _read_theirs(space, shared_memory, n)
    if n != shared_memory.rows:
        raise ValueError(
            f"the memory holds {shared_memory.rows} environments, but n is {n}; pass the n of its creation"
        )
    return shared_memory.read(0, n)


def _write(space: Space[Any], index: int, value: Any, shared_memory: Any) -> None:
    if isinstance(shared_memory, Memory):
        shared_memory.write(index, value)
    else:
        _write_theirs(space, index, value, shared_memory)


for _kind in [kind for kind in declare.registry if kind is not object]:
    create_shared_memory.register(_kind, _create)
    read_from_shared_memory.register(_kind, _read)
    write_to_shared_memory.register(_kind, _write)
