"""What the page about money shows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from firstchair.gateway.console.desk import Desk
from firstchair.gateway.console.render import count, usd
from firstchair.gateway.control.ledger import By, Line
from firstchair.gateway.control.slots import NAME

PERIODS = {1: "today", 7: "7 days", 30: "30 days", 90: "90 days", 0: "all time"}
MAX_COLUMNS = 120
"""Days in one chart; of more the newest are shown."""
MAX_LINES = 40
"""In one table, the dearest first."""


class Table(NamedTuple):
    """One grouping: its lines, dearest first, and how many are left out."""

    by: By
    title: str
    lines: list[tuple[str, Line]]
    left_out: int


def days_of(query: Mapping[str, str]) -> int:
    """The chosen period; 30 days unless one is chosen."""
    found = [days for days in PERIODS if query.get("days") == str(days)]
    return found[0] if found else 30


def midnight(days: int, today: date | None = None) -> int | None:
    """Microseconds of the UTC midnight at which the last ``days`` days began; ``None`` for all time."""
    if not days:
        return None
    first = (today or datetime.now(UTC).date()) - timedelta(days=days - 1)
    return int(datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp()) * 1_000_000


def values(desk: Desk, query: Mapping[str, str]) -> dict[str, Any]:
    """For the ledger's template."""
    days, slot = days_of(query), query.get("slot", "")
    if not NAME.fullmatch(slot):
        slot = ""
    since = midnight(days)
    by_day, _ = desk.report("day", since_us=since, slot=slot)
    series = _series(by_day.lines, days)
    return {
        "days": days,
        "periods": PERIODS,
        "slot": slot,
        "slots": [version.slot for version in desk.control.slots()],
        "total": by_day.total,
        "shadow": by_day.shadow_total,
        "series": series,
        "cost": [(line.name, float(line.cost_nano), usd(line.cost_nano)) for line in series],
        "tokens": [(line.name, float(line.tokens), f"{count(line.tokens)} tokens") for line in series],
        "tables": [
            _table(desk, by, title, since, slot)
            for by, title in (("slot", "By slot"), ("model", "By model"), ("key", "By key"))
        ],
    }


def _series(lines: list[Line], days: int) -> list[Line]:
    """A line for every day, those without calls too."""
    known = {line.name: line for line in lines}
    today = datetime.now(UTC).date()
    dates = [date.fromisoformat(name) for name in known]
    first = today - timedelta(days=days - 1) if days else min(dates, default=today)
    last = max([today, *dates])
    first = max(first, last - timedelta(days=MAX_COLUMNS - 1))
    names = [str(first + timedelta(days=place)) for place in range((last - first).days + 1)]
    return [known.get(name, Line(name=name)) for name in names]


def _table(desk: Desk, by: Any, title: str, since: int | None, slot: str) -> Table:
    report, names = desk.report(by, since_us=since, slot=slot)
    lines = sorted(report.lines, key=lambda line: (-line.cost_nano, -line.tokens, line.name))
    named = [(names.get(line.name, line.name) or "(none)", line) for line in lines[:MAX_LINES]]
    return Table(by, title, named, len(lines) - len(named))
