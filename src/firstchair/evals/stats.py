"""Rates with 95% intervals that respect how evaluation data come: many decisions per session, two runs per decision.

A rate is a ratio of sums, ``Σ hits / Σ trials``, over sessions as clusters. Decisions of one session share its
mistakes, so sessions are resampled, never decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Z95 = 1.959963984540054
"""Two-sided 95% point of the standard normal."""

RESAMPLES = 2000
FEW_CLUSTERS = 10
"""Below this many sessions the bootstrap's own noise dominates, and Wilson's interval is given."""
FEW_TRIALS = 30
FEW_EVENTS = 10
"""Of fewer hits, or misses, percentiles of a bootstrap are too near to the rate."""

Method = Literal["none", "wilson", "cluster_bootstrap", "paired_cluster_bootstrap", "newcombe", "ppi"]
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


Columns = tuple[Sequence[float], Sequence[float]]
"""Hits and trials, one of each a decision."""


def paired_difference(before: Columns, after: Columns, clusters: Sequence[object], *, seed: int = 0) -> Difference:
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


def careful_rate(
    hits: Sequence[float], trials: Sequence[float], clusters: Sequence[object], *, seed: int = 0
) -> Rate:
    """``rate``, whose interval is not too narrow where hits or misses are few: then it is Wilson's.

    Of one malformed reply in 672 the bootstrap's interval ends at 0.5%, of none in 672 Wilson's at 0.6%: the better
    result would look worse. Wilson's for one ends at 0.8%.
    """
    found = rate(hits, trials, clusters, seed=seed)
    if found.method != "cluster_bootstrap":
        return found
    share = _share((hits, trials), clusters)
    if not share.few_events:
        return found
    value, low, high = share.bounds
    return Rate(value=value, n=found.n, low=low, high=high, method="wilson")


def careful_difference(before: Columns, after: Columns, clusters: Sequence[object], *, seed: int = 0) -> Difference:
    """``paired_difference`` of two shares, whose interval is not too narrow where data are few.

    The bootstrap knows no other results than those it saw: three sessions that all improved would be certain. With
    few sessions, trials, hits or misses on a side, or few decisions on which the sides differ, it is ``newcombe``'s.
    ``hits`` and ``trials`` are 0 or 1.
    """
    found = paired_difference(before, after, clusters, seed=seed)
    if found.value is None:
        return found
    sides = (_share(before, clusters), _share(after, clusters))
    sessions = min(np.count_nonzero(cluster_sums(clusters, side[1])[0]) for side in (before, after))
    few = sessions < FEW_CLUSTERS or min(side.trials for side in sides) < FEW_TRIALS
    differ = np.count_nonzero(np.asarray(before[0]) != np.asarray(after[0]))
    if not few and differ >= FEW_EVENTS and not any(side.few_events for side in sides):
        return found
    low, high = newcombe(*sides, _correlation(before, after))
    return Difference(value=found.value, n=found.n, low=low, high=high, method="newcombe")


class Share(NamedTuple):
    """A share as counts."""

    hits: float
    trials: float
    effect: float = 1.0
    """Design effect: how many trials of a session tell as much as one that stands alone."""

    @property
    def few_events(self) -> bool:
        """Whether hits or misses are so few that what a bootstrap draws of them says little."""
        return min(self.hits, self.trials - self.hits) < FEW_EVENTS

    def times(self, factor: float) -> Share:
        """The same share of so many times the trials."""
        return Share(self.hits * factor, self.trials * factor, self.effect)

    @property
    def bounds(self) -> tuple[float, float, float]:
        """The share and its Wilson interval."""
        return self.hits / self.trials, *wilson(self.hits / self.effect, self.trials / self.effect)


def _share(side: Columns, clusters: Sequence[object]) -> Share:
    hits_C, trials_C = cluster_sums(clusters, *side)
    seen = trials_C > 0
    return Share(float(hits_C.sum()), float(trials_C.sum()), design_effect(hits_C[seen], trials_C[seen]))


def newcombe(before: Share, after: Share, correlation: float) -> tuple[float, float]:
    """95% interval of the difference of two shares, ``after − before``, from their Wilson intervals.

    Newcombe 1998 (Statistics in Medicine 17, 2635–2650), method 10: with l, u the Wilson bounds of each share p,
    low = d − √((p₂−l₂)² − 2φ(p₂−l₂)(u₁−p₁) + (u₁−p₁)²), high likewise with the other bounds. ``correlation`` is φ, 0
    for shares that are independent.
    """
    (p1, l1, u1), (p2, l2, u2) = before.bounds, after.bounds
    below = _root(p2 - l2, u1 - p1, correlation)
    above = _root(u2 - p2, p1 - l1, correlation)
    return max(-1.0, p2 - p1 - below), min(1.0, p2 - p1 + above)


def _root(first: float, second: float, correlation: float) -> float:
    return math.sqrt(max(0.0, first**2 - 2 * correlation * first * second + second**2))


def _correlation(before: Columns, after: Columns) -> float:
    """Newcombe's φ of paired 0/1 results, its numerator brought n/2 nearer to 0 when positive.

    0 when a margin is 0, and when the two do not count the same trials: then they are taken as independent, which
    makes the interval wider.
    """
    trials = np.asarray(before[1], dtype=bool)
    if not np.array_equal(trials, np.asarray(after[1], dtype=bool)):
        return 0.0
    was, now = np.asarray(before[0], dtype=bool)[trials], np.asarray(after[0], dtype=bool)[trials]
    both, neither = int((was & now).sum()), int((~was & ~now).sum())
    lost, won = int((was & ~now).sum()), int((~was & now).sum())
    margins = (both + lost) * (won + neither) * (both + won) * (lost + neither)
    if margins == 0:
        return 0.0
    product = float(both * neither - lost * won)
    if product > 0:
        product = max(0.0, product - len(was) / 2)
    return product / math.sqrt(margins)


def samples_needed(found: Rate | Difference, bound: float) -> int | None:
    """About how many trials would put the whole interval on one side of ``bound``, if results go on as they are.

    An interval's width goes with 1/√n. Wilson's is solved exactly: it touches b where n = z²·b(1−b)/(p−b)², its
    present bound L gives the n that it counts as z²·L(1−L)/(p−L)². Without a trial, the trials of which all must be
    hits (or none, for a bound below one half). ``None``: no number would, or none can be told.
    """
    if found.value is None or found.low is None or found.high is None:
        share = max(bound, 1 - bound)
        return math.ceil(Z95**2 * share / (1 - share)) if isinstance(found, Rate) and 0 < share < 1 else None
    gap = found.value - bound
    near = found.low if gap > 0 else found.high
    if gap == 0 or near == found.value:
        return None
    factor = ((found.value - near) / gap) ** 2
    if found.method == "wilson":
        if not (0 < bound < 1 and 0 < near < 1):
            return None
        factor *= bound * (1 - bound) / (near * (1 - near))
    return math.ceil(found.n * factor)


MAX_FACTOR = 1_000_000
"""More than so many times the trials is no plan."""


def difference_needed(
    before: Columns, after: Columns, clusters: Sequence[object], found: Difference, bound: float
) -> int | None:
    """``samples_needed`` of what ``careful_difference`` found on the same arguments.

    For Newcombe's interval by trying: at shares of 0 and 1 its width goes with 1/n.
    """
    if found.method != "newcombe" or found.value is None or found.value == bound:
        return samples_needed(found, bound)
    sides, correlation = (_share(before, clusters), _share(after, clusters)), _correlation(before, after)

    def decides(factor: float) -> bool:
        low, high = newcombe(sides[0].times(factor), sides[1].times(factor), correlation)
        return low > bound or high < bound

    few, many = 1.0, 2.0
    while not decides(many):
        few, many = many, 2 * many
        if many > MAX_FACTOR:
            return None
    while (many - few) * found.n > 0.5:
        middle = (few + many) / 2
        few, many = (few, middle) if decides(middle) else (middle, many)
    return math.ceil(many * found.n - 0.5)


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
