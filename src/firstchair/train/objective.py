"""The seam between the one training loop and the many things one can train for.

The loop knows batches, gradients, steps, checkpoints. An objective knows what a micro-batch adds to the loss. It is
handed the model, not its outputs, so that it may run it as often as it needs (see docs/training.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from firstchair.train.batching import MicroBatch
from firstchair.train.config import Reduction
from firstchair.train.reduction import numerator, weight
from firstchair.train.scorer import TokenScorer


@dataclass(frozen=True, slots=True)
class LossTerms:
    """What one micro-batch adds to an optimizer step."""

    numerator: Tensor
    """Scalar with a graph; the loop divides it by the weight of the whole step and runs the backward pass."""
    sums: Mapping[str, tuple[Tensor, float]] = field(default_factory=dict)
    """Metrics as (sum, count), no graph; the loop adds both over the step and divides once."""
    maxima: Mapping[str, float] = field(default_factory=dict)
    """Metrics of which the step has the largest; a micro-batch without a token leaves them out."""


def largest(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The maximum of each name over micro-batches and processes, which need not all know it; NaN where one is NaN.

    Never divided by a count, and never 0 for want of a value.
    """
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            seen = found.get(name, value)
            found[name] = math.nan if math.isnan(seen) or math.isnan(value) else max(seen, value)
    return found


class Objective(Protocol):
    """What is trained for."""

    @property
    def name(self) -> str:
        """One word, for logs and checkpoints."""
        ...

    def prepare(self, step: Sequence[MicroBatch], scorer: TokenScorer) -> Sequence[MicroBatch]:
        """Complete the batches of a step before any gradient: reference log-probabilities, values, advantages.

        Called once per optimizer step, without a graph; statistics over a step (whitening, group means) belong here.
        """
        ...

    def weight(self, batch: MicroBatch) -> float:
        """What the micro-batch adds to the denominator of the step: tokens, rows, pairs."""
        ...

    def loss(self, scorer: TokenScorer, batch: MicroBatch) -> LossTerms:
        """The micro-batch's numerator and metrics. Only tokens in ``batch.targets_K`` may enter."""
        ...


@dataclass(frozen=True, slots=True)
class SftObjective:
    """Cross-entropy on the trained tokens: −log p, in nats."""

    reduction: Reduction = "token"
    name: str = "sft"

    def prepare(self, step: Sequence[MicroBatch], scorer: TokenScorer) -> Sequence[MicroBatch]:
        """Nothing to add."""
        return step

    def weight(self, batch: MicroBatch) -> float:
        """Trained tokens, or rows that have some."""
        return weight(batch.sample_K, self.reduction)

    def loss(self, scorer: TokenScorer, batch: MicroBatch) -> LossTerms:
        """Sum of −log p, reduced as configured; the metric ``nll`` is always per token."""
        nll_K = -scorer(batch)
        total = nll_K.detach().double().sum()
        return LossTerms(numerator(nll_K, batch.sample_K, self.reduction), {"nll": (total, float(len(nll_K)))})
