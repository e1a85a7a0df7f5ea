"""Rates with 95% intervals that respect how evaluation data come: many decisions per session, two runs per decision.

A rate is a ratio of sums, ``Σ hits / Σ trials``, over sessions as clusters. Decisions of one session share its
mistakes, so sessions are resampled, never decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

Z95 = 1.959963984540054
"""Two-sided 95% point of the standard normal."""

RESAMPLES = 2000
FEW_CLUSTERS = 10
"""Below this many sessions the bootstrap's own noise dominates, and Wilson's interval is given."""
FEW_TRIALS = 30

Method = Literal["none", "wilson", "cluster_bootstrap", "paired_cluster_bootstrap", "ppi"]
Floats = npt.NDArray[np.float64]


class Rate(msgspec.Struct, frozen=True):
    """A share of ``n`` trials with its 95% interval; ``value`` is ``None`` when there was no trial."""

    value: float | None
    n: int
    low: float | None
    high: float | None
    method: Method = "none"


class Difference(msgspec.Struct, frozen=True):
    """``after − before`` on the same decisions, with its 95% interval."""

    value: float | None
    n: int
    low: float | None
    high: float | None
    method: Method = "paired_cluster_bootstrap"


NO_RATE = Rate(value=None, n=0, low=None, high=None)


def wilson(hits: float, trials: float) -> tuple[float, float]:
    """Wilson's 95% score interval of a proportion (Wilson 1927).

    centre = (p + z²/2n) / (1 + z²/n), half = z/(1 + z²/n) · √(p(1−p)/n + z²/4n²). ``trials`` may be an effective,
    fractional count; it must be positive.
    """
    p, z2 = hits / trials, Z95**2
    scale = 1 + z2 / trials
    centre = (p + z2 / (2 * trials)) / scale
    half = Z95 / scale * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2))
    # At 0 and 1 the formula is exact in theory and off by one rounding in floats.
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == trials else min(1.0, centre + half)
    return low, high


def cluster_sums(clusters: Sequence[object], *columns: Sequence[float] | Floats) -> tuple[Floats, ...]:
    """Sums of each column by cluster; every result has shape ``[clusters]``, clusters in order of first sight."""
    numbers: dict[object, int] = {}
    index = np.fromiter((numbers.setdefault(c, len(numbers)) for c in clusters), dtype=np.int64, count=len(clusters))
    sums: list[Floats] = []
    for column in columns:
        weights = np.asarray(column, dtype=np.float64)
        sums.append(np.bincount(index, weights=weights, minlength=len(numbers)).astype(np.float64))
    return tuple(sums)


BLOCK = 4_000_000
"""Draws held in memory at once; with many sessions the replicates are made in blocks."""
MANY_CLUSTERS = 5000
"""Above this many sessions, those with equal sums are drawn together: the same distribution, in much less time."""


def replicate_sums(columns: Sequence[Floats], *, seed: int, resamples: int = RESAMPLES) -> Floats:
    """Column sums of each bootstrap replicate: ``[resamples, columns]``, all columns over the same draws."""
    table = np.stack(columns, axis=1)
    clusters = len(table)
    chances = np.full(clusters, 1.0 / clusters)
    if clusters > MANY_CLUSTERS:
        table, alike = np.unique(table, axis=0, return_counts=True)
        chances = alike / clusters
    rng = np.random.default_rng(seed)
    size = max(1, min(resamples, BLOCK // len(table)))
    blocks: list[Floats] = []
    for start in range(0, resamples, size):
        shape = min(size, resamples - start)
        blocks.append(rng.multinomial(clusters, chances, size=shape) @ table)
    return np.concatenate(blocks)


def design_effect(hits_C: Floats, trials_C: Floats) -> float:
    """Variance of the rate with sessions as clusters over its binomial variance, at least 1.

    The numerator is the linearised ratio variance ``C/(C−1) · Σ (h_c − p·t_c)² / (Σ t_c)²``. 1 when every trial has
    the same result or there is one cluster: then nothing can be learnt about clustering.
    """
    total, count = float(trials_C.sum()), len(trials_C)
    p = float(hits_C.sum()) / total
    binomial = p * (1 - p) / total
    if count < 2 or binomial == 0:
        return 1.0
    spread = float(((hits_C - p * trials_C) ** 2).sum()) * count / (count - 1) / total**2
    return max(1.0, spread / binomial)


def rate(hits: Sequence[float], trials: Sequence[float], clusters: Sequence[object], *, seed: int = 0) -> Rate:
    """``Σ hits / Σ trials`` with a 95% interval; the three sequences run over decisions.

    ``trials`` is 1 where the decision counts and 0 where it does not; sums over several decisions of a session do as
    well. The interval is the percentile cluster
    bootstrap over sessions; with few sessions or trials, or when all results agree, it is Wilson's with the trials
    divided by the design effect.
    """
    hits_C, trials_C = cluster_sums(clusters, hits, trials)
    seen = trials_C > 0
    hits_C, trials_C = hits_C[seen], trials_C[seen]
    total, good = float(trials_C.sum()), float(hits_C.sum())
    if total == 0:
        return NO_RATE
    if len(trials_C) < FEW_CLUSTERS or total < FEW_TRIALS or good in (0.0, total):
        effect = design_effect(hits_C, trials_C)
        low, high = wilson(good / effect, total / effect)
        return Rate(value=good / total, n=round(total), low=low, high=high, method="wilson")
    sums = replicate_sums((hits_C, trials_C), seed=seed)
    values = sums[:, 0] / sums[:, 1]
    low, high = np.quantile(values, (0.025, 0.975))
    return Rate(value=good / total, n=round(total), low=float(low), high=float(high), method="cluster_bootstrap")


def paired_difference(
    before: tuple[Sequence[float], Sequence[float]],
    after: tuple[Sequence[float], Sequence[float]],
    clusters: Sequence[object],
    *,
    seed: int = 0,
) -> Difference:
    """Rate after − rate before, each ``(hits, trials)`` over the same decisions, sessions resampled together.

    Both rates of a replicate see the same sessions, so what the runs share cancels. Replicates in which either rate
    has no trial are left out. ``n`` is the number of decisions that count in either run.
    """
    hits_b, trials_b, hits_a, trials_a = cluster_sums(clusters, *before, *after)
    n = int(np.count_nonzero(np.asarray(before[1], dtype=bool) | np.asarray(after[1], dtype=bool)))
    if trials_b.sum() == 0 or trials_a.sum() == 0:
        return Difference(value=None, n=n, low=None, high=None, method="none")
    sums = replicate_sums((hits_b, trials_b, hits_a, trials_a), seed=seed)
    sums = sums[(sums[:, 1] > 0) & (sums[:, 3] > 0)]
    values = sums[:, 2] / sums[:, 3] - sums[:, 0] / sums[:, 1]
    low, high = np.quantile(values, (0.025, 0.975))
    point = float(hits_a.sum() / trials_a.sum() - hits_b.sum() / trials_b.sum())
    return Difference(value=point, n=n, low=float(low), high=float(high))


def mcnemar_p(fixed: int, broken: int) -> float:
    """Exact two-sided McNemar test on the decisions that changed: P(as uneven a split | each side equally likely).

    2 · Binomial CDF(min(fixed, broken); fixed + broken, ½), at most 1. It takes decisions as independent; the paired
    bootstrap interval beside it does not.
    """
    changed = fixed + broken
    if changed == 0:
        return 1.0
    from scipy.special import bdtr

    return min(1.0, 2.0 * float(bdtr(min(fixed, broken), changed, 0.5)))
