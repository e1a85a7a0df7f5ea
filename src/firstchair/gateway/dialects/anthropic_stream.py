"""The stream of Anthropic Messages: read into canonical events, and written from them.

Blocks of this wire come one after the other: while one is open, the writer holds back what belongs to others.
Arguments of a tool call go out whole when the call is complete, so that text which is no JSON object is carried
under its declared key, as in a buffered answer, and never breaks a client's parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from firstchair.catalog.usage import counts_from_anthropic, counts_to_anthropic
from firstchair.chat.anthropic_blocks import MALFORMED_KEY, part_in
from firstchair.chat.messages import RawPart, ToolCall
from firstchair.chat.wire_fields import rest
from firstchair.chat.wire_request import finish_from_anthropic, finish_to_anthropic
from firstchair.core.errors import DataError
from firstchair.core.jsontext import dumps
from firstchair.gateway.dialects.base import (
    BlockDelta,
    BlockEnd,
    BlockStart,
    End,
    Failure,
    Signature,
    Start,
    StreamEvent,
    StreamFault,
)
from firstchair.gateway.dialects.collect import bad_answer, derived_finish, event_object
from firstchair.gateway.dialects.failures import anthropic_error, failure_in
from firstchair.gateway.dialects.sse import encode
from firstchair.gateway.json_bytes import encoded

_MESSAGE = frozenset({"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"})
_CALL = frozenset({"type", "id", "name", "input"})
_TEXT_OF = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_FITS = {
    "text": ("text_delta", "citations_delta"),
    "thinking": ("thinking_delta", "signature_delta"),
    "tool_call": ("input_json_delta",),
    "raw": ("input_json_delta",),
}


class _Open:
    """The block of the stream that is open."""

    __slots__ = ("citations", "index", "kind", "signed", "started_input", "written")

    def __init__(self, index: int, kind: str):
        self.index, self.kind = index, kind
        self.citations: list[Any] = []
        self.signed = True
        """A signature has been told, or none was promised."""
        self.started_input: Any = None
        self.written = False


class AnthropicReader:
    """See ``base.StreamReader``."""

    def __init__(self) -> None:
        self._started = self._ended = False
        self._open: dict[int, _Open] = {}
        self._seen: set[int] = set()
        self._calls = 0
        self._usage: dict[str, Any] = {}
        self._stop: str | None = None
        self._stop_sequence: str | None = None
        self._extra: dict[str, Any] = {}

    def feed(self, event: str | None, data: str) -> list[StreamEvent]:
        row = _row(event, data)
        kind = row.get("type") or event
        if kind == "content_block_delta":
            return self._delta(row)
        if kind == "ping":
            return []
        if self._ended:
            bad_answer(f"{kind!r} after message_stop")
        if kind == "message_start":
            return self._start(row)
        if not self._started:
            bad_answer(f"{kind!r} before message_start")
        if kind == "content_block_start":
            return self._block(row)
        if kind == "content_block_stop":
            return self._stop_block(row)
        if kind == "message_delta":
            self._message_delta(row)
        elif kind == "message_stop":
            return [self._end()]
        # The API may add kinds of events at any time; a client passes over what it does not know.
        return []

    def close(self) -> None:
        if not self._ended:
            bad_answer("a stream that ended without message_stop")

    def _start(self, row: Mapping[str, Any]) -> list[StreamEvent]:
        message = row.get("message")
        if self._started or not isinstance(message, dict):
            bad_answer("a second message_start" if self._started else "a message_start without its message")
        self._started = True
        answer_id, model = message.get("id") or "", message.get("model") or ""
        if not isinstance(answer_id, str) or not isinstance(model, str):
            bad_answer("an id or model that is not text")
        usage = message.get("usage")
        self._usage = dict(usage) if isinstance(usage, dict) else {}
        extra = {key: value for key, value in message.items() if key not in _MESSAGE and value is not None}
        return [
            Start(
                id=answer_id,
                model=model,
                usage=counts_from_anthropic(usage),
                raw_usage=dict(self._usage) or None,
                dialect="anthropic",
                extra=extra,
            )
        ]

    def _block(self, row: Mapping[str, Any]) -> list[StreamEvent]:
        index, block = row.get("index"), row.get("content_block")
        if not isinstance(index, int) or not isinstance(block, dict) or not isinstance(block.get("type"), str):
            bad_answer("a content_block_start without index or block")
        if index in self._seen:
            bad_answer(f"block {index} twice")
        self._seen.add(index)
        block = {key: value for key, value in block.items() if value is not None}
        if block["type"] == "tool_use":
            return self._call(index, block)
        if block["type"] == "text" and block.get("citations") == []:
            del block["citations"]
        try:
            part = part_in(block, "content_block")
        except DataError as error:
            bad_answer(f"a block that cannot be read ({error})")
        if isinstance(part, RawPart) or block["type"] not in ("text", "thinking"):
            self._open[index] = _Open(index, "raw")
            return [BlockStart(index=index, kind="raw", data=block, provider="anthropic")]
        kind: Any = block["type"]
        state = self._open[index] = _Open(index, kind)
        out: list[StreamEvent] = [BlockStart(index=index, kind=kind, extra=part.extra)]  # type: ignore[union-attr]
        if text := block.get(kind):
            out.append(BlockDelta(index=index, text=text))
        signature = block.get("signature")
        if kind == "thinking" and signature:
            out.append(Signature(index=index, signature=signature))
        elif kind == "thinking" and signature == "":
            state.signed = False
        return out

    def _call(self, index: int, block: dict[str, Any]) -> list[StreamEvent]:
        call_id, name = block.get("id"), block.get("name")
        if not isinstance(call_id, str) or not isinstance(name, str):
            bad_answer("a tool_use block without id or name")
        state = self._open[index] = _Open(index, "tool_call")
        state.started_input = block.get("input")
        self._calls += 1
        own = rest(block, _CALL)
        extra = {"anthropic": own} if own else {}
        return [BlockStart(index=index, kind="tool_call", call_id=call_id, name=name, extra=extra)]

    def _delta(self, row: Mapping[str, Any]) -> list[StreamEvent]:
        state = self._state(row)
        delta = row.get("delta")
        if not isinstance(delta, dict):
            bad_answer("a delta that is not an object")
        kind = delta.get("type")
        if kind not in _FITS[state.kind]:
            bad_answer(f"a {kind!r} for a block of kind {state.kind}")
        key = _TEXT_OF.get(kind)
        if key is not None:
            text = delta.get(key)
            if not isinstance(text, str):
                bad_answer(f"a {kind} without text")
            state.written = state.written or bool(text)
            return [BlockDelta(index=state.index, text=text)] if text else []
        if kind == "signature_delta":
            signature = delta.get("signature")
            if not isinstance(signature, str):
                bad_answer("a signature that is not text")
            state.signed = True
            return [Signature(index=state.index, signature=signature)]
        state.citations.append(delta.get("citation"))
        return []

    def _state(self, row: Mapping[str, Any]) -> _Open:
        index = row.get("index")
        state = self._open.get(index) if isinstance(index, int) else None
        if state is None:
            closed = isinstance(index, int) and index in self._seen
            bad_answer(f"an event for block {index!r}, which is {'closed' if closed else 'not open'}")
        return state

    def _stop_block(self, row: Mapping[str, Any]) -> list[StreamEvent]:
        state = self._state(row)
        del self._open[state.index]
        out: list[StreamEvent] = []
        if state.kind == "tool_call" and state.started_input and not state.written:
            # Some servers send the whole input with the start.
            out.append(BlockDelta(index=state.index, text=dumps(state.started_input)))
        if not state.signed:
            out.append(Signature(index=state.index, signature=""))
        extra = {"anthropic": {"citations": state.citations}} if state.citations else {}
        out.append(BlockEnd(index=state.index, extra=extra))
        return out

    def _message_delta(self, row: Mapping[str, Any]) -> None:
        delta, usage = row.get("delta"), row.get("usage")
        if not isinstance(delta, dict | None) or not isinstance(usage, dict | None):
            bad_answer("a message_delta that cannot be read")
        self._usage |= {key: value for key, value in (usage or {}).items() if value is not None}
        for key, value in (delta or {}).items():
            if value is None:
                continue
            if key in ("stop_reason", "stop_sequence") and not isinstance(value, str):
                bad_answer(f"a {key} that is not text")
            if key == "stop_reason":
                self._stop = value
            elif key == "stop_sequence":
                self._stop_sequence = value
            else:
                self._extra[key] = value

    def _end(self) -> End:
        if self._open:
            bad_answer("message_stop while a block was open")
        self._ended = True
        has_calls = self._calls > 0
        try:
            finish = finish_from_anthropic(self._stop, has_calls=has_calls)
        except DataError as error:
            bad_answer(f"an unknown ending ({error.reason})", native=self._stop)
        return End(
            finish=derived_finish(finish, has_calls=has_calls),
            native_finish=self._stop,
            stop_sequence=self._stop_sequence,
            usage=counts_from_anthropic(self._usage) if self._usage else None,
            raw_usage=self._usage or None,
            extra=self._extra,
        )


def _row(event: str | None, data: str) -> dict[str, Any]:
    row = event_object(data)
    if event == "error" or row.get("type") == "error" or ("type" not in row and row.get("error")):
        raise StreamFault(failure_in(row, status=None))
    return row


class _Block:
    """A block on its way to the client."""

    __slots__ = ("arguments", "end", "held", "start")

    def __init__(self, start: BlockStart):
        self.start = start
        self.held: list[BlockDelta | Signature] = []
        self.arguments: list[str] = []
        self.end: BlockEnd | None = None


class AnthropicWriter:
    """See ``base.StreamWriter``."""

    def __init__(self, model: str):
        self.dropped: list[str] = []
        self._model = model
        self._own = False
        self._blocks: dict[int, _Block] = {}
        self._current: int | None = None
        self._next = 0
        self._calls = 0
        self._before = b""
        self._usage: dict[str, Any] = {}

    def write(self, event: StreamEvent) -> bytes:
        if isinstance(event, BlockDelta):
            block = self._blocks.get(event.index)
            if block is None:
                return b""
            if block.start.kind == "tool_call":
                block.arguments.append(event.text)
                return b""
            if event.index == self._current:
                return self._before + orjson.dumps(event.text) + b"}}\n\n"
            block.held.append(event)
            return b""
        if isinstance(event, BlockStart):
            return self._block(event)
        if isinstance(event, BlockEnd):
            return self._block_end(event)
        if isinstance(event, Start):
            return self._start(event)
        if isinstance(event, End):
            return self._end(event)
        block = self._blocks.get(event.index)
        if block is None:
            return b""
        if event.index == self._current:
            return self._signature(event)
        block.held.append(event)
        return b""

    def fail(self, failure: Failure) -> bytes:
        return encode("error", orjson.dumps(anthropic_error(failure)[1]))

    def _start(self, event: Start) -> bytes:
        self._own = event.dialect == "anthropic"
        usage: dict[str, Any] = {"input_tokens": 0, "output_tokens": 0}
        if self._own and event.raw_usage:
            usage = event.raw_usage
        elif event.usage is not None:
            usage = counts_to_anthropic(event.usage)
        message: dict[str, Any] = {
            "id": event.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        if self._own:
            message |= event.extra
        else:
            self._drop(*(key for key in event.extra if key not in ("created", "logprobs", "n", "object")))
        return _event("message_start", {"message": message})

    def _drop(self, *names: str) -> None:
        self.dropped += [name for name in names if name not in self.dropped]

    def _block(self, event: BlockStart) -> bytes:
        if event.kind == "raw" and event.provider != "anthropic":
            self._drop(f"content.{event.data.get('type')}")
            return b""
        self._calls += event.kind == "tool_call"
        self._drop(*(f"content.{key}" for key in event.extra.get("openai", {}) if key != "key"))
        self._blocks[event.index] = _Block(event)
        if self._current is not None:
            return b""
        return self._open(event)

    def _open(self, event: BlockStart) -> bytes:
        self._current = event.index
        kind, own = event.kind, event.extra.get("anthropic", {})
        block: dict[str, Any]
        if kind == "raw":
            block, delta, key = event.data, "input_json_delta", "partial_json"
        elif kind == "tool_call":
            block = {"type": "tool_use", "id": event.call_id, "name": event.name, "input": {}, **own}
            delta, key = "input_json_delta", "partial_json"
        elif kind == "thinking":
            block = {"type": "thinking", "thinking": "", "signature": "", **own}
            delta, key = "thinking_delta", "thinking"
        else:
            block, delta, key = {"type": "text", "text": "", **own}, "text_delta", "text"
        head = 'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":'
        self._before = (head % (self._next, delta, key)).encode()
        return _event("content_block_start", {"index": self._next, "content_block": block})

    def _signature(self, event: Signature) -> bytes:
        if not event.signature:
            return b""
        delta = {"type": "signature_delta", "signature": event.signature}
        return _event("content_block_delta", {"index": self._next, "delta": delta})

    def _block_end(self, event: BlockEnd) -> bytes:
        block = self._blocks.get(event.index)
        if block is None:
            return b""
        block.end = event
        if event.index != self._current:
            return b""
        return self._close(block, event) + self._next_blocks()

    def _close(self, block: _Block, end: BlockEnd) -> bytes:
        out = b""
        for citation in end.extra.get("anthropic", {}).get("citations", ()):
            delta = {"type": "citations_delta", "citation": citation}
            out += _event("content_block_delta", {"index": self._next, "delta": delta})
        if block.start.kind == "tool_call":
            text = _input_text("".join(block.arguments))
            if text:
                out += self._before + orjson.dumps(text) + b"}}\n\n"
        out += _event("content_block_stop", {"index": self._next})
        del self._blocks[block.start.index]
        self._current = None
        self._next += 1
        return out

    def _next_blocks(self) -> bytes:
        """Open the block that waits longest, and close it when it is complete already; until one stays open."""
        out = b""
        while self._blocks and self._current is None:
            block = next(iter(self._blocks.values()))
            out += self._open(block.start)
            for held in block.held:
                out += (
                    self._signature(held)
                    if isinstance(held, Signature)
                    else self._before + orjson.dumps(held.text) + b"}}\n\n"
                )
            block.held = []
            if block.end is not None:
                out += self._close(block, block.end)
        return out

    def _end(self, event: End) -> bytes:
        finish = derived_finish(event.finish, has_calls=self._calls > 0)
        usage: dict[str, Any] = {"output_tokens": 0}
        if self._own and event.raw_usage:
            usage = event.raw_usage
        elif event.usage is not None:
            usage = counts_to_anthropic(event.usage)
        else:
            self._drop("usage")
        self._drop(*(key for key in event.message_extra.get("openai", {})))
        if not self._own:
            self._drop(*(key for key in event.extra if key not in ("logprobs", "n")))
        delta = {"stop_reason": finish_to_anthropic(finish), "stop_sequence": event.stop_sequence}
        if self._own:
            delta |= event.extra
        return _event("message_delta", {"delta": delta, "usage": usage}) + _event("message_stop", {})


def _input_text(arguments: str) -> str:
    """The JSON text of a tool's input: as the model wrote it, or carried under the declared key when malformed."""
    if not arguments.strip():
        return ""
    if ToolCall(id="", name="", arguments=arguments).parsed() is not None:
        return arguments
    return dumps({MALFORMED_KEY: arguments})


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return encode(kind, encoded({"type": kind, **fields}))
