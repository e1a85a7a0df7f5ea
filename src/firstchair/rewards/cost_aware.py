"""Right or wrong, less what it cost: who learns from it weighs an expert's skill against its price."""

from __future__ import annotations

COST_MAX_USD = 0.10
"""What a rollout may cost at most, roughly: ``lambda_cost`` is what is taken off at that cost."""


def cost_aware(right: bool, cost_usd: float, *, lambda_cost: float, cost_max_usd: float = COST_MAX_USD) -> float:
    """``±1 − λ · cost / cost_max``: +1 when the answer is right, −1 when it is not.

    Swept over λ ∈ {0, .05, .1, .2, .4} it traces accuracy against cost. The cost is not capped: a rollout of
    ``2 · cost_max`` loses ``2 λ``.
    """
    return (1.0 if right else -1.0) - lambda_cost * cost_usd / cost_max_usd
