"""The ``conversations`` form of fine-tuning sets: ``{"conversations": [{"from", "value"}], "tools", "system"}``.

``role``/``content`` are read too, ``messages`` instead of ``conversations``, and every usual role name. Calls have
no ids here: a result answers the oldest call that still waits. A ``function_call`` holds ``{"name", "arguments"}``
or a list of them; text that is neither stays a call with malformed arguments, word for word. Replies that hold
``<tool_call>`` or ``<think>`` blocks are read as such, results in ``<tool_response>`` lose the tag.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from firstchair.chat.formats import FORMATS
from firstchair.chat.messages import Message, Role, ToolCall, assistant_message, text_message
from firstchair.chat.openai_wire import messages_from_openai, tools_from_openai
from firstchair.core.errors import DataError
from firstchair.core.jsonl import parse_line
from firstchair.core.jsontext import JsonProblem, dumps, loads
from firstchair.traces.importers.base import (
    Imported,
    ImportOptions,
    ToolLists,
    default_tools,
    import_lines,
    make_session,
    mark_errors,
    read_head,
    tools_text,
)

ERROR_PREFIXES: tuple[str, ...] = ()

Kind = Role | Literal["call"]

ROLES: Mapping[str, Kind] = MappingProxyType(
    {
        "system": "system",
        "developer": "system",
        "human": "user",
        "user": "user",
        "gpt": "assistant",
        "assistant": "assistant",
        "model": "assistant",
        "bot": "assistant",
        "chatgpt": "assistant",
        "function_call": "call",
        "tool_call": "call",
        "observation": "tool",
        "tool": "tool",
        "tool_response": "tool",
        "function_response": "tool",
        "function": "tool",
        "ipython": "tool",
    }
)
"""Role name in the file → what it is."""

_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_USED = frozenset({"conversations", "conversation", "messages", "tools", "system"})


def import_conversations(path: Path, options: ImportOptions) -> Iterator[Imported]:
    """Stream the sessions of a JSON Lines file."""
    lists = ToolLists(tools_from_openai)
    fallback = default_tools(options, lists)
    prefixes = ERROR_PREFIXES if options.error_prefixes is None else options.error_prefixes

    def convert(raw: bytes, origin: str) -> Imported:
        row = parse_line(raw)
        messages = mark_errors(read_conversation(row), prefixes)
        offered, received = _tool_rows(row)
        if offered:
            tools, catalog_id = lists.of_value(offered)
            received = received or tools_text(raw).decode("utf-8") or None
        else:
            tools, catalog_id, received = fallback
        head = read_head(row, options, used=_USED, default="synthetic")
        session = make_session(head, messages, tools, catalog_id=catalog_id, prefix="conversation-")
        return Imported(session, tools, origin, received)

    return import_lines(path, options, convert)


def _tool_rows(row: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The tool list, which many sets keep as JSON text inside the record."""
    value = row.get("tools")
    if not isinstance(value, str):
        return value, None
    if not value.strip():
        return None, None
    try:
        return loads(value), value
    except JsonProblem as error:
        raise DataError(f"text that is not strict JSON: {error}", field="tools") from None


def read_conversation(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """The messages of one record. Raises ``DataError`` with ``field``."""
    name = next((name for name in ("conversations", "conversation", "messages") if name in row), None)
    if name is None:
        raise DataError("no such field; expected a list of {from, value} or {role, content}", field="conversations")
    rows = row[name]
    if not isinstance(rows, list):
        raise DataError(f"found {type(rows).__name__}; expected a list", field=name)
    system = row.get("system")
    if system is not None and not isinstance(system, str):
        raise DataError(f"found {type(system).__name__}; expected text", field="system")
    opening = (text_message("system", system),) if system else ()
    if any(isinstance(item, dict) and ("tool_calls" in item or "tool_call_id" in item) for item in rows):
        return (*opening, *messages_from_openai([_plain(item) for item in rows]))
    reader = _Reader()
    for index, item in enumerate(rows):
        reader.take(item, f"{name}[{index}]")
    return (*opening, *reader.messages)


def _plain(item: Any) -> Any:
    # Training flags are about the record, not part of the message.
    return {key: value for key, value in item.items() if key != "loss"} if isinstance(item, dict) else item


class _Reader:
    """Rows without call ids become messages with them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.waiting: deque[ToolCall] = deque()
        self.calls = 0

    def take(self, item: Any, where: str) -> None:
        """Read one row. Raises ``DataError`` with ``field``."""
        if not isinstance(item, dict):
            raise DataError(f"found {type(item).__name__}; expected an object", field=where)
        role = item.get("role", item.get("from"))
        kind = ROLES.get(role.lower()) if isinstance(role, str) else None
        if kind is None:
            raise DataError(f"found role {str(role)[:40]!r}; expected one of {', '.join(ROLES)}", field=where)
        text = item.get("content", item.get("value"))
        if text is None:
            text = ""
        if not isinstance(text, str):
            if kind not in ("call", "tool"):
                raise DataError(f"found {type(text).__name__}; expected text", field=where)
            text = dumps(text)
        if kind == "call":
            self._take_calls(text)
        elif kind == "tool":
            self._take_results(text, item, where)
        elif kind == "assistant":
            self._take_reply(text)
        else:
            self.messages.append(text_message(kind, text))

    def _take_calls(self, text: str) -> None:
        calls = tuple(self._call(name, arguments) for name, arguments in read_calls(text))
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == "assistant":
            # Calls without a result between them are parallel calls of one message; a call right after visible
            # text belongs to the message of that text.
            self.messages[-1] = msgspec.structs.replace(last, tool_calls=last.tool_calls + calls)
        else:
            self.waiting.clear()
            self.messages.append(Message(role="assistant", tool_calls=calls))
        self.waiting.extend(calls)

    def _take_reply(self, text: str) -> None:
        self.waiting.clear()
        if "<tool_call>" not in text and "<think>" not in text:
            self.messages.append(text_message("assistant", text))
            return
        reply = FORMATS["hermes"].parse(text, id_prefix=f"call_{self.calls}_")
        self.calls += len(reply.calls)
        self.messages.append(assistant_message(reply.text, thinking=reply.thinking, calls=reply.calls))
        self.waiting.extend(reply.calls)

    def _take_results(self, text: str, item: Mapping[str, Any], where: str) -> None:
        error = item.get("is_error", False)
        if not isinstance(error, bool):
            raise DataError(f"found {type(error).__name__}; expected true or false", field=f"{where}.is_error")
        for result in _RESPONSE.findall(text) or [text]:
            if not self.waiting:
                raise DataError(
                    "a tool result, but no call waits for one; add the call or drop the result", field=where
                )
            call = self.waiting.popleft()
            self.messages.append(text_message("tool", result, tool_call_id=call.id, name=call.name, is_error=error))

    def _call(self, name: str, arguments: str) -> ToolCall:
        self.calls += 1
        return ToolCall(id=f"call_{self.calls - 1}", name=name, arguments=arguments)


def read_calls(text: str) -> list[tuple[str, str]]:
    """``(name, arguments)`` of each call in a ``function_call`` text; one nameless, malformed call otherwise."""
    try:
        value = loads(text)
    except JsonProblem:
        return [("", text)]
    items = value if isinstance(value, list) else [value]
    calls: list[tuple[str, str]] = []
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            return [("", text)]
        arguments = item.get("arguments", item.get("parameters", {}))
        # Arguments given as text are kept byte for byte, malformed or not.
        calls.append((item["name"], arguments if isinstance(arguments, str) else dumps(arguments)))
    return calls or [("", text)]
