"""Waiting that ends: at a deadline, when the other side takes nothing any more, and always when cancelled.

asyncio.wait_for is not used: before Python 3.12 it loses a cancellation that comes as what it waits for is
done, and a server that ends would then wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["deliver", "within"]

_T = TypeVar("_T")


async def within(seconds: float, coroutine: Coroutine[Any, Any, _T]) -> _T:
    """What the coroutine gives; asyncio.TimeoutError if it takes longer."""
    task = asyncio.ensure_future(coroutine)
    task.add_done_callback(
        lambda task: task.cancelled() or task.exception()
    )  # seen, whoever is left to see it
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


async def deliver(writer: asyncio.StreamWriter, stall_s: float, *parts: bytes) -> None:
    """Writes, and waits until all of it has left; ends the connection once nothing of it did for `stall_s`.

    The writer's transport must have write limits of 0. Cancelled, it leaves no half of a part behind.
    """
    for part in parts:
        writer.write(part)
    loop, transport = asyncio.get_running_loop(), writer.transport
    left, since = transport.get_write_buffer_size(), loop.time()
    timer = loop.call_later(stall_s / 4, lambda: look())

    def look() -> None:
        nonlocal left, since, timer
        if transport.get_write_buffer_size() < left:
            left, since = transport.get_write_buffer_size(), loop.time()
        if loop.time() - since >= stall_s:
            transport.abort()
        timer = loop.call_later(stall_s / 4, look)

    try:
        await writer.drain()
    finally:
        timer.cancel()
    if transport.is_closing():
        raise ConnectionResetError("the connection is gone")
