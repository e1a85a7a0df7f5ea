"""Rows of a benchmark as numbers: means with two intervals, cost, latency, and what was left out.

Two things vary. Other questions could have been drawn: the interval over samples takes the questions as clusters, so
that asking each of them under several seeds does not count as more questions. The model could have answered
otherwise: the interval over seeds is Student's t of the seeds' means on the same questions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from firstchair.catalog.token_counts import TokenCounts
from firstchair.evals.benchmarks.rows import BenchRow
from firstchair.evals.stats import NO_RATE, Rate, careful_rate


class SeedMean(msgspec.Struct, frozen=True, kw_only=True):
    """The mean score under one seed."""

    seed: int
    mean: float | None
    """``None`` when nothing was graded."""
    graded: int


class SeedInterval(msgspec.Struct, frozen=True, kw_only=True):
    """Mean of the seeds' means with Student's t interval, cut to 0 … 1; no interval for a single seed."""

    mean: float | None
    low: float | None
    high: float | None
    deviation: float | None
    """Standard deviation of the seeds' means."""
    seeds: int


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """USD over all rows, failed ones too."""

    endpoint_usd: float | None
    """``None``: a call has no known price."""
    helper_usd: float | None
    per_sample_usd: float | None
    """The endpoint's, a sample."""
    usage: TokenCounts
    helper_usage: TokenCounts


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that the endpoint took for a sample, over those that did not fail."""

    p50_s: float | None
    p95_s: float | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What ``summary.json`` says of the rows."""

    samples: int
    """Different ones."""
    rows: int
    """Samples times seeds."""
    graded: int
    ungraded: int
    failed: int
    over_samples: Rate
    """All graded rows, questions as clusters."""
    over_seeds: SeedInterval
    by_seed: tuple[SeedMean, ...]
    cost: Cost
    latency: Latency
    served_models: tuple[str, ...]
    helper_models: tuple[str, ...]
    errors: Mapping[str, int]
    """What was left out: the error's first line → how often."""


def summarize(rows: Sequence[BenchRow], seeds: Sequence[int]) -> Summary:
    """The numbers of a run over ``seeds``. Rows that are not graded enter no mean and are counted."""
    graded = [row for row in rows if row.score is not None]
    left_out = [row for row in rows if row.score is None]
    scores = [row.score or 0.0 for row in graded]
    samples = [row.sample_id for row in graded]
    by_seed = tuple(_seed_mean(graded, seed) for seed in seeds)
    errors: dict[str, int] = {}
    for row in left_out:
        line = f"{row.outcome}: {row.error.splitlines()[0] if row.error else 'no reason given'}"[:200]
        errors[line] = errors.get(line, 0) + 1
    return Summary(
        samples=len({row.sample_id for row in rows}),
        rows=len(rows),
        graded=len(graded),
        ungraded=sum(row.outcome == "ungraded" for row in rows),
        failed=sum(row.outcome == "failed" for row in rows),
        over_samples=careful_rate(scores, [1.0] * len(scores), samples) if scores else NO_RATE,
        over_seeds=seed_interval([one.mean for one in by_seed if one.mean is not None]),
        by_seed=by_seed,
        cost=_cost(rows),
        latency=_latency([row.latency_s for row in rows if row.outcome != "failed"]),
        served_models=tuple(sorted({model for row in rows for model in row.served_models})),
        helper_models=tuple(sorted({model for row in rows for model in row.helper_models})),
        errors=dict(sorted(errors.items(), key=lambda item: -item[1])),
    )


def seed_interval(means: Sequence[float]) -> SeedInterval:
    """Mean ± t(0.975; K−1) · s/√K of K means, s their standard deviation with K−1 below (Student 1908)."""
    if not means:
        return SeedInterval(mean=None, low=None, high=None, deviation=None, seeds=0)
    mean = float(np.mean(means))
    if len(means) < 2:
        return SeedInterval(mean=mean, low=None, high=None, deviation=None, seeds=1)
    from scipy.special import stdtrit

    deviation = float(np.std(means, ddof=1))
    half = float(stdtrit(len(means) - 1, 0.975)) * deviation / math.sqrt(len(means))
    return SeedInterval(
        mean=mean, low=max(0.0, mean - half), high=min(1.0, mean + half), deviation=deviation, seeds=len(means)
    )


def _seed_mean(graded: Sequence[BenchRow], seed: int) -> SeedMean:
    scores = [row.score or 0.0 for row in graded if row.seed == seed]
    return SeedMean(seed=seed, mean=float(np.mean(scores)) if scores else None, graded=len(scores))


def _cost(rows: Sequence[BenchRow]) -> Cost:
    endpoint = _usd([row.cost_nano for row in rows if row.calls])
    return Cost(
        endpoint_usd=endpoint,
        helper_usd=_usd([row.helper_cost_nano for row in rows if row.helper_calls]),
        per_sample_usd=endpoint / len(rows) if endpoint is not None and rows else None,
        usage=sum((row.usage for row in rows), TokenCounts()),
        helper_usage=sum((row.helper_usage for row in rows), TokenCounts()),
    )


def _usd(costs: Sequence[int | None]) -> float | None:
    """The sum; ``None`` when one is unknown."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) / 1e9 if len(known) == len(costs) else None


def _latency(seconds: Sequence[float]) -> Latency:
    if not seconds:
        return Latency(p50_s=None, p95_s=None)
    p50, p95 = np.quantile(seconds, (0.5, 0.95))
    return Latency(p50_s=float(p50), p95_s=float(p95))
