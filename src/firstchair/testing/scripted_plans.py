"""What a scripted upstream does for an answer: bytes to write, waits, cuts, with the faults among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from firstchair.testing.scripted_answers import Answer, Fault, Raw, Reply, Wire, body_of, error_body
from firstchair.testing.scripted_events import events_of

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
