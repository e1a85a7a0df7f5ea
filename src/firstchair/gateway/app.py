"""The call port as a raw ASGI application: who is asking, what for, and which slot answers.

    POST /v1/chat/completions  /v1/responses  /v1/messages  /v1/messages/count_tokens
    GET  /v1/models  /v1/models/{id}  /healthz  /readyz

Everything that a request can do wrong ends here as a 4xx in the words of its dialect.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from firstchair.catalog.token_counts import TokenCounts
from firstchair.core.errors import BadRequest
from firstchair.core.globs import is_glob
from firstchair.core.jsontext import depth_of
from firstchair.gateway.call import Call, Client, Send, new_call_id, wait_headers
from firstchair.gateway.config import Limits
from firstchair.gateway.context import estimated_tokens
from firstchair.gateway.control.slots import SlotConfig
from firstchair.gateway.control.snapshot import Key, Snapshot
from firstchair.gateway.dialects.base import Dialect, DialectName, Failure, FailureKind
from firstchair.gateway.ending import Ending
from firstchair.gateway.exchange import Exchange, shown
from firstchair.gateway.http_server import ON_LEAVING, has_left, nobody
from firstchair.gateway.json_bytes import encoded
from firstchair.gateway.limits import Reservation
from firstchair.gateway.records import Outcome
from firstchair.gateway.reports import Reports
from firstchair.gateway.shadow import Shadows
from firstchair.gateway.worker import Worker

Receive = Callable[[], Awaitable[dict[str, Any]]]

CALLS: Mapping[str, DialectName] = {
    "/v1/chat/completions": "openai",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic",
}
COUNT_TOKENS = "/v1/messages/count_tokens"
MODELS = "/v1/models"
NO_PATH = "unknown_url"
"""``code`` of an error about the address, as OpenAI calls it."""
_decode = msgspec.json.Decoder().decode
_HALF_A_PAIR = "a string holds half of a surrogate pair (\\ud800 to \\udfff alone), which is no text; send characters"
_NOT_HALF = re.compile(rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Refused(Exception):
    """The request gets no further."""

    def __init__(self, failure: Failure):
        self.failure = failure
        super().__init__(failure.message)


class Left(Exception):
    """The client went away before its request was complete."""


def refuse(kind: FailureKind, message: str, *, param: str | None = None) -> Refused:
    return Refused(Failure(kind=kind, message=message, param=param))


class GatewayApp:
    """The application of one worker."""

    def __init__(self, worker: Worker):
        self._worker = worker
        self.shadows = Shadows(worker)
        self.reports = Reports(worker, self.shadows)
        self._bodies = 0
        """Bytes of the bodies of all calls under way."""

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise ValueError(f"{scope['type']} is not served here")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.reports.open()
        await self._worker.open()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.shadows.close()
        await self._worker.close()
        await self.reports.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        name = CALLS.get(path)
        if name is not None and method == "POST":
            await self._call(name, scope, receive, send)
        elif path in ("/healthz", "/readyz") and method in ("GET", "HEAD"):
            ready = path == "/healthz" or not self._worker.draining
            await Client(send, new_call_id()).answer(
                200 if ready else 503, b'{"ok":true}' if ready else b'{"ok":false}'
            )
        else:
            await self._other(method, path, scope, receive, send)

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _call(self, name: DialectName, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        worker = self._worker
        setup = worker.take_setup()
        call = Call(new_call_id(), worker.dialects[name], _headers(scope), time.time_ns() // 1000, setup)
        client = Client(send, call.id)
        worker.running += 1
        self.reports.begin(call)
        exchange: Exchange | None = None
        try:
            try:
                self._check_headers(scope)
                call.key = self._key(call.headers)
                call.raw = await self._body(call.headers, receive)
                slot = self._read(call)
                tokens, reservation = await self._admit(call, slot)
            except Refused as refused:
                await self._refused(call, client, refused.failure)
                return
            exchange = Exchange(worker, call, slot, client)
            exchange.ending.admitted_tokens = tokens
            if has_left(scope):
                exchange.client_left()
            scope[ON_LEAVING] = exchange.client_left
            await exchange.run(reservation)
            self.shadows.offer(call, exchange.ending)
        except Left:
            worker.count("left_early")
        finally:
            worker.running -= 1
            scope[ON_LEAVING] = nobody  # else request, call and connection would hold one another
            self._bodies -= len(call.raw)
            worker.give_back(setup)
            self.reports.telemetry.forget(call.id)

    async def _refused(self, call: Call, client: Client, failure: Failure) -> None:
        status, body = call.dialect.write_failure(failure, request_id=call.id)
        await Ending(self._worker, call, client).write(Outcome.REFUSED, status, failure=failure)
        await client.answer(status, encoded(body), wait_headers(failure))

    def _check_headers(self, scope: dict[str, Any]) -> None:
        limits, headers = self._worker.config.limits, scope["headers"]
        if len(headers) > limits.max_headers or sum(len(n) + len(v) for n, v in headers) > limits.max_header_bytes:
            raise refuse(
                FailureKind.TOO_LARGE, f"more than {limits.max_headers} headers, or too long ones; send fewer"
            )

    def _key(self, headers: Mapping[bytes, bytes]) -> Key | None:
        """The key of the request, in either vendor's header, whatever is asked for."""
        if not self._worker.config.auth.require_keys:
            return None
        scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
        bearer = value.strip() if scheme.lower() == b"bearer" else b""
        # Some clients send both, one of them meant for the vendor.
        secrets = [secret for secret in (headers.get(b"x-api-key", b""), bearer) if secret]
        if not secrets:
            raise refuse(FailureKind.AUTHENTICATION, "no key; send one as x-api-key or as authorization: Bearer")
        key = None
        for secret in secrets:
            key = key or self._worker.snapshot.key(secret.decode("latin-1"))
        if key is None:
            raise refuse(FailureKind.AUTHENTICATION, "this key is not known here, or was revoked")
        if "call" not in key.scopes:
            raise refuse(FailureKind.PERMISSION, "this key may not call models; it lacks the scope call")
        return key

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        limits, length = self._worker.config.limits, headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > limits.max_body_bytes:
            raise _too_long(limits)
        self._check_room(limits, int(length))
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                return await self._read_body(limits, receive)
        except TimeoutError:
            raise refuse(FailureKind.BAD_REQUEST, "the body did not arrive in time") from None

    async def _read_body(self, limits: Limits, receive: Receive) -> bytes:
        """The body, which counts among ``_bodies`` until the caller has done with it."""
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Left
                part = message.get("body", b"")
                if size + len(part) > limits.max_body_bytes:
                    raise _too_long(limits)
                self._check_room(limits, len(part))
                size += len(part)
                self._bodies += len(part)
                parts.append(part)
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
        except BaseException:
            self._bodies -= size
            raise

    def _check_room(self, limits: Limits, more: int) -> None:
        """One client's large bodies must not take the memory of all: the kernel would end the worker."""
        if self._bodies + more > limits.max_bodies_bytes:
            message = f"the requests under way are {limits.max_bodies_bytes} bytes together already; wait a moment"
            raise Refused(Failure(kind=FailureKind.OVERLOADED, message=message, retry_after_s=1.0))

    def _parsed(self, raw: bytes) -> dict[str, Any]:
        try:
            body = _decode(raw)
        except RecursionError:
            raise self._too_deep() from None
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            why = _HALF_A_PAIR if _has_half_a_pair(raw) else str(error)
            raise refuse(FailureKind.BAD_REQUEST, f"the body is not JSON in UTF-8: {why}") from None
        if not isinstance(body, dict):
            raise refuse(FailureKind.BAD_REQUEST, "the body is no JSON object; expected one with model and messages")
        limit = self._worker.config.limits.max_depth
        # Counting brackets is cheap; only text with many of them can be deep.
        if raw.count(b"{") + raw.count(b"[") > limit and depth_of(body) > limit:
            raise self._too_deep()
        return body

    def _too_deep(self) -> Refused:
        return refuse(
            FailureKind.BAD_REQUEST,
            f"nested deeper than {self._worker.config.limits.max_depth} levels; send it flatter",
        )

    def _read(self, call: Call) -> SlotConfig:
        """Model, stream and slot. The rest is read where a provider of another dialect needs it."""
        call.body = body = self._parsed(call.raw)
        model, stream = body.get("model"), body.get("stream")
        if not isinstance(model, str) or not model:
            raise refuse(FailureKind.BAD_REQUEST, "expected the name of a model", param="model")
        call.model = model
        if not isinstance(stream, bool | None):
            raise refuse(FailureKind.BAD_REQUEST, "expected true or false", param="stream")
        call.stream = bool(stream)
        snapshot = self._worker.snapshot
        slot = snapshot.slot_for(model) if len(model) <= 256 else None
        if slot is None:
            raise refuse(
                FailureKind.NOT_FOUND,
                _no_slot(model),
                param="model",
            )
        call.slot, call.slot_version = slot, snapshot.slot_version(slot.slot)
        if call.dialect.name == "responses":
            # Stateless: what refers to an earlier answer is refused before anybody is asked.
            try:
                call.request()
            except BadRequest as error:
                raise refuse(FailureKind.BAD_REQUEST, str(error), param=error.param) from None
        elif not isinstance(body.get("messages"), list):
            raise refuse(FailureKind.BAD_REQUEST, "expected a list of messages", param="messages")
        return slot

    async def _admit(self, call: Call, slot: SlotConfig) -> tuple[int, Reservation | None]:
        """Rates and budget of the key; the tokens that were counted, and the money that was set aside."""
        key, worker = call.key, self._worker
        if key is None:
            return 0, None
        tokens = estimated_tokens(len(call.raw))
        failure = worker.rates.admit(key, tokens, time.monotonic())
        if failure is not None:
            raise Refused(failure)
        if key.budget_nano is None:
            return tokens, None
        most = TokenCounts(input=tokens, output=call.max_tokens(slot.max_tokens_default))
        # Whoever of them answers in the end: the dearest.
        routes = (slot.primary, *slot.fallbacks, *((slot.canary.route,) if slot.canary else ()))
        prices = call.setup.prices
        nano = max(prices.cost_nano(route.model, most, route.provider) or 0 for route in routes)
        reserved = await worker.budgets.reserve(key, nano)
        if isinstance(reserved, Failure):
            worker.rates.settle(key, tokens, 0)
            raise Refused(reserved)
        return tokens, reserved

    # --- everything else --------------------------------------------------------------------------------------------

    async def _other(self, method: str, path: str, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        client = Client(send, new_call_id())
        anthropic = b"anthropic-version" in headers or "/messages" in path
        dialect = self._worker.dialects["anthropic" if anthropic else "openai"]
        try:
            self._check_headers(scope)
            if path == COUNT_TOKENS and method == "POST":
                await self._count_tokens(dialect, headers, receive, client)
            elif method == "GET" and (path == MODELS or path.startswith(MODELS + "/")):
                self._key(headers)
                await client.answer(200, encoded(self._models(path.removeprefix(MODELS).removeprefix("/"))))
            elif path in CALLS or path in (COUNT_TOKENS, MODELS):
                await client.answer(405, encoded(_told(dialect, _unknown(method, path))[1]))
            else:
                raise Refused(_unknown(method, path))
        except Refused as refused:
            status, body = _told(dialect, refused.failure)
            await client.answer(status, encoded(body), wait_headers(refused.failure))
        except Left:
            self._worker.count("left_early")

    def _models(self, only: str) -> dict[str, Any]:
        """The names that clients may ask for, readable for the SDKs of both vendors."""
        snapshot = self._worker.snapshot
        if only:
            if snapshot.slot_for(only) is None:
                raise refuse(FailureKind.NOT_FOUND, _no_slot(only))
            return _model(only)
        rows = [_model(name) for name in _names(snapshot)]
        ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows else {"first_id": None, "last_id": None}
        return {"object": "list", "data": rows, "has_more": False, **ends}

    async def _count_tokens(
        self, dialect: Dialect, headers: Mapping[bytes, bytes], receive: Receive, client: Client
    ) -> None:
        """By the provider where it is Anthropic's API, by the tokenizer where that is known, else refused.

        One request of the key's rate, but no tokens and no money: nobody bills it.
        """
        setup = self._worker.take_setup()
        call = Call(new_call_id(), dialect, headers, time.time_ns() // 1000, setup)
        try:
            await self._counted(call, receive, client)
        finally:
            self._bodies -= len(call.raw)
            self._worker.give_back(setup)

    async def _counted(self, call: Call, receive: Receive, client: Client) -> None:
        dialect, headers = call.dialect, call.headers
        call.key = self._key(headers)
        call.raw = await self._body(headers, receive)
        slot = self._read(call)
        route, worker = slot.primary, self._worker
        if call.key is not None and (failure := worker.rates.admit(call.key, None, time.monotonic())) is not None:
            raise Refused(failure)
        upstream, counter = call.setup.upstreams.get(route.provider), call.setup.counting.get(route.provider)
        if upstream is not None and "anthropic" in upstream.provider.dialects:
            answered = await upstream.count_tokens(
                encoded({**call.body, "model": route.model}), headers, slot.timeouts.connect_s, slot.timeouts.total_s
            )
            if isinstance(answered, Failure):
                raise Refused(shown(upstream.hidden(answered)))
            await client.answer(200, answered)
            return
        if counter is None:
            raise refuse(
                FailureKind.BAD_REQUEST,
                f"tokens cannot be counted for {route}: no tokenizer is configured for this provider",
                param="model",
            )
        try:
            request = dialect.read_request({"max_tokens": 1, **call.body})
        except BadRequest as error:
            raise refuse(FailureKind.BAD_REQUEST, str(error), param=error.param) from None
        await client.answer(200, encoded({"input_tokens": await counter.count(request)}))


def _headers(scope: dict[str, Any]) -> dict[bytes, bytes]:
    return dict(scope["headers"])


def _too_long(limits: Limits) -> Refused:
    return refuse(FailureKind.TOO_LARGE, f"the body is longer than {limits.max_body_bytes} bytes; send less")


def _has_half_a_pair(raw: bytes) -> bool:
    return _SURROGATE.search(_NOT_HALF.sub(b"", raw)) is not None


def _no_slot(model: str) -> str:
    return f"no slot answers for the model {model[:256]!r}; add it to the `match` of a slot, or see GET {MODELS}"


def _unknown(method: str, path: str) -> Failure:
    """What nobody answers, with what is most often wrong: the base URL."""
    if path in CALLS or path in (COUNT_TOKENS, MODELS):
        fix = f"use {'GET' if path == MODELS else 'POST'}"
    elif path.startswith("/v1/v1/"):
        fix = "the base URL of this client goes without /v1"
    elif f"/v1{path}" in CALLS or f"/v1{path}" in (COUNT_TOKENS, MODELS):
        fix = "the base URL of this client ends in /v1"
    else:
        fix = f"calls go to {', '.join(CALLS)}"
    return Failure(
        kind=FailureKind.NOT_FOUND, message=f"there is no {method} {path[:200]} here; {fix}", native=NO_PATH
    )


def _told(dialect: Dialect, failure: Failure) -> tuple[int, dict[str, Any]]:
    status, body = dialect.write_failure(failure, request_id=new_call_id())
    if failure.native == NO_PATH and "code" in body["error"]:
        body["error"]["code"] = NO_PATH  # a wrong address is no missing model
    return status, body


def _names(snapshot: Snapshot) -> list[str]:
    """Every slot's own name and the plain ones in its ``match``.

    No list can hold what a glob matches. Of that the models of the slot's own routes are named, as far as they find
    this slot: names that clients know.
    """
    names: set[str] = set()
    for slot in snapshot.slots:
        names |= {slot.slot, *(name for name in slot.match if not is_glob(name))}
        models = (route.model for route in (slot.primary, *slot.fallbacks))
        names |= {model for model in models if snapshot.slot_for(model) is slot}
    return sorted(names)


def _model(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "firstchair",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
    }
