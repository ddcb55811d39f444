"""One page at the other end of a WebSocket: its requests, what it was sent, and its next message.

There is no queue of messages: each message is made from the newest data when the one before has been sent. A
page that reads slowly therefore misses frames and needs the memory of one message.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from shoal.viewer import websocket
from shoal.viewer.feed import Feed
from shoal.viewer.protocol import Key, frame, history_message, pack, recording_message
from shoal.viewer.waiting import deliver

__all__ = ["Client"]

_ERRORS_KEPT = 8
_WHOLE_HISTORY_S = 30.0


class Client:
    """One page. All its methods are called in the server's event loop."""

    def __init__(
        self, writer: asyncio.StreamWriter, feed: Feed, sessions: Callable[[], Sequence[str]], stall_s: float
    ) -> None:
        self.watching: list[int] = []
        self.rate_hz = 1.0
        self.request_number = 0
        """The number of its last request, counted over all pages; the newest request has the highest."""
        self.wake = asyncio.Event()
        self._writer = writer
        self.feed = self._feed = feed
        self._stall_s = stall_s
        self._sessions = sessions
        self._hello_run = 0
        """The number of the run whose "hello" it was sent last."""
        self._errors: deque[str] = deque(maxlen=_ERRORS_KEPT)
        self._pong: bytes | None = None
        self._link: dict[str, Any] | None = None
        self._wanted_recording: int | None = None
        self._sent_recorded = 0
        self._sent_counters, self._sent_error = 0, feed.error[0]
        self._sent: dict[int, tuple[int, dict[Key, int], int]] = {}
        """By environment: stamp, `since` and schema of the last frame that was sent."""
        self._due: dict[int, float] = {}
        self._history: tuple[int, float | None, float] = (0, None, 0.0)
        """The number of the last history that was sent, the end of its last bin (None: the next one is sent
        whole), and when the last whole one was sent."""

    def choose(self, feed: Feed) -> None:
        """Shows another session; called before anything is sent."""
        self.feed = self._feed = feed
        self._sent_error = feed.error[0]

    def watch(self, env_ids: list[int], rate_hz: float) -> None:
        self.watching, self.rate_hz = list(env_ids), rate_hz
        self._sent = {env: sent for env, sent in self._sent.items() if env in env_ids}
        self._due = {}
        self.wake.set()

    def link(self, url: str, host: str, port: int) -> None:
        """Sends a link for somebody else; if several were asked for meanwhile, only the last."""
        self._link = {"type": "link", "url": url, "host": host, "port": port}
        self.wake.set()

    def replay(self, number: int) -> None:
        """Sends a recording; if several were asked for meanwhile, only the last."""
        self._wanted_recording = number
        self.wake.set()

    def error(self, message: str) -> None:
        self._errors.append(message)
        self.wake.set()

    def drop_watched(self, env_ids: list[int], why: str) -> None:
        """Stops watching these environments and sends the reason as an error."""
        if env_ids:
            self.watching = [env for env in self.watching if env not in env_ids]
            self.error(f"not watched: {', '.join(map(str, sorted(env_ids)))}; {why}")

    def pong(self, payload: bytes) -> None:
        """Answers a ping.

        If several arrive before the answer, only the last is answered, as the RFC allows.
        """
        self._pong = payload
        self.wake.set()

    async def send_all(self) -> None:
        """Sends messages as they become available, until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.wake.clear()
            message, opcode, wait_s = self._next(time.monotonic())
            if message is not None:
                await self._send(opcode, message)
                continue
            timer = None if wait_s is None else loop.call_later(wait_s, self.wake.set)
            try:
                await self.wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    async def close(self, closing: websocket.Closing) -> None:
        await self._send(websocket.CLOSE, closing.payload())

    async def _send(self, opcode: int, message: bytes) -> None:
        await deliver(self._writer, self._stall_s, websocket.head(opcode, len(message)), message)

    def _next_history(self, now: float) -> bytes | None:
        found, (sent, end, at) = self._feed.history, self._history
        if found is None or found[0] == sent:
            return None
        number, history, returns = found
        is_whole = end is None or now - at > _WHOLE_HISTORY_S
        message = history_message(history, returns, None if is_whole else end)
        last = float(history.bins["end"][-1]) if len(history) else None
        self._history = number, last, now if is_whole else at
        return message

    def _next_recording(self, number: int) -> bytes:
        self._wanted_recording = None
        recorded = self._feed.recorded
        kept = None if recorded is None else recorded[1].shelf.find(number)
        if kept is None:
            why = f"recording {number} is no longer kept; choose another one"
            return pack({"type": "error", "message": why})
        return recording_message(kept.number, kept.recording)

    def _next(self, now: float) -> tuple[bytes | None, int, float | None]:
        """Returns the next message, its opcode, and, if there is no message, the seconds until the next.

        The seconds are None if only `wake` can bring a message.
        """
        run, facts = self._feed.run
        if run != self._hello_run:
            self._hello_run, self._due = run, {}
            self._history = (0, None, 0.0)
            self._sent_recorded, self._wanted_recording = 0, None
            hello = {"type": "hello", "facts": facts, "sessions": list(self._sessions())}
            return pack(hello), websocket.BINARY, None
        if self._pong is not None:
            pong, self._pong = self._pong, None
            return pong, websocket.PONG, None
        if self._link is not None:
            link, self._link = self._link, None
            return pack(link), websocket.BINARY, None
        if self._wanted_recording is not None:
            return self._next_recording(self._wanted_recording), websocket.BINARY, None
        if self._errors:
            return pack({"type": "error", "message": self._errors.popleft()}), websocket.BINARY, None
        count, message = self._feed.error
        if count != self._sent_error:
            self._sent_error = count
            return pack({"type": "error", "message": message}), websocket.BINARY, None
        recorded = self._feed.recorded
        if recorded is not None and recorded[0] != self._sent_recorded:
            self._sent_recorded = recorded[0]
            return pack(recorded[1].describe()), websocket.BINARY, None
        message_of_history = self._next_history(now)
        if message_of_history is not None:
            return message_of_history, websocket.BINARY, None
        counters = self._feed.counters
        if counters is not None and counters[0] != self._sent_counters:
            self._sent_counters = counters[0]
            return pack(counters[1]), websocket.BINARY, None
        wait_s = None
        for place, env in enumerate(self.watching):
            world, (stamp, known, schema) = self._feed.worlds.get(env), self._sent.get(env, (0, {}, 0))
            if world is None or world.stamp == stamp:
                continue
            left_s = self._due.get(env, 0.0) - now
            if left_s <= 0:
                self.watching.append(self.watching.pop(place))  # the other environments come first now
                self._sent[env] = world.stamp, world.since, world.schema
                self._due[env] = now + 1 / self.rate_hz
                return frame(world, known, schema), websocket.BINARY, None
            wait_s = left_s if wait_s is None else min(wait_s, left_s)
        return None, websocket.BINARY, wait_s
