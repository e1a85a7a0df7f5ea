"""``[TOOL_CALLS][{"name": …, "arguments": …, "id": …}]``: Mistral; newer models: ``[TOOL_CALLS]name[ARGS]{…}``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from firstchair.chat.actions import ParsedReply
from firstchair.chat.formats.base import Reader
from firstchair.chat.formats.json_call import guess_parts, read_call, skip_space
from firstchair.chat.formats.salvage import salvage_calls
from firstchair.chat.messages import Tool, ToolCall
from firstchair.core.jsontext import JsonProblem, dumps, loads_at

MARK = "[TOOL_CALLS]"
_OWN_ID = re.compile(r"[A-Za-z0-9]{9}")
_NAMED = re.compile(
    r"[ \t\n\r]*([^\s\[{]+)[ \t\n\r]*(?:\[CALL_ID\][ \t]*([A-Za-z0-9]+)[ \t]*)?(?:\[ARGS\])?[ \t\n\r]*"
)


class Mistral:
    """Writes the list form, reads both."""

    name = "mistral"

    def render(self, calls: Sequence[ToolCall]) -> str:
        """One list. Ids are written only when they are Mistral's own kind: nine letters or digits."""
        if not calls:
            return ""
        rows = []
        for call in calls:
            own = f', "id": "{call.id}"' if _OWN_ID.fullmatch(call.id) else ""
            rows.append(f'{{"name": {dumps(call.name)}, "arguments": {call.arguments}{own}}}')
        return f"{MARK}[{', '.join(rows)}]"

    def parse(
        self, text: str, tools: Sequence[Tool] = (), salvage: bool = False, *, id_prefix: str = "call_"
    ) -> ParsedReply:
        """Read a reply; see ``ToolCallFormat.parse``."""
        reader = Reader(tools, id_prefix)
        rest = reader.take_thinking(text) if "<think>" in text else text
        position = 0
        while (found := rest.find(MARK, position)) >= 0:
            reader.text_between(rest[position:found], before_call=True)
            start = skip_space(rest, found + len(MARK))
            read = _read_list if rest.startswith("[", start) else _read_named
            position = read(rest, start, reader)
        reader.text_between(rest[position:], before_call=False)
        if salvage:
            salvage_calls(reader)
        return reader.reply()


def _broken(text: str, position: int, reader: Reader, message: str) -> int:
    following = text.find(MARK, position)
    end = len(text) if following < 0 else following
    name, arguments = guess_parts(text[position:end])
    reader.broken_call(name, arguments, message)
    return end


def _read_list(text: str, start: int, reader: Reader) -> int:
    position = skip_space(text, start + 1)
    while True:
        try:
            call = read_call(text, position)
        except JsonProblem as error:
            return _broken(text, position, reader, str(error))
        reader.call(call.name, call.arguments, call.value, call.call_id)
        position = skip_space(text, call.end)
        if text.startswith("]", position):
            return position + 1
        if not text.startswith(",", position):
            reader.problem("unclosed_call", "the list of calls is never closed", call=len(reader.calls) - 1)
            return position
        position = skip_space(text, position + 1)


def _read_named(text: str, start: int, reader: Reader) -> int:
    match = _NAMED.match(text, start)
    if match is None:
        return _broken(text, start, reader, f"no call follows {MARK}")
    try:
        value, end = loads_at(text, match.end())
    except JsonProblem as error:
        following = text.find(MARK, match.end())
        stop = len(text) if following < 0 else following
        reader.broken_call(match[1], text[match.end() : stop], str(error))
        return stop
    reader.call(match[1], text[match.end() : end], value, match[2])
    return end
