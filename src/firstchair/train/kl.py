"""Estimates of KL(policy ‖ reference) from tokens that the policy sampled.

With ``r = log reference − log policy`` at the sampled token (Schulman, "Approximating KL divergence", 2020):

    k1       −r               mean right; may be negative; its own gradient has mean 0
    k2       r² / 2           never negative, biased; its gradient is that of the KL, on fresh samples
    k3       e^r − 1 − r      mean right, never negative; what GRPO adds to its loss
    low_var  k3 that stays finite: exponent within ±20, result within ±10
"""

from __future__ import annotations

import torch
from torch import Tensor

from firstchair.train.policy_loss import safe_exponent
from firstchair.train.rl_config import KlEstimator

LARGEST_LOW_VAR = 10.0


def kl_estimate(logp_K: Tensor, reference_K: Tensor, estimator: KlEstimator) -> Tensor:
    """The estimate at every token: ``[K]``, nats. Gradients flow into ``logp_K``."""
    r_K = reference_K - logp_K
    if estimator == "k1":
        return -r_K
    if estimator == "k2":
        return r_K.square() / 2
    if estimator == "k3":
        return torch.expm1(r_K) - r_K
    exponent_K = safe_exponent(r_K)
    return (torch.expm1(exponent_K) - exponent_K).clamp(-LARGEST_LOW_VAR, LARGEST_LOW_VAR)


def unbiased_kl(logp_K: Tensor, reference_K: Tensor, sampler_K: Tensor, estimator: KlEstimator) -> Tensor:
    """``kl_estimate`` weighted by ``w = policy / sampler``: right in value and gradient for tokens of ``sampler``.

    The gradient flows through w too (the score term), so for k3 it is ``w·(k3 + 1 − e^r)``.
    """
    weight_K = safe_exponent(logp_K - sampler_K).exp()
    return weight_K * kl_estimate(logp_K, reference_K, estimator)
