"""Scenarios that are wrong on purpose, so that the harness is seen to notice."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from shoal.errors import SegmentError

_kept: list[object] = []


def _leaks_a_descriptor(directory: Path) -> None:
    reading, writing = os.pipe()
    try:
        os.close(os.dup(reading))
    except OSError as error:
        raise SegmentError(f"cannot do what was asked for: {error}") from error
    os.close(reading)
    os.close(writing)


def _raises_another_class(directory: Path) -> None:
    try:
        os.fstat(0)
    except OSError:
        raise KeyError("fstat") from None


def _says_nothing(directory: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)


def _cannot_be_tried_again(directory: Path) -> None:
    if _kept:
        raise SegmentError("it failed once, and since then it always fails")
    try:
        os.fstat(0)
    except OSError as error:
        _kept.append(error)
        raise SegmentError(f"cannot do what was asked for: {error}") from error


def _leaves_a_thread(directory: Path) -> None:
    try:
        os.fstat(0)
    except OSError as error:
        threading.Thread(target=threading.Event().wait, args=(9,), daemon=True).start()
        raise SegmentError(f"cannot do what was asked for: {error}") from error


MUTANTS: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (
        _leaks_a_descriptor,
        _raises_another_class,
        _says_nothing,
        _cannot_be_tried_again,
        _leaves_a_thread,
    )
}
