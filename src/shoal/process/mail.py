"""Messages between parent and worker: pickled into a box in the segment, or over the socket when too large.

    sender:    put(message) -> number of bytes      then the gate carries the number, then send_rest
    receiver:  take(number)

Messages are small and rare. Actions, observations, rewards and flags have shared memory of their own.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import WorkerError

__all__ = ["BOX_BYTES", "Failure", "HungUp", "Mail", "RemoteTraceback", "dumps", "receive", "transmit"]

BOX_BYTES = 65536
_LENGTH_BYTES = 8
_MOST_FDS = 16


class HungUp(Exception):
    """The other process has closed its socket, or has died."""


def dumps(value: Any) -> bytes:
    """Pickles a value, including code that the other process cannot import (classes of a script, lambdas)."""
    try:
        data = pickle.dumps(value, protocol=5)
        # Every process has a __main__ module of its own, so a name in it would find the wrong object.
        if b"__main__" not in data:
            return data
    except Exception:  # a __reduce__ may raise anything; cloudpickle's error is clearer
        pass
    import cloudpickle  # type: ignore[import-untyped]  # it takes milliseconds, and few programs need it

    return bytes(cloudpickle.dumps(value, protocol=5))


class Mail:
    """One side of a worker's two boxes and its socket."""

    def __init__(self, channel: socket.socket, outbox: NDArray[np.uint8], inbox: NDArray[np.uint8]) -> None:
        self._socket = channel
        self._outbox, self._inbox = outbox.data, inbox.data
        self._rest = b""

    def put(self, data: bytes) -> int:
        """Writes a pickled message into the box; pass on the number returned, then call `send_rest`."""
        if len(data) <= BOX_BYTES:
            self._outbox[: len(data)] = data
            self._rest = b""
        else:
            self._rest = data
        return len(data)

    def send_rest(self, alive: Callable[[], bool]) -> None:
        """Sends a message that was too large for the box; HungUp if the other side ends meanwhile."""
        data, self._rest = self._rest, b""
        if data:
            _exchange(self._socket, memoryview(data), alive, sending=True)

    def take(self, count: int, alive: Callable[[], bool]) -> Any:
        """Returns the message of `count` bytes; HungUp if the other side ends while sending it."""
        if count <= BOX_BYTES:
            return pickle.loads(self._inbox[:count])
        data = bytearray(count)
        _exchange(self._socket, memoryview(data), alive, sending=False)
        return pickle.loads(data)


def transmit(
    channel: socket.socket, value: Any, fds: list[int], alive: Callable[[], bool] = lambda: True
) -> None:
    """Sends a whole message and descriptors over the socket alone."""
    data = value if isinstance(value, bytes) else dumps(value)
    try:
        socket.send_fds(channel, [len(data).to_bytes(_LENGTH_BYTES, "little")], fds)
    except OSError as error:
        raise HungUp from error
    _exchange(channel, memoryview(data), alive, sending=True)


def receive(channel: socket.socket, alive: Callable[[], bool] = lambda: True) -> tuple[Any, list[int]]:
    """Returns the message and the descriptors that `transmit` sent."""
    try:
        head, fds, _, _ = socket.recv_fds(channel, _LENGTH_BYTES, _MOST_FDS)
        if len(head) < _LENGTH_BYTES:
            raise HungUp
        data = bytearray(int.from_bytes(head, "little"))
        _exchange(channel, memoryview(data), alive, sending=False)
    except (HungUp, OSError):
        raise
    except BaseException:  # Ctrl-C between the length and the rest
        _hang_up(channel)
        raise
    return pickle.loads(data), fds


def _exchange(channel: socket.socket, data: memoryview, alive: Callable[[], bool], *, sending: bool) -> None:
    """Sends or fills all of `data` in parts, and checks between them whether the other side lives."""
    waiter = select.poll()
    waiter.register(channel, select.POLLOUT if sending else select.POLLIN)
    at = 0
    try:
        while at < len(data):
            if waiter.poll(50):
                at += _move_once(channel, data[at:], sending)
            elif not alive():
                raise HungUp
    except HungUp:
        raise
    except BaseException:  # Ctrl-C: after half a message neither side knows where the next begins
        _hang_up(channel)
        raise


def _hang_up(channel: socket.socket) -> None:
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)


def _move_once(channel: socket.socket, data: memoryview, sending: bool) -> int:
    """Sends or receives what is possible without waiting; returns the number of bytes."""
    try:
        if sending:
            return channel.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        moved = channel.recv_into(data, 0, socket.MSG_DONTWAIT)
    except BlockingIOError:
        time.sleep(0.0001)
        return 0
    except OSError as error:
        raise HungUp from error
    if moved == 0:
        raise HungUp
    return moved


class RemoteTraceback(Exception):
    """The traceback of an exception in the worker that raised it; it is shown as the cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on its way to another process."""

    env_id: int | None
    text: str
    """The traceback, as Python prints it."""
    data: bytes | None
    """The exception; None if it cannot be pickled."""
    summary: str

    @classmethod
    def of(cls, error: BaseException, env_id: int | None) -> Failure:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        summary = "".join(traceback.format_exception_only(type(error), error)).strip()
        return cls(env_id, text, _pack_exception(error), summary)

    def exception(self) -> BaseException:
        """Returns the exception with its `env_id`; its cause is the remote traceback."""
        error: BaseException | None = None
        if self.data is not None:
            try:
                error = _unpack_exception(self.data)
            except Exception:  # a class this process cannot import
                error = None
        if error is None:
            error = WorkerError(f"{self.summary} (the class of this exception could not be unpickled here)")
        elif not isinstance(error, Exception):  # SystemExit in an environment must not end this process
            error = WorkerError(f"environment {self.env_id} raised {self.summary}")
        error.__cause__ = RemoteTraceback(self.text)
        error.env_id = self.env_id  # type: ignore[attr-defined]
        return error


def _pack_exception(error: BaseException) -> bytes | None:
    plain = error.with_traceback(None)
    plain.__cause__ = plain.__context__ = None
    for state in ((plain, None, None), (type(error), error.args, dict(error.__dict__))):
        try:
            data = dumps(state)
            if type(_unpack_exception(data)).__name__ == type(error).__name__:
                return data
        except Exception:  # its __reduce__, its constructor or its attributes: try the next way
            continue
    try:  # without attributes, which may not be picklable
        return dumps((type(error), tuple(map(str, error.args)), {}))
    except Exception:
        return None


def _unpack_exception(data: bytes) -> BaseException:
    first, arguments, state = pickle.loads(data)
    if isinstance(first, BaseException):
        return first
    # Without __init__, whose parameters may differ from args: MyError(code, why) with args ("text",).
    error: BaseException = first.__new__(first, *arguments)
    error.args = arguments
    error.__dict__.update(state)
    return error
