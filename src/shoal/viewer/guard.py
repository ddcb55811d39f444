"""Who may talk to the server.

1. The name: a page elsewhere can point a name of its own at this machine, so the Host must be one of ours.
2. The page: a page elsewhere can make a browser ask us, so no request of another site is answered, and a
   socket is opened for our own origin alone.
3. The token: other users of this machine can ask us too. It is in the first link, then in a cookie that no
   script can read, or in the header of a script's request.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets

from shoal.viewer.http import Refusal, Request, response

__all__ = ["Guard", "is_loopback"]

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """Checks requests to one address."""

    def __init__(self, host: str, port: int) -> None:
        self.token = secrets.token_urlsafe(32)
        self._tickets: set[str] = set()
        name = f"[{host}]" if ":" in host else host.lower()
        self._names = tuple(dict.fromkeys((*_LOOPBACK, name)))
        self._any_address = _is_unspecified(host)
        self._port = port
        self.link = f"http://{_LOOPBACK[0] if self._any_address else name}:{port}/?token={self.token}"
        # Cookies know no ports: two viewers on one machine need two names.
        self._cookie = f"shoal-{port}"

    def ticket_link(self) -> str:
        """A link that works once, for a browser's command line, which every user of the machine may read."""
        ticket = secrets.token_urlsafe(32)
        self._tickets.add(ticket)
        return self.link.replace(self.token, ticket)

    def check(self, request: Request) -> bytes | None:
        """Raises Refusal where a request may not be answered; the response where that is all there is."""
        self._check_host(request.headers.get("host", ""))
        if request.method != "GET":
            raise Refusal(405, "only GET is answered here", {"Allow": "GET"})
        if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            raise Refusal(400, "a request must not have a body")
        if request.headers.get("sec-fetch-site") == "cross-site":
            raise Refusal(403, "another site asked for this; open the link that shoal watch printed yourself")
        if request.path == "/" and request.query.startswith("token="):
            return self._enter(request.query.removeprefix("token="))
        if not self._is_bearer(request) and not self._has_cookie(request):
            raise Refusal(403, "open the link that shoal watch printed: it has the token")
        return None

    def check_origin(self, request: Request) -> None:
        """Raises Refusal for a socket that another page wants; a browser always says which page it is."""
        origin = request.headers.get("origin")
        if origin is None and self._is_bearer(request):
            return
        if origin is None or origin.lower() != f"http://{request.headers['host'].lower()}":
            raise Refusal(403, "the socket is for the page of this server alone")

    def _check_host(self, host: str) -> None:
        name, _, port = host.lower().rpartition(":")
        if self._port == 80 and not name:
            name, port = port, "80"
        if port == str(self._port) and (name in self._names or (self._any_address and _is_address(name))):
            return
        known = ", ".join(f"{name}:{self._port}" for name in self._names)
        raise Refusal(403, f"this server is {known}; through a tunnel, use the same port on both ends")

    def _enter(self, token: str) -> bytes:
        used = {ticket for ticket in self._tickets if hmac.compare_digest(token.encode(), ticket.encode())}
        self._tickets -= used
        if not used and not self._is_token(token):
            raise Refusal(403, "the token is not that of this server; open the link that shoal watch printed")
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
    """Whether nobody outside this machine can reach `host`."""
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
    """An address, not a name: nobody can point it elsewhere."""
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        return True
    except ValueError:
        return False
