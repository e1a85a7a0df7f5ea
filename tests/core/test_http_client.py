"""The client against servers that send, byte for byte, what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest
import uvloop

from firstchair.core import http_client
from firstchair.core.http_client import (
    Answer,
    ConnectTimeout,
    Disconnected,
    NotConnected,
    NotHttp,
    Pool,
    TooLong,
    head_lines,
    request_path,
)

DATA = Path(__file__).parent / "tls"
"""A certificate that nobody signed but itself, for 127.0.0.1, good until 2126."""
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Counts connections and requests; ``reply`` gives the bytes of the answer to each request."""

    def __init__(self, *replies: bytes, then_close: bool = False):
        self.replies, self.then_close = replies, then_close
        self.connections = self.requests = 0
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.lost = asyncio.Event()
        self.asked = asyncio.Semaphore(0)
        """Released by each request."""
        self.release = asyncio.Event()
        self.release.set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                reply = self.replies[min(self.requests, len(self.replies) - 1)]
                self.requests += 1
                self.asked.release()
                await self.release.wait()
                writer.write(reply)
                await writer.drain()
                if self.then_close:
                    break
        self.lost.set()
        writer.close()


@contextlib.asynccontextmanager
async def running(
    server: Server, *, limit: int = 8, keepalive_s: float = 30.0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Pool]:
    listening = await asyncio.start_server(server, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    pool = Pool(f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1", limit=limit, keepalive_s=keepalive_s)
    try:
        yield pool
    finally:
        await pool.close()
        listening.close()


async def ask(pool: Pool, body: bytes = b"{}", *, connect_s: float = 5.0, **headers: str) -> Answer:
    async with asyncio.timeout(10):
        return await pool.post(b"/v1/chat", head_lines(headers), body, connect_s=connect_s)


async def whole(pool: Pool, body: bytes = b"{}") -> bytes:
    answer = await ask(pool, body)
    async with asyncio.timeout(10):
        return await answer.rest()


def run(work: Callable[[], Coroutine[None, None, None]]) -> None:
    """On the event loop of asyncio, and on the one that the gateway uses."""
    for factory in (None, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(work())


def test_a_request_is_written_as_asked_and_connections_are_used_again():
    async def work() -> None:
        server = Server(OK)
        async with running(server) as pool:
            for number in range(5):
                answer = await ask(pool, b"n%d" % number, authorization="Bearer x")
                assert (answer.status, answer.headers) == (200, {"content-length": "2"})
                assert await answer.rest() == b"ok"
                answer.release()  # twice is nothing
            assert server.connections == 1
            assert server.bodies == [b"n0", b"n1", b"n2", b"n3", b"n4"]
            first, *lines = server.heads[0].decode().rstrip().split("\r\n")
            assert first == "POST /v1/chat HTTP/1.1"
            assert lines[0].startswith("host: 127.0.0.1:")
            assert lines[1:] == ["authorization: Bearer x", "content-length: 2"]

    run(work)


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", b"abcde"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_every_framing_leaves_the_connection_usable(reply, body):
    async def work() -> None:
        server = Server(reply)
        async with running(server) as pool:
            assert [await whole(pool), await whole(pool)] == [body, body]
            assert server.connections == 1

    run(work)


def test_a_body_that_is_longer_than_wanted_is_not_read_to_its_end():
    async def work() -> None:
        async with running(Server(OK)) as pool:
            assert await (await ask(pool)).rest(2) == b"ok"
            with pytest.raises(TooLong, match="more than 1 bytes"):
                await (await ask(pool)).rest(1)
            assert await whole(pool) == b"ok"

    run(work)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate"])
def test_a_compressed_answer_is_inflated(encoding):
    import zlib

    data = gzip.compress(b"x" * 1000) if encoding.lower() == "gzip" else zlib.compress(b"x" * 1000)
    reply = b"HTTP/1.1 200 OK\r\ncontent-encoding: %s\r\ncontent-length: %d\r\n\r\n" % (encoding.encode(), len(data))

    async def work() -> None:
        async with running(Server(reply + data)) as pool:
            assert await whole(pool) == b"x" * 1000

    run(work)


def test_without_a_length_the_answer_ends_with_the_connection():
    async def work() -> None:
        server = Server(b"HTTP/1.0 200 OK\r\n\r\nall of it", then_close=True)
        async with running(server) as pool:
            assert await whole(pool) == b"all of it"
            assert await whole(pool) == b"all of it"
            assert server.connections == 2

    run(work)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
def test_an_answer_that_is_cut_is_no_answer(reply):
    async def work() -> None:
        async with running(Server(reply, then_close=True)) as pool:
            answer = await ask(pool)
            with pytest.raises(Disconnected):
                await answer.rest()

    run(work)


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\ncontent-len"])
def test_a_connection_that_closes_before_the_head_is_told(reply):
    async def work() -> None:
        async with running(Server(reply, then_close=True)) as pool:
            with pytest.raises(Disconnected):
                await ask(pool)

    run(work)


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: %s\r\n" % (b"y" * 70_000) + b"\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ],
)
def test_what_is_no_http_is_told(reply):
    async def work() -> None:
        async with running(Server(reply)) as pool:
            with pytest.raises(NotHttp):
                await ask(pool)

    run(work)


@pytest.mark.parametrize("data", [b"no gzip at all", gzip.compress(b"\0" * 40_000_000)])
def test_a_broken_or_exploding_compressed_body_is_told(data):
    reply = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(data)

    async def work() -> None:
        async with running(Server(reply + data)) as pool:
            with pytest.raises(NotHttp):
                await whole(pool)

    run(work)


def test_bytes_behind_an_answer_are_no_answer_to_the_next_request():
    async def work() -> None:
        server = Server(OK + OK.replace(b"ok", b"no"), OK)
        async with running(server) as pool:
            assert await whole(pool) == b"ok"
            assert await whole(pool) == b"ok"
            assert server.connections == 2

    run(work)


def test_more_requests_than_connections_wait_their_turn():
    async def work() -> None:
        server = Server(OK)
        server.release.clear()
        async with running(server, limit=2) as pool:
            tasks = [asyncio.create_task(whole(pool)) for _ in range(7)]
            for _ in range(2):
                await server.asked.acquire()
            tasks[2].cancel()  # it waits for a connection, and takes nobody's turn along
            server.release.set()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [one for one in found if one != b"ok"] == [found[2]]
            assert server.connections == 2

    run(work)


def test_no_free_connection_in_time_is_a_connect_timeout():
    async def work() -> None:
        server = Server(OK)
        server.release.clear()
        async with running(server, limit=1) as pool:
            first = asyncio.create_task(whole(pool))
            await asyncio.sleep(0.02)
            with pytest.raises(ConnectTimeout):
                await ask(pool, connect_s=0.05)
            server.release.set()
            assert await first == b"ok"

    run(work)


def test_who_cannot_be_reached_is_told_with_the_cause():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def work(url: str, cause: type[OSError]) -> None:
        pool = Pool(url, limit=1, keepalive_s=1)
        for _ in range(3):  # a failed connection leaves its place
            with pytest.raises(NotConnected) as caught:
                await ask(pool)
            assert isinstance(caught.value.error, cause)

    run(lambda: work(f"http://127.0.0.1:{port}", ConnectionRefusedError))
    run(lambda: work("http://name.invalid", socket.gaierror))


class TwoAddresses(asyncio.SelectorEventLoop):
    """A host has two addresses, and the first leads nowhere."""

    async def getaddrinfo(self, host, port, **_):
        addresses = ("127.0.0.2", port), ("127.0.0.1", port)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", one) for one in addresses]

    async def sock_connect(self, sock, address):
        if address[0] == "127.0.0.2":
            await asyncio.Event().wait()
        await super().sock_connect(sock, address)


def test_an_address_that_leads_nowhere_leaves_the_next_one():
    async def work() -> None:
        listening = await asyncio.start_server(Server(OK), sock=socket.create_server(("127.0.0.1", 0)))
        pool = Pool(f"http://two.example:{listening.sockets[0].getsockname()[1]}/v1", limit=1, keepalive_s=30)
        assert await whole(pool) == b"ok"
        await pool.close()
        listening.close()

    with asyncio.Runner(loop_factory=TwoAddresses) as runner:
        runner.run(work())


def test_a_cancelled_request_and_a_closed_answer_close_the_connection():
    async def work() -> None:
        server = Server(OK)
        server.release.clear()
        async with running(server, limit=1) as pool:
            task = asyncio.create_task(ask(pool))
            await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            server.release.set()
            async with asyncio.timeout(5):
                await server.lost.wait()
            server.lost.clear()
            answer = await ask(pool)
            answer.close()
            async with asyncio.timeout(5):
                await server.lost.wait()
            assert await whole(pool) == b"ok"
            assert server.connections == 3

    run(work)


def test_an_answer_released_early_is_not_read_by_the_next():
    async def work() -> None:
        server = Server(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", OK)
        async with running(server) as pool:
            answer = await ask(pool)
            answer.release()
            assert await whole(pool) == b"ok"
            assert server.connections == 2

    run(work)


def test_a_slow_reader_holds_the_server_back():
    size = 64 * 1024 * 1024
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size

    async def work() -> None:
        async with running(Server(reply + bytes(size))) as pool:
            answer = await ask(pool)
            await asyncio.sleep(0.3)
            data = await answer.read()
            assert 0 < len(data) < 8 * http_client.PAUSE_BYTES
            assert len(data) + len(await answer.rest()) == size
            assert await whole(pool) == bytes(size)

    run(work)


def test_an_idle_connection_is_closed_after_its_time():
    async def work() -> None:
        server = Server(OK)
        async with running(server, keepalive_s=0.05) as pool:
            assert await whole(pool) == b"ok"
            async with asyncio.timeout(5):
                await server.lost.wait()
            assert await whole(pool) == b"ok"
            assert server.connections == 2

    run(work)


def test_a_connection_that_the_server_closed_is_not_used_again():
    async def work() -> None:
        server = Server(OK, then_close=True)
        async with running(server) as pool:
            for _ in range(3):
                assert await whole(pool) == b"ok"
                await asyncio.sleep(0.05)
            assert server.connections == 3

    run(work)


def test_a_path_is_quoted_once():
    assert request_path("http://h:1/v1/chat") == b"/v1/chat"
    assert request_path("http://h/a b/%20/ü:x@y") == b"/a%20b/%20/%C3%BC:x@y"


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "a\0"])
def test_a_header_cannot_end_its_line(value):
    with pytest.raises(ValueError, match="line end"):
        head_lines({"x": value})
    with pytest.raises(ValueError, match="line end"):
        head_lines({value: "x"})


def test_tls_checks_the_certificate(monkeypatch):
    cert, key = DATA / "localhost.crt", DATA / "localhost.key"
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)

    async def work(*, trusted: bool) -> None:
        async with running(Server(OK), tls=serving) as pool:
            if trusted:
                assert await whole(pool) == b"ok"
                return
            with pytest.raises(NotConnected) as caught:
                await ask(pool)
            assert isinstance(caught.value.error, ssl.SSLError)

    run(lambda: work(trusted=False))
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    run(lambda: work(trusted=True))
