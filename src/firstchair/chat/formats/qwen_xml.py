"""``<function=name><parameter=key>value</parameter></function>`` inside ``<tool_call>``: Qwen 3 Coder and later.

Values are written bare, so their types come from the tool's schema: a property that may be a string is a string,
any other is read as JSON. Without a schema a value that is JSON (but no string) is taken as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from firstchair.chat.actions import ParsedReply
from firstchair.chat.formats.base import Reader
from firstchair.chat.formats.salvage import salvage_calls
from firstchair.chat.messages import Tool, ToolCall
from firstchair.core.errors import DataError
from firstchair.core.jsontext import JsonProblem, dumps, loads

_OPEN = re.compile(r"(?:<tool_call>\s*)?<function=([^>\n]*)>|<tool_call>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>\n?")
_VALUE_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))")
_CLOSE = re.compile(r"\s*</function>(?:\s*</tool_call>)?")


class QwenXml:
    """Strings are written bare, everything else as JSON."""

    name = "qwen_xml"

    def render(self, calls: Sequence[ToolCall]) -> str:
        """One block a call. Raises ``DataError`` for arguments that are no JSON object: they have no such form."""
        blocks = []
        for index, call in enumerate(calls):
            arguments = call.parsed()
            if arguments is None:
                raise DataError(
                    "arguments are not a JSON object; the qwen_xml syntax can only write parsed values",
                    field=f"calls[{index}].arguments",
                )
            lines = [f"<tool_call>\n<function={call.name}>"]
            for key, value in arguments.items():
                text = value if isinstance(value, str) else dumps(value)
                lines.append(f"<parameter={key}>\n{text}\n</parameter>")
            lines.append("</function>\n</tool_call>")
            blocks.append("\n".join(lines))
        return "\n".join(blocks)

    def parse(
        self, text: str, tools: Sequence[Tool] = (), salvage: bool = False, *, id_prefix: str = "call_"
    ) -> ParsedReply:
        """Read a reply; see ``ToolCallFormat.parse``.

        A value ends at the first ``</parameter>`` that another parameter or the end of the call follows.
        """
        reader = Reader(tools, id_prefix)
        rest = reader.take_thinking(text) if "<think>" in text else text
        position = 0
        while (match := _OPEN.search(rest, position)) is not None:
            reader.text_between(rest[position : match.start()], before_call=True)
            position = _read_call(rest, match, reader)
        reader.text_between(rest[position:], before_call=False)
        if salvage:
            salvage_calls(reader)
        return reader.reply()


def _read_call(text: str, opening: re.Match[str], reader: Reader) -> int:
    name = opening[1]
    if name is None:
        close = text.find("</tool_call>", opening.end())
        stop = len(text) if close < 0 else close + len("</tool_call>")
        reader.broken_call("", text[opening.end() : stop], "no <function=…> follows <tool_call>")
        return stop
    tool = reader.tools.get(name)
    properties = tool.parameters.get("properties") if tool else None
    values: dict[str, Any] = {}
    position = opening.end()
    while (parameter := _PARAMETER.match(text, position)) is not None:
        end = _VALUE_END.search(text, parameter.end())
        if end is None:
            break
        key = parameter[1]
        if key in values:
            stop = _after(text, end.end())
            reader.broken_call(name, text[opening.end() : stop], f"parameter {key!r} stands twice; keep one")
            return stop
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        values[key] = _typed(text[parameter.end() : end.start()], schema)
        position = end.end()
    closing = _CLOSE.match(text, position)
    if closing is None:
        stop = _after(text, position)
        kind: Any = "unclosed_call" if stop == len(text) else "malformed_json"
        reader.broken_call(name, text[opening.end() : stop], "the call is not closed by </function>", kind)
        return stop
    arguments = dumps(values)
    if not arguments.isascii() and _has_surrogate(arguments):
        reader.broken_call(name, text[opening.end() : closing.end()], "a value holds half of a surrogate pair")
    else:
        reader.call(name, arguments, values)
    return closing.end()


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _after(text: str, position: int) -> int:
    """Where reading goes on after a call that could not be read."""
    close = text.find("</tool_call>", position)
    return len(text) if close < 0 else close + len("</tool_call>")


def _typed(text: str, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = kind if isinstance(kind, list) else [kind]
    if "string" in kinds and not ("null" in kinds and text == "null"):
        return text
    try:
        value = loads(text)
    except JsonProblem:
        return text
    # Without a declared type a bare word in quotes is more likely text that has quotes.
    return text if kind is None and isinstance(value, str) else value
