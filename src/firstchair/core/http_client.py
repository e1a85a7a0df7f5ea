"""HTTP/1.1 to one server: asyncio's transports, httptools' parser, a pool of idle connections.

    pool.post(head, body) ──→ Answer: status, headers, read() … ──→ release() │ close()

For a process that does little but pass calls on: a general client costs a call 210 µs of CPU, this one 70. It does
one thing. Nothing here follows a redirect, reads a proxy from the environment, keeps a cookie or repeats a request.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote, urlsplit

import httptools

KEEPALIVE_S = 4.0
"""For servers of an unknown kind: those of Python close an idle connection after 5 s, and a request must not meet
that."""
RACE_S = 0.25
"""So long one address of a server is tried alone, before the next is tried beside it (RFC 8305)."""
MAX_HEAD_BYTES = 64 * 1024
"""Of an answer's headers."""
PAUSE_BYTES = 256 * 1024
"""With so much unread, the server is let wait."""
MAX_INFLATED_BYTES = 16 * 1024 * 1024
"""What one piece of a compressed answer may become."""
_NO_BODY = frozenset({204, 304})


class HttpFault(Exception):
    """A request that has no answer, or not a whole one."""


class NotConnected(HttpFault):
    """No connection could be made."""

    def __init__(self, error: OSError):
        self.error = error
        super().__init__(str(error))


class ConnectTimeout(HttpFault):
    """No connection was made, or became free, in time."""


class Disconnected(HttpFault):
    """The server closed the connection before its answer had ended."""


class NotHttp(HttpFault):
    """What came is no HTTP, or more than an answer may hold."""


class TooLong(HttpFault):
    """The body is longer than the caller wants."""


def request_path(url: str) -> bytes:
    """The path of ``url`` as a request line says it; what is quoted already stays so."""
    return quote(urlsplit(url).path, safe="/%:@!$&'()*+,;=~").encode("ascii")


def head_lines(headers: Mapping[str, str]) -> bytes:
    """Request headers as they are sent. Raises ``ValueError`` for one that would end its line."""
    text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if text.count("\r") != len(headers) or text.count("\n") != len(headers) or "\0" in text:
        raise ValueError("a header with a line end in it")
    return text.encode("latin-1")


class Pool:
    """The connections to one server, used on one event loop."""

    def __init__(self, url: str, *, limit: int, keepalive_s: float, tls: ssl.SSLContext | None = None):
        """``url``: scheme, host and port count. At most ``limit`` connections; one that has not been used for
        ``keepalive_s`` is closed. ``tls``: whom to trust; the system's authorities if not given.
        """
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = tls or ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        name = parts.netloc.rpartition("@")[2]
        self._host_line = b"host: %s\r\n" % name.encode("ascii" if name.isascii() else "idna")
        self._limit, self._keepalive_s = limit, keepalive_s
        self._idle: list[tuple[_Connection, float]] = []
        self._live: set[_Connection] = set()
        self._connecting = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweep: asyncio.TimerHandle | None = None

    async def post(self, path: bytes, head: bytes, body: bytes, *, connect_s: float) -> Answer:
        """Send ``body``, wait for the head of the answer. ``path``: of ``request_path``; ``head``: of ``head_lines``.

        Raises ``HttpFault``. The caller holds the clock for the answer; cancelled, the connection is closed.
        """
        connection = await self._connection(connect_s)
        data = b"POST %s HTTP/1.1\r\n%s%scontent-length: %d\r\n\r\n%s" % (
            path,
            self._host_line,
            head,
            len(body),
            body,
        )
        answer = connection.ask(data)
        try:
            await answer.wait_for_head()
        except BaseException:
            answer.close()
            raise
        return answer

    async def close(self) -> None:
        """Close every connection."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in tuple(self._live):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)

    async def _connection(self, connect_s: float) -> _Connection:
        found = self._kept()
        if found is not None:
            return found
        try:
            async with asyncio.timeout(connect_s):
                while len(self._live) + self._connecting >= self._limit:
                    await self._turn()
                    found = self._kept()
                    if found is not None:
                        return found
                return await self._connect()
        except TimeoutError:
            raise ConnectTimeout from None

    def _kept(self) -> _Connection | None:
        """An idle connection, the one used last first."""
        oldest = asyncio.get_running_loop().time() - self._keepalive_s
        while self._idle:
            connection, since = self._idle.pop()
            if since > oldest and not connection.is_closing:
                return connection
            connection.abort()
        return None

    async def _turn(self) -> None:
        """Wait until a connection is given back or closed."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()
            raise

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def _connect(self) -> _Connection:
        self._connecting += 1
        loop = asyncio.get_running_loop()
        port = self._port or (80 if self._tls is None else 443)
        # A server with an IPv6 address that leads nowhere is reached at its other one; uvloop cannot do that.
        more: dict[str, Any] = {"happy_eyeballs_delay": RACE_S} if isinstance(loop, asyncio.BaseEventLoop) else {}
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self), self._host, port, ssl=self._tls, **more
            )
        except TimeoutError:
            raise
        except (OSError, UnicodeError) as error:
            raise NotConnected(error if isinstance(error, OSError) else OSError(str(error))) from None
        finally:
            self._connecting -= 1
            self._next()
        return connection

    def opened(self, connection: _Connection) -> None:
        self._live.add(connection)

    def closed(self, connection: _Connection) -> None:
        self._live.discard(connection)
        self._next()

    def give_back(self, connection: _Connection) -> None:
        """``connection`` has no request under way."""
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._sweep is None:
            self._sweep = loop.call_later(self._keepalive_s, self._close_old)
        self._next()

    def _close_old(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._keepalive_s
        for connection, since in self._idle:
            if since <= oldest:
                connection.abort()
        self._idle = [one for one in self._idle if one[1] > oldest]
        self._sweep = loop.call_later(self._keepalive_s, self._close_old) if self._idle else None


class Answer:
    """One answer. ``read`` until it is empty, then ``release``; or ``close`` at any time."""

    __slots__ = ("_body", "_connection", "_fault", "_inflate", "_size", "_waiter", "headers", "is_complete", "status")

    def __init__(self, connection: _Connection):
        self._connection = connection
        self.status = 0
        self.headers: dict[str, str] = {}
        """Names in lower case; a header that stands twice is joined by commas."""
        self.is_complete = False
        self._body: list[bytes] = []
        self._size = 0
        self._fault: HttpFault | None = None
        self._inflate: zlib._Decompress | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for_head(self) -> None:
        """Until ``status`` and ``headers`` are there. Raises ``HttpFault``."""
        while not self.status:
            if self._fault is not None:
                raise self._fault
            await self._change()

    async def read(self) -> bytes:
        """What has come of the body since, waiting for some; empty at its end. Raises ``HttpFault``."""
        while True:
            if self._body:
                data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
                self._body.clear()
                self._size = 0
                self._connection.let_read()
                return data
            if self._fault is not None:
                raise self._fault
            if self.is_complete:
                return b""
            await self._change()

    async def rest(self, most: int | None = None) -> bytes:
        """What is left of the body; the connection is given back.

        Raises ``HttpFault``, of them ``TooLong`` for one of more than ``most`` bytes.
        """
        parts: list[bytes] = []
        size = 0
        try:
            while data := await self.read():
                parts.append(data)
                size += len(data)
                if most is not None and size > most:
                    raise TooLong(f"a body of more than {most:,} bytes")
        finally:
            self.release()
        return b"".join(parts)

    def release(self) -> None:
        """Give the connection back, or close it where the answer has not ended. More than once is nothing."""
        self._connection.done_with(self)

    def close(self) -> None:
        """Close the connection."""
        self._connection.drop(self)

    async def _change(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the connection tells.

    def begin(self, status: int, headers: dict[str, str]) -> None:
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._inflate = zlib.decompressobj(47)
        elif encoding != "identity":
            raise NotHttp(f"a body in the encoding {encoding[:40]}")
        self.status, self.headers = status, headers
        self._wake()

    def add(self, data: bytes) -> int:
        """A piece of the body; how much waits to be read."""
        if self._inflate is not None:
            try:
                data = self._inflate.decompress(data, MAX_INFLATED_BYTES)
            except zlib.error:
                raise NotHttp("a broken compressed body") from None
            if self._inflate.unconsumed_tail:
                raise NotHttp("a compressed body that grows beyond measure")
        if data:
            self._body.append(data)
            self._size += len(data)
            self._wake()
        return self._size

    def end(self) -> None:
        self.is_complete = True
        self._wake()

    def fail(self, fault: HttpFault) -> None:
        if not self.is_complete and self._fault is None:
            self._fault = fault
            self._wake()


class _Connection(asyncio.Protocol):
    """One connection; at most one request at a time."""

    def __init__(self, pool: Pool):
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._status = 0
        self._until_close = self._is_paused = self._keep = False

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def ask(self, data: bytes) -> Answer:
        """Write a request; its answer, of which nothing is there yet."""
        assert self._transport is not None
        answer = self._answer = Answer(self)
        self._keep = False
        self._transport.write(data)
        return answer

    def let_read(self) -> None:
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def done_with(self, answer: Answer) -> None:
        if answer is not self._answer:
            return
        if answer.is_complete and self._keep and not self.is_closing:
            self._answer = None
            self.let_read()
            self._pool.give_back(self)
        else:
            self.drop(answer)

    def drop(self, answer: Answer) -> None:
        if answer is self._answer:
            self._answer = None
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            self._answer.fail(cause if isinstance(cause, NotHttp) else NotHttp("no HTTP"))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.closed(self)
        answer = self._answer
        if answer is not None:
            if self._until_close and exc is None and answer.status:
                answer.end()
            answer.fail(Disconnected())

    # httptools

    def on_message_begin(self) -> None:
        self._headers, self._head_bytes = {}, 0
        if self._answer is None or self._answer.is_complete:
            raise NotHttp("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise NotHttp("too many headers")
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self._headers.get(key)
        self._headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        status = self._status = self._parser.get_status_code()
        if status < 200:  # more is to come
            return
        assert self._answer is not None
        headers = self._headers
        framed = "content-length" in headers or "transfer-encoding" in headers or status in _NO_BODY
        self._until_close = not framed
        self._answer.begin(status, headers)

    def on_body(self, data: bytes) -> None:
        assert self._answer is not None
        waiting = self._answer.add(data)
        if waiting > PAUSE_BYTES and not self._is_paused:
            assert self._transport is not None
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._status < 200:
            return
        assert self._answer is not None
        self._keep = self._parser.should_keep_alive() and not self._until_close
        self._answer.end()
