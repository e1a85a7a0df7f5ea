"""Prediction-powered inference: a judge on every case plus people on a random few, with an honest interval.

Source: Angelopoulos, Bates, Fannjiang, Jordan, Zrnic, "Prediction-powered inference" (Science 2023), the mean
estimator; power tuning from Angelopoulos, Duchi, Zrnic, "PPI++: efficient prediction-powered inference" (2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from firstchair.evals.stats import Z95, Floats, Rate, cluster_sums, rate


class PpiMean(msgspec.Struct, frozen=True):
    """A mean of true labels, estimated from ``n_labels`` labels and ``n_predictions`` predictions."""

    value: float
    low: float
    high: float
    power: float
    """λ in [0, 1]: how far the predictions were trusted; 0 is the plain mean of the labels."""
    n_labels: int
    n_predictions: int


def power_tuning(labels: Sequence[float], predicted: Sequence[float], everywhere: Sequence[float]) -> float:
    """The λ that minimises the variance of the PPI mean, clipped to [0, 1].

    λ = Cov(Y, f) / ((1 + n/N) · Var(f)), with the covariance over the n labelled cases and the variance over all
    predictions (labelled and not). 0 when the predictions do not vary or n < 2.
    """
    n, total = len(labels), len(everywhere)
    if n < 2 or total == 0:
        return 0.0
    pooled = float(np.var(np.concatenate([np.asarray(predicted, float), np.asarray(everywhere, float)]), ddof=1))
    if pooled == 0:
        return 0.0
    covariance = float(np.cov(np.asarray(labels, float), np.asarray(predicted, float))[0, 1])
    return min(1.0, max(0.0, covariance / ((1 + n / total) * pooled)))


def rectifier_variance(labels: Floats, predicted: Floats, power: float) -> float:
    """Variance of one residual ``Y − λf``, with one observation added at each end of its range, −λ and 1.

    Without the two (the idea of Agresti and Coull's added trials), a handful of labels that all agree with the
    judge would claim that the judge never errs.
    """
    residuals = np.concatenate([labels - power * predicted, [-power, 1.0]])
    return float(np.var(residuals, ddof=1))


def ppi_mean(
    labels: Sequence[float],
    predicted: Sequence[float],
    unlabelled: Sequence[float],
    *,
    power: float | None = None,
    guard: bool = True,
) -> PpiMean:
    """The PPI++ estimate of E[Y] with its 95% normal interval.

    θ = λ · mean_N(f) + mean_n(Y − λf),  Var(θ) = λ² Var(f)/N + Var(Y − λf)/n. ``labels`` and ``predicted`` run over
    the n labelled cases, ``unlabelled`` holds f on the N others. λ is tuned unless ``power`` is given. ``guard`` adds
    the two observations of ``rectifier_variance``; without it the variance is the paper's.
    """
    y, f, rest = (np.asarray(values, dtype=float) for values in (labels, predicted, unlabelled))
    if len(y) < 2:
        raise ValueError(f"{len(y)} labels; an interval needs at least 2")
    lam = power_tuning(labels, predicted, unlabelled) if power is None else power
    if len(rest) == 0:
        lam = 0.0
    spread = rectifier_variance(y, f, lam) if guard else float(np.var(y - lam * f, ddof=1))
    variance = spread / len(y)
    value = float(np.mean(y - lam * f))
    if lam:
        value += lam * float(np.mean(rest))
        variance += lam**2 * float(np.var(rest, ddof=1) if len(rest) > 1 else 0.25) / len(rest)
    half = Z95 * math.sqrt(variance)
    return PpiMean(value, value - half, value + half, lam, len(y), len(rest))


def true_rate(
    decided: Sequence[float | None],
    judged: Sequence[float | None],
    labelled: Sequence[float | None],
    clusters: Sequence[object],
    *,
    seed: int = 0,
) -> Rate | None:
    """The share of decisions that are really right, over all of them; ``None`` when it cannot be estimated.

    For each decision: ``decided`` is what code could decide (1, 0, or ``None``), ``judged`` a judge's verdict on an
    undecided one, ``labelled`` a person's. The undecided share is estimated by PPI, with λ = 0 unless the judge
    spoke on every undecided case:

    θ = (Σ decided + Σ λf) / N + (U/N) · mean over labels of (Y − λf),  U = number undecided,
    Var(θ) = Var over sessions of the first term + (U/N)² · Var(Y − λf)/n.

    With undecided cases and fewer than two labels among them nothing is estimated. With none it is the plain rate
    with the interval of ``stats.rate``, whose bootstrap ``seed`` draws: a variance of zero is no certainty.
    """
    known = np.array([np.nan if value is None else value for value in decided], dtype=float)
    if len(known) == 0:
        return None
    open_cases = np.isnan(known)
    count, total = int(open_cases.sum()), len(known)
    if not count:
        return rate(list(known), [1.0] * total, clusters, seed=seed)
    labels = np.array([np.nan if value is None else value for value in labelled], dtype=float)
    has_label = open_cases & ~np.isnan(labels)
    n = int(has_label.sum())
    if n < 2:
        return None
    f = np.array([np.nan if value is None else value for value in judged], dtype=float)
    lam = 0.0
    if not np.isnan(f[open_cases]).any():
        lam = power_tuning(list(labels[has_label]), list(f[has_label]), list(f[open_cases & ~has_label]))
    f = np.nan_to_num(f)
    part = np.where(open_cases, lam * f, np.nan_to_num(known))
    value, variance = float(part.mean()), _session_variance(part, clusters)
    share = count / total
    value += share * float(np.mean(labels[has_label] - lam * f[has_label]))
    variance += share**2 * rectifier_variance(labels[has_label], f[has_label], lam) / n
    half = Z95 * math.sqrt(variance)
    value = min(1.0, max(0.0, value))
    return Rate(value, total, max(0.0, value - half), min(1.0, value + half), "ppi")


def _session_variance(values: Floats, clusters: Sequence[object]) -> float:
    """Variance of a mean when decisions come by session: C/(C−1) · Σ (s_c − m·t_c)² / N²."""
    sums, sizes = cluster_sums(clusters, values, np.ones(len(values)))
    if len(sums) < 2:
        return float(np.var(values) / len(values))
    mean = float(values.mean())
    return float(((sums - mean * sizes) ** 2).sum()) * len(sums) / (len(sums) - 1) / len(values) ** 2
