"""Messages as rows of a training file: canonical messages in plain JSON, ``content`` as one string where it is one.

Written: ``{role, content, tool_calls?: [{id, name, arguments}], tool_call_id?, name?, is_error?}``; ``arguments`` is
the JSON text byte for byte. Read: that and the ``conversations`` form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from firstchair.chat.messages import Message, Role, TextPart, Tool, text_message
from firstchair.core.errors import DataError

Flags = tuple[bool | None, ...]
"""One per message: the row's ``loss``, ``None`` where it says nothing."""


def messages_to_rows(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Canonical messages as rows."""
    return [_row(message) for message in messages]


def _row(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(message)
    row = {"role": body.pop("role"), "content": body.pop("content", "")}
    match message.content:
        case ():
            row["content"] = ""
        case (TextPart(text=text, extra=extra),) if not extra and text:
            row["content"] = text
    return row | body


def messages_from_rows(row: dict[str, Any]) -> tuple[tuple[Message, ...], Flags]:
    """The messages of a record and their ``loss`` flags. Raises ``DataError`` naming the field."""
    if "messages" not in row and "conversations" in row:
        return _from_conversations(row)
    rows = row.get("messages")
    if not isinstance(rows, list) or not rows:
        raise DataError("found no list of messages; expected messages: [{role, content, …}]", field="messages")
    bodies, flags = _split_flags(rows, "messages")
    return tuple(_message(body, f"messages[{index}]") for index, body in enumerate(bodies)), flags


def tools_from_rows(rows: Any) -> tuple[Tool, ...]:
    """The tools of a record: canonical or OpenAI form; none when absent. Raises ``DataError``."""
    if rows is None:
        return ()
    if not isinstance(rows, list):
        raise DataError(f"found {type(rows).__name__}; expected a list of tools", field="tools")
    try:
        return msgspec.convert(rows, tuple[Tool, ...])
    except msgspec.ValidationError as error:
        raise _field_error(error, "tools") from None


def _split_flags(rows: list[Any], field: str) -> tuple[list[dict[str, Any]], Flags]:
    bodies, flags = [], []
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"found {type(row).__name__}; expected an object", field=f"{field}[{index}]")
        flag = row.get("loss")
        if flag is not None and not isinstance(flag, bool):
            raise DataError(f"found {flag!r}; expected true or false", field=f"{field}[{index}].loss")
        bodies.append({key: value for key, value in row.items() if key != "loss"})
        flags.append(flag)
    return bodies, tuple(flags)


def _message(body: dict[str, Any], field: str) -> Message:
    content = body.get("content")
    if content is None or content == "":
        body = {**body, "content": []}
    elif isinstance(content, str):
        body = {**body, "content": [{"type": "text", "text": content}]}
    if body.get("tool_calls", ()) is None:
        body = {**body, "tool_calls": []}
    unknown = sorted(set(body) - set(Message.__struct_fields__))
    if unknown:
        known = ", ".join((*Message.__struct_fields__, "loss"))
        raise DataError(f"unknown field; known: {known}", field=f"{field}.{unknown[0]}")
    try:
        return msgspec.convert(body, Message)
    except msgspec.ValidationError as error:
        raise _field_error(error, field) from None


def _field_error(error: msgspec.ValidationError, field: str) -> DataError:
    reason, _, where = str(error).partition(" - at `$")
    return DataError(reason, field=field + where.rstrip("`"))


def _from_conversations(row: dict[str, Any]) -> tuple[tuple[Message, ...], Flags]:
    rows = row["conversations"]
    if not isinstance(rows, list) or not rows:
        raise DataError("found no list; expected [{from, value}] or [{role, content}]", field="conversations")
    bodies, flags = _split_flags(rows, "conversations")
    messages: list[Message] = []
    for index, body in enumerate(bodies):
        speaker, text = body.get("from", body.get("role")), body.get("value", body.get("content"))
        role = _SPEAKERS.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            known = ", ".join(_SPEAKERS)
            raise DataError(f"found {speaker!r}; expected one of {known}", field=f"conversations[{index}].from")
        if not isinstance(text, str):
            raise DataError(f"found {type(text).__name__}; expected text", field=f"conversations[{index}].value")
        messages.append(text_message(role, text))
    return tuple(messages), flags


_SPEAKERS: Mapping[str, Role] = MappingProxyType(
    {
        "system": "system",
        "human": "user",
        "user": "user",
        "gpt": "assistant",
        "assistant": "assistant",
        "model": "assistant",
        "tool": "tool",
        "function": "tool",
        "observation": "tool",
    }
)
