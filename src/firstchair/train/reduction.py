"""Sums and weights of a loss, so that cutting a step into micro-batches or ranks cannot change the gradient.

A micro-batch contributes a numerator and a weight; the trainer divides the sum of the numerators by the sum of the
weights of the whole optimizer step, once.

    token    numerator Σ_i Σ_t x_it              weight: trained tokens
    sample   numerator Σ_i (Σ_t x_it / n_i)      weight: rows with at least one trained token
    constant numerator Σ_i Σ_t x_it              weight: such rows × a constant (Dr. GRPO, Liu et al. 2025)

A row without a trained token adds nothing to either, so no phantom token enters a mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from firstchair.train.config import Reduction


def numerator(x_K: Tensor, sample_K: Tensor, how: Reduction) -> Tensor:
    """The sum that a micro-batch adds; a scalar of the dtype of ``x_K``.

    ``x_K``: ``[K]``, one value per trained token. ``sample_K``: ``[K]`` int64, which row each token belongs to.
    An empty micro-batch gives 0 that still reaches the graph of ``x_K``.
    """
    if how != "sample" or not len(x_K):
        return x_K.sum()
    counts = torch.bincount(sample_K)
    return (x_K / counts[sample_K]).sum()


def weight(sample_K: Tensor, how: Reduction, row_tokens: int | None = None) -> float:
    """What the micro-batch adds to the denominator: trained tokens, or rows that have some, × the constant if any.

    ``row_tokens``: the constant, with ``constant`` only.
    """
    if how == "token":
        return float(len(sample_K))
    rows = float(torch.unique(sample_K).numel())
    if how == "sample":
        return rows
    assert row_tokens is not None, "reduction=constant needs row_tokens; recipes check that"
    return rows * row_tokens


def row_sums(x_K: Tensor, sample_K: Tensor, rows: int) -> Tensor:
    """Σ over the tokens of each row: ``[rows]``, 0 for a row without any."""
    return x_K.new_zeros(rows).index_add(0, sample_K, x_K)


def row_means(x_K: Tensor, sample_K: Tensor, rows: int) -> Tensor:
    """Mean over the tokens of each row: ``[rows]``, 0 for a row without any."""
    return row_sums(x_K, sample_K, rows) / torch.bincount(sample_K, minlength=rows).clamp(min=1)
