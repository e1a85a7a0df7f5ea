"""A session as rows of the store, and back. Pure: no database here."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import DataError
from firstchair.core.jsontext import canonical
from firstchair.traces.checks import finite_json
from firstchair.traces.session import ModelCall, Session, Turn
from firstchair.traces.times import microseconds

_encoder = msgspec.json.Encoder()
_messages_decoder = msgspec.json.Decoder(tuple[Message, ...])
_turns_decoder = msgspec.json.Decoder(tuple[Turn, ...])
_calls_decoder = msgspec.json.Decoder(tuple[ModelCall, ...])
_object_decoder = msgspec.json.Decoder(dict[str, Any])
_tools_decoder = msgspec.json.Decoder(tuple[Tool, ...])


class SessionRows(NamedTuple):
    """The rows of one session; the side rows lack ``seq`` until the store gives one."""

    session: dict[str, Any]
    labels: list[dict[str, Any]]
    tools: list[dict[str, Any]]


def rows_of(session: Session, *, origin: str, stored_at: str) -> SessionRows:
    """The rows of ``session``. Raises ``DataError`` when a text is not Unicode or a time is not a time."""
    try:
        messages = _encoder.encode(session.messages)
        turns = _encoder.encode(session.turns)
        calls = _encoder.encode(session.calls)
    except (UnicodeEncodeError, ValueError, TypeError) as error:
        raise DataError(f"not JSON: {error}", field="messages") from None
    labels = finite_json(session.labels, field="labels")
    meta = finite_json(session.meta, field="meta")
    head: tuple[str, ...] = (session.session_id, session.source, session.created_at, session.catalog_id)
    if session.context_end:
        head += (str(session.context_end),)
    # Unit separator between the parts: it cannot occur in JSON text unescaped.
    try:
        opening = "\x1f".join((*head, labels, meta, "")).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"not Unicode text: {error}", field="session_id") from None
    content = hashlib.sha256(opening)
    for part in (turns, calls, messages):
        content.update(part)
        content.update(b"\x1f")
    usage = [call.usage for call in session.calls]
    tools = tool_counts(session.messages)
    row = {
        "session_id": session.session_id,
        "content_sha256": content.hexdigest(),
        "schema_version": session.schema_version,
        "source": session.source,
        "created_at": session.created_at,
        "created_us": microseconds(session.created_at),
        "catalog_id": session.catalog_id or None,
        "context_end": session.context_end,
        "num_turns": len(session.turns),
        "num_messages": len(session.messages),
        "num_tool_calls": sum(calls for calls, _ in tools.values()),
        "num_tool_errors": sum(message.is_error for message in session.messages),
        "num_model_calls": len(session.calls),
        "num_model_errors": sum(call.error is not None for call in session.calls),
        "tokens_input": sum(use.input for use in usage),
        "tokens_output": sum(use.output for use in usage),
        "tokens_cache_read": sum(use.cache_read for use in usage),
        "tokens_cache_write": sum(use.cache_write for use in usage),
        "cost_usd": sum(call.cost_usd or 0.0 for call in session.calls),
        "num_chars": len(messages) + len(calls) + len(meta),
        "messages": messages.decode(),
        "turns": turns.decode(),
        "calls": calls.decode(),
        "labels": labels,
        "meta": meta,
        "origin": origin,
        "stored_at": stored_at,
    }
    return SessionRows(
        session=row,
        labels=[
            {"name": name, "value": value}
            for name, value in {key_text(name): label_text(value) for name, value in session.labels.items()}.items()
        ],
        tools=[{"tool": tool, "calls": calls, "errors": errors} for tool, (calls, errors) in tools.items()],
    )


def label_text(value: Any) -> str:
    """A label's value as filters compare it: text as it is, anything else as canonical JSON (``1.0``, ``true``)."""
    return key_text(value if isinstance(value, str) else canonical(value))


MAX_KEY_CHARS = 256


def key_text(text: str) -> str:
    """``text`` as the side tables index it: PostgreSQL takes no U+0000 and no index entry over 2,704 bytes. The
    whole text stands in the session's JSON.
    """
    return text.replace("\x00", "\ufffd")[:MAX_KEY_CHARS]


def tool_counts(messages: tuple[Message, ...]) -> dict[str, tuple[int, int]]:
    """Tool → (calls, results that are errors), in order of first call."""
    calls: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    name_of: dict[str, str] = {}
    for message in messages:
        if message.tool_calls:
            for call in message.tool_calls:
                name = key_text(call.name)
                name_of[call.id] = name
                calls[name] += 1
        elif message.is_error and message.tool_call_id is not None:
            errors[name_of.get(message.tool_call_id, "")] += 1
    return {tool: (count, errors[tool]) for tool, count in calls.items()}


def session_of(row: Mapping[str, Any]) -> Session:
    """The session that ``row`` of the sessions table holds."""
    return Session(
        session_id=row["session_id"],
        source=row["source"],
        created_at=row["created_at"],
        catalog_id=row["catalog_id"] or "",
        messages=_messages_decoder.decode(row["messages"]),
        turns=_turns_decoder.decode(row["turns"]),
        calls=_calls_decoder.decode(row["calls"]),
        labels=_object_decoder.decode(row["labels"]),
        meta=_object_decoder.decode(row["meta"]),
        context_end=row["context_end"],
        schema_version=row["schema_version"],
    )


def tools_text(tools: tuple[Tool, ...]) -> str:
    """A tool list as the catalogs table keeps it: key order, values and non-ASCII as received."""
    return finite_json(msgspec.to_builtins(tools), field="tools")


def tools_of(text: str) -> tuple[Tool, ...]:
    """The tool list of ``tools_text``."""
    return _tools_decoder.decode(text)
