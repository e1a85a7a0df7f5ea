"""uvicorn as a worker runs it: bounded request heads, and a stop that loses nobody's request.

A stop goes so: the worker goes on accepting for a moment, telling every client to close its connection; then it
closes the port, gives idle connections the same moment, and waits for the calls under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 2 * 1024 * 1024
"""Request line and headers together, before anybody has looked at them; what may be less is in the configuration."""
LINGER_S = 0.25
"""How long a request that is on its way when the stop begins may take to arrive."""
KEEPALIVE_S = 75
"""Longer than the idle time after which usual clients and balancers close a connection themselves."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    stopping = False
    """Of the whole process: clients are told to close their connections."""
    _head_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("request head too large")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()
        if self.stopping:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        self.stopping = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(LINGER_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class WorkerServer(uvicorn.Server):
    """A server that is stopped by its process and not by signals of its own."""

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


async def run_server(app: Any, listener: socket.socket, *, drain_s: float, parent_fd: int, on_stop: Any) -> None:
    """Serve until SIGTERM, or until the other end of ``parent_fd`` closes. ``on_stop``: called when that begins."""
    server = make_server(app, drain_s=drain_s)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(parent_fd)
        loop.call_later(LINGER_S, finish)
        on_stop()
        BoundedProtocol.stopping = True

    def finish() -> None:
        server.should_exit = True

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_reader(parent_fd, stop)
    await server.serve(sockets=[listener])
