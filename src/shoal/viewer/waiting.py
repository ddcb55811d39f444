"""Waits that end at a deadline, when the client stops reading, and always when cancelled.

asyncio.wait_for is not used: before Python 3.12 it loses a cancellation that arrives at the moment when its
awaitable finishes, and a server that stops would then wait forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["deliver", "run_within"]

_T = TypeVar("_T")


async def run_within(seconds: float, coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Returns the coroutine's result; raises asyncio.TimeoutError if it takes longer than `seconds`."""
    task = asyncio.ensure_future(coroutine)
    # Retrieves the exception, so that asyncio does not log it if nobody awaits the task.
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


async def deliver(writer: asyncio.StreamWriter, stall_s: float, *parts: bytes) -> None:
    """Writes all parts and waits until they are sent; aborts the connection if nothing is sent for `stall_s`.

    The writer's transport must have write limits of 0. If this is cancelled, whole parts are still sent.
    """
    for part in parts:
        writer.write(part)
    loop, transport = asyncio.get_running_loop(), writer.transport
    left, since = transport.get_write_buffer_size(), loop.time()
    timer = loop.call_later(stall_s / 4, lambda: check_progress())

    def check_progress() -> None:
        nonlocal left, since, timer
        if transport.get_write_buffer_size() < left:
            left, since = transport.get_write_buffer_size(), loop.time()
        if loop.time() - since >= stall_s:
            transport.abort()
        timer = loop.call_later(stall_s / 4, check_progress)

    try:
        await writer.drain()
    finally:
        timer.cancel()
    if transport.is_closing():
        raise ConnectionResetError("the connection was closed")
