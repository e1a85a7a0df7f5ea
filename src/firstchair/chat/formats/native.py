"""The ``tool_calls`` of an API: calls that a server has already taken out of the text."""

from __future__ import annotations

from collections.abc import Sequence

from firstchair.chat.actions import ParsedReply
from firstchair.chat.formats.base import Reader
from firstchair.chat.formats.json_call import scan_object
from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.core.jsontext import JsonProblem, dumps, loads


class Native:
    """As text: one JSON object ``{"content": …, "tool_calls": [{"id", "type", "function"}]}``, as an API sends it."""

    name = "native"

    def render(self, calls: Sequence[ToolCall]) -> str:
        """The object that holds ``calls``."""
        rows = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
        return dumps({"tool_calls": rows})

    def parse(
        self, text: str, tools: Sequence[Tool] = (), salvage: bool = False, *, id_prefix: str = "call_"
    ) -> ParsedReply:
        """Read such an object; any other text is a reply without calls."""
        reader = Reader(tools, id_prefix)
        rows = _rows(text) if text.lstrip().startswith("{") else None
        if rows is None:
            reader.text_between(reader.take_thinking(text), before_call=False)
            return reader.reply()
        content, calls = rows
        reader.text_between(reader.take_thinking(content), before_call=False)
        for row in calls:
            _read_row(row, reader)
        return reader.reply()


def read_message(message: Message, tools: Sequence[Tool] = ()) -> ParsedReply:
    """Check a message whose server parsed the calls itself, as ``parse`` checks text. Never raises."""
    reader = Reader(tools, "call_")
    reader.thinking = message.thinking
    if message.text:
        reader.texts.append(message.text)
    for call in message.tool_calls:
        _check(call.name, call.arguments, call.id, reader)
    return reader.reply()


def _rows(text: str) -> tuple[str, list[object]] | None:
    try:
        fields, end = scan_object(text, len(text) - len(text.lstrip()))
    except JsonProblem:
        return None
    if text[end:].strip() or "tool_calls" not in fields or not set(fields) <= {"role", "content", "tool_calls"}:
        return None
    content = fields["content"][0] if "content" in fields else ""
    calls = fields["tool_calls"][0]
    return (content if isinstance(content, str) else ""), (calls if isinstance(calls, list) else [calls])


def _read_row(row: object, reader: Reader) -> None:
    function = row.get("function") if isinstance(row, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(row, dict) or not isinstance(name, str) or not isinstance(arguments, str):
        reader.broken_call(name if isinstance(name, str) else "", dumps(row), "not a call with name and arguments")
        return
    call_id = row.get("id")
    _check(name, arguments, call_id if isinstance(call_id, str) else None, reader)


def _check(name: str, arguments: str, call_id: str | None, reader: Reader) -> None:
    try:
        value = loads(arguments)
    except JsonProblem as error:
        reader.broken_call(name, arguments, str(error))
        if call_id is not None:
            reader.calls[-1] = ToolCall(id=call_id, name=name, arguments=arguments)
        return
    reader.call(name, arguments, value, call_id)
