"""Requests over keep-alive connections, as cheap as Python makes them: a raw client on uvloop and httptools.

    measured = await drive("127.0.0.1", port, lambda number: ask, count=1000, concurrency=8)

Every connection asks, reads the whole answer, and asks again, until ``count`` requests were sent or ``limit_s`` is
over. An answer counts when its status is 200 and, for a stream, its terminal event came; whatever else happens is in
``errors``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import httptools

_LEAVE_BEFORE_S = 0.01
ANSWER_S = 60.0


@dataclass(frozen=True)
class Ask:
    """One kind of request. ``$N`` in the body becomes the number of the request, so that no two are equal."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    terminal: bytes = b""
    """What the end of a complete answer holds."""
    leave: Literal["", "before", "during"] = ""
    """Close the connection: a moment after the request was sent, or when the first of the answer is there."""

    def bytes_for(self, number: int) -> bytes:
        body = self.body.replace(b"$N", str(number).encode(), 1)
        lines = [f"POST {self.path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}"]
        lines += ["content-type: application/json", *(f"{name}: {value}" for name, value in self.headers.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Measured:
    """What came of it. Times are in ms, of complete answers only."""

    sent: int = 0
    left: int = 0
    """Requests whose connection we closed on purpose."""
    wall_s: float = 0.0
    latency: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    """Until the first byte of the body."""
    events: int = 0
    """``data:`` lines of all answers."""
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> int:
        return len(self.latency)


class _Connection(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self, measured: Measured):
        self._measured = measured
        self._parser = httptools.HttpResponseParser(self)
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = transport, True
        self._answered: asyncio.Future[str] | None = None

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._end("connection lost")

    async def ask(self, ask: Ask, number: int) -> None:
        request = ask.bytes_for(number)
        self._ask, self._tail, self._events, self._complete = ask, b"", 0, False
        self._answered = asyncio.get_running_loop().create_future()
        self._first = 0.0
        self._sent = time.perf_counter()
        self._transport.write(request)
        if ask.leave == "before":
            await asyncio.sleep(_LEAVE_BEFORE_S)
            if not self._answered.done():
                self._leave()
        try:
            problem = await asyncio.wait_for(self._answered, ANSWER_S)
        except TimeoutError:
            problem = "no answer in time"
            self.close()
        if problem:
            if problem != "left":
                self._measured.errors[problem] += 1
            return
        self._measured.latency.append((self._done - self._sent) * 1000)
        self._measured.first.append((self._first - self._sent) * 1000)
        self._measured.events += self._events

    def _leave(self) -> None:
        self._measured.left += 1
        self._end("left")
        self.close()

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def _end(self, problem: str) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(problem)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"no HTTP: {type(error).__name__}")
            self.close()
            return
        if not self._complete:
            return
        self._done = time.perf_counter()
        status, terminal = self._parser.get_status_code(), self._ask.terminal
        if status != 200:
            self._end(f"status {status}")
        elif terminal and terminal not in self._tail:
            self._end("no terminal event")
        else:
            self._end("")

    # httptools' side

    def on_headers_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.is_open = False

    def on_body(self, body: bytes) -> None:
        if not self._first:
            self._first = time.perf_counter()
            if self._ask.leave == "during" and self._answered is not None and not self._answered.done():
                self._leave()
                return
        if self._ask.terminal:
            self._events += body.count(b"data: ")
            # The last event of Responses holds the whole answer.
            self._tail = (self._tail + body)[-8192:]

    def on_message_complete(self) -> None:
        self._complete = True


async def drive(
    host: str,
    port: int,
    pick: Callable[[int], Ask],
    *,
    count: int,
    concurrency: int,
    limit_s: float = float("inf"),
) -> Measured:
    """Send ``count`` requests, ``concurrency`` at a time; nothing new after ``limit_s``."""
    measured, loop = Measured(), asyncio.get_running_loop()
    began = time.perf_counter()

    async def lane() -> None:
        connection: _Connection | None = None
        while measured.sent < count and time.perf_counter() - began < limit_s:
            number, measured.sent = measured.sent, measured.sent + 1
            if connection is None or not connection.is_open:
                try:
                    _, connection = await loop.create_connection(lambda: _Connection(measured), host, port)
                except OSError as error:
                    measured.errors[f"connect: {type(error).__name__}"] += 1
                    continue
            await connection.ask(pick(number), number)
        if connection is not None:
            connection.close()

    await asyncio.gather(*(lane() for _ in range(concurrency)))
    measured.wall_s = time.perf_counter() - began
    return measured
