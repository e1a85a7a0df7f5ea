"""An orchestrator behind OpenAI's Chat Completions.

    POST /v1/chat/completions ─► key ─► body ─► request ─► a place ─► route ─► answer, whole or as a stream
    GET  /v1/models  /healthz  /metrics

A client that leaves ends its orchestration and everything that is under way for it. Whatever ends a request, what it
has cost is counted once. What is logged of it is numbers and words of ours, no content.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from firstchair.chat.openai_stream import DONE
from firstchair.core.errors import BadRequest
from firstchair.gateway.dialects.base import Failure, FailureKind
from firstchair.gateway.dialects.failures import openai_error
from firstchair.gateway.telemetry import trace_headers
from firstchair.rollout.actor_app import TooLong, model_list, read_body
from firstchair.serve.answer import Head, chunks, completion, headers, opening, report
from firstchair.serve.metrics import CONTENT_TYPE, Metrics
from firstchair.serve.orchestrator import Defaults, Failed, Routed, Shared, route
from firstchair.serve.requests import Asked, read_request
from firstchair.serve.under_way import ClientLeft, CutShort, UnderWay

KEEP_ALIVE_S = 10.0
"""A stream that has nothing to say says so this often: proxies close a connection that is silent."""
RETRY_AFTER_S = 1
LEFT = 499
"""Status in log and metrics of a request whose client left."""
CUT = 503
"""The same of one that the end of the process cut short."""
_HERE = "POST /v1/chat/completions, GET /v1/models, GET /healthz, GET /metrics"


@dataclass(frozen=True)
class Door:
    """Who may come in, and how many at once."""

    model: str
    """What clients ask for."""
    keys: tuple[str, ...]
    """Empty: everybody."""
    concurrency: int
    max_body_bytes: int
    names: frozenset[str]
    """What can be called here, for preferences."""


def build_app(
    shared: Shared, defaults: Defaults, door: Door, log: Callable[..., None], under_way: UnderWay
) -> Starlette:
    """The application; ``log(event, **fields)`` hears one ``request`` for each that was answered, refused or left.
    ``under_way`` is for whoever ends it.
    """
    metrics, started = Metrics(), int(time.time())
    completions = _Completions(shared, defaults, door, log, metrics, under_way)

    async def models(request: Request) -> Response:
        if not _may_enter(request, door):
            return _error(_NO_KEY)
        return _json(model_list(door.model, started))

    async def health(request: Request) -> Response:
        status, code = ("stopping", 503) if under_way.is_stopping else ("ok", 200)
        return _json({"status": status, "model": door.model, "running": under_way.running}, code)

    async def numbers(request: Request) -> Response:
        if not _may_enter(request, door):
            return _error(_NO_KEY)
        return Response(metrics.text(under_way.running), media_type=CONTENT_TYPE)

    async def unknown(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        message = f"{request.method} {request.url.path}: use one of {_HERE}"
        body = {"message": message, "type": "invalid_request_error", "param": None, "code": "unknown_url"}
        return _json({"error": body}, status)

    return Starlette(
        exception_handlers={404: unknown, 405: unknown},
        routes=[
            Route("/v1/chat/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/healthz", health),
            Route("/metrics", numbers),
        ],
    )


class _Completions:
    """The one endpoint that costs something; an ASGI application, because it watches for clients that leave."""

    def __init__(
        self,
        shared: Shared,
        defaults: Defaults,
        door: Door,
        log: Callable[..., None],
        metrics: Metrics,
        under_way: UnderWay,
    ):
        self._shared, self._defaults, self._door, self._log, self._metrics = shared, defaults, door, log, metrics
        self._under_way = under_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head, clock = Head(uuid4().hex, self._door.model, int(time.time())), time.monotonic()
        one, place = _One(self._shared, self._defaults, head, Request(scope, receive), send), ExitStack()
        try:
            asked = await self._admit(one.request)
            place.enter_context(self._under_way.one_more())
            work = one.streamed(asked) if asked.ask.stream else one.whole(asked)
            await self._under_way.while_there(work, receive)
        except (ClientLeft, ClientDisconnect):
            one.status = LEFT
        except CutShort:
            await one.refuse(_CUT_SHORT)
        except BadRequest as error:
            await one.refuse(Failure(kind=FailureKind.BAD_REQUEST, message=str(error), param=error.param))
        except TooLong as error:
            await one.refuse(Failure(kind=FailureKind.TOO_LARGE, message=str(error)))
        except Failed as error:
            await one.refuse(error.failure)
        except asyncio.CancelledError:
            one.status = CUT
            raise
        except Exception as error:  # noqa: BLE001 - the server boundary: the client gets a 500, the log the kind
            one.fault = type(error).__name__
            await one.refuse(Failure(kind=FailureKind.SERVER_ERROR, message=f"our fault: {one.fault}"))
        finally:
            took_s = time.monotonic() - clock
            self._metrics.observe(one.status, took_s, one.routed)
            self._log("request", request_id=head.request_id, **one.fields(), latency_s=round(took_s, 3))
            place.close()

    async def _admit(self, request: Request) -> Asked:
        """The request, if it may come in and there is a place for it."""
        door = self._door
        if not _may_enter(request, door):
            raise Failed(_NO_KEY)
        body = await read_body(request, door.max_body_bytes)
        asked = read_request(body, max_steps=self._defaults.max_steps, names=door.names)
        if asked.ask.model != door.model:
            message = f"there is no {asked.ask.model!r}; use {door.model!r}"
            raise Failed(Failure(kind=FailureKind.NOT_FOUND, message=message, param="model"))
        if self._under_way.is_stopping:
            raise Failed(_STOPPING)
        if self._under_way.running >= door.concurrency:
            message = f"{door.concurrency} requests are under way, which is all that there is room for; try again"
            raise Failed(Failure(kind=FailureKind.RATE_LIMIT, message=message, retry_after_s=RETRY_AFTER_S))
        return asked


class _One:
    """One request, and what becomes of it."""

    def __init__(self, shared: Shared, defaults: Defaults, head: Head, request: Request, send: Send):
        self._shared, self._defaults, self._head, self.request, self._send = shared, defaults, head, request, send
        self.status = 500
        self.routed: Routed | None = None
        self.fault = ""
        self._has_begun = self._is_over = False
        """Of the response: its first byte, and its last, is sent or about to be."""

    async def whole(self, asked: Asked) -> None:
        """Answer in one piece."""
        routed = await self._route(asked)
        body = completion(routed, self._head, trace=asked.wishes.trace)
        await self._respond(_json(body, 200, self._own_headers()))

    async def streamed(self, asked: Asked) -> None:
        """Answer as events: who speaks, what is being asked (as comments), then the answer."""
        include_usage = asked.ask.include_usage
        heard: asyncio.Queue[str | None] = asyncio.Queue()
        work = asyncio.create_task(self._route(asked, heard.put_nowait))
        work.add_done_callback(lambda _: heard.put_nowait(None))
        try:
            await self._begin()
            await self._event(opening(self._head, include_usage=include_usage))
            await self._comments(heard)
            routed = work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        for chunk in chunks(routed, self._head, include_usage=include_usage, trace=asked.wishes.trace):
            await self._event(chunk)
        self.status = 200
        await self._body(DONE, more=False)

    async def refuse(self, failure: Failure) -> None:
        """Tell the client, and what it has cost so far; in a stream that has begun, as an event."""
        if self._is_over:
            return
        self.status, body = openai_error(failure)
        if self.routed is not None and not self.fault:
            # Inside the error: of a stream's event OpenAI's SDK passes nothing else on.
            body["error"]["firstchair"] = report(self.routed, self._head, trace=False)
        if self._has_begun:
            await self._event(body)
            await self._body(DONE, more=False)
        else:
            await self._respond(_refusal(failure, self.status, body, self._own_headers()))

    def fields(self) -> dict[str, Any]:
        """For the log: no content."""
        found: dict[str, Any] = {"status": self.status}
        if self.fault:
            found["error"] = self.fault
        if self.routed is not None:
            trajectory = self.routed.found
            found |= {
                "trace_id": trajectory.trace_id,
                "end": self.routed.end,
                "calls": len(trajectory.dispatches),
                "cost_nano": trajectory.expert_cost_nano,
                "known_cost_nano": trajectory.known_cost_nano,
                "policy_cost_nano": trajectory.policy_cost_nano,
            }
        return found

    async def _route(self, asked: Asked, on_call: Callable[[str], None] | None = None) -> Routed:
        parent = _parent_of(self.request) if self._shared.tracer is not None else None
        return await route(
            asked,
            self._head.request_id,
            self._shared,
            self._defaults,
            keep=self._keep,
            parent=parent,
            on_call=on_call,
        )

    def _keep(self, routed: Routed) -> None:
        self.routed = routed

    async def _comments(self, heard: asyncio.Queue[str | None]) -> None:
        """What is being asked, until there is no more."""
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    label = await heard.get()
            except TimeoutError:
                await self._body(b": still at work\n\n")
                continue
            if label is None:
                return
            await self._body(b": asked %s\n\n" % label.encode())

    async def _begin(self) -> None:
        self._has_begun = True
        sent = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        lines = [(name.encode(), value.encode()) for name, value in (sent | self._own_headers()).items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": lines})

    async def _event(self, payload: dict[str, Any]) -> None:
        await self._body(b"data: " + _encoded(payload) + b"\n\n")

    async def _body(self, data: bytes, *, more: bool = True) -> None:
        self._is_over = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _respond(self, response: Response) -> None:
        self._is_over, self.status = True, response.status_code
        await response(self.request.scope, self.request.receive, self._send)

    def _own_headers(self) -> dict[str, str]:
        known = {} if self.routed is None else headers(self.routed, self._head)
        return known | {"x-request-id": self._head.request_id}


_NO_KEY = Failure(
    kind=FailureKind.AUTHENTICATION, message="no key, or one that is not known here; send it as authorization: Bearer"
)
_STOPPING = Failure(
    kind=FailureKind.OVERLOADED,
    message="this server is stopping and takes no new requests; try again",
    retry_after_s=RETRY_AFTER_S,
)
_CUT_SHORT = Failure(
    kind=FailureKind.OVERLOADED, message="this server has stopped before there was an answer; ask again"
)


def _may_enter(request: Request, door: Door) -> bool:
    if not door.keys:
        return True
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    sent = value.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
    # All are compared: how long it takes tells nothing of them.
    matches = [hmac.compare_digest(sent, key.encode()) for key in door.keys]
    return any(matches)


def _parent_of(request: Request) -> Any:
    """The client's trace context, where it sends one."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    names = ("traceparent", "tracestate")
    sent = {name.encode(): request.headers.get(name, "").encode("latin-1") for name in names}
    return TraceContextTextMapPropagator().extract(trace_headers(sent))


def _error(failure: Failure) -> Response:
    return _refusal(failure, *openai_error(failure), {})


def _refusal(failure: Failure, status: int, body: dict[str, Any], more: dict[str, str]) -> Response:
    found = dict(more)
    if failure.retry_after_s is not None:
        found["retry-after"] = f"{failure.retry_after_s:g}"
    return _json(body, status, found)


def _json(payload: dict[str, Any], status: int = 200, more: dict[str, str] | None = None) -> Response:
    return Response(_encoded(payload), status, more, media_type="application/json")


def _encoded(payload: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(payload)
    except orjson.JSONEncodeError:  # half a surrogate pair, which some servers send: escaped it is JSON
        return json.dumps(payload).encode()
