"""Which sessions a command means: filters as plain data, and as SQL conditions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from sqlalchemy import ColumnElement, select

from firstchair.core.errors import ConfigError, DataError
from firstchair.traces.rows import key_text, label_text
from firstchair.traces.schema import session_labels, session_tools, sessions
from firstchair.traces.times import microseconds


class Filters(TypedDict, total=False):
    """Conditions that all hold; an absent one does not restrict."""

    source: str
    """``production``, ``scripted``, ``synthetic`` or ``rollout``."""
    labels: Mapping[str, Any]
    """Label → value; compared as text, so ``1.0`` and ``"1.0"`` both find a label 1.0, and ``"1"`` does too."""
    tool: str
    """A tool that was called."""
    since: str
    """ISO 8601; recordings without a time are left out."""
    until: str
    """ISO 8601, exclusive; recordings without a time are left out."""
    session_ids: Sequence[str]
    catalog_id: str


def conditions(filters: Filters) -> list[ColumnElement[bool]]:
    """``filters`` as conditions on the sessions table. Raises ``ConfigError`` for a bad time or an unknown name."""
    unknown = set(filters) - set(Filters.__annotations__)
    if unknown:
        raise ConfigError(f"unknown filter {sorted(unknown)[0]}; known: {', '.join(Filters.__annotations__)}")
    found: list[ColumnElement[bool]] = []
    if "source" in filters:
        found.append(sessions.c.source == filters["source"])
    if "catalog_id" in filters:
        found.append(sessions.c.catalog_id == filters["catalog_id"])
    for name, value in filters.get("labels", {}).items():
        having = select(session_labels.c.seq).where(
            session_labels.c.name == key_text(name), session_labels.c.value.in_(label_spellings(value))
        )
        found.append(sessions.c.seq.in_(having))
    if "tool" in filters:
        calling = select(session_tools.c.seq).where(session_tools.c.tool == key_text(filters["tool"]))
        found.append(sessions.c.seq.in_(calling))
    if "since" in filters:
        found.append(sessions.c.created_us >= _time(filters["since"], "since"))
    if "until" in filters:
        found.append(sessions.c.created_us < _time(filters["until"], "until"))
    if "session_ids" in filters:
        found.append(sessions.c.session_id.in_([id_text(text) for text in filters["session_ids"]]))
    return found


def id_text(text: str) -> str:
    """An id to look up. No stored id has U+0000, which PostgreSQL would not even compare."""
    return text.replace("\x00", "\ufffd")


def label_spellings(value: Any) -> list[str]:
    """The stored texts that ``value`` means: 1, 1.0 and "1" are one number to whoever types a filter."""
    texts = {label_text(value)}
    try:
        number = float(value)
    except (TypeError, ValueError):
        return sorted(texts)
    if not isinstance(value, bool) and math.isfinite(number) and number == int(number):
        texts |= {str(int(number)), f"{int(number)}.0"}
    return sorted(texts)


def _time(text: str, name: str) -> int:
    try:
        found = microseconds(text, field=f"--{name}")
    except DataError as error:
        raise ConfigError(str(error)) from None
    if found is None:
        raise ConfigError(f"--{name}: found nothing; expected an ISO 8601 time")
    return found
