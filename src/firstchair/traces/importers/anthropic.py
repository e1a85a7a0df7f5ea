"""Anthropic Messages: JSON Lines of ``{"messages", "system", "tools"}``, or of ``{"request", "response"}``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from firstchair.chat.anthropic_wire import (
    message_from_anthropic_response,
    messages_from_anthropic,
    tools_from_anthropic,
)
from firstchair.chat.messages import Message
from firstchair.core.errors import DataError
from firstchair.traces.importers.api_log import import_api_log
from firstchair.traces.importers.base import Imported, ImportOptions
from firstchair.traces.importers.exchanges import Dialect, count
from firstchair.traces.session import Usage


def import_anthropic(path: Path, options: ImportOptions) -> Iterator[Imported]:
    """Stream the sessions of a file. A failed tool result has ``is_error`` (or begins with a given prefix)."""
    return import_api_log(path, options, ANTHROPIC)


def read_anthropic_messages(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """The ``system`` and ``messages`` of a request or record. Raises ``DataError``."""
    rows = row.get("messages")
    if not isinstance(rows, list):
        found = "no such field" if "messages" not in row else type(rows).__name__
        raise DataError(f"found {found}; expected a list of Messages API messages", field="messages")
    return messages_from_anthropic(rows, system=row.get("system"))


def anthropic_usage(response: Mapping[str, Any]) -> Usage:
    """Disjoint counters, as the provider gives them."""
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return Usage()
    return Usage(
        input=count(usage, "input_tokens"),
        output=count(usage, "output_tokens"),
        cache_read=count(usage, "cache_read_input_tokens"),
        cache_write=count(usage, "cache_creation_input_tokens"),
    )


def anthropic_finish(response: Mapping[str, Any]) -> str | None:
    """``stop_reason``."""
    reason = response.get("stop_reason")
    return reason if isinstance(reason, str) else None


ANTHROPIC = Dialect(
    provider="anthropic",
    used=frozenset({"messages", "system", "tools"}),
    read_prompt=read_anthropic_messages,
    read_tools=tools_from_anthropic,
    read_reply=message_from_anthropic_response,
    read_usage=anthropic_usage,
    read_finish=anthropic_finish,
)
