"""Where trainer and sampler give one token different probabilities: how much, and what to do about it.

Other kernels, other precision, or weights that are a step older: the tokens were drawn from the sampler's
probabilities, and the trainer differentiates its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from firstchair.train.policy_loss import safe_exponent


def log_difference(trainer_K: Tensor, behaviour_K: Tensor) -> Tensor:
    """|log trainer − log sampler| at every token: ``[K]`` float64, nats, no graph.

    To be asked of all tokens, before any is rejected: else the figure hides what was. Its mean and its maximum say
    whether the two agree.
    """
    return (trainer_K.detach().double() - behaviour_K.double()).abs()


def importance_ratio(trainer_K: Tensor, behaviour_K: Tensor) -> Tensor:
    """trainer / sampler at every token: ``[K]``, finite, without a graph."""
    return safe_exponent(trainer_K.detach() - behaviour_K).exp()


def truncated_weights(ratio_K: Tensor, *, low: float, high: float) -> Tensor:
    """Ratios cut to ``[low, high]`` (truncated importance sampling, Yao et al. 2025): ``[K]``."""
    return ratio_K.clamp(low, high)


def gate(ratio_K: Tensor, *, low: float, high: float) -> Tensor:
    """Ratios within ``[low, high]``, bounds included, and 0 elsewhere (IcePop, Ling team 2025): ``[K]``."""
    return torch.where(in_band(ratio_K, low=low, high=high), ratio_K, 0.0)


def in_band(ratio_K: Tensor, *, low: float, high: float) -> Tensor:
    """Which ratios lie within ``[low, high]``, bounds included: ``[K]`` bool."""
    return (ratio_K >= low) & (ratio_K <= high)


def on_policy_log_ratio(logp_K: Tensor) -> Tensor:
    """A log-ratio of value 0 with the gradient of ``logp_K``: the surrogate becomes REINFORCE's −A·∇log p."""
    return logp_K - logp_K.detach()
