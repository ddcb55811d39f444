"""Faults that an environment or a writer causes in its own process.

Named points need no hooks in the core. A protected page, placed where the core copies from or writes to,
kills the process at exactly that byte. A value that kills the process while it is converted does so between
two copies.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

__all__ = ["CRASHES", "HANGS", "LENIENCE", "Dies", "copy_with_trap", "crash", "forbid"]

LENIENCE = float(os.environ.get("SHOAL_TEST_LENIENCE", "1"))
"""The factor by which calls may be late: on a shared machine, other processes use the cores at times."""

_PAGE = mmap.PAGESIZE


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    ctypes.string_at(0)


def _exit() -> None:
    os._exit(7)


def _loop() -> NoReturn:
    while True:
        pass


def _loop_in_c() -> None:
    sum(itertools.repeat(0))


def _loop_deaf() -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _loop()


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


CRASHES: dict[str, Callable[[], None]] = {
    "kill": _kill,
    "segfault": _segfault,
    "abort": os.abort,
    "exit": _exit,
}
HANGS: dict[str, Callable[[], None]] = {
    "loop": _loop,
    "loop in C": _loop_in_c,
    "loop, signals blocked": _loop_deaf,
    "stop": _stop,
}
"""After these a process exists but does not answer: it loops, holds the GIL, blocks signals or is stopped."""


def crash(how: str) -> None:
    """Causes the fault in this process."""
    (CRASHES.get(how) or HANGS[how])()


class Dies:
    """A value that kills the process when it is converted to a number (reward) or pickled (info)."""

    def __float__(self) -> float:
        _kill()
        return 0.0

    def __reduce__(self) -> Any:
        _kill()
        return int, ()


def forbid(address: int, size: int, *, may_read: bool) -> None:
    """Protects whole pages of this process: accessing them (with `may_read`: writing) is a SIGSEGV."""
    first, last = -(-address // _PAGE) * _PAGE, (address + size) // _PAGE * _PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    allowed = mmap.PROT_READ if may_read else 0
    if last > first and libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(last - first), allowed):
        raise OSError(ctypes.get_errno(), "mprotect")


def copy_with_trap(values: NDArray[Any], at: int) -> NDArray[Any]:
    """Returns a copy of `values` with a protected page from byte `at` on: copying it kills the process there.

    The bytes after that page can be read, because a copy may start by loading the last bytes.
    """
    room = mmap.mmap(-1, (-(-values.nbytes // _PAGE) + 2) * _PAGE)
    whole = np.frombuffer(room, np.uint8)
    trap = -(-at // _PAGE) * _PAGE
    begin = trap - at
    copy = whole[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    forbid(whole.ctypes.data + trap, _PAGE, may_read=False)
    return copy
