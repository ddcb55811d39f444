"""The part of HTTP/1.1 that one page needs, strictly: GET without a body, one request per connection."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Traversable

__all__ = ["MAX_HEAD", "Refusal", "Request", "read_assets", "read_request", "response"]

MAX_HEAD = 8192

_REQUEST = re.compile(rb"([!-~]+) (/[!-~]*) HTTP/1\.1")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ -~\t]*?)[ \t]*")

# The page may load only the server's files and connect only to this server. Inline scripts and frames are not
# allowed.
_ALWAYS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


class Refusal(Exception):
    """A rejected request: an HTTP status and a reason, which is sent to the client."""

    def __init__(self, status: int, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.headers = headers or {}

    def response(self) -> bytes:
        return response(self.status, f"{self}\n".encode(), headers=self.headers)


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request. Header names are in lower case."""

    method: str
    path: str
    query: str
    headers: dict[str, str]

    def lists(self, header: str, word: str) -> bool:
        """Whether `word` is one of the comma-separated words of a header."""
        return word in (item.strip().lower() for item in self.headers.get(header, "").split(","))


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Reads the request of a connection; returns None if the client closed it without sending anything.

    The reader's limit must be MAX_HEAD; the caller sets the deadline.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Refusal(431, f"the head of the request is longer than {MAX_HEAD} bytes") from None
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Refusal(400, "the request ended before the end of its head") from None
        return None
    first, *lines = head[:-4].split(b"\r\n")
    request = _REQUEST.fullmatch(first)
    if request is None:
        raise Refusal(400, "expected a request line such as GET / HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise Refusal(400, "a header line is not NAME: VALUE in printable ASCII")
        name = header[1].decode().lower()
        if name in headers:  # two parsers could each use another one of them
            raise Refusal(400, "a header is given twice")
        headers[name] = header[2].decode()
    path, _, query = request[2].decode().partition("?")
    return Request(request[1].decode(), path, query, headers)


def response(
    status: int,
    body: bytes = b"",
    content_type: str = "text/plain; charset=utf-8",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Returns a whole response, head and body."""
    own = {"Content-Type": content_type, "Content-Length": str(len(body)), **_ALWAYS, **(headers or {})}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {own[name]}" for name in own)]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def read_assets(directory: Traversable) -> dict[str, bytes]:
    """Reads every file below `directory`; returns whole responses by URL path.

    The files are read once, at the start, so the path of a request never reaches the file system.
    """
    found: dict[str, bytes] = {}

    def collect(folder: Traversable, path: str) -> None:
        for entry in folder.iterdir():
            suffix = entry.name[entry.name.rfind(".") :]
            if entry.is_dir():
                collect(entry, f"{path}{entry.name}/")
            elif suffix in _TYPES and not entry.name.startswith("."):
                found[path + entry.name] = response(200, entry.read_bytes(), _TYPES[suffix])

    if directory.is_dir():
        collect(directory, "/")
    if "/index.html" in found:
        found["/"] = found["/index.html"]
    return found
