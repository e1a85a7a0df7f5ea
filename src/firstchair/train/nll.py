"""Held-out negative log-likelihood: one number that compares models and recipes to a hundredth of a nat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from firstchair.core.errors import DataError
from firstchair.train.batching import MicroBatch, collate, cut_step
from firstchair.train.config import BatchLayout
from firstchair.train.dist import ALONE, World
from firstchair.train.examples import Example
from firstchair.train.scorer import TokenScorer

ROWS_AT_ONCE = 256
"""Rows that are sorted into micro-batches together: memory stays flat, and lengths still match."""


@dataclass(frozen=True, slots=True)
class NllSums:
    """What is added up, over batches and processes, before anything is divided."""

    nll: float = 0.0
    """Σ over trained tokens of −log p, nats, in float64."""
    tokens: float = 0
    sample_means: float = 0.0
    """Σ over rows of their mean."""
    samples: float = 0

    def __add__(self, other: NllSums) -> NllSums:
        return NllSums(
            self.nll + other.nll,
            self.tokens + other.tokens,
            self.sample_means + other.sample_means,
            self.samples + other.samples,
        )

    @property
    def per_token(self) -> float:
        """Mean −log p of a trained token; NaN without any."""
        return self.nll / self.tokens if self.tokens else float("nan")

    @property
    def per_sample(self) -> float:
        """Mean over rows of the mean in the row; NaN without any."""
        return self.sample_means / self.samples if self.samples else float("nan")


def nll_sums(logp_K: Tensor, sample_K: Tensor) -> NllSums:
    """Sums of one micro-batch: ``logp_K`` ``[K]`` nats, ``sample_K`` ``[K]`` the row of each.

    Raises ``DataError`` when the lengths differ.
    """
    if logp_K.shape != sample_K.shape:
        raise DataError(f"{len(logp_K)} log-probabilities for {len(sample_K)} trained tokens; expected one each")
    if not len(logp_K):
        return NllSums()
    # Upcast before the sum: 200,000 float32 values added in float32 lose the fourth digit.
    nll_K = -logp_K.detach().double()
    counts = torch.bincount(sample_K)
    per_row = torch.zeros(len(counts), dtype=torch.float64, device=nll_K.device).index_add_(0, sample_K, nll_K)
    present = counts > 0
    return NllSums(
        nll=float(nll_K.sum()),
        tokens=float(len(nll_K)),
        sample_means=float((per_row[present] / counts[present]).sum()),
        samples=float(present.sum()),
    )


def held_out_nll(
    scorer: TokenScorer, rows: Iterable[Example], *, micro_tokens: int, layout: BatchLayout, world: World = ALONE
) -> NllSums:
    """Score every row once, without dropout and without a graph; equal for any number of processes.

    Raises ``DataError`` when no token is in the loss.
    """
    total = NllSums()
    was_training = scorer.training
    scorer.eval()
    try:
        with torch.no_grad():
            for batch in held_out_batches(rows, micro_tokens, layout, world):
                total += nll_sums(scorer(batch.to(scorer.device)), batch.sample_K.to(scorer.device))
    finally:
        scorer.train(was_training)
    total = NllSums(*world.add([total.nll, total.tokens, total.sample_means, total.samples]))
    if not total.tokens:
        raise DataError("the held-out rows have no token in the loss; check data.dev")
    return total


def held_out_batches(
    rows: Iterable[Example], micro_tokens: int, layout: BatchLayout, world: World
) -> Iterator[MicroBatch]:
    """This process's micro-batches of ``rows``, on the CPU; as many in every process."""
    iterator = iter(rows)
    while window := list(islice(iterator, ROWS_AT_ONCE)):
        own: Sequence[list[Example]] = world.share(cut_step(window, micro_tokens, layout=layout, parts=world.size))
        for members in own:
            yield collate(members, layout=layout)
