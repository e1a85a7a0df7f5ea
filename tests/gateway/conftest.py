"""Fixtures of the gateway's own tests: scripted upstreams and clients of both vendors."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from firstchair.testing.scripted_upstream import Reply, Script, ScriptedUpstream, scripted_upstream


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with scripted_upstream(Script((Reply(text="Hello."),))) as running:
        yield running


@pytest.fixture
def backup() -> Iterator[ScriptedUpstream]:
    with scripted_upstream(Script((Reply(text="From the backup."),))) as running:
        yield running


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """A provider that answers every connection with these bytes and never hangs up; its base URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=answer_one, args=(connection,), daemon=True).start()

    def answer_one(connection: socket.socket) -> None:
        if connection.recv(65_536):
            connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in connections:
            connection.close()
