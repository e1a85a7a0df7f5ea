"""Stream events ⇄ the whole answer.

``Collector`` puts the events of a stream together and checks their order: a block opens once, gets deltas only
while it is open, and closes once. ``events_of`` takes an answer apart, for a slot that reads the whole answer before
the client gets any of it. Streamed and buffered forms of one answer are equal objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec
import orjson

from firstchair.chat.anthropic_blocks import call_in
from firstchair.chat.messages import (
    CallMark,
    ImagePart,
    Message,
    Part,
    RawPart,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from firstchair.chat.wire_fields import kind_of
from firstchair.chat.wire_request import Finish
from firstchair.core.jsontext import JsonProblem, loads
from firstchair.gateway.dialects.base import (
    BlockDelta,
    BlockEnd,
    BlockStart,
    ChatAnswer,
    End,
    Failure,
    FailureKind,
    Signature,
    Start,
    StreamEvent,
    StreamFault,
)


def bad_answer(what: str, *, native: str | None = None) -> NoReturn:
    """Raise the fault of a provider that sent something which is no answer."""
    raise StreamFault(
        Failure(kind=FailureKind.BAD_ANSWER, message=f"the provider sent {what}", native=native)
    ) from None


def event_object(data: str) -> dict[str, Any]:
    """The JSON object in an event's data. Raises ``StreamFault``."""
    try:
        found = orjson.loads(data)
    except ValueError:
        bad_answer("an event that is not JSON")
    if not isinstance(found, dict):
        bad_answer(f"{kind_of(found)} as an event; expected an object")
    return found


def derived_finish(finish: Finish, *, has_calls: bool) -> Finish:
    """The ending that fits the blocks which were sent, whatever the provider's word (kept in ``native_finish``)."""
    if has_calls and finish is Finish.STOP:
        return Finish.TOOL_CALLS
    if not has_calls and finish is Finish.TOOL_CALLS:
        return Finish.STOP
    return finish


class _Block:
    """One block as far as it came."""

    __slots__ = ("extra", "open", "pieces", "signature", "start")

    def __init__(self, start: BlockStart):
        self.start = start
        self.pieces: list[str] = []
        self.signature: str | None = None
        self.extra = start.extra
        self.open = True

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Collector:
    """Puts one stream together."""

    def __init__(self) -> None:
        self.start: Start | None = None
        self.end: End | None = None
        self._blocks: dict[int, _Block] = {}

    @property
    def has_content(self) -> bool:
        """A block has opened: from here on a failure can no longer fall back unseen."""
        return bool(self._blocks)

    def add(self, event: StreamEvent) -> None:
        """Take the next event. Raises ``StreamFault`` for one out of order."""
        kind = event.__class__
        if self.end is not None:
            bad_answer(f"a {kind.__name__} after its end")
        if kind is BlockDelta:
            self._opened(event.index, "text").pieces.append(event.text)  # type: ignore[union-attr]
        elif isinstance(event, Start):
            if self.start is not None:
                bad_answer("a second start")
            self.start = event
        elif self.start is None:
            bad_answer(f"a {kind.__name__} before its start")
        elif isinstance(event, End):
            if any(block.open for block in self._blocks.values()):
                bad_answer("its end while a block was open")
            self.end = event
        else:
            self._block_event(event)

    def _block_event(self, event: BlockStart | BlockDelta | Signature | BlockEnd) -> None:
        if isinstance(event, BlockStart):
            if event.index in self._blocks:
                bad_answer(f"block {event.index} twice")
            self._blocks[event.index] = _Block(event)
        elif isinstance(event, BlockEnd):
            block = self._opened(event.index, "an end")
            block.open = False
            if event.extra:
                block.extra = _merged(block.extra, event.extra)
        elif isinstance(event, Signature):
            self._opened(event.index, "a signature").signature = event.signature

    def _opened(self, index: int, what: str) -> _Block:
        block = self._blocks.get(index)
        if block is None or not block.open:
            bad_answer(f"{what} for block {index}, which is {'closed' if block else 'not open'}")
        return block

    def message(self) -> Message:
        """The message as far as it came."""
        blocks = list(self._blocks.values())
        dialect = self.start.dialect if self.start else None
        calls = tuple(_call(block, dialect) for block in blocks if block.start.kind == "tool_call")
        parts = _flat_parts(blocks) if dialect == "openai" else _placed_parts(blocks)
        extra = self.end.message_extra if self.end else {}
        return Message(role="assistant", content=parts, tool_calls=calls, extra=extra)

    def answer(self) -> ChatAnswer:
        """The whole answer. Raises ``StreamFault`` when the terminal event has not come."""
        start, end = self.start, self.end
        if start is None or end is None:
            bad_answer("a stream that ended without its terminal event")
        message = self.message()
        return ChatAnswer(
            id=start.id,
            model=start.model,
            message=message,
            finish=derived_finish(end.finish, has_calls=bool(message.tool_calls)),
            native_finish=end.native_finish,
            stop_sequence=end.stop_sequence,
            usage=end.usage or start.usage,
            raw_usage=end.raw_usage or start.raw_usage,
            tokens=end.tokens,
            dialect=start.dialect,
            extra={**start.extra, **end.extra},
        )


def _merged(extra: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {**extra, **{wire: {**extra.get(wire, {}), **fields} for wire, fields in more.items()}}


def _call(block: _Block, dialect: str | None) -> ToolCall:
    """Arguments stay as they came, except where the buffered form is an object: then as that is written."""
    start, text = block.start, block.text
    call_id, name = start.call_id or "", start.name or ""
    if dialect == "anthropic":
        try:
            value = loads(text) if text else {}
        except JsonProblem:
            value = None
        if isinstance(value, dict):
            call = call_in({"id": call_id, "name": name, "input": value}, "")
            return msgspec.structs.replace(call, extra=block.extra)
    return ToolCall(id=call_id, name=name, arguments=text, extra=block.extra)


def _part(block: _Block) -> Part:
    start = block.start
    if start.kind == "text":
        return TextPart(text=block.text, extra=block.extra)
    if start.kind == "thinking":
        return ThinkingPart(text=block.text, signature=block.signature, extra=block.extra)
    data = start.data
    if block.pieces:
        # A block of the provider's own tools: its input came in pieces.
        try:
            data = {**data, "input": loads(block.text)}
        except JsonProblem:
            data = {**data, "input": block.text}
    return RawPart(provider=start.provider, data=data)


def _placed_parts(blocks: list[_Block]) -> tuple[Part, ...]:
    placed: list[Part] = []
    calls = 0
    marked = False
    for block in blocks:
        if block.start.kind == "tool_call":
            placed.append(CallMark(index=calls))
            calls += 1
        else:
            marked = marked or calls > 0
            placed.append(_part(block))
    return tuple(placed) if marked else tuple(part for part in placed if not isinstance(part, CallMark))


def _flat_parts(blocks: list[_Block]) -> tuple[Part, ...]:
    parts: list[Part] = []
    thinking = [block for block in blocks if block.start.kind == "thinking"]
    text = [block for block in blocks if block.start.kind == "text"]
    if joined := "".join(block.text for block in thinking):
        parts.append(ThinkingPart(text=joined, signature=thinking[-1].signature, extra=thinking[0].extra))
    if joined := "".join(block.text for block in text):
        parts.append(TextPart(text=joined, extra=text[0].extra))
    parts.extend(_part(block) for block in blocks if block.start.kind == "raw")
    return tuple(parts)


def events_of(answer: ChatAnswer) -> Iterator[StreamEvent]:
    """A whole answer as the events of its stream."""
    message = answer.message
    yield Start(
        id=answer.id,
        model=answer.model,
        usage=answer.usage,
        raw_usage=answer.raw_usage,
        dialect=answer.dialect,
        extra=answer.extra,
    )
    order: list[Part] = list(message.content)
    if not any(isinstance(part, CallMark) for part in order):
        order += [CallMark(index=index) for index in range(len(message.tool_calls))]
    for index, part in enumerate(order):
        yield from _block_events(index, part, message)
    yield End(
        finish=answer.finish,
        native_finish=answer.native_finish,
        stop_sequence=answer.stop_sequence,
        usage=answer.usage,
        raw_usage=answer.raw_usage,
        tokens=answer.tokens,
        message_extra=message.extra,
    )


def _block_events(index: int, part: Part, message: Message) -> Iterator[StreamEvent]:
    text = ""
    if isinstance(part, CallMark):
        call = message.tool_calls[part.index]
        text = call.arguments
        yield BlockStart(index=index, kind="tool_call", call_id=call.id, name=call.name, extra=call.extra)
    elif isinstance(part, TextPart):
        text = part.text
        yield BlockStart(index=index, kind="text", extra=part.extra)
    elif isinstance(part, ThinkingPart):
        text = part.text
        yield BlockStart(index=index, kind="thinking", extra=part.extra)
    elif isinstance(part, RawPart):
        yield BlockStart(index=index, kind="raw", data=part.data, provider=part.provider)
    else:
        assert isinstance(part, ImagePart)
        image = {"type": "image_url", "image_url": {"url": part.url}}
        yield BlockStart(index=index, kind="raw", data=image, provider="openai")
    if text:
        yield BlockDelta(index=index, text=text)
    if isinstance(part, ThinkingPart) and part.signature is not None:
        yield Signature(index=index, signature=part.signature)
    yield BlockEnd(index=index)
