"""The seam between the one training loop and the many things one can train for.

The loop knows batches, gradients, steps, checkpoints. An objective knows what a micro-batch adds to the loss. It is
handed the model, not its outputs, so that it may run it as often as it needs (see docs/training.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
