"""What a scripted upstream says: answers and faults as plain data, and as the objects that each vendor sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import orjson

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.anthropic_wire import message_to_anthropic_response
from firstchair.chat.messages import Message, Part, TextPart, ThinkingPart, ToolCall
from firstchair.chat.openai_wire import message_to_openai_response
from firstchair.chat.wire_request import (
    Finish,
    TokenUsage,
    finish_to_anthropic,
    finish_to_openai,
    usage_to_anthropic,
    usage_to_openai,
)
from firstchair.gateway.dialects.base import EngineTokens
from firstchair.testing import scripted_responses
from firstchair.testing.scripted_responses import Said

Wire = Literal["openai", "responses", "anthropic"]

FaultKind = Literal[
    "status",
    "only_error",
    "error_first",
    "error_late",
    "hang_before_headers",
    "hang_after_headers",
    "hang_after_events",
    "cut_before_headers",
    "cut_after_events",
    "cut_after_bytes",
    "broken_json",
    "broken_utf8",
    "split_utf8",
    "comments",
    "no_terminal",
    "no_done",
    "not_json",
    "slow",
]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong with an answer.

        status               an error answer with ``status`` and ``retry_after``
        only_error           status 200, and the body is an error, streamed or not
        error_first          the stream is one error event (a buffered answer: only_error)
        error_late           ``after`` events, then an error event, then the end
        hang_…               nothing more comes, until ``upstream.release()`` or the client leaves
        cut_…                the connection closes; headers promised more
        broken_json          event ``after`` breaks off in the middle of its JSON
        broken_utf8          event ``after`` holds bytes that are no UTF-8
        split_utf8           a whole answer whose characters are split over writes
        comments             a whole answer with SSE comment lines and blank lines between events
        no_terminal          the stream ends cleanly without finish reason and terminal event
        no_done              the stream lacks only its last event (``[DONE]``, ``message_stop``)
        not_json             status 200 and an HTML page
        slow                 a whole answer, one byte a write

    ``after`` counts events; of a buffered answer the first half comes, and with ``cut_after_bytes`` it counts bytes.
    """

    kind: FaultKind
    after: int = 0
    status: int = 500
    retry_after: str | None = None
    message: str = "scripted fault"
    error_type: str | None = None
    """The vendor's word; ``None``: what goes with ``status``."""
    error_code: str | None = None
    """OpenAI's ``code``, such as ``context_length_exceeded``."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer, vendor aside."""

    text: str = ""
    thinking: str = ""
    signature: str = "c2lnbmF0dXJl"
    calls: tuple[ToolCall, ...] = ()
    """Arguments are sent as they stand, valid or not (in OpenAI's form and in both streams)."""
    finish: Finish | str | None = None
    """Text goes out as it is, known or not; ``None``: what the content asks for."""
    usage: TokenCounts | Mapping[str, Any] | None = field(default_factory=lambda: TokenCounts(input=10, output=5))
    """A mapping goes out as it is; ``None`` leaves usage out."""
    tokens: EngineTokens | None = None
    """Sent on the OpenAI wire when the request has ``return_token_ids``, as vLLM does."""
    id: str = "scripted"
    model: str | None = None
    """Instead of the name asked for."""
    interleaved: bool = False
    """Deltas of parallel calls come in turn instead of one call after the other."""
    event_pause_s: float = 0.0
    """Before every event but the first."""
    fault: Fault | None = None


@dataclass(frozen=True, kw_only=True)
class Raw:
    """An answer byte for byte, for what ``Reply`` does not say."""

    body: bytes | tuple[bytes, ...]
    """A tuple goes out in chunks, each a write of its own."""
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    raw: bytes

    @cached_property
    def body(self) -> Any:
        """The JSON of the body; ``None`` without one."""
        return orjson.loads(self.raw) if self.raw else None


Answer = Reply | Raw


@dataclass(frozen=True)
class Script:
    """What the upstream does."""

    answers: tuple[Answer, ...] = (Reply(text="Hello there."),)
    """One for each request in the order of arrival; the last one stays."""
    by: Callable[[Seen], Answer] | None = None
    """Chooses by the request instead."""
    models: tuple[str, ...] = ("scripted-model",)
    input_tokens: int = 42
    """What ``count_tokens`` says."""
    record: bool = True
    """Keep every request; off for measurements."""


# --- one answer as objects --------------------------------------------------------------------------------------


def message(reply: Reply) -> Message:
    """The reply as a canonical assistant message."""
    parts: tuple[Part, ...] = ()
    if reply.thinking:
        parts += (ThinkingPart(text=reply.thinking, signature=reply.signature or None),)
    if reply.text:
        parts += (TextPart(text=reply.text),)
    return Message(role="assistant", content=parts, tool_calls=reply.calls)


def _finish(reply: Reply, wire: Wire) -> str:
    finish = reply.finish or (Finish.TOOL_CALLS if reply.calls else Finish.STOP)
    if not isinstance(finish, Finish):
        return finish
    return finish_to_openai(finish)[0] if wire == "openai" else finish_to_anthropic(finish)


def usage_body(usage: TokenCounts | Mapping[str, Any] | None, wire: Wire) -> dict[str, Any] | None:
    """``usage`` as the vendor writes it."""
    if usage is None or not isinstance(usage, TokenCounts):
        return None if usage is None else dict(usage)
    counts = TokenUsage(
        input=usage.input,
        output=usage.output,
        cache_read=usage.cache_read,
        cache_write=usage.cache_write_5m + usage.cache_write_1h,
        reasoning=usage.reasoning,
    )
    if wire == "openai":
        return usage_to_openai(counts)
    written = {
        "ephemeral_5m_input_tokens": usage.cache_write_5m,
        "ephemeral_1h_input_tokens": usage.cache_write_1h,
    }
    return usage_to_anthropic(counts) | {"cache_creation": written}


def openai_body(reply: Reply, ask: Mapping[str, Any]) -> dict[str, Any]:
    """The ``chat.completion``."""
    unsigned = Message(
        role="assistant",
        content=tuple(TextPart(text=reply.text) for _ in "x" if reply.text),
        tool_calls=reply.calls,
    )
    body = message_to_openai_response(
        unsigned,
        model=reply.model or str(ask.get("model")),
        response_id=f"chatcmpl-{reply.id}",
        created=1_750_000_000,
        finish_reason=_finish(reply, "openai"),
        usage={},
    )
    choice = body["choices"][0]
    if reply.thinking:
        choice["message"]["reasoning_content"] = reply.thinking
    body["usage"] = usage_body(reply.usage, "openai")
    if body["usage"] is None:
        del body["usage"]
    if reply.tokens is not None and ask.get("return_token_ids"):
        body["prompt_token_ids"] = list(reply.tokens.prompt_ids)
        choice["token_ids"] = list(reply.tokens.completion_ids)
        if ask.get("logprobs"):
            choice["logprobs"] = _logprobs(reply.tokens)
    return body


def _logprobs(tokens: EngineTokens) -> dict[str, Any]:
    pairs = zip(tokens.completion_ids, tokens.logprobs, strict=True)
    return {
        "content": [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in pairs
        ]
    }


def anthropic_body(reply: Reply, ask: Mapping[str, Any]) -> dict[str, Any]:
    """The ``message``."""
    body = message_to_anthropic_response(
        message(reply),
        model=reply.model or str(ask.get("model")),
        response_id=f"msg_{reply.id}",
        stop_reason=_finish(reply, "anthropic"),
        usage={},
    )
    body["usage"] = usage_body(reply.usage, "anthropic")
    if body["usage"] is None:
        del body["usage"]
    return body


def said_of(reply: Reply, ask: Mapping[str, Any]) -> Said:
    return Said(
        id=reply.id,
        model=reply.model or str(ask.get("model")),
        message=message(replace(reply, signature="")),
        finish=reply.finish or (Finish.TOOL_CALLS if reply.calls else Finish.STOP),
        usage=reply.usage,
    )


def body_of(reply: Reply, wire: Wire, ask: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer as an object."""
    if wire == "responses":
        return scripted_responses.body_of(said_of(reply, ask))
    return openai_body(reply, ask) if wire == "openai" else anthropic_body(reply, ask)


def error_body(fault: Fault, wire: Wire) -> dict[str, Any]:
    """The vendor's error object."""
    if wire == "anthropic":
        kind = fault.error_type or _ANTHROPIC_ERRORS.get(fault.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": fault.message}, "request_id": "req_scripted"}
    kind, code = _OPENAI_ERRORS.get(fault.status, ("server_error", None))
    return {
        "error": {
            "message": fault.message,
            "type": fault.error_type or kind,
            "param": None,
            "code": fault.error_code or code,
        }
    }


_ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_OPENAI_ERRORS: dict[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", None),
    404: ("invalid_request_error", "model_not_found"),
    413: ("invalid_request_error", None),
    429: ("requests", "rate_limit_exceeded"),
}
