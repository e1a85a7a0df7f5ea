"""Scoring without learning: the trainer's own snapshot, and the reference that a policy is held to."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from firstchair.core.errors import ConfigError
from firstchair.train.batching import MicroBatch
from firstchair.train.columns import with_columns
from firstchair.train.scorer import TokenScorer


def score(scorer: TokenScorer, batch: MicroBatch) -> Tensor:
    """Log-probability of every trained token, without dropout and without a graph: ``[K]`` float32, nats."""
    was_training = scorer.training
    scorer.eval()
    try:
        with torch.no_grad():
            return scorer(batch)  # type: ignore[no-any-return]
    finally:
        scorer.train(was_training)


def with_reference(batch: MicroBatch, scorer: TokenScorer, reference: Reference | None) -> MicroBatch:
    """The batch with a column ``reference``, the one it has or a new one. ``scorer`` is the policy.

    Raises ``ConfigError`` when it is missing and there is nothing to make it with.
    """
    if "reference" in batch.columns:
        return batch
    if reference is not None:
        return with_columns(batch, {"reference": reference.score(scorer, batch)})
    if len(batch.targets_K):
        raise ConfigError("no reference to hold the policy to; give one, or examples with a column 'reference'")
    return batch


@dataclass(frozen=True, slots=True)
class Reference:
    """The model that the policy may not stray from: a frozen copy, or what lies under the adapter."""

    frozen: TokenScorer | None = None
    """``None``: the policy itself with its adapter switched off. That is the base it was loaded from, so merge an
    adapter from earlier training into the base first."""

    @classmethod
    def of(cls, scorer: TokenScorer) -> Reference:
        """The policy as it stands: its base when it is an adapter (no second model in memory), else a copy."""
        if hasattr(scorer.model, "disable_adapter"):
            return cls()
        frozen = copy.deepcopy(scorer)
        frozen.requires_grad_(False)
        return cls(frozen.eval())

    def score(self, scorer: TokenScorer, batch: MicroBatch) -> Tensor:
        """Log-probabilities of the reference: ``[K]`` float32. ``scorer`` is the policy, left as it was on error too.

        Raises ``ConfigError`` when there is neither a copy nor an adapter.
        """
        if self.frozen is not None:
            return score(self.frozen, batch)
        if not hasattr(scorer.model, "disable_adapter"):
            raise ConfigError("the policy has no adapter to switch off; give the reference a frozen copy of its own")
        with scorer.model.disable_adapter():
            return score(scorer, batch)
