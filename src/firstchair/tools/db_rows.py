"""Rows of a database as a model reads them, and what every kind of database gives.

Nothing here needs a package: the process that reads SQLite starts with this.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MAX_ROW_CHARS = 4_000
"""Of one row as JSON."""


@dataclass(frozen=True)
class Limits:
    """What a query may use up."""

    rows: int
    seconds: float


@dataclass(frozen=True)
class Rows:
    """What a query gave."""

    lines: tuple[str, ...]
    """A row each: a JSON object, its columns in order, a name twice where two columns have it; cut to
    ``MAX_ROW_CHARS``."""
    has_more: bool = False
    changed: int | None = None
    """Rows that were written; ``None`` for a query."""


class Database(Protocol):
    """One database; every query has a connection of its own, so that none leaves anything to the next."""

    dialect: str

    def query(self, sql: str, limits: Limits) -> Rows:
        """Run one statement; blocks no longer than ``limits.seconds`` and the time of connecting.

        Raises ``ToolFailed`` for a statement that is wrong, refused or slow, ``UpstreamError`` when the database
        failed.
        """
        ...


def row_line(columns: Sequence[str], row: Sequence[Any]) -> str:
    """One row as JSON text."""
    fields = (f"{_json(name)}: {_json(_plain(value))}" for name, value in zip(columns, row, strict=True))
    return cut_line("{" + ", ".join(fields) + "}")


def cut_line(line: str) -> str:
    """``line`` in at most ``MAX_ROW_CHARS``."""
    return line if len(line) <= MAX_ROW_CHARS else line[: MAX_ROW_CHARS - 1] + "…"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # Dates, decimals, arrays and whatever else a driver makes.
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)
