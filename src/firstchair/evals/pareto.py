"""Accuracy against cost: one point for each policy, with intervals, and which of them no other beats at both.

files of outcomes, or of groups ─► ``read_routed`` ─► RoutedTask ─► ``pareto_points`` ─► ParetoPoint, frontier
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from firstchair.catalog.token_counts import NANO
from firstchair.core.errors import DataError
from firstchair.core.jsonl import read_jsonl
from firstchair.data.orchestration.groups import Group
from firstchair.evals.stats import Rate, careful_rate, cluster_sums, replicate_sums
from firstchair.rollout.orchestration.trajectory import Trajectory

PolicyKind = Literal["trained", "rule", "bound"]
"""What was trained; a fixed rule to compare with, such as always the strongest expert; what no policy can be, as it
looks at the answers: an oracle, which is shown and is on no frontier."""


class RoutedTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one policy made of one task."""

    policy: str
    task_id: str
    correct: bool | None
    """``None``: not graded, so in no figure but a count."""
    cost_usd: float | None
    """``None``: no price is known, so in no mean but a count."""
    latency_s: float | None = None
    lambda_cost: float | None = None
    """The λ that the policy was trained with; ``None``: not trained for cost, or not known."""
    kind: PolicyKind = "trained"


class Mean(msgspec.Struct, frozen=True):
    """A mean with its 95% interval over tasks; ``value`` is ``None`` when nothing is known."""

    value: float | None
    n: int
    low: float | None
    high: float | None


class ParetoPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One policy."""

    policy: str
    lambda_cost: float | None
    kind: PolicyKind
    accuracy: Rate
    cost_usd: Mean
    """Of a task."""
    latency_s: Mean
    ungraded: int
    unpriced: int
    missed: int = 0
    """Tasks that another policy was given and this one was not: with any, a difference may be one of tasks."""
    frontier: bool = False
    """No other policy is at least as accurate for less, or more accurate for as much."""


def read_routed(path: Path) -> list[RoutedTask]:
    """The outcomes in a JSON Lines file: ``RoutedTask`` lines, or groups of graded trajectories as ``orchestrate
    run`` writes them, whose policy is called by the file's name. Raises ``DataError`` with the line.
    """
    found: list[RoutedTask] = []
    for line, row in read_jsonl(path):
        try:
            if "trajectories" in row:
                found += [_routed(one, path.stem) for one in msgspec.convert(row, Group).trajectories]
            else:
                found.append(msgspec.convert(row, RoutedTask))
        except msgspec.ValidationError as error:
            raise DataError(
                f"{error}; expected {{policy, task_id, correct, cost_usd}} or a group of trajectories",
                path=str(path),
                line=line,
            ) from None
    if not found:
        raise DataError("found no line; expected outcomes or groups of trajectories", path=str(path))
    return found


def _routed(one: Trajectory, policy: str) -> RoutedTask:
    cost = one.expert_cost_nano
    return RoutedTask(
        policy=policy,
        task_id=one.task_id,
        correct=one.correct,
        cost_usd=None if cost is None else (cost + (one.policy_cost_nano or 0)) / NANO,
        latency_s=one.latency_s,
    )


_Name = tuple[str, float | None, PolicyKind]


def pareto_points(outcomes: Iterable[RoutedTask], *, seed: int = 0) -> list[ParetoPoint]:
    """One point for each policy and λ, cheapest first. Tasks are the clusters of all intervals, so a policy's runs
    with several seeds over the same tasks count as what they are.
    """
    parts: dict[_Name, list[RoutedTask]] = {}
    for one in outcomes:
        parts.setdefault((one.policy, one.lambda_cost, one.kind), []).append(one)
    given = {one.task_id for rows in parts.values() for one in rows}
    points = [_point(name, rows, given, seed) for name, rows in parts.items()]
    points.sort(key=lambda point: (point.cost_usd.value is None, point.cost_usd.value or 0.0, point.policy))
    figures = [(point.cost_usd.value, point.accuracy.value) for point in points]
    best = frontier([(None, None) if p.kind == "bound" else f for p, f in zip(points, figures, strict=True)])
    return [msgspec.structs.replace(point, frontier=on) for point, on in zip(points, best, strict=True)]


def _point(name: _Name, rows: Sequence[RoutedTask], given: Set[str], seed: int) -> ParetoPoint:
    graded = [row for row in rows if row.correct is not None]
    policy, lambda_cost, kind = name
    return ParetoPoint(
        policy=policy,
        lambda_cost=lambda_cost,
        kind=kind,
        accuracy=careful_rate(
            [float(bool(row.correct)) for row in graded],
            [1.0] * len(graded),
            [row.task_id for row in graded],
            seed=seed,
        ),
        cost_usd=mean([(row.task_id, row.cost_usd) for row in rows], seed=seed),
        latency_s=mean([(row.task_id, row.latency_s) for row in rows], seed=seed),
        ungraded=len(rows) - len(graded),
        unpriced=sum(row.cost_usd is None for row in rows),
        missed=len(given - {row.task_id for row in rows}),
    )


def mean(values: Sequence[tuple[str, float | None]], *, seed: int = 0) -> Mean:
    """The mean of ``(task, value)`` and its 95% percentile interval, tasks resampled; unknown values are left out."""
    known = [(task, value) for task, value in values if value is not None]
    if not known:
        return Mean(None, 0, None, None)
    totals_C, counts_C = cluster_sums([task for task, _ in known], [value for _, value in known], [1.0] * len(known))
    sums = replicate_sums((totals_C, counts_C), seed=seed)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], (0.025, 0.975))
    return Mean(float(totals_C.sum() / counts_C.sum()), len(known), float(low), float(high))


def frontier(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """For each ``(cost, accuracy)`` whether no other has at most its cost and at least its accuracy, and one of the
    two better. A point that lacks either is on no frontier.
    """
    return [
        cost is not None
        and accuracy is not None
        and not any(
            other_cost is not None
            and other_accuracy is not None
            and other_cost <= cost
            and other_accuracy >= accuracy
            and (other_cost, other_accuracy) != (cost, accuracy)
            for other_cost, other_accuracy in points
        )
        for cost, accuracy in points
    ]
