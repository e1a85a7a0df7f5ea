"""What a scripted upstream says on the wire of the Responses API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import orjson

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message
from firstchair.chat.openai_stream import pieces
from firstchair.chat.wire_request import Finish
from firstchair.gateway.dialects.base import BlockDelta, ChatAnswer, ChatRequest, StreamEvent
from firstchair.gateway.dialects.collect import events_of
from firstchair.gateway.dialects.openai_responses import OpenAIResponses

CREATED_S = 1_750_000_000


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. Text as ``finish`` is an unknown reason to be incomplete; a mapping as ``usage`` goes out so."""

    id: str
    model: str
    message: Message
    finish: Finish | str
    usage: TokenCounts | Mapping[str, Any] | None

    def answer(self) -> ChatAnswer:
        return ChatAnswer(
            id=f"resp_{self.id}",
            model=self.model,
            message=self.message,
            finish=self.finish if isinstance(self.finish, Finish) else Finish.LENGTH,
            usage=self.usage if isinstance(self.usage, TokenCounts) else None,
        )

    def ended(self, body: dict[str, Any]) -> dict[str, Any]:
        """The finished response as the script wants it."""
        if self.usage is not None and not isinstance(self.usage, TokenCounts):
            body["usage"] = dict(self.usage)
        if not isinstance(self.finish, Finish):
            body["incomplete_details"] = {"reason": self.finish}
        return body


def _request(model: str) -> ChatRequest:
    return ChatRequest(dialect="responses", model=model, messages=(), received_s=CREATED_S)


def body_of(said: Said) -> dict[str, Any]:
    """The ``response``."""
    written = OpenAIResponses().write_answer(said.answer(), _request(said.model), model=said.model)
    return said.ended(written.body)


def events(said: Said) -> list[bytes]:
    """The server-sent events."""
    writer = OpenAIResponses().writer(_request(said.model), model=said.model)
    data = b"".join(writer.write(event) for event in _in_pieces(said.answer()))
    out = [block + b"\n\n" for block in data.split(b"\n\n") if block]
    name, last = out[-1].split(b"\ndata: ", 1)
    final = orjson.loads(last)
    said.ended(final["response"])
    return [*out[:-1], name + b"\ndata: " + orjson.dumps(final) + b"\n\n"]


def _in_pieces(answer: ChatAnswer) -> Iterator[StreamEvent]:
    for event in events_of(answer):
        if isinstance(event, BlockDelta):
            yield from (BlockDelta(index=event.index, text=piece) for piece in pieces(event.text))
        else:
            yield event
