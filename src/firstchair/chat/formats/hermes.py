"""``<tool_call>{"name": …, "arguments": …}</tool_call>``: Hermes, Qwen 2.5, Qwen 3 and our tiny models."""

from __future__ import annotations

from collections.abc import Sequence

from firstchair.chat.actions import ParsedReply
from firstchair.chat.formats.base import Reader
from firstchair.chat.formats.json_call import guess_parts, read_call, skip_space
from firstchair.chat.formats.salvage import salvage_calls
from firstchair.chat.messages import Tool, ToolCall
from firstchair.core.jsontext import JsonProblem, dumps

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes:
    """Key names ``name`` and ``arguments``; ``input`` and ``parameters`` are accepted on reading."""

    name = "hermes"

    def render(self, calls: Sequence[ToolCall]) -> str:
        """One block a call, joined by a newline, as Qwen's templates write them."""
        return "\n".join(
            f'{OPEN}\n{{"name": {dumps(call.name)}, "arguments": {call.arguments}}}\n{CLOSE}' for call in calls
        )

    def parse(
        self, text: str, tools: Sequence[Tool] = (), salvage: bool = False, *, id_prefix: str = "call_"
    ) -> ParsedReply:
        """Read a reply; see ``ToolCallFormat.parse``.

        A block ends where its JSON ends, so a string that quotes ``</tool_call>`` does not close it.
        """
        reader = Reader(tools, id_prefix)
        rest = reader.take_thinking(text) if "<think>" in text else text
        position = 0
        while (found := rest.find(OPEN, position)) >= 0:
            reader.text_between(rest[position:found], before_call=True)
            position = _read_block(rest, found + len(OPEN), reader)
        reader.text_between(rest[position:], before_call=False)
        if salvage:
            salvage_calls(reader)
        return reader.reply()


def _read_block(text: str, start: int, reader: Reader) -> int:
    """Read one block whose opening tag ends at ``start``; returns where reading goes on."""
    first = skip_space(text, start)
    try:
        call = read_call(text, first)
    except JsonProblem as error:
        close = text.find(CLOSE, first)
        block = text[first:] if close < 0 else text[first:close]
        name, arguments = guess_parts(block)
        if close < 0:
            reader.broken_call(name, arguments, f"{OPEN} is never closed: {error}", "unclosed_call")
            return len(text)
        reader.broken_call(name, arguments, str(error))
        return close + len(CLOSE)
    reader.call(call.name, call.arguments, call.value, call.call_id)
    end = skip_space(text, call.end)
    if text.startswith(CLOSE, end):
        return end + len(CLOSE)
    index = len(reader.calls) - 1
    close, following = text.find(CLOSE, end), text.find(OPEN, end)
    if close < 0 or 0 <= following < close:
        reader.problem("unclosed_call", f"{OPEN} is never closed", call=index)
        return call.end
    reader.problem("malformed_json", f"text after the call's JSON: {text[end:close][:80]!r}", call=index)
    return close + len(CLOSE)
