"""What is known of shadows: do they agree with the primary, and what may they cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, func, select

from firstchair.gateway.control.budgets import Spend
from firstchair.gateway.control.snapshot import SHADOWS, Budget, BudgetPeriod
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.control.tables import ledger
from firstchair.gateway.metrics import metrics_sums, sums_by_label

if TYPE_CHECKING:
    from firstchair.evals.stats import Rate

AGREEMENTS = ("same", "same_tool", "different", "unscored")


class Agreement(NamedTuple):
    """How often one shadow did what the primary did."""

    slot: str
    route: str
    counts: dict[str, int]
    cost_nano: int
    sessions: int
    """Those with a call that could be compared. A call whose session is not known is one of its own."""
    same: Rate
    """Of the calls that could be compared, those with the same action; its interval has sessions as clusters."""

    @property
    def calls(self) -> int:
        return sum(self.counts.values())


class ShadowBudget(NamedTuple):
    """What all shadow calls may cost together, and what became of it."""

    budget_nano: int
    budget_period: BudgetPeriod
    spent_nano: int
    """In the present period."""
    reserved_nano: int
    not_sent: int
    """Copies that were not sent because it was spent, since the spool folder is there."""


def shadow_budget(store: ControlStore, budget: Budget | None, spool: Path) -> ShadowBudget | None:
    """``None`` for a gateway whose shadows have no budget."""
    if budget is None:
        return None
    spend = store.spend(SHADOWS.key_id, budget) or Spend(0, 0)
    dropped = sums_by_label(metrics_sums(spool), "firstchair_shadow_dropped_total", "reason")
    return ShadowBudget(
        budget_nano=budget.nano,
        budget_period=budget.period,
        spent_nano=spend.spent_nano,
        reserved_nano=spend.reserved_nano,
        not_sent=dropped.get(("budget",), 0),
    )


def shadow_agreement(connection: Connection, *, since_us: int | None = None, slot: str = "") -> list[Agreement]:
    """One line a slot and shadow, the busiest first."""
    from firstchair.evals.stats import rate  # numpy: only for whoever asks

    # A session that was found out later is written to the call that the client made, not to its copies.
    original = ledger.alias()
    cluster = func.coalesce(
        func.nullif(original.c.session, ""), func.nullif(ledger.c.session, ""), ledger.c.shadow_of
    )
    columns = (ledger.c.slot, ledger.c.provider, ledger.c.provider_model)
    query = (
        select(
            *columns,
            cluster.label("cluster"),
            ledger.c.agreement,
            func.count().label("calls"),
            func.sum(ledger.c.cost_nano).label("cost"),
        )
        .select_from(ledger.outerjoin(original, original.c.call_id == ledger.c.shadow_of))
        .where(ledger.c.variant == "shadow")
        .group_by(*columns, "cluster", ledger.c.agreement)
        .order_by(*columns, "cluster", ledger.c.agreement)  # equal ledgers, equal intervals
    )
    if since_us is not None:
        query = query.where(ledger.c.received_us >= since_us)
    if slot:
        query = query.where(ledger.c.slot == slot)
    found: dict[tuple[str, str], _Sums] = {}
    for row in connection.execute(query):
        sums = found.setdefault((row.slot, f"{row.provider}/{row.provider_model}"), _Sums({}, [], [], [], []))
        agreement = row.agreement if row.agreement in AGREEMENTS else "unscored"
        sums.counts[agreement] = sums.counts.get(agreement, 0) + int(row.calls)
        sums.costs.append(int(row.cost or 0))
        if agreement != "unscored":
            sums.clusters.append(row.cluster)
            sums.scored.append(int(row.calls))
            sums.same.append(int(row.calls) if agreement == "same" else 0)
    lines = [
        Agreement(
            slot=name,
            route=route,
            counts={word: sums.counts.get(word, 0) for word in AGREEMENTS},
            cost_nano=sum(sums.costs),
            sessions=len(set(sums.clusters)),
            same=rate(sums.same, sums.scored, sums.clusters),
        )
        for (name, route), sums in found.items()
    ]
    return sorted(lines, key=lambda line: (-line.calls, line.slot, line.route))


class _Sums(NamedTuple):
    """Of one slot and shadow: calls by agreement, and of those that count the sums by session and agreement."""

    counts: dict[str, int]
    costs: list[int]
    clusters: list[str]
    scored: list[int]
    same: list[int]
