"""Can this model be packed? Asked of the model itself, before training, on a few random rows.

Models that carry state from token to token (state-space layers, short convolutions) leak it over the border between
two packed rows, silently. The same question tells whether hidden states at chosen places and the LM head alone give
the log-probabilities that the model's own forward pass gives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from firstchair.core.errors import ConfigError
from firstchair.train.batching import collate
from firstchair.train.config import BatchLayout, Layout
from firstchair.train.examples import Example
from firstchair.train.prefixes import SHORTEST
from firstchair.train.scorer import TokenScorer

PROBE_LENGTHS = (9, SHORTEST + 5, SHORTEST + 3)
EXACT_NATS, ROUGH_NATS = 2e-3, 0.15
"""How far two ways to compute the same log-probability may lie apart, in float32 and in half precision."""
ROUGH_SHARE = 2.0**-6
"""In half precision also this share of the largest logit: a few of bfloat16's roundings (2⁻⁸) at that size. On random
ids a trained model of 30 layers has logits of 30 and differs by 0.2; a row that sees another one differs by nats."""


def choose_layout(scorer: TokenScorer, wanted: Layout) -> BatchLayout:
    """How batches are laid out. ``auto`` takes the first of shared, packed and padded that scores rows as they score
    alone; shared on a CPU only, whose kernels gain by it.

    Raises ``ConfigError`` when the layout that is asked for leaks, or when the model's scores cannot be reproduced.
    """
    examples = probe_examples(scorer.head_width)
    own, largest = _own_scores(scorer, examples)
    exact = next(scorer.parameters()).dtype == torch.float32
    tolerance = EXACT_NATS if exact else max(ROUGH_NATS, ROUGH_SHARE * largest)

    def leak(layout: BatchLayout) -> str | None:
        """By how much the scores differ; ``None``: by no more than rounding does."""
        found = _difference(scorer, examples, own, layout)
        return None if found is not None and found <= tolerance else str(found or "an error")

    name = type(scorer.causal_lm).__name__
    if (found := leak("padded")) is not None:
        raise ConfigError(
            f"model: {name}: scores from its backbone and LM head differ from its own forward pass by {found}; "
            "this architecture cannot be trained here"
        )
    if wanted == "auto":
        tried: tuple[BatchLayout, ...] = ("shared", "packed") if scorer.device.type == "cpu" else ("packed",)
        return next((layout for layout in tried if leak(layout) is None), "padded")
    if (found := leak(wanted)) is not None:
        raise ConfigError(
            f"batch.layout: found {wanted}, but rows of {name} see each other when packed (log-probabilities differ "
            f"by {found}); set batch.layout=padded"
        )
    return wanted


def probe_examples(vocab_size: int) -> list[Example]:
    """Rows of random ids, everything but the first token trained; the last two begin alike."""
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, vocab_size, length).astype(np.int32) for length in PROBE_LENGTHS]
    rows[-1][:SHORTEST] = rows[-2][:SHORTEST]
    return [Example(ids, np.arange(len(ids)) > 0) for ids in rows]


def reference_logprobs(scorer: TokenScorer, examples: Sequence[Example]) -> Tensor:
    """Log-probabilities of trained tokens by the model's own forward pass, row by row: ``[K]`` float32, no graph."""
    return _own_scores(scorer, examples)[0]


def _own_scores(scorer: TokenScorer, examples: Sequence[Example]) -> tuple[Tensor, float]:
    """``reference_logprobs``, and the largest logit (absolute)."""
    found, largest = [], 0.0
    with torch.no_grad(), _Evaluating(scorer):
        for example in examples:
            ids = torch.from_numpy(example.ids.astype(np.int64))[None].to(scorer.device)
            logits = scorer.model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            largest = max(largest, float(logits.abs().max()))
            mask = torch.from_numpy(example.loss_mask[1:]).to(scorer.device)
            found.append(logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0][mask])
    return torch.cat(found), largest


def _difference(scorer: TokenScorer, examples: Sequence[Example], own: Tensor, layout: BatchLayout) -> float | None:
    """Largest difference from ``own``; ``None`` when the model refuses the layout."""
    try:
        with torch.no_grad(), _Evaluating(scorer):
            scores = scorer(collate(examples, layout=layout).to(scorer.device))
    except (NotImplementedError, TypeError):
        return None
    return float((scores - own).abs().max())


class _Evaluating:
    """Evaluation mode and full precision within the block, what was before after it."""

    def __init__(self, scorer: TokenScorer):
        self.scorer, self.training, self.autocast = scorer, scorer.training, scorer.autocast

    def __enter__(self) -> None:
        self.scorer.eval()
        self.scorer.autocast = None

    def __exit__(self, *error: object) -> None:
        self.scorer.train(self.training)
        self.scorer.autocast = self.autocast
