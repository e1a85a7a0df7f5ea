"""From what an engine gave to what can be scored: the parsed reply, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from firstchair.chat.actions import ParsedReply, Problem
from firstchair.chat.formats.base import Reader
from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import ConfigError
from firstchair.engines.base import Generation, Stop

if TYPE_CHECKING:
    from firstchair.chat.renderer import Renderer


def reply_of(
    generation: Generation, tools: Sequence[Tool], renderer: Renderer | None, *, salvage: bool = False
) -> ParsedReply | None:
    """The reply of ``generation``, or ``None`` when no action was obtained (error, cancelled, refused).

    A reply cut at its length limit gets the problem ``truncated``: it neither stopped nor finished its call.
    Raises ``ConfigError`` when there is text to parse and no renderer that knows its syntax.
    """
    if generation.stop in (Stop.ERROR, Stop.CANCELLED, Stop.REFUSAL):
        return None
    if generation.message is not None:
        reply = read_message(generation.message, tools)
    elif renderer is not None:
        reply = renderer.parse(generation.text, tools, salvage)
    else:
        raise ConfigError("the engine gives raw text and there is no renderer to parse it; give a model directory")
    if generation.stop is Stop.LENGTH:
        cut = Problem(kind="truncated", message="the reply was cut at its length limit")
        reply = msgspec.structs.replace(reply, problems=(*reply.problems, cut))
    return reply


def read_message(message: Message, tools: Sequence[Tool]) -> ParsedReply:
    """A message whose calls the server parsed, checked as strictly as raw text is."""
    reader = Reader(tools, "call_")
    for call in message.tool_calls:
        value = call.parsed()
        if value is None:
            reader.broken_call(call.name, call.arguments, "arguments are not a strict JSON object")
        else:
            reader.call(call.name, call.arguments, value, call.id)
    reader.texts.append(message.text)
    reader.thinking = message.thinking
    return reader.reply()
