"""The application of the admin port: ``/api`` for programs, everything else for people.

    request → Guard (host, origin, headers of every answer) → key or cookie → Desk → stores

Stores are read in threads, so a slow database holds up nobody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from firstchair.core.errors import BadRequest, ConfigError, DataError, UpstreamError
from firstchair.gateway.console.access import Access, check_origin
from firstchair.gateway.console.api import OPERATIONS
from firstchair.gateway.console.desk import Desk
from firstchair.gateway.console.openapi import Asked, Operation, document, read_body, read_query
from firstchair.gateway.console.refusal import Refusal, error_body
from firstchair.gateway.control.snapshot import Budget
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.metrics import CONTENT_TYPE as METRICS_TYPE
from firstchair.gateway.metrics import metrics_text

MAX_BODY = 1_000_000
"""Bytes of a request's body."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, a form's origin would read "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
Scope = MutableMapping[str, Any]


def admin_app(
    control: ControlStore,
    *,
    traces: str,
    spool: Path,
    shadow_budget: Callable[[], Budget | None] = lambda: None,
    require_keys: bool = True,
    wait_s: float = 5.0,
) -> Starlette:
    """The application.

    ``traces`` is the trace store's URL (it need not exist yet), ``spool`` the folder that the sink writes its status
    to; ``shadow_budget`` tells the ``shadow.budget`` in force. ``require_keys=False`` is for a port that only this
    machine reaches. ``wait_s``: how long an answer waits for the workers to serve by a change.
    """
    from firstchair.gateway.console.pages import Pages

    desk = Desk(control, traces=traces, spool=spool, shadow_budget=shadow_budget, wait_s=wait_s)
    access = Access(control, require_keys=require_keys)
    pages = Pages(desk, access)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        desk.close()

    async def failed(request: Request, error: Exception) -> Response:
        status, message, param, headers = _told(error)
        if request.url.path.startswith(("/api/", "/metrics")):
            answer = _json(error_body(status, message, param), status, headers)
        else:
            answer = pages.problem(request, status, message, headers)
        answer.headers.update(HEADERS)  # a 500 is made outside of the Guard
        return answer

    async def metrics(request: Request) -> Response:
        caller = await run_in_threadpool(access.api_caller, request.headers)
        if not caller.may("traces"):
            raise Refusal(403, "this key may not do that; it lacks the scope traces")
        return Response(await run_in_threadpool(metrics_text, spool), media_type=METRICS_TYPE)

    kinds = (Refusal, HTTPException, ConfigError, BadRequest, DataError, UpstreamError, ClientDisconnect, Exception)
    app = Starlette(
        routes=[Route("/metrics", metrics, methods=["GET"]), *_api_routes(desk, access), *pages.routes()],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers=dict.fromkeys(kinds, failed),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _told(error: Exception) -> tuple[int, str, str | None, dict[str, str]]:
    """Status, message, field and headers for what went wrong."""
    headers: dict[str, str] = {}
    if isinstance(error, Refusal):
        if error.status == 401:
            headers["www-authenticate"] = "Bearer"
        return error.status, error.message, error.param, headers
    if isinstance(error, HTTPException):
        what = "there is no such page or operation here" if error.status_code == 404 else error.detail
        return error.status_code, what, None, dict(error.headers or {})
    if isinstance(error, ConfigError | BadRequest):
        # It was well-formed: the state, or its own parts, do not allow it.
        return 409, str(error), None, headers
    if isinstance(error, UpstreamError):
        return 503, f"the database does not answer: {error}", None, {"retry-after": "2"}
    if isinstance(error, ClientDisconnect):
        return 400, "the request ended before its body did", None, headers
    if isinstance(error, DataError):
        return 500, str(error), None, headers
    return 500, "the gateway failed at this; its log says where", None, headers


# --- API --------------------------------------------------------------------------------------------------------


def _api_routes(desk: Desk, access: Access) -> list[Any]:
    described = _encoded(document(OPERATIONS))

    async def openapi(request: Request) -> Response:
        return Response(described, media_type="application/json")

    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    routes: list[Any] = [Route("/api/openapi.json", openapi, methods=["GET"])]
    for path, operations in by_path.items():
        # A session's id may hold slashes.
        place = path.replace("{session}", "{session:path}")
        routes.append(Route(place, _endpoint(desk, access, operations), methods=list(operations)))
    return routes


def _endpoint(
    desk: Desk, access: Access, operations: dict[str, Operation]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        operation = operations["GET" if request.method == "HEAD" else request.method]
        caller = await run_in_threadpool(access.api_caller, request.headers)
        if not caller.may(operation.scope):
            raise Refusal(403, f"this key may not do that; it lacks the scope {operation.scope}")
        query = read_query(operation, request.query_params.multi_items())
        body = None
        if operation.body is not None:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise Refusal(415, f"content-type: found {kind[:80]!r}; expected application/json")
            body = read_body(operation.body, await read_raw(request))
        asked = Asked(caller, dict(request.path_params), query, body)
        answer = await run_in_threadpool(operation.run, desk, asked)
        return Response(_encoded(answer), operation.status, media_type="application/json")

    return endpoint


async def read_raw(request: Request) -> bytes:
    """The body. Raises ``Refusal`` (413)."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise Refusal(413, f"the body is longer than {MAX_BODY:,} bytes; send less")
        parts.append(part)
    return b"".join(parts)


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _json(value: Any, status: int, headers: dict[str, str]) -> Response:
    return Response(_encoded(value), status, headers, media_type="application/json")


# --- every request ----------------------------------------------------------------------------------------------


class Guard:
    """Refuses foreign hosts and foreign pages, and puts the security headers on every answer."""

    def __init__(self, app: Any, access: Access):
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        try:
            self._access.check_host(headers)
            if scope["method"] not in SAFE_METHODS:
                check_origin(headers)
        except Refusal as refusal:
            answer = _json(error_body(refusal.status, refusal.message), refusal.status, {})
            await answer(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)
