"""The stream of Chat Completions: read into canonical events, and written from them.

Tool calls arrive in fragments that name their index and may interleave, so each call stays open until the finish
reason. Reasoning and text close when something else begins. ``[DONE]`` is the terminal event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import orjson

from firstchair.catalog.usage import counts_from_openai, counts_to_openai
from firstchair.chat.wire_fields import kind_of
from firstchair.chat.wire_request import finish_to_openai
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
from firstchair.gateway.dialects.failures import failure_in, openai_error
from firstchair.gateway.dialects.openai_finish import answer_extra, engine_tokens, other_choices, read_finish

_REASONING = ("reasoning_content", "reasoning")
_USUAL = frozenset({"role", "content", "tool_calls", *_REASONING})


class _Call:
    """One tool call of the stream; it opens when its id and name are known."""

    __slots__ = ("block", "early", "id", "name")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name: str | None = None
        self.early = ""
        self.block: int | None = None


class OpenAIReader:
    """See ``base.StreamReader``."""

    def __init__(self) -> None:
        self._started = False
        self._ended = False
        self._choice: Mapping[str, Any] | None = None
        self._blocks = 0
        self._open: tuple[int, str] | None = None
        self._calls: dict[int, _Call] = {}
        self._order: list[_Call] = []
        self._usage: dict[str, Any] | None = None
        self._extra: dict[str, Any] = {}
        self._others = 1
        self._prompt: Any = None
        self._ids: list[Any] | None = None
        self._scored: dict[str, list[Any]] = {}

    def feed(self, event: str | None, data: str) -> list[StreamEvent]:
        if data.startswith("[DONE]"):
            return self._done()
        chunk = _chunk(event, data)
        if self._ended:
            bad_answer("an event after [DONE]")
        out: list[StreamEvent] = []
        if not self._started:
            self._start(chunk, out)
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        if chunk.get("prompt_token_ids"):
            self._prompt = chunk["prompt_token_ids"]
        choices = chunk.get("choices")
        if not isinstance(choices, list | None):
            bad_answer(f"{kind_of(choices)} as choices")
        for choice in choices or ():
            if not isinstance(choice, dict):
                bad_answer(f"{kind_of(choice)} as a choice")
            index = choice.get("index", 0)
            if index == 0:
                self._read_choice(choice, out)
            elif isinstance(index, int):
                # Forwarded, not recorded: a canonical answer has one choice.
                self._others = max(self._others, min(index, 1000) + 1)
        return out

    def close(self) -> None:
        if not self._ended:
            bad_answer("a stream that ended without [DONE]")

    def _start(self, chunk: Mapping[str, Any], out: list[StreamEvent]) -> None:
        self._started = True
        answer_id, model = chunk.get("id") or "", chunk.get("model") or ""
        if not isinstance(answer_id, str) or not isinstance(model, str):
            bad_answer("an id or model that is not text")
        out.append(Start(id=answer_id, model=model, dialect="openai", extra=answer_extra(chunk)))

    def _read_choice(self, choice: Mapping[str, Any], out: list[StreamEvent]) -> None:
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict):
            bad_answer(f"{kind_of(delta)} as a delta")
        self._read_scores(choice)
        reasoning = _reasoning(delta)
        content = delta.get("content")
        fragments = delta.get("tool_calls")
        if self._choice is not None and (reasoning or content or fragments):
            bad_answer("content after its finish reason")
        if reasoning:
            self._text("thinking", reasoning[1], reasoning[0], out)
        if content:
            if not isinstance(content, str):
                bad_answer(f"{kind_of(content)} as content")
            self._text("text", content, "", out)
        if fragments:
            if not isinstance(fragments, list):
                bad_answer(f"{kind_of(fragments)} as tool_calls")
            self._close_text(out)
            for fragment in fragments:
                self._fragment(fragment, out)
        if not delta.keys() <= _USUAL:
            self._beside(delta)
        if choice.get("finish_reason") is not None and self._choice is None:
            self._choice = choice
            self._close_all(out)

    def _read_scores(self, choice: Mapping[str, Any]) -> None:
        if choice.get("prompt_token_ids"):
            self._prompt = choice["prompt_token_ids"]
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            self._ids = [] if self._ids is None else self._ids
            self._ids.extend(ids)
        scored = choice.get("logprobs")
        if isinstance(scored, dict):
            for key, values in scored.items():
                if isinstance(values, list):
                    self._scored.setdefault(key, []).extend(values)

    def _text(self, kind: Literal["text", "thinking"], text: str, key: str, out: list[StreamEvent]) -> None:
        if self._open is None or self._open[1] != kind:
            self._close_text(out)
            self._open = (self._blocks, kind)
            extra = {"openai": {"key": key}} if key not in ("", "reasoning_content") else {}
            out.append(BlockStart(index=self._blocks, kind=kind, extra=extra))
            self._blocks += 1
        out.append(BlockDelta(index=self._open[0], text=text))

    def _close_text(self, out: list[StreamEvent]) -> None:
        if self._open is not None:
            out.append(BlockEnd(index=self._open[0]))
            self._open = None

    def _fragment(self, fragment: Any, out: list[StreamEvent]) -> None:
        if not isinstance(fragment, dict):
            bad_answer(f"{kind_of(fragment)} as a tool call")
        function = fragment.get("function") or {}
        call_id, name, text = fragment.get("id"), None, None
        if isinstance(function, dict):
            name, text = function.get("name"), function.get("arguments")
        if not all(isinstance(value, str | None) for value in (call_id, name, text)):
            bad_answer("a tool call whose id, name or arguments are not text")
        call = self._call_at(fragment.get("index"), call_id, name)
        call.id = call.id or call_id
        call.name = call.name or name
        if call.block is None:
            call.early += text or ""
            if call.id and call.name:
                call.block = self._blocks
                self._blocks += 1
                out.append(BlockStart(index=call.block, kind="tool_call", call_id=call.id, name=call.name))
                if call.early:
                    out.append(BlockDelta(index=call.block, text=call.early))
        elif text:
            out.append(BlockDelta(index=call.block, text=text))

    def _call_at(self, index: Any, call_id: str | None, name: str | None) -> _Call:
        """The call that a fragment belongs to: by index; where servers leave it out or repeat it, by a new id."""
        if not isinstance(index, int) or isinstance(index, bool):
            index = len(self._calls) if call_id or not self._calls else len(self._calls) - 1
        call = self._calls.get(index)
        if call is None or (call_id and name and call.id and call_id != call.id):
            call = self._calls[index] = _Call()
            self._order.append(call)
        return call

    def _beside(self, delta: Mapping[str, Any]) -> None:
        """Fields of the message that only this wire has: text grows, lists grow, the rest is replaced."""
        for key, value in delta.items():
            if key in _USUAL or value is None or value == []:
                continue
            if key == "function_call":
                bad_answer("the old function_call form")
            kept = self._extra.get(key)
            if isinstance(kept, str) and isinstance(value, str):
                value = kept + value
            elif isinstance(kept, list) and isinstance(value, list):
                value = [*kept, *value]
            self._extra[key] = value

    def _close_all(self, out: list[StreamEvent]) -> None:
        self._close_text(out)
        for call in self._order:
            if call.block is None:
                bad_answer("a tool call without id or name")
            out.append(BlockEnd(index=call.block))

    def _done(self) -> list[StreamEvent]:
        if self._ended:
            bad_answer("[DONE] twice")
        if self._choice is None:
            bad_answer("[DONE] before a finish reason")
        self._ended = True
        try:
            finish, native, stop_sequence = read_finish(self._choice, has_calls=bool(self._order))
        except DataError as error:
            bad_answer(f"an unknown ending ({error.reason})", native=str(self._choice.get("finish_reason"))[:100])
        extra = {key: value for key, value in self._extra.items() if value not in ("", {})}
        return [
            End(
                finish=finish,
                native_finish=native,
                stop_sequence=stop_sequence,
                usage=counts_from_openai(self._usage),
                raw_usage=self._usage,
                tokens=engine_tokens(self._prompt, self._ids, self._scored.get("content")),
                extra=other_choices(self._others, self._scored),
                message_extra={"openai": extra} if extra else {},
            )
        ]


def _chunk(event: str | None, data: str) -> dict[str, Any]:
    chunk = event_object(data)
    if event == "error" or chunk.get("error"):
        raise StreamFault(failure_in(chunk, status=None))
    return chunk


def _reasoning(delta: Mapping[str, Any]) -> tuple[str, str] | None:
    """The key and the text of reasoning in a delta. Some servers send it under both names."""
    found = [(key, delta[key]) for key in _REASONING if delta.get(key)]
    if not found:
        return None
    if not all(isinstance(value, str) for _, value in found):
        bad_answer("reasoning that is not text")
    if len(found) == 2 and found[0][1] == found[1][1]:
        return "both", found[0][1]
    return found[0]


class OpenAIWriter:
    """See ``base.StreamWriter``. Nothing goes out before the first block: a failure until then is silent."""

    def __init__(self, request: ChatRequest, model: str):
        self.dropped: list[str] = []
        self._request = request
        self._model = model
        self._head: dict[str, Any] = {}
        self._before = self._after = b""
        self._role_sent = self._own = False
        self._texts: dict[int, bytes] = {}
        self._calls: dict[int, int] = {}
        self._written: set[int] = set()

    def write(self, event: StreamEvent) -> bytes:
        if isinstance(event, BlockDelta):
            return self._delta(event)
        if isinstance(event, BlockStart):
            return self._block(event)
        if isinstance(event, Start):
            self._start(event)
        elif isinstance(event, End):
            return self._end(event)
        elif isinstance(event, Signature):
            if event.signature:
                self._drop("content.signature")
        else:
            return self._block_end(event)
        return b""

    def fail(self, failure: Failure) -> bytes:
        return b"data: " + orjson.dumps(openai_error(failure)[1]) + b"\n\n"

    def _drop(self, name: str) -> None:
        if name not in self.dropped:
            self.dropped.append(name)

    def _start(self, event: Start) -> None:
        own = self._own = event.dialect == "openai"
        created = event.extra.get("created", self._request.received_s) if own else self._request.received_s
        self._head = {"id": event.id, "object": "chat.completion.chunk", "created": created, "model": self._model}
        for key, value in event.extra.items():
            if not own:
                self._drop(key)
            elif key not in ("created", "logprobs", "n"):
                self._head[key] = value
        usage = b',"usage":null' if self._request.include_usage else b""
        self._before = b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":[{"index":0,"delta":'
        self._after = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"

    def _chunk(self, delta: dict[str, Any]) -> bytes:
        return self._before + orjson.dumps(delta) + self._after

    def _role(self, content: str | None) -> bytes:
        if self._role_sent:
            return b""
        self._role_sent = True
        return self._chunk({"role": "assistant", "content": content})

    def _block(self, event: BlockStart) -> bytes:
        if event.kind == "tool_call":
            position = self._calls[event.index] = len(self._calls)
            self._drop_extra(event)
            function = {"name": event.name, "arguments": ""}
            call = {"index": position, "id": event.call_id, "type": "function", "function": function}
            return self._role(None) + self._chunk({"tool_calls": [call]})
        if event.kind == "raw":
            self._drop(f"content.{event.data.get('type')}")
            return b""
        if event.kind == "text":
            self._texts[event.index] = b'{"content":'
            self._drop_extra(event)
            return self._role("")
        key = event.extra.get("openai", {}).get("key", "reasoning_content")
        self._texts[event.index] = b'{"reasoning_content":' if key == "both" else b"{" + orjson.dumps(key) + b":"
        return self._role("")

    def _drop_extra(self, event: BlockStart) -> None:
        for key in event.extra.get("anthropic", {}):
            self._drop(f"content.{key}")

    def _delta(self, event: BlockDelta) -> bytes:
        text = orjson.dumps(event.text)
        before = self._texts.get(event.index)
        if before is not None:
            return self._before + before + text + b"}" + self._after
        position = self._calls.get(event.index)
        if position is None:
            return b""
        self._written.add(event.index)
        call = b'{"tool_calls":[{"index":%d,"function":{"arguments":' % position
        return self._before + call + text + b"}}]}" + self._after

    def _block_end(self, event: BlockEnd) -> bytes:
        for key in event.extra.get("anthropic", {}):
            self._drop(f"content.{key}")
        if self._own or event.index not in self._calls or event.index in self._written:
            return b""
        # Elsewhere a call without arguments may stream nothing; here that is the text of an empty object.
        return self._delta(BlockDelta(index=event.index, text="{}"))

    def _end(self, event: End) -> bytes:
        out = self._role("")
        own = event.message_extra.get("openai", {})
        if own:
            out += self._chunk(own)
        word, native = finish_to_openai(derived_finish(event.finish, has_calls=bool(self._calls)))
        choice: dict[str, Any] = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": word}
        if native is not None:
            choice["native_finish_reason"] = event.native_finish if self._own and event.native_finish else native
        if event.stop_sequence is not None:
            choice["stop_reason"] = event.stop_sequence
        head = self._head
        include = self._request.include_usage
        last: dict[str, Any] = {**head, "choices": [choice], **({"usage": None} if include else {})}
        out += b"data: " + orjson.dumps(last) + b"\n\n"
        if include:
            usage = (event.raw_usage if self._own else None) or (
                counts_to_openai(event.usage) if event.usage else None
            )
            out += b"data: " + orjson.dumps({**head, "choices": [], "usage": usage}) + b"\n\n"
        return out + b"data: [DONE]\n\n"
