"""A provider that says what a script tells it, on a real socket, in both vendors' wires and with every bad day.

    POST /v1/chat/completions   POST /v1/responses   POST /v1/messages   POST /v1/messages/count_tokens
    GET /v1/models

    with scripted_upstream(Script((Reply(text="Hi"), Reply(fault=Fault("status", status=529))))) as upstream:
        OpenAI(base_url=upstream.base_url + "/v1", api_key="x").chat.completions.create(...)
        upstream.requests[0].body

It runs in a thread of its own with its own event loop. Answers of a script's list are made into bytes once, so that
the server costs little beside what is measured. Raw asyncio and not a web framework: it must be able to stop in the
middle of a byte sequence. What it says is written by us after the vendors' documents; nothing was recorded from them.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import httptools
import orjson
import uvloop

from firstchair.testing.scripted_answers import Answer, Fault, Raw, Reply, Script, Seen, Wire, error_body
from firstchair.testing.scripted_plans import CUT, HOLD, Plan, Step, head, plan

__all__ = ["Fault", "Raw", "Reply", "Script", "ScriptedUpstream", "Seen", "scripted_upstream"]

_WIRES: Mapping[str, Wire] = {
    "/v1/chat/completions": "openai",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic",
}
WAIT_S = 10.0


class ScriptedUpstream:
    """The running server. ``script`` may be replaced at any time; its answers then count from the first."""

    def __init__(self, script: Script):
        self.requests: list[Seen] = []
        """What came, in order; replaced scripts keep it."""
        self.disconnects = 0
        """Clients that left before their answer was complete."""
        self.open = 0
        self.most = 0
        """Answers under way, now and at most."""
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._changed = threading.Condition()
        self._connections: set[_Connection] = set()
        self._holds: list[asyncio.Future[None]] = []
        self._server: asyncio.AbstractServer | None = None
        self.port = 0
        self._thread = threading.Thread(target=self._run, name="scripted-upstream", daemon=True)
        self.script = script

    @property
    def script(self) -> Script:
        return self._script

    @script.setter
    def script(self, script: Script) -> None:
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._next = 0
        self._script = script

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:port``: what the Anthropic SDK wants; the OpenAI SDK wants ``/v1`` after it."""
        return f"http://127.0.0.1:{self.port}"

    def close_port(self) -> None:
        """From now on connections are refused and open ones are gone."""
        self._call(self._close_port)

    def open_port(self) -> None:
        """Listen again, on the same port."""
        self._call(self._open_port)

    def release(self) -> None:
        """Let every answer that hangs go on."""

        async def go_on() -> None:
            holds, self._holds = self._holds, []
            for hold in holds:
                if not hold.done():
                    hold.set_result(None)

        self._call(go_on)

    @property
    def holding(self) -> int:
        """Answers that hang until they are released."""
        return sum(not hold.done() for hold in self._holds)

    def wait_until(self, true: Callable[[ScriptedUpstream], bool], timeout_s: float = WAIT_S) -> None:
        """Wait for something to be seen here; raises ``TimeoutError``."""
        with self._changed:
            if not self._changed.wait_for(lambda: true(self), timeout_s):
                raise TimeoutError(f"not seen within {timeout_s} s; {len(self.requests)} requests, {self.open} open")

    def changed(self) -> None:
        """Wake those who wait."""
        with self._changed:
            self._changed.notify_all()

    def start(self) -> None:
        self._thread.start()
        self._call(self._open_port)

    def stop(self) -> None:
        self._call(self._close_port)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_forever()

    def _call(self, function: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(function(), self._loop).result(WAIT_S)

    async def _open_port(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._server = await self._loop.create_server(
            lambda: _Connection(self, self._loop), sock=listener, backlog=1024
        )

    async def _close_port(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = [task for connection in tuple(self._connections) if (task := connection.end()) is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def begin(self, seen: Seen) -> Plan:
        """What to answer to ``seen``."""
        script = self._script
        if script.record:
            self.requests.append(seen)
        self.open += 1
        self.most = max(self.most, self.open)
        self.changed()
        path = seen.path.partition("?")[0]
        if path == "/v1/models" and seen.method == "GET":
            return _json(_models(script.models))
        if path == "/v1/messages/count_tokens" and seen.method == "POST":
            return _json({"input_tokens": script.input_tokens})
        wire = _WIRES.get(path)
        if wire is None or seen.method != "POST":
            return _json(error_body(Fault("status", status=404, message=f"no {seen.method} {path}"), "openai"), 404)
        try:
            ask = seen.body
        except orjson.JSONDecodeError as error:
            return _json(error_body(Fault("status", status=400, message=f"no JSON: {error}"), wire), 400)
        if not isinstance(ask, dict):
            return _json(error_body(Fault("status", status=400, message="expected an object"), wire), 400)
        return self._plan(script, seen, wire, ask)

    def _plan(self, script: Script, seen: Seen, wire: Wire, ask: dict[str, Any]) -> Plan:
        if script.by is not None:
            return plan(script.by(seen), wire, ask)
        number = min(self._next, len(script.answers) - 1)
        self._next += 1
        options = ask.get("stream_options") or {}
        said = (ask.get("model"), ask.get("stream"), ask.get("return_token_ids"), ask.get("logprobs"))
        key = (number, wire, *map(str, said), bool(options.get("include_usage")))
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = plan(script.answers[number], wire, ask)
        return found

    def finish(self, *, complete: bool) -> None:
        """An answer ended."""
        self.open -= 1
        self.disconnects += not complete
        self.changed()

    def hold(self) -> asyncio.Future[None]:
        """Done when the test says ``release``."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._holds.append(future)
        self.changed()
        return future

    def attach(self, connection: _Connection) -> None:
        self._connections.add(connection)

    def detach(self, connection: _Connection) -> None:
        self._connections.discard(connection)


class _Connection(asyncio.Protocol):
    """One client. Requests that come early wait for the answer before them."""

    def __init__(self, upstream: ScriptedUpstream, loop: asyncio.AbstractEventLoop):
        self._upstream, self._loop = upstream, loop
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Seen] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._url, self._headers, self._body = b"", {}, []  # type: tuple[bytes, dict[str, str], list[bytes]]

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of it.
        self._transport = cast(asyncio.Transport, transport)
        self._upstream.attach(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._upstream.detach(self)
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def end(self) -> asyncio.Task[None] | None:
        """Close now; the task that must still end, if there is one."""
        self._transport.abort()
        return self._task

    # httptools' side

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        seen = Seen(method, self._url.decode("latin-1"), self._headers, b"".join(self._body))
        if self._task is not None:
            self._waiting.append(seen)
        else:
            self._answer(seen)

    # answers

    def _answer(self, seen: Seen) -> None:
        plan = self._upstream.begin(seen)
        if not plan.before and len(plan.steps) == 1 and isinstance(plan.steps[0], bytes):
            self._transport.write(plan.head + plan.steps[0])
            self._upstream.finish(complete=True)
            return
        self._task = self._loop.create_task(self._perform(plan))
        self._task.add_done_callback(self._performed)

    def _performed(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._upstream.finish(complete=not task.cancelled())
        if self._waiting and not self._transport.is_closing():
            self._answer(self._waiting.popleft())

    async def _perform(self, plan: Plan) -> None:
        for step in plan.before:
            if await self._step(step):
                return
        self._transport.write(plan.head)
        for step in plan.steps:
            if await self._step(step):
                return

    async def _step(self, step: Step) -> bool:
        """One step; whether it was the last of the connection."""
        if isinstance(step, bytes):
            self._transport.write(step)
            if not self._writable.is_set():
                await self._writable.wait()
        elif step == HOLD:
            await self._upstream.hold()
        elif step == CUT:
            self._transport.close()
            return True
        else:
            await asyncio.sleep(float(step))
        return False


def _json(body: dict[str, Any], status: int = 200) -> Plan:
    data = orjson.dumps(body)
    return Plan(head(status, "application/json", len(data), {}), (data,))


def _models(names: tuple[str, ...]) -> dict[str, Any]:
    """A list that both SDKs read."""
    rows = [
        {
            "id": name,
            "object": "model",
            "created": 1_750_000_000,
            "owned_by": "scripted",
            "type": "model",
            "display_name": name,
            "created_at": "2026-01-01T00:00:00Z",
        }
        for name in names
    ]
    return {"object": "list", "data": rows, "has_more": False, "first_id": names[0], "last_id": names[-1]}


@contextmanager
def scripted_upstream(script: Script | Answer | None = None) -> Iterator[ScriptedUpstream]:
    """A running upstream; one answer stands for a script that always gives it."""
    if isinstance(script, Reply | Raw):
        script = Script((script,))
    upstream = ScriptedUpstream(script or Script())
    upstream.start()
    try:
        yield upstream
    finally:
        upstream.stop()


def main() -> None:
    """Serve the default script until the input ends, for measurements: the base URL is the first line out."""
    with scripted_upstream(Script(record=False)) as upstream:
        sys.stdout.write(upstream.base_url + "\n")
        sys.stdout.flush()
        while sys.stdin.readline():
            time.sleep(0)


if __name__ == "__main__":
    main()
