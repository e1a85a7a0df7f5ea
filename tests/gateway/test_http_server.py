"""Connections as clients make them: offers of another protocol, heads without end, bodies nobody waits for."""

import asyncio
import contextlib
import errno
import json
import os
import socket

import pytest
import uvloop

from firstchair.gateway import http_server
from firstchair.gateway.http_server import TAKEN_AT_ONCE, _Port
from firstchair.testing.gateway_server import provider, running_gateway
from firstchair.testing.scripted_upstream import Reply, Script, scripted_upstream

SLOT = {"slot": "main", "primary": {"provider": "up", "model": "m"}}
MESSAGES = [{"role": "user", "content": "Hi"}]
HELLO = json.dumps({"model": "main", "max_tokens": 5, "messages": MESSAGES}).encode()
LENGTH = len(HELLO)
H2C = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with (
        scripted_upstream(Script((Reply(text="Hello."),))) as upstream,
        running_gateway(tmp_path_factory.mktemp("gateway"), {"up": provider(upstream.base_url)}, [SLOT]) as gateway,
    ):
        gateway.upstream = upstream
        yield gateway


def connected(running):
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def head(running, more="", *, key=None, length=LENGTH, line="POST /v1/messages HTTP/1.1"):
    return f"{line}\r\nhost: x\r\nx-api-key: {key or running.key}\r\n{more}content-length: {length}\r\n\r\n".encode()


def to_the_end(raw):
    return b"".join(iter(lambda: raw.recv(65_536), b""))


@pytest.mark.parametrize("cut", [0, 40, 150, 330, 350], ids=str)
def test_an_offer_of_http_2_is_passed_over_and_the_body_read(running, cut):
    """Java's HttpClient offers h2c with every first request; its body is an ordinary one."""
    asked = len(running.upstream.requests)
    sent = head(running, H2C) + HELLO + head(running, "connection: close\r\n") + HELLO
    with connected(running) as raw:
        raw.sendall(sent[:cut])
        raw.sendall(sent[cut:])
        answer = to_the_end(raw)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert [seen.body["messages"] for seen in running.upstream.requests[asked:]] == 2 * [
        json.loads(HELLO)["messages"]
    ]


def test_an_offer_with_a_chunked_body_and_a_close_is_read_too(running):
    more = H2C.replace("connection: Upgrade", "connection: close, Upgrade")
    sent = head(running, more).replace(b"content-length: %d" % LENGTH, b"transfer-encoding: chunked")
    with connected(running) as raw:
        raw.sendall(sent + b"%x\r\n%s\r\n0\r\n\r\n" % (LENGTH, HELLO))
        assert to_the_end(raw).startswith(b"HTTP/1.1 200 ")


def test_a_thousand_offers_at_once_are_a_thousand_requests(running):
    sent = head(running, H2C, line="GET /healthz HTTP/1.1", length=0) * 1000
    with connected(running) as raw:
        raw.sendall(sent + head(running, "connection: close\r\n", line="GET /healthz HTTP/1.1", length=0))
        assert to_the_end(raw).count(b"HTTP/1.1 200 ") == 1001


def test_a_gateway_is_no_proxy(running):
    for target in ("example.org:443", "/v1/messages"):
        with connected(running) as raw:
            raw.sendall(head(running, line=f"CONNECT {target} HTTP/1.1") + HELLO)
            assert to_the_end(raw).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("before", [b"", b"POST /v1/messages HTTP/1.1\r\nx: "], ids=["silent", "half a head"])
def test_a_head_that_never_ends_is_not_waited_for(running, monkeypatch, before):
    monkeypatch.setattr(http_server, "OWED_S", 0.05)
    with connected(running) as raw:
        raw.sendall(before)
        assert to_the_end(raw) == b""


def test_the_second_head_of_a_connection_is_not_waited_for_either(running, monkeypatch):
    monkeypatch.setattr(http_server, "OWED_S", 0.05)
    with connected(running) as raw:
        raw.sendall(head(running, line="GET /healthz HTTP/1.1", length=0) + b"GET /healthz HT")
        assert to_the_end(raw).count(b"HTTP/1.1 200 ") == 1


def test_a_refused_body_that_trickles_on_is_not_waited_for(running, monkeypatch):
    monkeypatch.setattr(http_server, "OWED_S", 0.05)
    with connected(running) as raw:
        raw.sendall(head(running, key="fc_wrong", length=1_000_000) + b"x")
        assert to_the_end(raw).startswith(b"HTTP/1.1 401 ")


def test_a_refused_body_without_end_is_cut_off(running, monkeypatch):
    monkeypatch.setattr(http_server, "MAX_UNREAD_BYTES", 1_000_000)
    sent = head(running, key="fc_wrong").replace(b"content-length: %d" % LENGTH, b"transfer-encoding: chunked")
    with connected(running) as raw, pytest.raises(ConnectionError):
        raw.sendall(sent)
        for _ in range(1000):
            raw.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")


def test_a_slow_but_honest_client_is_waited_for(running, monkeypatch):
    """The clock of the head stops with the head, and starts anew with the next one."""
    monkeypatch.setattr(http_server, "OWED_S", 0.3)
    with connected(running) as raw:
        for _ in range(3):
            raw.sendall(head(running) + HELLO[:10])
            running.wait_until(lambda: running.worker.running == 1)
            raw.sendall(HELLO[10:])
            answer = raw.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_connection_that_is_idle_when_a_stop_begins_has_the_same_moment_as_the_port(monkeypatch):
    monkeypatch.setattr(http_server, "LINGER_S", 1.0)  # room for a busy machine
    monkeypatch.setattr(http_server.BoundedProtocol, "stopping", False)
    closing, shutdown = [], http_server.WorkerServer.shutdown

    async def recorded(server, sockets=None):
        closing.append([connection.transport.is_closing() for connection in server.server_state.connections])
        await shutdown(server, sockets)

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            for word in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{word}.complete"})
            return
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def stopped(listener):
        life, parent = os.pipe()
        stopping = asyncio.Event()
        serving = asyncio.create_task(
            http_server.run_server(app, listener, drain_s=5, parent_fd=life, on_stop=stopping.set)
        )
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
        writer.write(request)
        first = await reader.readuntil(b"\r\n\r\n")
        idle, _ = await asyncio.open_connection(*listener.getsockname())
        os.close(parent)
        await stopping.wait()
        writer.write(request)  # at once: within the moment
        second = await reader.read()
        assert await idle.read() == b""
        await serving
        os.close(life)
        return first, second

    monkeypatch.setattr(http_server.WorkerServer, "shutdown", recorded)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first, second = asyncio.run(stopped(listener))
    assert b"connection: close" not in first
    assert b"connection: close" in second
    assert all(closing[0])


class Guest(asyncio.Protocol):
    """A connection that was taken; ``full`` is set when there are as many as were waited for."""

    def __init__(self, guests: list["Guest"], full: asyncio.Event, wanted: int):
        self.guests, self.full, self.wanted = guests, full, wanted

    def connection_made(self, transport):
        self.guests.append(self)
        if len(self.guests) == self.wanted:
            self.full.set()


def test_many_waiting_connections_are_taken_in_one_turn_and_all_in_the_end():
    async def main() -> None:
        guests: list[Guest] = []
        full = asyncio.Event()
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listener, contextlib.ExitStack() as clients:
            port = _Port(listener, lambda: Guest(guests, full, TAKEN_AT_ONCE + 3))
            for _ in range(TAKEN_AT_ONCE + 3):
                clients.enter_context(socket.create_connection(listener.getsockname()))
            port._take()
            assert len(port._taking) == TAKEN_AT_ONCE
            async with asyncio.timeout(5):
                await full.wait()
            await port.wait_closed()
            port.close()
            port.close()  # uvicorn does so again
            assert listener.fileno() == -1

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_port_without_descriptors_is_asked_again(monkeypatch):
    monkeypatch.setattr(http_server, "ACCEPT_AGAIN_S", 0.02)

    class Full:
        """A listener that fails once, as the kernel fails it when no descriptor is left."""

        def __init__(self, listener: socket.socket):
            self._listener, self.asked = listener, 0

        def accept(self):
            self.asked += 1
            if self.asked == 1:
                raise OSError(errno.EMFILE, "too many open files")
            return self._listener.accept()

        def __getattr__(self, name: str):
            return getattr(self._listener, name)

    async def main() -> None:
        full = asyncio.Event()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            failing = Full(listener)
            port = _Port(failing, lambda: Guest([], full, 1))
            with socket.create_connection(listener.getsockname()):
                async with asyncio.timeout(5):
                    await full.wait()
            port.close()
            assert failing.asked >= 2

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
