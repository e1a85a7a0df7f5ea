"""What the ledger says of shadows: do they agree with the primary."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, func, select

from firstchair.gateway.control.tables import ledger

AGREEMENTS = ("same", "same_tool", "different", "unscored")


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
