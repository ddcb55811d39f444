"""Decides which requests the server answers.

1. The Host header: an attacker's DNS name can point at this machine (DNS rebinding), so the Host must be one
   of the server's names.
2. The origin: another site's page can make a browser send requests here, so requests of other sites are
   rejected, and a WebSocket is opened only for the server's own origin.
3. The token: other users of this machine can connect too. The token is in the first link, then in a cookie
   that scripts cannot read, or in the Authorization header of a program's request.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets

from shoal.viewer.http import Refusal, Request, response

__all__ = ["Guard", "is_loopback"]

_MAX_TICKETS = 16
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """Checks requests to one address."""

    def __init__(self, host: str, port: int) -> None:
        self.token = secrets.token_urlsafe(32)
        self._tickets: dict[str, None] = {}
        """In the order in which they were made."""
        name = f"[{host}]" if ":" in host else host.lower()
        self._names = tuple(dict.fromkeys((*_LOOPBACK, name)))
        self._any_address = _is_unspecified(host)
        self.port = port
        self.link = f"http://{_LOOPBACK[0] if self._any_address else name}:{port}/?token={self.token}"
        # Cookies are shared by all ports of a host, so two viewers on one machine need two cookie names.
        self._cookie = f"shoal-{port}"

    def ticket_link(self) -> str:
        """Returns a link that works once: for a browser's command line, which every user can read, and for a
        colleague. Only the last 16 that were not used work."""
        ticket = secrets.token_urlsafe(32)
        self._tickets[ticket] = None
        while len(self._tickets) > _MAX_TICKETS:  # the oldest that nobody has used
            del self._tickets[next(iter(self._tickets))]
        return self.link.replace(self.token, ticket)

    def check(self, request: Request) -> bytes | None:
        """Raises Refusal for a request that is not allowed.

        Returns a response for the token link, else None.
        """
        self._check_host(request.headers.get("host", ""))
        if request.method != "GET":
            raise Refusal(405, "only GET is answered here", {"Allow": "GET"})
        if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            raise Refusal(400, "a request must not have a body")
        if request.headers.get("sec-fetch-site") == "cross-site":
            raise Refusal(403, "the request came from another site; open the link that shoal watch printed")
        if request.path == "/" and request.query.startswith("token="):
            return self._enter(request.query.removeprefix("token="))
        if not self._is_bearer(request) and not self._has_cookie(request):
            raise Refusal(403, "the token is missing; open the link that shoal watch printed")
        return None

    def check_origin(self, request: Request) -> None:
        """Raises Refusal for a WebSocket from another origin; a browser always sends the Origin header."""
        origin = request.headers.get("origin")
        if origin is None and self._is_bearer(request):
            return
        if origin is None or origin.lower() != f"http://{request.headers['host'].lower()}":
            raise Refusal(403, "only this server's own page can open the WebSocket")

    def _check_host(self, host: str) -> None:
        name, _, port = host.lower().rpartition(":")
        if self.port == 80 and not name:
            name, port = port, "80"
        if port == str(self.port) and (name in self._names or (self._any_address and _is_address(name))):
            return
        known = ", ".join(f"{name}:{self.port}" for name in self._names)
        raise Refusal(
            403, f"the Host header must be one of {known}; through a tunnel, use the same port on both ends"
        )

    def _enter(self, token: str) -> bytes:
        used = [ticket for ticket in self._tickets if hmac.compare_digest(token.encode(), ticket.encode())]
        for ticket in used:
            del self._tickets[ticket]
        if not used and not self._is_token(token):
            raise Refusal(403, "the token is wrong; open the link that shoal watch printed")
        cookie = f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        return response(303, headers={"Location": "/", "Set-Cookie": cookie})

    def _is_bearer(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._is_token(token.strip())

    def _has_cookie(self, request: Request) -> bool:
        pairs = (pair.strip().partition("=") for pair in request.headers.get("cookie", "").split(";"))
        return any(name == self._cookie and self._is_token(value) for name, _, value in pairs)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_unspecified(host: str) -> bool:
    try:
        return host == "" or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    """Whether it is an IP address, not a name; DNS cannot point an address elsewhere."""
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        return True
    except ValueError:
        return False
