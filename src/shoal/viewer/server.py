"""The viewer's server: one page and its socket, on asyncio alone.

    connection -> read_request (5 s, 8 KiB) -> Guard -> a file of the page, and close
                                                     `-> /socket: Client, until either side closes
    Feed (a thread) -> news -> every Client sends what is newest

It only reads the session, so the run does not notice it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.errors import ShoalError
from shoal.viewer import websocket
from shoal.viewer.client import Client
from shoal.viewer.feed import Feed
from shoal.viewer.guard import Guard
from shoal.viewer.http import MAX_HEAD, Refusal, Request, read_request
from shoal.viewer.protocol import MAX_WATCHED, BadMessage, BadWish, read_watch
from shoal.viewer.waiting import deliver, within
from shoal.viewer.websocket import Closing

if TYPE_CHECKING:
    from shoal.state.attach import Session

__all__ = ["MAX_CLIENTS", "MAX_CONNECTIONS", "Server"]

MAX_CLIENTS = 16
MAX_CONNECTIONS = 64
"""Sockets and requests together."""

_SEND_BUFFER = 256 << 10  # what lies in the kernel is no longer the newest
_LINGER_S = 1.0
_LINGER_BYTES = 1 << 20


class Server:
    """Shows one session to whoever has the link."""

    guard: Guard
    """Once it has started."""

    def __init__(
        self,
        session: Session,
        assets: Mapping[str, bytes],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        sessions: Sequence[str] = (),
        again: Callable[[], Session] | None = None,
        changed: Callable[[dict[str, Any], bool], None] = lambda facts, alive: None,
        handshake_s: float = 5.0,
        stall_s: float = 10.0,
    ) -> None:
        """`assets` are whole responses by path; `sessions` the names of all that live, for pages to show.

        `again` attaches to the session once more after its run has ended, SessionError where there is none.
        `changed` is called when a run has ended, and with other facts when another one has begun.
        """
        self._session = session
        self._assets = assets
        self._host, self._port = host, port
        self._sessions, self._again, self._changed = list(sessions), again, changed
        self._handshake_s, self._stall_s = handshake_s, stall_s
        self._clients: set[Client] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._wishes = itertools.count(1)

    async def start(self) -> None:
        """Listens, and begins to read the session."""
        loop = asyncio.get_running_loop()
        try:
            # One address alone: a name may have several, and each would get a port of its own.
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            listening = _bound(found[0][0], found[0][4])
            try:
                self._server = await asyncio.start_server(self._connected, sock=listening, limit=MAX_HEAD)
            except BaseException:
                listening.close()
                raise
        except (OSError, OverflowError) as error:
            why = "it is taken; choose another --port" if _is_taken(error) else str(error)
            raise ShoalError(f"cannot listen on {self._host} port {self._port}: {why}") from error
        self.guard = Guard(self._host, self._server.sockets[0].getsockname()[1])

        def news() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                loop.call_soon_threadsafe(self._hear)

        self._feed = Feed(self._session, news, self._again)
        self._told = self._feed.run[0], False
        try:
            self._feed.start()
        except RuntimeError as error:  # no more threads
            self._server.close()
            await self._server.wait_closed()
            raise ShoalError(f"cannot read the session: {error}; see `ulimit -u`") from error

    async def close(self) -> None:
        """Says goodbye to every page, and ends."""
        self._server.close()
        self._feed.stop()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def _hear(self) -> None:
        (run, facts), ended = self._feed.run, self._feed.ended
        if self._told != (run, ended):
            self._told = run, ended
            self._changed(facts, not ended)
        for client in self._clients:
            client.wake.set()

    # -- one connection --------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            writer.transport.set_write_buffer_limits(high=0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            if len(self._connections) > MAX_CONNECTIONS:  # not a moment for those that are too many
                writer.write(Refusal(503, f"{MAX_CONNECTIONS} connections are there already").response())
            else:
                await self._serve(reader, writer)
                await self._linger(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the other side is gone, or as good as that
        except asyncio.CancelledError:
            pass  # by close(), after the page was told; there is nobody to pass it on to
        finally:
            self._connections.discard(task)
            writer.transport.abort()  # what was delivered is with the kernel, and still arrives

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                request = await within(self._handshake_s, read_request(reader))
            except asyncio.TimeoutError:
                raise Refusal(408, f"the request took more than {self._handshake_s:g} seconds") from None
            if request is None:
                return
            answer = self.guard.check(request)
            if answer is None and request.path == "/socket":
                return await self._talk(reader, writer, self._upgrade(request))
            answer = answer or self._assets.get(request.path)
            if answer is None:
                raise Refusal(404, "no such file")
        except Refusal as refusal:
            answer = refusal.response()
        await deliver(writer, self._stall_s, answer)

    def _upgrade(self, request: Request) -> bytes:
        self.guard.check_origin(request)
        answer = websocket.accept(request)
        if len(self._clients) >= MAX_CLIENTS:
            raise Refusal(503, f"{MAX_CLIENTS} pages look already; close one", {"Retry-After": "5"})
        return answer

    async def _linger(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads on for a moment: closed with bytes unread, a connection is reset, its answer perhaps lost."""
        writer.write_eof()
        with contextlib.suppress(asyncio.TimeoutError):
            await within(_LINGER_S, _read_away(reader))

    # -- one page --------------------------------------------------------------------------------------

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes) -> None:
        client = Client(writer, self._feed, self._sessions, self._stall_s)
        self._clients.add(client)  # before anything is awaited: the count must hold
        both: list[asyncio.Task[None]] = []
        try:
            await deliver(writer, self._stall_s, answer)
            both = [asyncio.create_task(self._listen(reader, client)), asyncio.create_task(client.send_all())]
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            closing = None
            for task in done:
                task.result()
        except Closing as error:
            closing = error
        except asyncio.CancelledError:
            closing = Closing(1001, "the server ends")
        finally:
            self._clients.discard(client)
            self._share()
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        if closing is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(_LINGER_S, client.close(closing))

    async def _listen(self, reader: asyncio.StreamReader, client: Client) -> None:
        incoming = websocket.Incoming(reader)
        while True:
            opcode, payload = await incoming.next()
            if opcode == websocket.PING:
                client.pong(payload)
            elif opcode == websocket.TEXT:
                try:
                    client.watch(*read_watch(payload.decode(), self._feed.run[1]["num_worlds"]))
                except BadMessage as error:
                    raise Closing(1008, str(error)) from None
                except BadWish as error:
                    client.error(str(error))
                else:
                    client.asked = next(self._wishes)
                    self._share()
            await asyncio.sleep(0)  # a page that talks without end must let the others speak

    def _share(self) -> None:
        """Gives what a session can watch at once to the newest wishes first, and tells who loses."""
        shared: list[int] = []
        for client in sorted(self._clients, key=lambda client: client.asked, reverse=True):
            shared += [env for env in client.watching if env not in shared]
            lost = [env for env in client.watching if env in shared[MAX_WATCHED:]]
            del shared[MAX_WATCHED:]
            client.lose(lost, f"another page asked for others, and {MAX_WATCHED} at once is all a run shows")
        rates = [client.rate_hz for client in self._clients if client.watching]
        self._feed.watch(sorted(shared), max(rates, default=1.0))


def _bound(family: int, address: Any) -> socket.socket:
    """Ours from the beginning: asyncio keeps it to itself if a socket cannot be made, or not listened on."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
    except BaseException:
        listening.close()
        raise
    return listening


def _is_taken(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


async def _read_away(reader: asyncio.StreamReader) -> None:
    left = _LINGER_BYTES
    while left > 0 and (chunk := await reader.read(64 << 10)):
        left -= len(chunk)
