"""A causal language model as the trainer sees it: log-probabilities of the trained tokens, and nothing else computed.

The backbone runs over all tokens; the LM head only over the places that predict a trained token. Everything goes
through ``forward``, so that wrappers for many processes see one module.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from firstchair.train.batching import MicroBatch
from firstchair.train.prefixes import Segment

Score = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""``(head, hidden [K, H], targets [K])`` to values whose last axis is K."""

HEAD_CHUNK_ELEMENTS = 1 << 26
"""Logits computed at once (tokens × vocabulary), 256 MB in float32; more is cut, and recomputed going backwards."""


class TokenScorer(nn.Module):
    """Scores tokens with ``model`` (a transformers causal LM, bare or wrapped by PEFT)."""

    def __init__(self, model: Any, *, autocast: torch.dtype | None = None, chunk_elements: int = HEAD_CHUNK_ELEMENTS):
        """``autocast``: matrices are multiplied in this type; ``None`` computes in the type of the weights."""
        super().__init__()
        self.model = model
        self.autocast = autocast
        self.chunk_elements = chunk_elements

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def causal_lm(self) -> Any:
        """The transformers model itself; adapters live inside its layers."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def head(self) -> nn.Module:
        """The module from hidden states to logits."""
        module = self.causal_lm.get_output_embeddings()
        assert isinstance(module, nn.Module)
        return module

    def precision(self) -> AbstractContextManager[None]:
        """The context in which forward passes run."""
        return torch.autocast(
            self.device.type, dtype=self.autocast or torch.bfloat16, enabled=self.autocast is not None
        )

    @property
    def rounds_shapes(self) -> bool:
        """Whether batches are filled up to one of few sizes.

        Half precision on a CPU goes through oneDNN, which compiles and keeps a kernel for every shape it meets: with
        a new length at every step a run slows to less than 60% within 600 steps, and its memory grows by gigabytes.
        """
        half = self.autocast is not None or next(self.parameters()).dtype != torch.float32
        return half and self.device.type == "cpu"

    def hidden(self, batch: MicroBatch, keep_K: Tensor) -> Tensor:
        """Last hidden states at the places ``keep_K`` of ``batch.ids.flatten()``, ``[K, H]``."""
        length = batch.ids.shape[1]
        spare = spare_places(length) if self.rounds_shapes else 0
        ids, positions = (functional.pad(tensor, (0, spare)) for tensor in (batch.ids, batch.positions))
        rows = {}
        if batch.segments is not None:
            filler = (Segment(length, length + spare, length + spare),) if spare else ()
            rows["segments"] = (*batch.segments, *filler)
        out = self.causal_lm.base_model(input_ids=ids, position_ids=positions, use_cache=False, **rows)
        states: Tensor = out.last_hidden_state[:, :length].flatten(0, 1)
        return states[keep_K]

    def logprobs_and_entropy(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """For every trained token its log-probability and the entropy of its distribution: both ``[K]``, nats."""
        logp_K, entropy_K = self(batch, score=token_logprobs_and_entropy)
        return logp_K, entropy_K

    def forward(self, batch: MicroBatch, score: Score | None = None) -> Tensor:
        """Log-probability of every trained token at temperature 1: ``[K]`` float32, nats. ``score`` asks for more."""
        score = score or token_logprobs
        count = len(batch.keep_K)
        spare = spare_places(count) if self.rounds_shapes else 0
        keep_K, targets_K = (functional.pad(tensor, (0, spare)) for tensor in (batch.keep_K, batch.targets_K))
        with self.precision():
            hidden = self.hidden(batch, keep_K)
            rows = max(self.chunk_elements // self.head_width, 1)
            if len(hidden) <= rows:
                return score(self.head, hidden, targets_K)[..., :count]
            pieces = zip(torch.split(hidden, rows), torch.split(targets_K, rows), strict=True)
            return torch.cat(
                [checkpoint(score, self.head, piece, targets, use_reentrant=False) for piece, targets in pieces],
                dim=-1,
            )[..., :count]

    @property
    def head_width(self) -> int:
        """Logits of one position."""
        return int(self.causal_lm.config.get_text_config().vocab_size)


def spare_places(count: int) -> int:
    """Places to add to ``count`` so that few different sizes occur: at most a sixteenth, 16 sizes an octave."""
    return -count % (1 << max(count.bit_length() - 5, 0))


def token_logprobs(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    """``log softmax(head(hidden))[targets]``: ``hidden`` ``[K, H]``, ``targets`` ``[K]`` int64; ``[K]`` float32."""
    logits: Tensor = head(hidden)
    return -functional.cross_entropy(logits.float(), targets, reduction="none")


def token_logprobs_and_entropy(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    """``[2, K]`` float32: what ``token_logprobs`` gives, and −Σ p log p over the vocabulary, in nats."""
    log_p = head(hidden).float().log_softmax(-1)
    return torch.stack([log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)])
