"""What the models share: states are named tuples, which are compared and hashed in C."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any


class Violation(Exception):
    """The protocol broke a guarantee."""


_places: dict[type, dict[str, int]] = {}


def replace(value: Any, **changes: object) -> Any:
    """Does what `_replace` does, twice as fast, because there are millions of states."""
    kind = type(value)
    places = _places.get(kind)
    if places is None:
        places = _places[kind] = {name: i for i, name in enumerate(kind._fields)}
    values = list(value)
    for name, new in changes.items():
        values[places[name]] = new
    return tuple.__new__(kind, values)


def put(values: tuple, place: int, value: object) -> tuple:
    return (*values[:place], value, *values[place + 1 :])


def visit(begin: Iterable[Any], steps_of: Callable[[Any], Iterable[Any]]) -> int:
    """Visits every state that can be reached; returns their number."""
    todo = list(begin)
    seen = set(todo)
    collects = gc.isenabled()
    gc.disable()  # states refer to no state: looking for cycles in millions of them takes long
    try:
        while todo:
            for state in steps_of(todo.pop()):
                known = len(seen)
                seen.add(state)  # hashes it once
                if len(seen) > known:
                    todo.append(state)
    finally:
        if collects:
            gc.enable()
    return len(seen)
