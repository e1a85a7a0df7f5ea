"""The stream of the Responses API: read into canonical events, and written from them.

    response.created, response.in_progress
    per item:  response.output_item.added … response.output_item.done
      message:        content_part.added, output_text.delta …, output_text.done, content_part.done
      reasoning:      reasoning_summary_part.added, reasoning_summary_text.delta …, … .done, …_part.done
      function_call:  function_call_arguments.delta …, function_call_arguments.done
    response.completed | response.incomplete | response.failed

Every event has a ``sequence_number``. The last event holds the whole response, equal to the buffered one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import orjson

from firstchair.chat.messages import RawPart, ThinkingPart
from firstchair.chat.wire_fields import kind_of
from firstchair.core.errors import DataError
from firstchair.gateway.dialects.base import (
    BlockDelta,
    BlockEnd,
    BlockStart,
    ChatRequest,
    End,
    Failure,
    Signature,
    Start,
    StreamEvent,
    StreamFault,
)
from firstchair.gateway.dialects.collect import bad_answer, derived_finish, event_object
from firstchair.gateway.dialects.failures import OPENAI_WORDS, failure_in
from firstchair.gateway.dialects.responses_items import (
    SIGNED,
    raw_item,
    reasoning_in,
    refusal_item,
    text_part,
)
from firstchair.gateway.dialects.responses_object import (
    Ids,
    ended,
    error_of,
    finish_of,
    item_status,
    response_object,
    usage_from_responses,
    usage_to_responses,
)
from firstchair.gateway.json_bytes import encoded

_KINDS: Mapping[str, Literal["message", "reasoning", "function_call"]] = {
    "text": "message",
    "thinking": "reasoning",
    "tool_call": "function_call",
}
_DELTAS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "text": ("response.output_text.delta", {"content_index": 0, "logprobs": []}),
    "thinking": ("response.reasoning_summary_text.delta", {"summary_index": 0}),
    "tool_call": ("response.function_call_arguments.delta", {}),
}


class _Item:
    """One output item as far as it was written."""

    __slots__ = ("before", "id", "index", "kind", "pieces", "signature", "start")

    def __init__(self, start: BlockStart, item_id: str, index: int):
        self.start, self.id, self.index = start, item_id, index
        self.kind = start.kind
        self.pieces: list[str] = []
        self.signature = ""
        name, more = _DELTAS[start.kind]
        head = {"type": name, "item_id": item_id, "output_index": index, **more}
        self.before = b"event: %b\ndata: %b" % (name.encode(), orjson.dumps(head)[:-1])

    def body(self, status: str, *, empty: bool = False) -> dict[str, Any]:
        """The item; ``empty`` as it opens."""
        text = "" if empty else "".join(self.pieces)
        if self.kind == "text":
            content = [] if empty else [text_part(text)]
            return {"id": self.id, "type": "message", "role": "assistant", "content": content, "status": status}
        if self.kind == "tool_call":
            call = {"call_id": self.start.call_id or "", "name": self.start.name or "", "arguments": text}
            return {"id": self.id, "type": "function_call", **call, "status": status}
        item: dict[str, Any] = {"id": self.id, "type": "reasoning", "summary": [] if empty else [_summary(text)]}
        if self.signature and not empty:
            item["encrypted_content"] = SIGNED + self.signature
        return {**item, "status": status}


def _summary(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


class ResponsesWriter:
    """See ``base.StreamWriter``. Nothing goes out before the first block: a failure until then is silent."""

    def __init__(self, request: ChatRequest, model: str):
        self.dropped: list[str] = []
        self._request, self._model = request, model
        self._sequence = 0
        self._start: Start | None = None
        self._base: dict[str, Any] = {}
        self._ids = Ids("")
        self._items: dict[int, _Item] = {}
        self._output: dict[int, dict[str, Any]] = {}
        self._count = 0
        self._last: Callable[[str], dict[str, Any]] | None = None
        """Makes the item that ended last; whether the ending cut it is not known yet."""
        self._last_index = 0

    def write(self, event: StreamEvent) -> bytes:
        if isinstance(event, BlockDelta):
            item = self._items.get(event.index)
            if item is None:
                return b""
            item.pieces.append(event.text)
            self._sequence += 1
            return item.before + b',"delta":%b,"sequence_number":%d}\n\n' % (
                orjson.dumps(event.text),
                self._sequence - 1,
            )
        if isinstance(event, Start):
            self._start = event
            for key in event.extra:
                if key not in ("created", "service_tier", "system_fingerprint"):
                    self._drop(key)
            return b""
        if isinstance(event, BlockStart):
            return self._opening() + self._block(event)
        if isinstance(event, BlockEnd):
            self._drop_extra(event.extra)
            return self._close(event.index)
        if isinstance(event, Signature):
            if event.index in self._items:
                self._items[event.index].signature = event.signature
            return b""
        return self._end(event)

    def fail(self, failure: Failure) -> bytes:
        _, kind, code = OPENAI_WORDS[failure.kind]
        error = {"code": code or kind, "message": failure.message, "param": failure.param}
        out = self._event("error", error)
        if self._base:
            output = [self._output[index] for index in sorted(self._output)]
            failed = {**self._base, "status": "failed", "output": output, "error": error_of(failure)}
            out += self._event("response.failed", {"response": failed})
        return out

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        data = encoded({"type": name, **fields, "sequence_number": self._sequence})
        self._sequence += 1
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"

    def _drop(self, name: str) -> None:
        if name not in self.dropped:
            self.dropped.append(name)

    def _drop_extra(self, extra: Mapping[str, Any]) -> None:
        for key in extra.get("anthropic", {}):
            self._drop(f"content.{key}")

    def _opening(self) -> bytes:
        if self._base:
            return b""
        start = self._start
        self._ids = Ids(start.id if start else "")
        self._base = response_object(
            self._request, response_id=self._ids.response, model=self._model, status="in_progress"
        )
        if start is not None:
            for key in ("service_tier", "system_fingerprint"):
                if start.extra.get(key) is not None:
                    self._base[key] = start.extra[key]
        begun = {"response": self._base}
        return self._event("response.created", begun) + self._event("response.in_progress", begun)

    def _block(self, event: BlockStart) -> bytes:
        self._drop_extra(event.extra)
        if event.kind == "raw":
            whole = raw_item(event.provider, event.data)
            if whole is None:
                self._drop(f"content.{event.data.get('type')}")
                return b""
            return self._whole(whole)
        out = self._flush("completed")
        index = self._take_index()
        item = self._items[event.index] = _Item(event, self._ids.item(_KINDS[event.kind], index), index)
        added = {"output_index": index, "item": item.body("in_progress", empty=True)}
        out += self._event("response.output_item.added", added)
        place = {"item_id": item.id, "output_index": index}
        if event.kind == "text":
            part = {**place, "content_index": 0, "part": text_part("")}
            out += self._event("response.content_part.added", part)
        elif event.kind == "thinking":
            part = {**place, "summary_index": 0, "part": _summary("")}
            out += self._event("response.reasoning_summary_part.added", part)
        return out

    def _take_index(self) -> int:
        self._count += 1
        return self._count - 1

    def _close(self, block: int) -> bytes:
        item = self._items.pop(block, None)
        if item is None:
            return b""
        out = self._flush("completed")
        text = "".join(item.pieces)
        place: dict[str, Any] = {"item_id": item.id, "output_index": item.index}
        if item.kind == "text":
            place["content_index"] = 0
            out += self._event("response.output_text.done", {**place, "text": text, "logprobs": []})
            out += self._event("response.content_part.done", {**place, "part": text_part(text)})
        elif item.kind == "thinking":
            place["summary_index"] = 0
            out += self._event("response.reasoning_summary_text.done", {**place, "text": text})
            out += self._event("response.reasoning_summary_part.done", {**place, "part": _summary(text)})
        else:
            done = {**place, "name": item.start.name, "arguments": text}
            out += self._event("response.function_call_arguments.done", done)
        self._last, self._last_index = item.body, item.index
        return out

    def _whole(self, item: dict[str, Any]) -> bytes:
        """An item that comes in one piece."""
        out = self._flush("completed")
        index = self._take_index()
        named = {"id": self._ids.item(item["type"], index), **item}
        empty = {**named, "status": "in_progress", **({"content": []} if "content" in item else {})}
        out += self._event("response.output_item.added", {"output_index": index, "item": empty})
        for position, part in enumerate(item.get("content", ())):
            place = {"item_id": named["id"], "output_index": index, "content_index": position}
            out += self._event("response.content_part.added", {**place, "part": {**part, "refusal": ""}})
            out += self._event("response.refusal.delta", {**place, "delta": part["refusal"]})
            out += self._event("response.refusal.done", {**place, "refusal": part["refusal"]})
            out += self._event("response.content_part.done", {**place, "part": part})
        self._last, self._last_index = (lambda status: {**named, "status": status}), index
        return out

    def _flush(self, status: str) -> bytes:
        """End the item whose end was held back."""
        if self._last is None:
            return b""
        item = self._output[self._last_index] = self._last(status)
        self._last = None
        return self._event("response.output_item.done", {"output_index": self._last_index, "item": item})

    def _end(self, event: End) -> bytes:
        out = self._opening()
        refusal = event.message_extra.get("openai", {}).get("refusal")
        if refusal:
            out += self._whole(refusal_item(refusal))
        has_calls = any(item["type"] == "function_call" for item in self._output.values())
        has_calls = has_calls or (self._last is not None and self._last("")["type"] == "function_call")
        finish = derived_finish(event.finish, has_calls=has_calls)
        # Calls of Chat Completions end together: only the item that opened last can be the one that was cut.
        out += self._flush(item_status(finish, last=self._last_index == self._count - 1))
        output = [self._output[index] for index in sorted(self._output)]
        own = self._start is not None and self._start.dialect == "responses"
        counts = event.usage or (self._start.usage if self._start else None)
        usage = (event.raw_usage if own else None) or (usage_to_responses(counts) if counts else None)
        body = ended(self._base, finish, output, usage)
        for key in event.extra:
            self._drop(key)
        return out + self._event(f"response.{body['status']}", {"response": body})


class _Open:
    """An item of the stream that is read."""

    __slots__ = ("block", "gap", "kind", "said")

    def __init__(self, kind: str):
        self.kind = kind
        self.block: int | None = None
        self.said = self.gap = False


class ResponsesReader:
    """See ``base.StreamReader``. Event types that we do not know say nothing about the answer and are passed over."""

    def __init__(self) -> None:
        self._started = self._ended = False
        self._blocks = 0
        self._open: dict[int, _Open] = {}
        self._seen: set[int] = set()
        self._has_calls = False

    def feed(self, event: str | None, data: str) -> list[StreamEvent]:
        if data.startswith("[DONE]"):
            return []
        body = event_object(data)
        kind = body.get("type") or event
        if kind in ("error", "response.failed") or (kind is None and body.get("error")):
            raise StreamFault(failure_in(body, status=None))
        if self._ended:
            bad_answer("an event after its end")
        if kind == "response.created":
            return self._start(body)
        if kind in ("response.completed", "response.incomplete"):
            return self._end(body)
        handle = _HANDLERS.get(str(kind))
        if handle is None:
            return []
        if not self._started:
            bad_answer("content before response.created")
        out: list[StreamEvent] = []
        handle(self, body, out)
        return out

    def close(self) -> None:
        if not self._ended:
            bad_answer("a stream that ended without response.completed or response.incomplete")

    def _start(self, body: Mapping[str, Any]) -> list[StreamEvent]:
        response = body.get("response")
        if self._started or not isinstance(response, dict):
            bad_answer("response.created twice or without a response")
        self._started = True
        answer_id, model = response.get("id") or "", response.get("model") or ""
        if not isinstance(answer_id, str) or not isinstance(model, str):
            bad_answer("an id or model that is not text")
        return [Start(id=answer_id, model=model, dialect="responses")]

    def item_added(self, body: Mapping[str, Any], out: list[StreamEvent]) -> None:
        index, item = _index(body), _object(body, "item")
        if index in self._seen:
            bad_answer(f"output item {index} twice")
        self._seen.add(index)
        opened = self._open[index] = _Open(str(item.get("type")))
        if opened.kind == "function_call":
            call_id, name = item.get("call_id"), item.get("name")
            if not isinstance(call_id, str) or not isinstance(name, str):
                bad_answer("a function call without call_id or name")
            self._has_calls = True
            opened.block = self._block()
            out.append(BlockStart(index=opened.block, kind="tool_call", call_id=call_id, name=name))

    def part_added(self, body: Mapping[str, Any], out: list[StreamEvent]) -> None:
        opened = self._item(body)
        if opened.kind == "reasoning":
            self.summary_added(body, out)
        elif opened.kind == "message" and _object(body, "part").get("type") == "output_text":
            if opened.block is not None:
                bad_answer("a second text before the end of the first")
            opened.block, opened.said = self._block(), False
            out.append(BlockStart(index=opened.block, kind="text"))

    def part_done(self, body: Mapping[str, Any], out: list[StreamEvent]) -> None:
        opened, part = self._item(body), _object(body, "part")
        if opened.kind != "message":
            return
        if part.get("type") != "output_text":
            block = self._block()
            out.append(BlockStart(index=block, kind="raw", provider="openai", data=_refusal(part)))
            out.append(BlockEnd(index=block))
        elif opened.block is None:
            bad_answer("the end of a text that is not open")
        else:
            self._whole_text(opened, part.get("text"), out)
            out.append(BlockEnd(index=opened.block))
            opened.block = None

    def delta(self, body: Mapping[str, Any], out: list[StreamEvent]) -> None:
        opened, text = self._item(body), body.get("delta")
        if not isinstance(text, str):
            bad_answer(f"{kind_of(text)} as a delta")
        if opened.kind == "reasoning" and opened.block is None:
            self._open_thinking(opened, out)
        if opened.block is None:
            bad_answer("a delta for a part that is not open")
        if not text:
            return
        if opened.gap:
            # Parts of a summary are one reasoning, as in the buffered form.
            text = "\n\n" + text
        opened.said, opened.gap = True, False
        out.append(BlockDelta(index=opened.block, text=text))

    def summary_added(self, body: Mapping[str, Any], out: list[StreamEvent]) -> None:
        opened = self._item(body)
        if opened.block is None:
            self._open_thinking(opened, out)
        opened.gap = opened.said

    def item_done(self, body: Mapping[str, Any], out: list[StreamEvent]) -> None:
        opened, item = self._item(body), _object(body, "item")
        del self._open[_index(body)]
        if opened.kind == "function_call":
            self._whole_text(opened, item.get("arguments"), out)
        elif opened.kind == "reasoning":
            self._reasoning_done(opened, item, out)
        elif opened.kind != "message":
            opened.block = self._block()
            out.append(BlockStart(index=opened.block, kind="raw", provider="openai", data=item))
        elif opened.block is not None:
            bad_answer("the end of an item whose text was open")
        if opened.block is not None:
            out.append(BlockEnd(index=opened.block))

    def _reasoning_done(self, opened: _Open, item: dict[str, Any], out: list[StreamEvent]) -> None:
        try:
            part = reasoning_in(item, "item", {})
        except DataError as error:
            bad_answer(f"reasoning that cannot be read ({error})")
        if isinstance(part, RawPart):
            opened.block = self._block()
            out.append(BlockStart(index=opened.block, kind="raw", provider=part.provider, data=part.data))
        elif isinstance(part, ThinkingPart):
            if opened.block is None:
                self._open_thinking(opened, out)
            self._whole_text(opened, part.text, out)
            if part.signature is not None and opened.block is not None:
                out.append(Signature(index=opened.block, signature=part.signature))

    def _open_thinking(self, opened: _Open, out: list[StreamEvent]) -> None:
        opened.block = self._block()
        out.append(BlockStart(index=opened.block, kind="thinking"))

    def _whole_text(self, opened: _Open, text: Any, out: list[StreamEvent]) -> None:
        """The text of a block that came without deltas."""
        if not opened.said and isinstance(text, str) and text and opened.block is not None:
            opened.said = True
            out.append(BlockDelta(index=opened.block, text=text))

    def _end(self, body: Mapping[str, Any]) -> list[StreamEvent]:
        response = _object(body, "response")
        if not self._started:
            bad_answer("its end before response.created")
        if self._open:
            bad_answer("its end while an item was open")
        self._ended = True
        try:
            finish, native = finish_of(response, has_calls=self._has_calls)
        except DataError as error:
            bad_answer(f"an unknown ending ({error})", native=str(response.get("status"))[:100])
        usage = response.get("usage")
        extra = {
            key: response[key] for key in ("service_tier", "system_fingerprint") if response.get(key) is not None
        }
        return [
            End(
                finish=finish,
                native_finish=native,
                usage=usage_from_responses(usage),
                raw_usage=usage if isinstance(usage, dict) else None,
                extra=extra,
            )
        ]

    def _block(self) -> int:
        self._blocks += 1
        return self._blocks - 1

    def _item(self, body: Mapping[str, Any]) -> _Open:
        opened = self._open.get(_index(body))
        if opened is None:
            bad_answer(f"{body.get('type')} for an item that is not open")
        return opened


def _index(body: Mapping[str, Any]) -> int:
    index = body.get("output_index")
    if not isinstance(index, int) or isinstance(index, bool):
        bad_answer(f"{kind_of(index)} as output_index")
    return index


def _object(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = body.get(key)
    if not isinstance(value, dict):
        bad_answer(f"{kind_of(value)} as {key}")
    return value


def _refusal(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "refusal", "refusal": part.get("refusal") or ""} if part.get("type") == "refusal" else dict(part)


_HANDLERS: Mapping[str, Callable[[ResponsesReader, Mapping[str, Any], list[StreamEvent]], None]] = {
    "response.output_item.added": ResponsesReader.item_added,
    "response.output_item.done": ResponsesReader.item_done,
    "response.content_part.added": ResponsesReader.part_added,
    "response.content_part.done": ResponsesReader.part_done,
    "response.output_text.delta": ResponsesReader.delta,
    "response.reasoning_summary_part.added": ResponsesReader.summary_added,
    "response.reasoning_summary_text.delta": ResponsesReader.delta,
    "response.reasoning_text.delta": ResponsesReader.delta,
    "response.function_call_arguments.delta": ResponsesReader.delta,
}
