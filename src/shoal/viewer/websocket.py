"""The server's side of a WebSocket (RFC 6455), without extensions.

A page sends short texts and control frames, all masked; anything else closes the connection with the RFC's
code for it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import struct

from shoal.viewer.http import Refusal, Request

__all__ = ["BINARY", "CLOSE", "MAX_INBOUND", "PING", "PONG", "TEXT", "Closing", "Incoming", "accept", "head"]

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MAX_INBOUND = 4096
"""The maximum size of a message from a page in bytes, all its fragments together."""

_CONTINUATION = 0
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_CONTROL = 125


class Closing(Exception):
    """The reason why this side closes: a code of the RFC and a text."""

    def __init__(self, code: int, why: str = "") -> None:
        super().__init__(why)
        self.code = code

    def payload(self) -> bytes:
        return struct.pack(">H", self.code) + str(self).encode()[: _MAX_CONTROL - 2]


def accept(request: Request) -> bytes:
    """Returns the response that turns the connection into a WebSocket; raises Refusal for a wrong request."""
    headers = request.headers
    if not request.lists("upgrade", "websocket") or not request.lists("connection", "upgrade"):
        raise Refusal(426, "only a WebSocket is served here", {"Upgrade": "websocket"})
    if headers.get("sec-websocket-version") != "13":
        raise Refusal(426, "only version 13 of WebSocket is served here", {"Sec-WebSocket-Version": "13"})
    key = headers.get("sec-websocket-key", "")
    try:
        whole = len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        whole = False
    if not whole:
        raise Refusal(400, "Sec-WebSocket-Key must be 16 bytes in base64")
    digest = base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()
    lines = ("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade")
    return "\r\n".join([*lines, f"Sec-WebSocket-Accept: {digest}", "", ""]).encode()


def head(opcode: int, length: int) -> bytes:
    """Returns the frame header of a payload of `length` bytes."""
    if length < 126:
        return struct.pack(">BB", 0x80 | opcode, length)
    if length < 1 << 16:
        return struct.pack(">BBH", 0x80 | opcode, 126, length)
    return struct.pack(">BBQ", 0x80 | opcode, 127, length)


class Incoming:
    """The messages of a page: whole texts and control frames, in order of arrival."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._text: bytearray | None = None
        """The fragments so far of a text whose last fragment has not arrived."""

    async def next(self) -> tuple[int, bytes]:
        """Returns TEXT (valid UTF-8), PING or PONG, and the payload; raises Closing if the page closes."""
        while True:
            final, opcode, payload = await self._frame()
            if opcode in (PING, PONG):
                return opcode, payload
            if opcode == CLOSE:
                raise _answer_close(payload)
            if (opcode == _CONTINUATION) == (self._text is None):
                raise Closing(1002, "a fragment is out of order")
            text = bytearray() if self._text is None else self._text
            text += payload
            self._text = None if final else text
            if final:
                return TEXT, _check_utf8(bytes(text))

    async def _frame(self) -> tuple[bool, int, bytes]:
        first, second = await self._reader.readexactly(2)
        final, opcode, length = bool(first & 0x80), first & 0x0F, second & 0x7F
        if first & 0x70:
            raise Closing(1002, "reserved bits are set, but no extension was agreed on")
        if not second & 0x80:
            raise Closing(1002, "a frame to the server must be masked")
        if opcode == BINARY:
            raise Closing(1003, "a message must be text, not binary")
        if opcode not in (_CONTINUATION, TEXT, CLOSE, PING, PONG):
            raise Closing(1002, f"the opcode {opcode} does not exist")
        if opcode >= CLOSE and (length > _MAX_CONTROL or not final):
            raise Closing(1002, f"a control frame is fragmented or longer than {_MAX_CONTROL} bytes")
        if length >= 126:
            wide = length == 127
            (length,) = struct.unpack(
                ">Q" if wide else ">H", await self._reader.readexactly(8 if wide else 2)
            )
            if length < (1 << 16 if wide else 126):
                raise Closing(1002, "the length is not in the shortest form")
        if opcode < CLOSE and length + len(self._text or b"") > MAX_INBOUND:
            raise Closing(1009, f"a message must not have more than {MAX_INBOUND} bytes")
        mask = await self._reader.readexactly(4)
        payload = await self._reader.readexactly(length)
        keys = (mask * (length // 4 + 1))[:length]
        return final, opcode, bytes(a ^ b for a, b in zip(payload, keys, strict=True))


def _answer_close(payload: bytes) -> Closing:
    """Returns the answer to a close frame: the same code, if it is valid."""
    if not payload:
        return Closing(1000)
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        return Closing(1002, "the close code is not valid")
    _check_utf8(payload[2:])
    return Closing(code)


def _check_utf8(payload: bytes) -> bytes:
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise Closing(1007, "the text is not UTF-8") from None
    return payload
