"""What a user prefers, as a reward: rollouts of a batch compared column by column, weighed by the task's own vector.

With one row a rollout (ToolOrchestra, arXiv 2511.21689):

    M  = [calls of each tool …, accuracy, −cost, −latency]
    M' = M, each column min–max normalised over the batch
    R  = M' · P when the outcome is right, else 0
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firstchair.rewards.samples import NoValue, Value

ACCURACY, COST, LATENCY = "accuracy", "cost", "latency"
"""Columns that every rollout may have; every other name in a preference is a tool's."""

ACCURACY_ALONE: Mapping[str, float] = {ACCURACY: 1.0}
"""What a task without a preference asks for."""


@dataclass(frozen=True)
class Played:
    """One graded rollout, as the preference reward sees it."""

    right: bool
    cost_usd: float | None
    latency_s: float | None
    """``None``, here and above: nobody counted it, which is not 0."""
    calls: Mapping[str, float]
    """Calls of every tool that was on offer, 0 where it was not called."""
    preference: Mapping[str, float]
    """Column → weight, at least 0; empty: accuracy alone."""


def preference_rewards(batch: Sequence[Played]) -> list[Value]:
    """``M' · P`` of each rollout of ``batch``, in order; 0 for a wrong outcome.

    A column is normalised over the rollouts that have it, wrong ones among them. One that is the same in all of them
    has no best and worst: accuracy then stays 0 or 1, a tool counts 1 if it was called and 0 if not, cost and latency
    count 1, as nobody did better. ``NoValue`` has a right rollout whose preference weighs a column that it lacks
    (a price or a time that is not known, a tool that was not on offer) or that is no weight (below 0, not finite).
    """
    rows = [_row(played) for played in batch]
    names = {name for row in rows for name in row}
    spans = {name: _span([row[name] for row in rows if name in row]) for name in names}
    return [_reward(played, row, spans) for played, row in zip(batch, rows, strict=True)]


def _row(played: Played) -> dict[str, float]:
    """The rollout's row of M: column → value, as far as it has them."""
    row = {ACCURACY: float(played.right), **{_tool(name): calls for name, calls in played.calls.items()}}
    for name, used in ((COST, played.cost_usd), (LATENCY, played.latency_s)):
        if used is not None and math.isfinite(used):
            row[name] = -used
    return row


def _tool(name: str) -> str:
    # A tool may be called `cost`; its column is another one.
    return f"calls.{name}"


def _column(wanted: str) -> str:
    return wanted if wanted in (ACCURACY, COST, LATENCY) else _tool(wanted.removeprefix("calls."))


def _span(column: Sequence[float]) -> tuple[float, float]:
    return min(column), max(column)


def _reward(played: Played, row: Mapping[str, float], spans: Mapping[str, tuple[float, float]]) -> Value:
    if not played.right:
        return 0.0
    total = 0.0
    for wanted, weight in (played.preference or ACCURACY_ALONE).items():
        if not (math.isfinite(weight) and weight >= 0):
            return NoValue("bad_preference", f"{wanted}: found {weight}; expected a weight of at least 0")
        if weight == 0:
            continue
        name = _column(wanted)
        if name not in row:
            why = "not_measured" if name in (COST, LATENCY) else "not_offered"
            return NoValue(why, f"the preference weighs {wanted}, which the rollout does not have")
        total += weight * _normalised(name, row[name], *spans[name])
    return total


def _normalised(name: str, value: float, low: float, high: float) -> float:
    if high > low:
        return (value - low) / (high - low)
    if name in (COST, LATENCY):
        return 1.0
    return float(value > 0)
