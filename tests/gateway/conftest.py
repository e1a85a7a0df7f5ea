"""Fixtures of the gateway's own tests: scripted upstreams and clients of both vendors."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine, inspect, text

from firstchair.gateway.control import tables
from firstchair.testing.scripted_upstream import Reply, Script, ScriptedUpstream, scripted_upstream


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with scripted_upstream(Script((Reply(text="Hello."),))) as running:
        yield running


@pytest.fixture
def backup() -> Iterator[ScriptedUpstream]:
    with scripted_upstream(Script((Reply(text="From the backup."),))) as running:
        yield running


@pytest.fixture
def gateway_postgres(postgres_database) -> Iterator[str]:
    """URL of a PostgreSQL database in which no gateway has anything."""

    def empty() -> None:
        engine = create_engine(postgres_database)
        names = ", ".join(name for name in tables.metadata.tables if name != "gateway_info")
        with engine.begin() as connection:
            if inspect(connection).has_table("gateway_info"):
                connection.execute(text(f"TRUNCATE {names}"))
                connection.execute(text("UPDATE gateway_info SET number = 0"))
        engine.dispose()

    empty()
    yield postgres_database
    empty()


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
