"""Figures as checks: how a rate, a difference or a count is held against a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from firstchair.evals.gate_record import Check, Excluded, Gate, GateVerdict, Rule, Unit, gate_verdict, verdict_of
from firstchair.evals.metrics import METRICS, excluded, unanswered
from firstchair.evals.run_record import DecisionRow
from firstchair.evals.stats import (
    Columns,
    Difference,
    Rate,
    careful_difference,
    careful_rate,
    difference_needed,
    samples_needed,
)

BY_NAME = {metric.name: metric for metric in METRICS}


class Sides(NamedTuple):
    """Two shares over the same decisions or episodes."""

    before: Columns
    after: Columns
    clusters: Sequence[str]
    """The session or task of each."""


def rate_check(metric: str, found: Rate, rule: Rule, bound: float, *, of: str = "", note: str = "") -> Check:
    """A share against a bound."""
    return _check(metric, found, rule, bound, samples_needed(found, bound), of=of, note=note)


def points_check(
    metric: str, sides: Sides, rule: Rule, bound: float, *, seed: int, of: str = "", note: str = ""
) -> Check:
    """The difference of two shares, candidate less baseline, against a bound."""
    found = careful_difference(sides.before, sides.after, sides.clusters, seed=seed)
    needed = difference_needed(sides.before, sides.after, sides.clusters, found, bound)
    return _check(metric, found, rule, bound, needed, unit="points", of=of, note=note)


def usd_check(metric: str, found: Difference, rule: Rule, bound: float, *, note: str) -> Check:
    """The difference of two amounts against a bound."""
    return _check(metric, found, rule, bound, samples_needed(found, bound), unit="usd", note=note)


def _check(
    metric: str,
    found: Rate | Difference,
    rule: Rule,
    bound: float,
    needed: int | None,
    *,
    unit: Unit = "share",
    of: str = "",
    note: str = "",
) -> Check:
    verdict = verdict_of(rule, bound, found.value, found.low, found.high)
    return Check(
        metric=metric,
        of=of,
        value=found.value,
        low=found.low,
        high=found.high,
        n=found.n,
        method=found.method,
        unit=unit,
        rule=rule,
        bound=bound,
        verdict=verdict,
        needed=needed if verdict is GateVerdict.UNDECIDED else None,
        note=note,
    )


def counted(metric: str, value: float, n: int, rule: Rule, bound: float, *, of: str = "", note: str = "") -> Check:
    """Something that was counted out, not sampled: it has no interval."""
    return _counted(metric, value, n, rule, bound, unit="count", of=of, note=note)


def failed_share(metric: str, failed: int, n: int, most: float) -> Check:
    """The share of ``n`` that the machinery failed at; counted, not sampled."""
    return _counted(metric, failed / n if n else None, n, "<=", most, unit="share", of="", note=f"{failed} failed")


def _counted(
    metric: str, value: float | None, n: int, rule: Rule, bound: float, *, unit: Unit, of: str, note: str
) -> Check:
    return Check(
        metric=metric,
        of=of,
        value=value,
        low=value,
        high=value,
        n=n,
        method="count",
        unit=unit,
        rule=rule,
        bound=bound,
        verdict=verdict_of(rule, bound, value, value, value),
        note=note,
    )


def gate_of(name: str, checks: Sequence[Check], left_out: Sequence[Excluded] = ()) -> Gate:
    """A gate of its checks."""
    return Gate(name=name, verdict=gate_verdict(checks), checks=tuple(checks), excluded=tuple(left_out))


def left_out(what: str, reasons: Mapping[str, int]) -> list[Excluded]:
    """Reason → count, as a record lists it."""
    return [Excluded(what=what, reason=reason, count=count) for reason, count in sorted(reasons.items()) if count]


def metric_rate(rows: Sequence[DecisionRow], name: str, seed: int) -> Rate:
    """One metric of ``METRICS`` over ``rows``."""
    return careful_rate(*BY_NAME[name].columns(rows), [row.session_id for row in rows], seed=seed)


def metric_sides(pairs: Sequence[tuple[DecisionRow, DecisionRow]], name: str) -> Sides:
    """One metric over paired decisions ``(baseline, candidate)``."""
    before, after = ([pair[side] for pair in pairs] for side in (0, 1))
    columns = BY_NAME[name].columns
    return Sides(columns(before), columns(after), [row.session_id for row in after])


def row_pairs(before: Sequence[DecisionRow], after: Sequence[DecisionRow]) -> list[tuple[DecisionRow, DecisionRow]]:
    """``(baseline, candidate)`` of every decision that both answered."""
    earlier = {row.dp_id: row for row in before}
    pairs = [(earlier[row.dp_id], row) for row in after if row.dp_id in earlier]
    return [(left, right) for left, right in pairs if left.obtained and right.obtained]


def answered_check(who: str, rows: Sequence[DecisionRow], most: float) -> Check:
    """How many of the decisions that were asked got no answer."""
    failed = sum(part.count for part in unanswered(rows))
    return failed_share(f"{who}_errors", failed, sum(row.covered for row in rows), most)


def rows_left_out(who: str, rows: Sequence[DecisionRow]) -> list[Excluded]:
    """Every decision without an action, by reason."""
    return left_out(f"{who}'s decisions", {part.reason: part.count for part in excluded(rows)})
