"""One request as it came, and the client at the other end of it."""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from firstchair.chat.messages import Tool
from firstchair.core.errors import BadRequest
from firstchair.gateway.control.slots import SlotConfig
from firstchair.gateway.control.snapshot import Key
from firstchair.gateway.dialects.base import ChatRequest, Dialect, Failure
from firstchair.gateway.json_bytes import encoded
from firstchair.gateway.setup import Setup

Send = Callable[[dict[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


class Call:
    """One request. What costs time is read when it is asked for, and once."""

    def __init__(
        self, call_id: str, dialect: Dialect, headers: Mapping[bytes, bytes], received_us: int, setup: Setup
    ):
        self.id, self.dialect, self.headers, self.received_us = call_id, dialect, headers, received_us
        self.setup = setup
        """What the call is served with to its end."""
        self.raw = b""
        self.body: dict[str, Any] = {}
        self.model = ""
        self.stream = False
        self.key: Key | None = None
        self.slot: SlotConfig | None = None
        self.slot_version = 0
        self.trace: Mapping[str, str] = {}
        """Headers of the trace that this call is part of; they go to whichever provider."""
        self._request: ChatRequest | None = None
        self._tools: tuple[Tool, ...] | None = None

    @property
    def session(self) -> str:
        """The client's own name for the session."""
        return self.headers.get(b"x-firstchair-session", b"").decode("latin-1")[:256]

    @property
    def key_id(self) -> str:
        return self.key.key_id if self.key else ""

    def request(self) -> ChatRequest:
        """The body as a canonical request. Raises ``BadRequest``."""
        if self._request is None:
            self._request = self.dialect.read_request(self.body)
            self._request.received_s = self.received_us // 1_000_000
        return self._request

    def tools(self) -> tuple[Tool, ...]:
        """The tools; none when the request is one that only its own provider understands."""
        if self._request is not None:
            return self._request.tools
        if self._tools is None:
            try:
                self._tools = self.dialect.read_tools(self.body)
            except BadRequest:
                self._tools = ()
        return self._tools

    def sticky_session(self) -> str:
        """What stays the same through a session: its header, else its beginning (system and first message)."""
        if self.session:
            return self.session
        turns = self.body.get("messages", self.body.get("input"))
        first = turns[:2] if isinstance(turns, list) else turns
        if isinstance(first, list) and len(first) == 2:
            opens = isinstance(first[0], dict) and first[0].get("role") in ("system", "developer")
            first = first if opens else first[:1]
        begin = encoded([self.body.get("system", self.body.get("instructions")), first])
        return hashlib.sha256(begin).hexdigest()

    def max_tokens(self, default: int) -> int:
        """The longest answer that was asked for."""
        for field in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
            value = self.body.get(field)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return min(value, 10_000_000)
        return default


class Client:
    """The client's connection: one answer, whole or streamed."""

    def __init__(self, send: Send, call_id: str):
        self._send, self._call_id = send, call_id
        self.started = self._ended = False
        self.gone = False
        self.stalled = False
        """A write was given up: the client read too slowly, or no more."""

    async def begin(self, status: int, content_type: bytes, headers: list[Header]) -> None:
        """Status and headers; nothing of the body yet."""
        self.started = True
        await self._put(
            {"type": "http.response.start", "status": status, "headers": [*self._headers(content_type), *headers]}
        )

    async def write(self, data: bytes) -> None:
        """A part of the body; waits while the client reads slower than we write."""
        if data:
            await self._put({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """The last part of the body; the second time nothing happens."""
        if self._ended:
            return
        self._ended = True
        await self._put({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, body: bytes, headers: list[Header] | None = None) -> None:
        """A whole JSON answer."""
        length = (b"content-length", str(len(body)).encode())
        await self.begin(status, b"application/json", [length, *(headers or ())])
        await self.end(body)

    def _headers(self, content_type: bytes) -> list[Header]:
        name = self._call_id.encode()
        return [
            (b"content-type", content_type),
            (b"request-id", name),
            (b"x-request-id", name),
            (b"x-firstchair-call-id", name),
        ]

    async def _put(self, message: dict[str, Any]) -> None:
        if self.gone:
            return
        try:
            await self._send(message)
        except asyncio.CancelledError:
            self.stalled = True
            raise


def wait_headers(failure: Failure) -> list[Header]:
    """``retry-after`` in whole seconds: so long the vendors' SDKs wait. None when nobody knows."""
    if failure.retry_after_s is None:
        return []
    return [(b"retry-after", str(max(1, math.ceil(failure.retry_after_s))).encode())]


def header_text(text: str) -> bytes:
    """``text`` as a header may hold it: printable ASCII, not long. A client's own field names go through here."""
    if text.isascii() and text.isprintable():
        return text[:2000].encode("ascii")
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:2000].encode("ascii")
