"""An HTTP server that misbehaves on order, on a real socket: what upstreams do on bad days, for client tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True)
class Answer:
    """One answer. The default is an empty JSON object."""

    body: Any = field(default_factory=dict)
    """Bytes as they are; anything else as JSON."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Close the connection after so many bytes of the body; the headers promise all of it."""
    stall: bool = False
    """Read the request and never answer."""
    drip_s: float = 0.0
    """Send the body byte by byte with so many seconds in between."""


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: Any


Script = Callable[[Seen, int], Answer]
"""From the request and its number, counted from 0."""


class FaultServer:
    """Answers by ``script``; a context manager. ``seen`` keeps the requests, ``most`` how many were open at once."""

    def __init__(self, script: Script):
        self._script = script
        self.seen: list[Seen] = []
        self.most = 0
        self._open = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._port = 0
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:port``."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> FaultServer:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self) -> None:
        connections: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._exchange(reader, writer):
                    pass
            writer.close()
            connections.discard(task)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection stays open."""
        seen = await _read_request(reader)
        number = len(self.seen)
        self.seen.append(seen)
        self._open += 1
        self.most = max(self.most, self._open)
        try:
            answer = self._script(seen, number)
            if answer.stall:
                await asyncio.Event().wait()
            # A moment, so that requests sent together are seen to be open together.
            await asyncio.sleep(0.002)
            whole = _render(answer)
            start = whole.index(b"\r\n\r\n") + 4 if answer.drip_s else len(whole)
            writer.write(whole[:start])
            for place in range(start, len(whole)):
                await writer.drain()
                await asyncio.sleep(answer.drip_s)
                writer.write(whole[place : place + 1])
            await writer.drain()
        finally:
            self._open -= 1
        return answer.cut_after is None


async def _read_request(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(path=first.split(" ")[1], headers=headers, body=orjson.loads(raw) if raw else None)


def _render(answer: Answer) -> bytes:
    body = answer.body if isinstance(answer.body, bytes) else orjson.dumps(answer.body)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
    head = f"HTTP/1.1 {answer.status} x\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return head.encode("latin-1") + b"\r\n" + body[: answer.cut_after]
