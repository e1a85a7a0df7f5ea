"""A scripted expert (or a model of ours) served over HTTP, in OpenAI's and Anthropic's dialects, streamed and not.

    POST /v1/chat/completions   GET /v1/models
    POST /v1/messages           GET /healthz

It keeps nothing between requests: the conversation comes with each one, as with any provider. Thinking is carried
as ``reasoning_content`` (OpenAI) and as a thinking block (Anthropic). Usage is an estimate, ``BYTES_PER_TOKEN``.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from firstchair.chat import anthropic_stream, openai_stream
from firstchair.chat.actions import Action, ActionKind
from firstchair.chat.anthropic_wire import message_to_anthropic_response
from firstchair.chat.openai_wire import message_to_openai_response
from firstchair.chat.wire_request import (
    Finish,
    TokenUsage,
    finish_to_anthropic,
    finish_to_openai,
    usage_to_anthropic,
    usage_to_openai,
)
from firstchair.core.errors import BadRequest, FirstchairError
from firstchair.rollout.actor_requests import (
    BYTES_PER_TOKEN,
    Ask,
    ToolCache,
    read_anthropic,
    read_openai,
    tokens,
)
from firstchair.rollout.policy import Actor, AsyncActor

MAX_BODY_BYTES = 32 * 1024 * 1024
"""A longer request is refused with 413."""


@dataclass(frozen=True)
class Dialect:
    """How one wire says things."""

    read: Callable[[bytes, ToolCache], Ask]
    reply: Callable[[Ask, Action, bool, str], dict[str, Any]]
    stream: Callable[[dict[str, Any], Ask], Iterator[bytes]]
    error: Callable[[int, str, str | None], dict[str, Any]]


def build_app(actor: Actor | AsyncActor, model: str = "desk-teacher") -> Starlette:
    """An application that answers as ``model`` with what ``actor`` does; other model names get 404."""
    cache, started = ToolCache(), int(time.time())

    def endpoint(dialect: Dialect) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                return await _answer(dialect, actor, model, cache, await read_body(request, MAX_BODY_BYTES))
            except TooLong as error:
                return _json(dialect.error(413, str(error), None), 413)
            except _Refused as refused:
                return _json(dialect.error(refused.status, str(refused), refused.param), refused.status)
            except BadRequest as error:
                return _json(dialect.error(400, str(error), error.param), 400)
            except Exception as error:  # noqa: BLE001 - the server boundary: a client gets its dialect's 500
                reason = str(error) if isinstance(error, FirstchairError) else type(error).__name__
                return _json(dialect.error(500, f"the model failed: {reason}", None), 500)

        return answer

    async def models(request: Request) -> Response:
        return _json(model_list(model, started))

    async def health(request: Request) -> Response:
        return _json({"status": "ok", "model": model})

    async def unknown(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        known = "POST /v1/chat/completions, POST /v1/messages, GET /v1/models, GET /healthz"
        return _json(_openai_error(status, f"{request.method} {request.url.path}: use one of {known}", None), status)

    return Starlette(
        exception_handlers={404: unknown, 405: unknown},
        routes=[
            Route("/v1/chat/completions", endpoint(OPENAI), methods=["POST"]),
            Route("/v1/messages", endpoint(ANTHROPIC), methods=["POST"]),
            Route("/v1/models", models),
            Route("/healthz", health),
        ],
    )


def model_list(model: str, created: int) -> dict[str, Any]:
    """What ``GET /v1/models`` answers, in both dialects at once."""
    row = {"id": model, "object": "model", "created": created, "owned_by": "firstchair"}
    row |= {"type": "model", "display_name": model, "created_at": "2026-01-01T00:00:00Z"}
    return {"object": "list", "data": [row], "has_more": False, "first_id": model, "last_id": model}


class _Refused(Exception):
    """A request refused with a status of its own."""

    def __init__(self, status: int, message: str, param: str | None = None):
        self.status, self.param = status, param
        super().__init__(message)


class TooLong(Exception):
    """A body is longer than it may be."""


async def read_body(request: Request, most: int) -> bytes:
    """The body. Raises ``TooLong`` when it has more than ``most`` bytes."""
    size, parts = 0, []
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise TooLong(f"the body is longer than {most:,} bytes; shorten the conversation")
        parts.append(part)
    return b"".join(parts)


async def _answer(dialect: Dialect, actor: Actor | AsyncActor, model: str, cache: ToolCache, body: bytes) -> Response:
    ask = dialect.read(body, cache)
    if ask.model != model:
        raise _Refused(404, f"model: there is no {ask.model!r}; use {model!r}", "model")
    acted = actor.act(ask.messages, ask.tools)
    action, cut = fit(await acted if isinstance(acted, Awaitable) else acted, ask.max_tokens)
    # Equal requests get equal answers, their ids too; the parts of a stream are the parts of the whole.
    digest = hashlib.blake2b(msgspec.json.encode(ask.messages), digest_size=12).hexdigest()
    reply = dialect.reply(ask, action, cut, digest)
    if not ask.stream:
        return _json(reply)
    return StreamingResponse(
        _each(dialect.stream(reply, ask)), media_type="text/event-stream", headers={"cache-control": "no-cache"}
    )


async def _each(events: Iterator[bytes]) -> Any:
    for event in events:
        yield event


def _json(payload: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(payload), status, media_type="application/json")


def fit(action: Action, max_tokens: int | None) -> tuple[Action, bool]:
    """``action`` within an output limit, and whether it was cut: thinking, then text, then whole calls."""
    if max_tokens is None or output_tokens(action) <= max_tokens:
        return action, False
    left = max_tokens * BYTES_PER_TOKEN
    thinking = _first_bytes(action.thinking, left)
    left -= len(thinking.encode())
    text = _first_bytes(action.text, left)
    left -= len(text.encode())
    calls = []
    for call in action.calls:
        left -= len(call.name.encode()) + len(call.arguments.encode())
        if left < 0:
            break
        calls.append(call)
    kind: ActionKind = "tool_call" if calls else "final_reply"
    return Action(kind=kind, calls=tuple(calls), text=text, thinking=thinking), True


def _first_bytes(text: str, size: int) -> str:
    return text.encode()[: max(0, size)].decode(errors="ignore")


def output_tokens(action: Action) -> int:
    """Estimated tokens of an action."""
    size = len(action.thinking.encode()) + len(action.text.encode())
    return tokens(size + sum(len(call.name.encode()) + len(call.arguments.encode()) for call in action.calls))


def _openai_reply(ask: Ask, action: Action, cut: bool, digest: str) -> dict[str, Any]:
    finish = Finish.LENGTH if cut else Finish.TOOL_CALLS if action.calls else Finish.STOP
    return message_to_openai_response(
        action.to_message(),
        model=ask.model,
        response_id=f"chatcmpl-{digest}",
        created=int(time.time()),
        finish_reason=finish_to_openai(finish)[0],
        usage=usage_to_openai(TokenUsage(input=ask.input_tokens, output=output_tokens(action))),
    )


def _anthropic_reply(ask: Ask, action: Action, cut: bool, digest: str) -> dict[str, Any]:
    finish = Finish.LENGTH if cut else Finish.TOOL_CALLS if action.calls else Finish.STOP
    return message_to_anthropic_response(
        action.to_message(),
        model=ask.model,
        response_id=f"msg_{digest}",
        stop_reason=finish_to_anthropic(finish),
        usage=usage_to_anthropic(TokenUsage(input=ask.input_tokens, output=output_tokens(action))),
    )


def _openai_error(status: int, message: str, param: str | None) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = "model_not_found" if status == 404 else None
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


_ANTHROPIC_ERRORS = {404: "not_found_error", 413: "request_too_large", 500: "api_error"}


def _anthropic_error(status: int, message: str, param: str | None) -> dict[str, Any]:
    kind = _ANTHROPIC_ERRORS.get(status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


OPENAI = Dialect(
    read=read_openai,
    reply=_openai_reply,
    stream=lambda reply, ask: openai_stream.encode(reply, include_usage=ask.include_usage),
    error=_openai_error,
)
ANTHROPIC = Dialect(
    read=read_anthropic,
    reply=_anthropic_reply,
    stream=lambda reply, ask: anthropic_stream.encode(reply),
    error=_anthropic_error,
)
