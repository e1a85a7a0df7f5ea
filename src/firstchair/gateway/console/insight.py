"""What the ledger says of candidates: do shadows agree with the primary, does a canary keep its bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, func, select

from firstchair.gateway.control.slots import Bands, Route
from firstchair.gateway.control.tables import ledger

AGREEMENTS = ("same", "same_tool", "different", "unscored")
WINDOW = 2000
"""Newest calls of a slot that a canary's state is told from."""
_BAD = ("failed", "incomplete")


class Agreement(NamedTuple):
    """How often one shadow did what the primary did."""

    slot: str
    route: str
    counts: dict[str, int]
    cost_nano: int

    @property
    def calls(self) -> int:
        return sum(self.counts.values())

    @property
    def scored(self) -> int:
        """Calls that could be compared."""
        return self.calls - self.counts["unscored"]

    @property
    def share(self) -> float | None:
        """Of the scored calls, those with the same action."""
        return self.counts["same"] / self.scored if self.scored else None


def shadow_agreement(connection: Connection, *, since_us: int | None = None, slot: str = "") -> list[Agreement]:
    """One line a slot and shadow, the busiest first."""
    columns = (ledger.c.slot, ledger.c.provider, ledger.c.provider_model)
    query = (
        select(*columns, ledger.c.agreement, func.count().label("calls"), func.sum(ledger.c.cost_nano).label("cost"))
        .where(ledger.c.variant == "shadow")
        .group_by(*columns, ledger.c.agreement)
    )
    if since_us is not None:
        query = query.where(ledger.c.received_us >= since_us)
    if slot:
        query = query.where(ledger.c.slot == slot)
    counts: dict[tuple[str, str], dict[str, int]] = {}
    costs: dict[tuple[str, str], int] = {}
    for row in connection.execute(query):
        name = (row.slot, f"{row.provider}/{row.provider_model}")
        found = counts.setdefault(name, dict.fromkeys(AGREEMENTS, 0))
        found[row.agreement if row.agreement in AGREEMENTS else "unscored"] += int(row.calls)
        costs[name] = costs.get(name, 0) + int(row.cost or 0)
    lines = [Agreement(*name, found, costs[name]) for name, found in counts.items()]
    return sorted(lines, key=lambda line: (-line.calls, line.slot, line.route))


class Health(NamedTuple):
    """How calls went that were sent to one route first."""

    calls: int
    errors: int
    malformed: int
    p95_ms: float | None
    """Latency of the slowest twentieth of those answered."""

    @property
    def error_rate(self) -> float | None:
        return self.errors / self.calls if self.calls else None

    @property
    def malformed_rate(self) -> float | None:
        return self.malformed / self.calls if self.calls else None


class CanaryState(NamedTuple):
    """A canary beside everything else of its slot, over the slot's newest calls since its version came in force."""

    canary: Health
    rest: Health

    def outside(self, bands: Bands) -> tuple[str, ...]:
        """Which bands the canary has left; empty while too few calls were seen."""
        if self.canary.calls < bands.min_calls:
            return ()
        measured = (
            ("errors", self.canary.error_rate, bands.error_rate),
            ("malformed calls", self.canary.malformed_rate, bands.malformed_rate),
            ("latency", self.canary.p95_ms, bands.p95_ms),
        )
        return tuple(
            name for name, value, most in measured if value is not None and most is not None and value > most
        )


def canary_state(connection: Connection, slot: str, route: Route, *, since_version: int) -> CanaryState:
    """The canary ``route`` of ``slot``.

    A call counts for the route that was tried first: one that failed there and was answered by a fallback is the
    canary's error, not the fallback's success.
    """
    query = (
        select(
            ledger.c.variant,
            ledger.c.attempts,
            ledger.c.outcome,
            ledger.c.malformed_calls,
            ledger.c.latency_ms,
        )
        .where(ledger.c.slot == slot, ledger.c.slot_version >= since_version)
        .where(ledger.c.variant != "shadow", ledger.c.outcome != "refused")
        .order_by(ledger.c.seq.desc())
        .limit(WINDOW)
    )
    mine: list[Any] = []
    rest: list[Any] = []
    for row in connection.execute(query):
        tries = msgspec.json.decode(row.attempts) if row.attempts else []
        first = tries[0] if tries else {}
        is_mine = row.variant == "canary" or (
            row.variant == "fallback" and (first.get("provider"), first.get("model")) == (route.provider, route.model)
        )
        (mine if is_mine else rest).append(row)
    return CanaryState(_health(mine), _health(rest))


def _health(rows: Sequence[Any]) -> Health:
    failed = [row for row in rows if row.outcome in _BAD or row.variant == "fallback"]
    times = sorted(row.latency_ms for row in rows if row.outcome == "ok" and row.variant != "fallback")
    p95 = times[math.ceil(0.95 * len(times)) - 1] if times else None
    return Health(len(rows), len(failed), sum(row.malformed_calls > 0 for row in rows), p95)
