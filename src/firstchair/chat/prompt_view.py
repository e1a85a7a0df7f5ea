"""Canonical messages as a chat template sees them: what an OpenAI-compatible server would hand to it.

A server receives our messages over the OpenAI wire, joins text parts by a newline, parses arguments where its
template wants an object, and renders. Rendering here goes through the same steps, so both prompts are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from firstchair.chat.formats.base import ToolCallFormat
from firstchair.chat.messages import CallMark, ImagePart, Message, RawPart, TextPart, ThinkingPart, Tool, ToolCall
from firstchair.chat.text_encoder import TextEncoder
from firstchair.chat.tool_error import mark_error
from firstchair.core.errors import DataError
from firstchair.core.jsontext import dumps

ArgumentsAs = str
"""``text``: JSON text byte for byte · ``object``: parsed, for templates that write it themselves · ``content``:
the template shows no calls, so the tool format writes them into the content."""


_TOOL_LISTS = 64
"""How many tool lists are remembered."""


@dataclass(frozen=True)
class PromptView:
    """How messages are handed to one template."""

    encoder: TextEncoder
    tool_format: ToolCallFormat
    arguments_as: ArgumentsAs
    respace: bool = False
    """Write arguments as ``json.dumps`` spaces them, as servers that parse them do, not byte for byte."""
    _tool_rows: dict[int, tuple[Sequence[Tool], list[dict[str, Any]]]] = field(default_factory=dict, compare=False)

    def messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Template messages. Raises ``DataError`` for what text cannot show (an image)."""
        return [self._message(message, index) for index, message in enumerate(messages)]

    def with_writable_calls(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages with ``{}`` for arguments that a template cannot write, where it writes parsed values."""
        if self.arguments_as != "object":
            return messages
        return [message if all(map(_is_object, message.tool_calls)) else _emptied(message) for message in messages]

    def tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]]:
        """Tool schemas in the OpenAI form. A tuple is taken as unchanging and remembered."""
        kept = self._tool_rows.get(id(tools))
        if kept is not None:
            return kept[1]
        rows: list[dict[str, Any]] = []
        for tool in tools:
            function: dict[str, Any] = {"name": tool.name}
            if tool.description is not None:
                function["description"] = tool.description
            function["parameters"] = tool.parameters
            rows.append({"type": "function", "function": self.encoder.guard_value(function)})
        if isinstance(tools, tuple):
            if len(self._tool_rows) >= _TOOL_LISTS:
                self._tool_rows.clear()
            # The tuple is kept beside its rows, so that its id cannot be given to another meanwhile.
            self._tool_rows[id(tools)] = (tools, rows)
        return rows

    def _message(self, message: Message, index: int) -> dict[str, Any]:
        guard, where = self.encoder.guard, f"messages[{index}]"
        content = guard(visible_text(message, where))
        view: dict[str, Any] = {"role": message.role, "content": content}
        if message.role == "assistant":
            thinking = message.thinking
            if thinking:
                view["reasoning_content"] = guard(thinking)
            if message.tool_calls:
                self._add_calls(view, message, where)
        elif message.role == "tool":
            view["content"] = mark_error(content, message.is_error)
            if message.tool_call_id is not None:
                view["tool_call_id"] = guard(message.tool_call_id)
        if message.name is not None:
            view["name"] = guard(message.name)
        return view

    def _add_calls(self, view: dict[str, Any], message: Message, where: str) -> None:
        guard = self.encoder.guard
        if self.arguments_as == "content":
            written = guard(self.tool_format.render(message.tool_calls))
            view["content"] = f"{view['content']}\n{written}" if view["content"] else written
            return
        rows = []
        for position, call in enumerate(message.tool_calls):
            arguments = self._arguments(call, f"{where}.tool_calls[{position}].arguments")
            rows.append(
                {
                    "type": "function",
                    "id": guard(call.id),
                    "function": {
                        "name": guard(call.name),
                        "arguments": self.encoder.guard_value(arguments),
                    },
                }
            )
        view["tool_calls"] = rows

    def _arguments(self, call: ToolCall, where: str) -> Any:
        if self.arguments_as == "text" and not self.respace:
            return call.arguments
        value = call.parsed()
        if self.arguments_as == "text":
            return call.arguments if value is None else dumps(value)
        if value is None:
            raise DataError(
                "arguments are not a JSON object, and this template writes arguments from parsed values; "
                "leave the message out, or use a template that takes them as text",
                field=where,
            )
        return value


def _is_object(call: ToolCall) -> bool:
    return call.parsed() is not None


def _emptied(message: Message) -> Message:
    calls = (
        call if _is_object(call) else msgspec.structs.replace(call, arguments="{}") for call in message.tool_calls
    )
    return msgspec.structs.replace(message, tool_calls=tuple(calls))


def visible_text(message: Message, where: str = "message") -> str:
    """The text parts of a message joined by a newline, as servers join them.

    Reasoning stands apart. A provider's redacted reasoning is left out: no other model can read it. Raises
    ``DataError`` for images and for parts that we do not know.
    """
    content = message.content
    if len(content) == 1 and type(content[0]) is TextPart:
        return content[0].text
    texts: list[str] = []
    for position, part in enumerate(content):
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, ImagePart):
            raise DataError(
                "an image; this model reads text only: leave the session out, or describe the image",
                field=f"{where}.content[{position}]",
            )
        elif isinstance(part, RawPart) and part.data.get("type") != "redacted_thinking":
            raise DataError(
                f"a part of type {part.data.get('type')!r} that a text model cannot read; leave the session out",
                field=f"{where}.content[{position}]",
            )
        else:
            assert isinstance(part, ThinkingPart | CallMark | RawPart)
    return "\n".join(texts)
