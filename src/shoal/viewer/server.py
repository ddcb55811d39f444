"""The viewer's server: one page and its socket, on asyncio alone.

    connection -> read_request (5 s, 8 KiB) -> Guard -> a file of the page, and close
                                                     `-> /socket: Client, until either side closes
    Feed (a thread) -> notify -> every Client sends the newest data

The server only reads the session, so it does not slow the run down.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from shoal.errors import ShoalError
from shoal.viewer import websocket
from shoal.viewer.client import Client
from shoal.viewer.feed import Feed
from shoal.viewer.guard import Guard
from shoal.viewer.http import MAX_HEAD, Refusal, Request, read_request
from shoal.viewer.protocol import MAX_WATCHED, BadMessage, BadRequest, read_watch
from shoal.viewer.waiting import deliver, run_within
from shoal.viewer.websocket import Closing

if TYPE_CHECKING:
    from shoal.state.attach import Session
    from shoal.state.history import History

__all__ = ["MAX_CLIENTS", "MAX_CONNECTIONS", "Server"]

MAX_CLIENTS = 16
MAX_CONNECTIONS = 64
"""WebSockets and requests together."""

_SEND_BUFFER = 256 << 10  # small, because data in the kernel's buffer gets old
_LINGER_S = 1.0
_LINGER_BYTES = 1 << 20


class Server:
    """Shows one session to everyone who has the link."""

    guard: Guard
    """Available after `start`."""

    def __init__(
        self,
        session: Session,
        assets: Mapping[str, bytes],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        sessions: Callable[[], Sequence[str]] = tuple,
        open_session: Callable[[str], Session] | None = None,
        reattach: Callable[[], Session] | None = None,
        keep: Callable[[History], None] | None = None,
        on_change: Callable[[dict[str, Any], bool], None] = lambda facts, alive: None,
        handshake_s: float = 5.0,
        stall_s: float = 10.0,
    ) -> None:
        """`assets` are whole responses by path; `sessions` returns the names of all running sessions.
        `open_session` attaches to one of them, for a page that asks for it.

        `reattach` attaches to a new session of the same name after the run has ended; it raises SessionError
        if there is none. `keep` is called with the history from time to time, in another thread. `on_change`
        is called when a run has ended, and with new facts when another has
        started.
        """
        self._session, self._name = session, str(session.facts["name"])
        self._assets = assets
        self._host, self._port = host, port
        self._sessions, self._reattach, self._on_change = sessions, reattach, on_change
        self._open_session = open_session
        self._feeds: dict[str, Feed] = {}
        """Other sessions that pages watch, by name."""
        self._keep = keep
        self._handshake_s, self._stall_s = handshake_s, stall_s
        self._clients: set[Client] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._requests = itertools.count(1)

    async def start(self) -> None:
        """Starts to listen and to read the session."""
        loop = asyncio.get_running_loop()
        try:
            # Only the first address: a name can have several, and each would get another port.
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            listening = _bind_socket(found[0][0], found[0][4])
            try:
                self._server = await asyncio.start_server(
                    self._handle_connection, sock=listening, limit=MAX_HEAD
                )
            except BaseException:
                listening.close()
                raise
        except (OSError, OverflowError) as error:
            why = "the port is in use; choose another --port" if _is_in_use(error) else str(error)
            raise ShoalError(f"cannot listen on {self._host} port {self._port}: {why}") from error
        self.guard = Guard(self._host, self._server.sockets[0].getsockname()[1])

        self._feed = Feed(self._session, self._make_notify(), self._reattach, self._keep)
        self._reported = self._feed.run[0], False
        try:
            self._feed.start()
        except RuntimeError as error:  # no more threads
            self._server.close()
            await self._server.wait_closed()
            raise ShoalError(f"cannot read the session: {error}; see `ulimit -u`") from error

    async def close(self) -> None:
        """Closes every connection and stops."""
        self._server.close()
        for feed in (self._feed, *self._feeds.values()):
            feed.stop()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def _make_notify(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so there are no clients
                loop.call_soon_threadsafe(self._notify_clients)

        return notify

    def _notify_clients(self) -> None:
        (run, facts), ended = self._feed.run, self._feed.ended
        if self._reported != (run, ended):
            self._reported = run, ended
            self._on_change(facts, not ended)
        for client in self._clients:
            client.wake.set()

    # -- one connection --------------------------------------------------------------------------------

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            writer.transport.set_write_buffer_limits(high=0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            if len(self._connections) > MAX_CONNECTIONS:  # do not wait for excess connections
                why = f"there are {MAX_CONNECTIONS} connections already; close one or try again later"
                writer.write(Refusal(503, why).response())
            else:
                await self._serve(reader, writer)
                await self._linger(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client is gone
        except asyncio.CancelledError:
            pass  # cancelled by close(), after the close frame was sent; no caller waits for this task
        finally:
            self._connections.discard(task)
            writer.transport.abort()  # the kernel still sends what was delivered to it

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                request = await run_within(self._handshake_s, read_request(reader))
            except asyncio.TimeoutError:
                raise Refusal(408, f"the request took more than {self._handshake_s:g} seconds") from None
            if request is None:
                return
            answer = self.guard.check(request)
            if answer is None and request.path == "/socket":
                return await self._serve_page(reader, writer, self._upgrade(request), request.query)
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
            raise Refusal(503, f"{MAX_CLIENTS} pages are open already; close one", {"Retry-After": "5"})
        return answer

    async def _linger(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Discards input for up to a second: closing a connection with unread bytes resets it, which can lose
        the answer."""
        writer.write_eof()
        with contextlib.suppress(asyncio.TimeoutError):
            await run_within(_LINGER_S, _discard_input(reader))

    # -- one page --------------------------------------------------------------------------------------

    async def _serve_page(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes, query: str
    ) -> None:
        client = Client(writer, self._feed, self._sessions, self._stall_s)
        self._clients.add(client)  # before the first await, so that the limit holds
        both: list[asyncio.Task[None]] = []
        try:
            await deliver(writer, self._stall_s, answer)
            await self._choose_session(client, query)
            both = [asyncio.create_task(self._listen(reader, client)), asyncio.create_task(client.send_all())]
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            closing = None
            for task in done:
                task.result()
        except Closing as error:
            closing = error
        except asyncio.CancelledError:
            closing = Closing(1001, "the server stops")
        finally:
            self._clients.discard(client)
            self._share_watches()
            self._stop_unused()
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        if closing is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await run_within(_LINGER_S, client.close(closing))

    async def _listen(self, reader: asyncio.StreamReader, client: Client) -> None:
        incoming = websocket.Incoming(reader)
        while True:
            opcode, payload = await incoming.next()
            if opcode == websocket.PING:
                client.pong(payload)
            elif opcode == websocket.TEXT:
                try:
                    wanted = read_watch(payload.decode(), client.feed.run[1]["num_worlds"])
                    if wanted is None:
                        client.link(self.guard.ticket_link(), socket.gethostname(), self.guard.port)
                        continue
                    if isinstance(wanted, int):
                        client.replay(wanted)
                        continue
                    client.watch(*wanted)
                except BadMessage as error:
                    raise Closing(1008, str(error)) from None
                except BadRequest as error:
                    client.error(str(error))
                else:
                    client.request_number = next(self._requests)
                    self._share_watches()
            await asyncio.sleep(0)  # lets other tasks run even if this page sends without pause

    async def _choose_session(self, client: Client, query: str) -> None:
        """Lets the page watch another session, which its address names; raises Closing if there is none."""
        name = dict(parse_qsl(query)).get("session", self._name)
        if name == self._name:
            return
        if name not in self._feeds:
            if self._open_session is None or len(self._feeds) >= MAX_CLIENTS:
                raise Closing(4404, f"no session is called {name[:64]!r} here")
            try:
                # Connecting may wait for a run that does not answer.
                session = await asyncio.get_running_loop().run_in_executor(None, self._open_session, name)
            except (ShoalError, ValueError) as error:
                raise Closing(4404, str(error)) from None
            if name in self._feeds:  # another page was faster
                session.close()
            else:
                self._feeds[name] = Feed(session, self._make_notify(), lambda: self._reopen(name))
                self._feeds[name].start()
        client.choose(self._feeds[name])

    def _reopen(self, name: str) -> Session:
        assert self._open_session is not None
        return self._open_session(name)

    def _stop_unused(self) -> None:
        """Ends the feeds of other sessions that no page watches any more."""
        used = {client.feed for client in self._clients}
        for name in [name for name, feed in self._feeds.items() if feed not in used]:
            feed = self._feeds.pop(name)
            # It may wait for a run that does not answer.
            asyncio.get_running_loop().run_in_executor(None, feed.end)

    def _share_watches(self) -> None:
        """Divides the environments that each session can watch at once among its pages."""
        for feed in (self._feed, *self._feeds.values()):
            self._share(feed, [client for client in self._clients if client.feed is feed])

    def _share(self, feed: Feed, clients: list[Client]) -> None:
        """The newest requests have priority."""
        shared: list[int] = []
        for client in sorted(clients, key=lambda client: client.request_number, reverse=True):
            shared += [env for env in client.watching if env not in shared]
            lost = [env for env in client.watching if env in shared[MAX_WATCHED:]]
            del shared[MAX_WATCHED:]
            client.drop_watched(
                lost, f"another page watches others, and a run shows at most {MAX_WATCHED} at once"
            )
        rates = [client.rate_hz for client in clients if client.watching]
        feed.watch(sorted(shared), max(rates, default=1.0))


def _bind_socket(family: int, address: Any) -> socket.socket:
    """Makes and binds a socket. asyncio would not close its own socket if it could not bind or listen."""
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


def _is_in_use(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


async def _discard_input(reader: asyncio.StreamReader) -> None:
    left = _LINGER_BYTES
    while left > 0 and (chunk := await reader.read(64 << 10)):
        left -= len(chunk)
