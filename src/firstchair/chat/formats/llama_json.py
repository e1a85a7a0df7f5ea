"""Bare ``{"name": …, "parameters": …}``: Llama 3. Several calls are joined by ``; ``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from firstchair.chat.actions import ParsedReply
from firstchair.chat.formats.base import Reader
from firstchair.chat.formats.json_call import guess_parts, read_call, skip_space
from firstchair.chat.formats.salvage import salvage_calls
from firstchair.chat.messages import Tool, ToolCall
from firstchair.core.jsontext import JsonProblem, dumps

PYTHON_TAG = "<|python_tag|>"

# A call begins the reply or a line, and names its parameters: a JSON reply to a person does not. White space is tried
# from its beginning alone: from each of its line ends, twenty thousand of them took seconds.
_START = re.compile(
    r"(?:^|(?<![ \t\n\r])[ \t\r]*(?P<line>\n)|<\|python_tag\|>)[ \t\n\r]*"
    r'(?=\{[ \t\n\r]*"(?:name|parameters|arguments|type)"[ \t\n\r]*:)'
)
_KEYS = re.compile(r'"(?:parameters|arguments|input)"[ \t\n\r]*:')


class LlamaJson:
    """Key names ``name`` and ``parameters``; ``arguments`` and ``input`` are accepted on reading."""

    name = "llama_json"

    def render(self, calls: Sequence[ToolCall]) -> str:
        """The calls on one line."""
        return "; ".join(f'{{"name": {dumps(call.name)}, "parameters": {call.arguments}}}' for call in calls)

    def parse(
        self, text: str, tools: Sequence[Tool] = (), salvage: bool = False, *, id_prefix: str = "call_"
    ) -> ParsedReply:
        """Read a reply; see ``ToolCallFormat.parse``. An object without parameters is text, not a call."""
        reader = Reader(tools, id_prefix)
        rest = reader.take_thinking(text) if "<think>" in text else text
        start = _START.search(rest)
        if start is None or _KEYS.search(rest, start.end()) is None:
            reader.text_between(rest, before_call=False)
        else:
            reader.text_between(rest[: start.start("line" if start["line"] else 0)], before_call=False)
            _read_calls(rest, start.end(), reader)
        if salvage:
            salvage_calls(reader)
        return reader.reply()


def _read_calls(text: str, position: int, reader: Reader) -> None:
    while True:
        try:
            call = read_call(text, position)
        except JsonProblem as error:
            name, arguments = guess_parts(text[position:])
            reader.broken_call(name, arguments, str(error))
            return
        reader.call(call.name, call.arguments, call.value, call.call_id)
        position = skip_space(text, call.end)
        if text.startswith((";", ","), position):
            position = skip_space(text, position + 1)
        if not text.startswith("{", position):
            reader.text_between(text[position:], before_call=False)
            return
