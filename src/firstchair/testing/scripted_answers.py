"""What a scripted upstream says: answers and faults as plain data, and their bytes on either vendor's wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import orjson

from firstchair.chat import anthropic_stream, openai_stream
from firstchair.chat.anthropic_blocks import MALFORMED_KEY
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
from firstchair.gateway.dialects.base import EngineTokens, TokenCounts
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


HOLD: Literal["hold"] = "hold"
CUT: Literal["cut"] = "cut"
Step = bytes | float | Literal["hold", "cut"]
"""Bytes to write, seconds to wait, to wait for a release, to close the connection."""


@dataclass(frozen=True)
class Plan:
    """An answer as what to do: steps before the head, the head, steps after it."""

    head: bytes
    steps: tuple[Step, ...]
    before: tuple[Step, ...] = ()


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


def _said(reply: Reply, ask: Mapping[str, Any]) -> Said:
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
        return scripted_responses.body_of(_said(reply, ask))
    return openai_body(reply, ask) if wire == "openai" else anthropic_body(reply, ask)


def events_of(reply: Reply, wire: Wire, ask: Mapping[str, Any]) -> list[bytes]:
    """The answer as server-sent events."""
    if wire == "responses":
        return scripted_responses.events(_said(reply, ask))
    return openai_events(reply, ask) if wire == "openai" else anthropic_events(reply, ask)


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


# --- one answer as events ---------------------------------------------------------------------------------------


def openai_events(reply: Reply, ask: Mapping[str, Any]) -> list[bytes]:
    """The server-sent events, ``[DONE]`` last."""
    body = openai_body(reply, ask)
    wanted = bool((ask.get("stream_options") or {}).get("include_usage")) and "usage" in body
    ids, prompt = body["choices"][0].pop("token_ids", None), body.pop("prompt_token_ids", None)
    logprobs = body["choices"][0]["logprobs"]
    chunks: Iterable[dict[str, Any]] = openai_stream.chunks(body, include_usage=wanted)
    if reply.interleaved:
        chunks = _in_turn(chunks, _openai_call)
    out = list(chunks)
    if ids is not None:
        out[0]["prompt_token_ids"] = prompt
        _spread(out, ids, logprobs)
    return [b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in out] + [openai_stream.DONE]


def _spread(chunks: list[dict[str, Any]], ids: list[int], logprobs: dict[str, Any] | None) -> None:
    """Give every chunk with content its share of the token ids; the last one takes what is left."""
    carriers = [
        chunk["choices"][0]
        for chunk in chunks
        if chunk["choices"]
        and set(chunk["choices"][0]["delta"]) - {"role"}
        and "role" not in chunk["choices"][0]["delta"]
    ]
    for place, choice in enumerate(carriers):
        last = place == len(carriers) - 1
        part = slice(place, None if last else place + 1)
        choice["token_ids"] = ids[part]
        if logprobs is not None:
            choice["logprobs"] = {"content": logprobs["content"][part]}


def _openai_call(chunk: Mapping[str, Any]) -> int | None:
    calls = chunk["choices"][0]["delta"].get("tool_calls") if chunk["choices"] else None
    return int(calls[0]["index"]) if calls else None


def anthropic_events(reply: Reply, ask: Mapping[str, Any]) -> list[bytes]:
    """The server-sent events, with the ``ping`` that the API sends after the start."""
    body = anthropic_body(reply, ask)
    usage = body.get("usage")
    out = []
    for event in anthropic_stream.events({**body, "usage": {"output_tokens": 0}}):
        if event["type"] == "message_start":
            event["message"] = _start(event["message"], usage)
        elif event["type"] == "message_delta":
            event.pop("usage")
            if usage is not None and "output_tokens" in usage:
                event["usage"] = {"output_tokens": usage["output_tokens"]}
        out.append(event)
    _as_written(out, reply)
    events: Iterable[dict[str, Any]] = out
    if reply.interleaved:
        tools = {event["index"] for event in out if event.get("content_block", {}).get("type") == "tool_use"}
        events = _in_turn(out, lambda event: event.get("index") if event.get("index") in tools else None)
    blocks = [_named(event) for event in events]
    return [blocks[0], _named({"type": "ping"}), *blocks[1:]]


def _start(begun: dict[str, Any], usage: Mapping[str, Any] | None) -> dict[str, Any]:
    begun = {key: value for key, value in begun.items() if key != "usage"}
    if usage is None:
        return begun
    return {**begun, "usage": {**usage, **({"output_tokens": 1} if "output_tokens" in usage else {})}}


def _as_written(events: list[dict[str, Any]], reply: Reply) -> None:
    """Arguments that are no JSON object, as the model wrote them: one delta for the carried form."""
    broken = {call.arguments for call in reply.calls if call.parsed() is None}
    first = len(events)
    for place, event in enumerate(events):
        if event.get("content_block", {}).get("type") == "tool_use":
            first = min(first, event["index"])
            call = reply.calls[event["index"] - first]
            if call.arguments not in broken or not call.arguments.strip():
                continue
            index, end = event["index"], place + 1
            while events[end]["type"] == "content_block_delta":
                end += 1
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            events[place + 1 : end] = [{"type": "content_block_delta", "index": index, "delta": delta}]
            assert MALFORMED_KEY not in call.arguments


def _named(event: dict[str, Any]) -> bytes:
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


def _in_turn(
    events: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], int | None]
) -> Iterator[dict[str, Any]]:
    """The events of different keys one after the other in turn; those without a key keep their place."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        index = key(event)
        if index is not None:
            groups.setdefault(index, []).append(event)
            continue
        yield from _round(groups)
        groups = {}
        yield event
    yield from _round(groups)


def _round(groups: Mapping[int, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for place in range(max(map(len, groups.values()), default=0)):
        for group in groups.values():
            if place < len(group):
                yield group[place]


# --- one answer as bytes ----------------------------------------------------------------------------------------


def plan(answer: Answer, wire: Wire, ask: Mapping[str, Any]) -> Plan:
    """What to write for ``answer`` to the request ``ask``."""
    if isinstance(answer, Raw):
        if isinstance(answer.body, bytes):
            return Plan(head(answer.status, answer.content_type, len(answer.body), answer.headers), (answer.body,))
        return Plan(
            head(answer.status, answer.content_type, None, answer.headers), (*map(_chunk, answer.body), _LAST_CHUNK)
        )
    fault = answer.fault
    if fault is not None and fault.kind in ("status", "only_error", "not_json"):
        return _failed(fault, wire)
    if ask.get("stream"):
        return _streamed(answer, wire, ask)
    if fault is not None and fault.kind in ("error_first", "error_late"):
        return _failed(Fault("only_error", status=fault.status, message=fault.message), wire)
    return _buffered(answer, wire, ask)


def _failed(fault: Fault, wire: Wire) -> Plan:
    if fault.kind == "not_json":
        page = b"<html><body>It works!</body></html>"
        return Plan(head(200, "text/html", len(page), {}), (page,))
    body = orjson.dumps(error_body(fault, wire))
    headers = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
    return Plan(
        head(200 if fault.kind == "only_error" else fault.status, "application/json", len(body), headers), (body,)
    )


_ENDINGS: Mapping[Wire, str] = {"openai": "finish_reason", "responses": "status", "anthropic": "stop_reason"}


def _buffered(reply: Reply, wire: Wire, ask: Mapping[str, Any]) -> Plan:
    whole = body_of(reply, wire, ask)
    fault = reply.fault
    if fault is not None and fault.kind == "no_terminal":
        ending = whole["choices"][0] if wire == "openai" else whole
        ending[_ENDINGS[wire]] = None
    body = orjson.dumps(whole)
    if fault is None:
        return Plan(head(200, "application/json", len(body), {}), (body,))
    if fault.kind == "broken_json":
        body = body[: len(body) // 2]
    elif fault.kind == "broken_utf8":
        body = _spoil(body)
    top = head(200, "application/json", len(body), {})
    half = body[: fault.after if fault.kind == "cut_after_bytes" else len(body) // 2]
    steps: dict[str, tuple[Step, ...]] = {
        "hang_after_headers": (HOLD, body),
        "hang_after_events": (half, HOLD, body[len(half) :]),
        "cut_after_events": (half, CUT),
        "cut_after_bytes": (half, CUT),
        "split_utf8": tuple(_split_characters(body)),
        "slow": tuple(_bytewise(body)),
    }
    return Plan(top, steps.get(fault.kind, (body,)), _before(fault))


def _before(fault: Fault | None) -> tuple[Step, ...]:
    if fault is None:
        return ()
    steps: dict[str, tuple[Step, ...]] = {"hang_before_headers": (HOLD,), "cut_before_headers": (CUT,)}
    return steps.get(fault.kind, ())


def _streamed(reply: Reply, wire: Wire, ask: Mapping[str, Any]) -> Plan:
    events = events_of(reply, wire, ask)
    fault = reply.fault
    if fault is not None:
        events = _spoilt(events, fault, wire)
    steps = _steps(events, fault)
    if reply.event_pause_s:
        steps = [part for step in steps for part in (reply.event_pause_s, step)][1:]
    return Plan(head(200, "text/event-stream", None, {}), tuple(steps), _before(fault))


def _spoilt(events: list[bytes], fault: Fault, wire: Wire) -> list[bytes]:
    """The events with a ``fault`` of what they say."""
    kind, after = fault.kind, fault.after
    if kind in ("error_first", "error_late"):
        said = error_body(fault, wire)
        if wire == "responses":
            error = said["error"]
            said = {**error, "type": "error", "code": error["code"] or error["type"], "sequence_number": after}
        event = (b"data: " if wire == "openai" else b"event: error\ndata: ") + orjson.dumps(said) + b"\n\n"
        return [*(events[:after] if kind == "error_late" else ()), event]
    if kind == "broken_json":
        start, data = events[after].split(b"data: ", 1)
        return [*events[:after], start + b"data: " + data[: len(data) // 2] + b"\n\n", *events[after + 1 :]]
    if kind == "broken_utf8":
        return [*events[:after], _spoil(events[after]), *events[after + 1 :]]
    if kind == "comments":
        return [b": OPENROUTER PROCESSING\n\n:\n\n\n" + event for event in events]
    if kind == "no_done":
        return events[:-1]
    if kind == "no_terminal":
        return _unfinished(events)
    return events


def _steps(events: list[bytes], fault: Fault | None) -> list[Step]:
    """The writes of a stream, with a ``fault`` of how they come."""
    whole: list[Step] = [*map(_chunk, events), _LAST_CHUNK]
    if fault is None:
        return whole
    after = fault.after
    if fault.kind in ("split_utf8", "slow"):
        data = b"".join(events)
        parts = _split_characters(data) if fault.kind == "split_utf8" else _bytewise(data)
        return [*(_chunk(part) if isinstance(part, bytes) else part for part in parts), _LAST_CHUNK]
    if fault.kind == "cut_after_bytes":
        return [_chunk(b"".join(events)[:after]), CUT] if after else [CUT]
    if fault.kind == "cut_after_events":
        return [*whole[:after], CUT]
    if fault.kind in ("hang_after_headers", "hang_after_events"):
        seen = after if fault.kind == "hang_after_events" else 0
        return [*whole[:seen], HOLD, *whole[seen:]]
    return whole


def _unfinished(events: list[bytes]) -> list[bytes]:
    """Without the events that end the answer, and without what would come after them."""
    for place, event in enumerate(events):
        if event.startswith(
            (b"event: message_delta", b"event: response.completed", b"event: response.incomplete")
        ) or (b'"finish_reason":"' in event):
            return events[:place]
    return events


def _spoil(event: bytes) -> bytes:
    """Two bytes that are no UTF-8 inside the last text of ``event``."""
    place = event.rindex(b'"')
    return event[:place] + b"\xff\xc3" + event[place:]


def _split_characters(data: bytes) -> Iterator[bytes | float]:
    """Cut inside every character of several bytes, with a moment between the parts."""
    start = 0
    for place, byte in enumerate(data):
        if byte >= 0xC0:
            yield data[start : place + 1]
            yield 0.001
            start = place + 1
    yield data[start:]


def _bytewise(data: bytes) -> Iterator[bytes | float]:
    for place in range(len(data)):
        yield data[place : place + 1]
        yield 0.0


_LAST_CHUNK = b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def head(status: int, content_type: str, length: int | None, headers: Mapping[str, str]) -> bytes:
    """Status line and headers; ``length`` ``None`` means chunks."""
    lines = [
        f"HTTP/1.1 {status} {'OK' if status < 400 else 'Error'}",
        f"content-type: {content_type}",
        "transfer-encoding: chunked" if length is None else f"content-length: {length}",
        "request-id: req_scripted",
        "x-request-id: req_scripted",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
