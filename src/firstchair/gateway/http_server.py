"""uvicorn as a worker runs it: bounded request heads, and a stop that loses nobody's request.

A stop goes so: for a moment the worker goes on accepting, and telling every client that asks to close its connection;
then it closes the port and the connections that were idle, gives new ones a moment of their own, and waits for the
calls under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import httptools
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 2 * 1024 * 1024
"""Request line and headers together, before anybody has looked at them; what may be less is in the configuration."""
LINGER_S = 0.25
"""How long a request that is on its way when the stop begins may take to arrive."""
AGAIN_S = 0.02
"""Until the next look at a socket where a request or connection still waits when it is to be closed …"""
LOOKS = 250
"""… and how often the port is looked at: clients that never stop coming do not keep it open."""
KEEPALIVE_S = 75
"""Longer than the idle time after which usual clients and balancers close a connection themselves."""
TAKEN_AT_ONCE = 16
"""Connections in one turn: few enough that workers of one port share a burst."""
ACCEPT_AGAIN_S = 1.0
OWED_S = 30.0
"""How long a client may take to send a head, or the rest of a body behind its answer. For a body that is waited for
there is ``limits.body_timeout_s``."""
MAX_UNREAD_BYTES = 256 * 1024 * 1024
"""So much of a body is read and thrown away behind its answer, so that a client which has sent on sees the answer."""
ON_LEAVING = "firstchair.on_leaving"
"""Key of a scope: what the application wants called when the client leaves before its answer is complete. When it
left before there was anything to call, ``has_left`` says so. A task that waits for the disconnect costs every call
more than this."""
_UPGRADE_HEADERS = frozenset({b"upgrade", b"http2-settings"})


class _Joined:
    """A transport to which the head of an answer goes together with the first of its body: one system call less."""

    def __init__(self, transport: asyncio.Transport):
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is None:
            if data.startswith(b"HTTP/1.1 100 "):
                self._transport.write(data)
            else:
                self._head = data
        elif self._head:
            self._head, data = b"", self._head + data
            self._transport.write(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    stopping = False
    """Of the whole process: clients are told to close their connections."""
    _head_bytes = 0
    _in_head = True
    _in_message = False
    _unread_bytes = 0
    _offered = b""
    """The request line's method when the client offers an upgrade, which is never taken."""
    _owing: asyncio.TimerHandle | None = None
    """Runs while the client owes a head, or the rest of a body that nobody waits for any more."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._owe()

    def connection_lost(self, exc: Exception | None) -> None:
        self._paid()
        super().connection_lost(exc)
        if self.cycle is not None and self.cycle.disconnected:
            scope: Any = self.cycle.scope
            scope.setdefault(ON_LEAVING, nobody)()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("request head too large")
                return
        self._unset_keepalive_if_required()
        try:
            while data:
                data = self._fed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._in_head and self._owing is None:
            self._owe()

    def _fed(self, data: bytes) -> bytes:
        """Give ``data`` to the parser; what it has to be given next.

        The parser stops behind a head that offers an upgrade, and takes the body for the other protocol. The request
        goes on as if nothing had been offered: Java's HttpClient offers h2c with every first request.
        """
        self._offered = b""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._offered == b"CONNECT":
                raise httptools.HttpParserError("no proxy") from None
            version = self.parser.get_http_version().encode()
            head = [b"%s %s HTTP/%s" % (self._offered, self.url, version)]
            for name, value in self.headers:
                kept = _without_upgrade(value) if name == b"connection" else value
                if kept and name not in _UPGRADE_HEADERS:
                    head.append(b"%s: %s" % (name, kept))
            self.parser = httptools.HttpRequestParser(self)
            return b"\r\n".join(head) + b"\r\n\r\n" + data[upgrade.args[0] :]
        return b""

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._paid()
        if self.parser.should_upgrade():
            self._offered = self.parser.get_method()
            return
        super().on_headers_complete()
        cycle: Any = self.cycle
        cycle.transport = _Joined(self.transport)
        if self.stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.cycle.response_complete:
            self._unread_bytes += len(body)
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self.transport.close()

    def on_message_complete(self) -> None:
        if self._offered:
            return
        self._in_message = False
        self._unread_bytes = 0
        self._paid()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A client that is refused early may send on for a while: it reads the refusal only when it has sent its body.
        if self._in_message and self.cycle.response_complete and not self.transport.is_closing():
            self._owe()

    def _owe(self) -> None:
        self._paid()
        self._owing = self.loop.call_later(OWED_S, self.transport.close)

    def _paid(self) -> None:
        if self._owing is not None:
            self._owing.cancel()
            self._owing = None

    def shutdown(self) -> None:
        self.stopping = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        else:
            self.close_idle()

    def close_idle(self) -> None:
        """Close the connection if no request comes in a moment; one with a call under way stays as it is."""
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LINGER_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
            return
        if has_input(self.transport.get_extra_info("socket")):
            # A request is here and was not read yet: a close would reset it.
            self.loop.call_later(AGAIN_S, self._close_if_idle)
        else:
            self.transport.close()


def nobody() -> None:
    """There is nothing to call."""


def has_left(scope: Mapping[str, Any]) -> bool:
    """Whether the client of a request was gone before ``ON_LEAVING`` was set."""
    return ON_LEAVING in scope


def has_input(sock: Any) -> bool:
    """Whether bytes, or a connection, wait to be taken from a socket."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _without_upgrade(value: bytes) -> bytes:
    """A ``connection`` header without what belongs to an upgrade."""
    tokens = [token.strip() for token in value.split(b",")]
    return b", ".join(token for token in tokens if token.lower() not in _UPGRADE_HEADERS)


class _Port:
    """Takes the connections that wait at a port, many in one turn of the event loop.

    uvloop takes one a turn. In a busy worker, where a turn is 10 ms, the last of 64 that come together then waits
    half a second.
    """

    def __init__(self, listener: socket.socket, make: Callable[[], asyncio.Protocol]):
        self._listener, self._make = listener, make
        self._loop = asyncio.get_running_loop()
        self._taking: set[asyncio.Task[Any]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._take)

    def _take(self) -> None:
        for _ in range(TAKEN_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # No descriptors or no memory: the port is asked again when some may be free.
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(ACCEPT_AGAIN_S, self._listen)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError:  # it is gone already
            connection.close()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def wait_closed(self) -> None:
        """Until every connection that was taken is being served."""
        await asyncio.gather(*self._taking)


class WorkerServer(uvicorn.Server):
    """A server that is stopped by its process and not by signals of its own."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen at ``sockets``, which listen already."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)

        def make() -> asyncio.Protocol:
            return BoundedProtocol(self.config, self.server_state, self.lifespan.state)

        ports: Any = [_Port(listener, make) for listener in sockets or ()]
        self.servers = ports
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: Any, *, drain_s: float) -> WorkerServer:
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEPALIVE_S,
        timeout_graceful_shutdown=max(1, round(drain_s)),
    )
    return WorkerServer(config)


async def run_server(
    app: Any,
    listener: socket.socket,
    *,
    drain_s: float,
    parent_fd: int | None,
    on_stop: Callable[[], None],
    before_close: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until SIGTERM, or until the other end of ``parent_fd`` closes; a process without a parent heeds Ctrl-C
    too. ``on_stop``: called when the stop begins. ``before_close``: awaited then, while the port is still open, for
    an application that refuses by itself what still comes.
    """
    server = make_server(app, drain_s=drain_s)
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []

    def stop() -> None:
        if parent_fd is not None:
            loop.remove_reader(parent_fd)
        if waiting:
            return
        on_stop()
        BoundedProtocol.stopping = True
        if before_close is None:
            close()
        else:
            waiting.append(asyncio.ensure_future(before_close()))
            waiting[0].add_done_callback(lambda _: close())

    def close() -> None:
        for connection in list(server.server_state.connections):
            if isinstance(connection, BoundedProtocol):
                connection.close_idle()  # its moment and the port's are the same one
        loop.call_later(LINGER_S, finish)

    def finish(looks_left: int = LOOKS) -> None:
        if looks_left and has_input(listener):
            # Whoever is in the queue of the port when it closes is reset: a busy machine has taken them late.
            loop.call_later(AGAIN_S, finish, looks_left - 1)
        else:
            for port in server.servers:
                port.close()  # now: the server itself looks only ten times a second
            server.should_exit = True

    loop.add_signal_handler(signal.SIGTERM, stop)
    if parent_fd is None:
        loop.add_signal_handler(signal.SIGINT, stop)
    else:
        loop.add_reader(parent_fd, stop)
    await server.serve(sockets=[listener])
