"""Messages as rows of a training file: canonical messages in plain JSON, ``content`` as one string where it is one.

Written: ``{role, content, tool_calls?: [{id, name, arguments}], tool_call_id?, name?, is_error?}``; ``arguments`` is
the JSON text byte for byte. Read: that, OpenAI messages, and rows of text alone (``role``/``content`` or
``from``/``value``), where calls stand in ``<tool_call>`` blocks and results answer the calls in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from firstchair.chat.messages import Message, TextPart, Tool
from firstchair.chat.openai_wire import messages_from_openai, tools_from_openai
from firstchair.core.errors import DataError

Flags = tuple[bool | None, ...]
"""One per message: the row's ``loss``, ``None`` where it says nothing."""

_TEXT_ROW = frozenset({"role", "content", "from", "value", "is_error"})
_BLOCKS = ("<tool_call>", "<think>")


def messages_to_rows(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Canonical messages as rows."""
    return [_row(message) for message in messages]


def _row(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(message)
    row = {"role": body.pop("role"), "content": body.pop("content", "")}
    match message.content:
        # Text that looks like a block stays a part, so that a reader does not take it for one.
        case (TextPart(text=text, extra=extra),) if text and not extra and not any(mark in text for mark in _BLOCKS):
            row["content"] = text
    return row | body


def messages_from_rows(row: dict[str, Any]) -> tuple[tuple[Message, ...], Flags]:
    """The messages of a record and their ``loss`` flags. Raises ``DataError`` naming the field."""
    name = "conversations" if "messages" not in row and "conversations" in row else "messages"
    rows = row.get(name)
    if not isinstance(rows, list) or not rows:
        raise DataError("found no list of messages; expected messages: [{role, content, …}]", field=name)
    bodies, flags = _split_flags(rows, name)
    if name == "conversations" or all(body.keys() <= _TEXT_ROW and _is_text(body) for body in bodies):
        return _from_text_rows(row, name, bodies, flags)
    if any(_is_openai(body) for body in bodies):
        return messages_from_openai(bodies), flags
    return tuple(_message(body, f"{name}[{index}]") for index, body in enumerate(bodies)), flags


def tools_from_rows(rows: Any) -> tuple[Tool, ...]:
    """The tools of a record: canonical or OpenAI form; none when absent. Raises ``DataError``."""
    if rows is None:
        return ()
    if not isinstance(rows, list):
        raise DataError(f"found {type(rows).__name__}; expected a list of tools", field="tools")
    if any(isinstance(row, dict) and "function" in row for row in rows):
        return tools_from_openai(rows)
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


def _is_text(body: dict[str, Any]) -> bool:
    return isinstance(body.get("content", body.get("value", "")), str)


def _is_openai(body: dict[str, Any]) -> bool:
    calls, content = body.get("tool_calls"), body.get("content")
    own = [*(calls if isinstance(calls, list) else ()), *(content if isinstance(content, list) else ())]
    return body.get("role") == "developer" or any(
        isinstance(part, dict) and ("function" in part or part.get("type") in ("image_url", "refusal", "input_audio"))
        for part in own
    )


def _from_text_rows(
    row: dict[str, Any], name: str, bodies: list[dict[str, Any]], flags: Flags
) -> tuple[tuple[Message, ...], Flags]:
    from firstchair.traces.importers.conversations import read_conversation  # brings every importer with it

    messages = read_conversation({name: bodies, **({"system": row["system"]} if "system" in row else {})})
    if all(flag is None for flag in flags):
        return messages, (None,) * len(messages)
    opening: Flags = (None,) * (len(messages) - len(bodies))
    if len(messages) < len(bodies) or len(opening) > 1:
        raise DataError(
            f"{len(bodies)} rows make {len(messages)} messages, so their loss flags cannot be placed; "
            "write calls and results as rows of messages",
            field=name,
        )
    return messages, opening + flags


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
