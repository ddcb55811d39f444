"""Ways to fail, as an environment or a writer does them to itself.

Named points need no hooks in the core. A page that may not be touched, put where the core will copy from or
write to, kills the process at exactly that byte; a value that dies while it is converted kills it between.
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

__all__ = ["CRASHES", "HANGS", "LENIENCE", "Dies", "crash", "forbid", "trapped"]

LENIENCE = float(os.environ.get("SHOAL_TEST_LENIENCE", "1"))
"""How much longer things may take than promised: on a shared machine others have the cores now and then."""

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
"""After these a process is there and does not answer: in Python, holding the GIL, deaf, or not running."""


def crash(how: str) -> None:
    """Does it, to this process."""
    (CRASHES.get(how) or HANGS[how])()


class Dies:
    """A value that kills the process when it is looked at: a reward as a number, an info as bytes."""

    def __float__(self) -> float:
        _kill()
        return 0.0

    def __reduce__(self) -> Any:
        _kill()
        return int, ()


def forbid(address: int, size: int, *, may_read: bool) -> None:
    """Takes whole pages away from this process: touching them (or writing there) is a SIGSEGV."""
    first, last = -(-address // _PAGE) * _PAGE, (address + size) // _PAGE * _PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    allowed = mmap.PROT_READ if may_read else 0
    if last > first and libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(last - first), allowed):
        raise OSError(ctypes.get_errno(), "mprotect")


def trapped(values: NDArray[Any], at: int) -> NDArray[Any]:
    """A copy of `values` with a page from byte `at` on that may not be read: who copies it dies there.

    What lies behind that page can be read: a copy may well begin by loading the last bytes.
    """
    room = mmap.mmap(-1, (-(-values.nbytes // _PAGE) + 2) * _PAGE)
    whole = np.frombuffer(room, np.uint8)
    trap = -(-at // _PAGE) * _PAGE
    begin = trap - at
    copy = whole[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    forbid(whole.ctypes.data + trap, _PAGE, may_read=False)
    return copy
