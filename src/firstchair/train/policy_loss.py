"""The clipped surrogate of PPO and its relatives, token by token. Nothing here knows of batches or of reductions.

Log-probabilities are in nats. Every exponent goes through ``safe_exponent``, so no log-probability can make a loss
or a gradient infinite, and a token with advantage 0 has loss exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from firstchair.train.reduction import row_means

LARGEST_EXPONENT = 20.0


@dataclass(frozen=True, slots=True)
class Clip:
    """How far ratios may move before their gradient stops."""

    low: float
    """Below 1 − this."""
    high: float
    """Above 1 + this."""
    dual: float | None = None
    """Above this for advantages below 0; more than 1."""


class Surrogate(NamedTuple):
    """The loss of each token, to be minimised, and whether the clip took its gradient."""

    loss_K: Tensor
    clipped_K: Tensor
    """Bool."""


def safe_exponent(x: Tensor) -> Tensor:
    """``x`` as something that can be exponentiated: float32 at least, NaN → 0, within ±20, no gradient outside."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    finite = torch.nan_to_num(wide, nan=0.0, posinf=LARGEST_EXPONENT, neginf=-LARGEST_EXPONENT)
    return finite.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)


def sequence_log_ratios(log_ratio_K: Tensor, sample_K: Tensor, rows: int) -> Tensor:
    """The mean log-ratio of each token's row, at every token of it: ``[K]`` (GSPO, Zheng et al. 2025, eq. 7).

    ``log_ratio_K``: policy − old, ``[K]``. ``sample_K``: ``[K]`` int64, rows of ``range(rows)``.
    """
    return row_means(log_ratio_K, sample_K, rows)[sample_K]


def clipped_surrogate(log_ratio_K: Tensor, advantage_K: Tensor, clip: Clip) -> Surrogate:
    """``max(−r·A, −clamp(r, 1 − low, 1 + high)·A)`` with ``r = exp(log_ratio)``, each ``[K]``; not reduced.

    PPO, Schulman et al. 2017, eq. 7; separate bounds: DAPO, Yu et al. 2025, eq. 10. With ``clip.dual`` the loss of a
    token with A < 0 is at most ``−dual·A`` (dual-clip PPO, Ye et al. 2020).
    """
    ratio_K = safe_exponent(log_ratio_K).exp()
    free_K = -ratio_K * advantage_K
    bounded_K = -ratio_K.clamp(1 - clip.low, 1 + clip.high) * advantage_K
    loss_K = torch.maximum(free_K, bounded_K)
    if clip.dual is not None:
        loss_K = torch.where(advantage_K < 0, torch.minimum(loss_K, -clip.dual * advantage_K), loss_K)
    return Surrogate(loss_K, bounded_K > free_K)


def approximate_kl(log_ratio_K: Tensor) -> Tensor:
    """How far each token has moved since sampling: ``r − 1 − log r``, an estimate of KL(old ‖ policy) that is never
    negative (Schulman, "Approximating KL divergence", 2020): ``[K]``."""
    exponent_K = safe_exponent(log_ratio_K)
    return torch.expm1(exponent_K) - exponent_K
