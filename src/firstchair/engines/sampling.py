"""Choosing the next token: greedy, or by each request's own random draws.

A request's draws come from its own generator and are used one for one position, so that what it samples does
not depend on who shares its batch. Log-probabilities are raw: of the model's distribution at temperature 1,
before temperature, top-k, top-p and grammar masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from firstchair.engines.base import Sampling


def draw_uniforms(sampling: Sampling, count: int) -> list[float]:
    """``count`` draws in [0, 1), none for greedy. Equal seeds give equal draws; ``None`` a fresh seed."""
    if sampling.temperature == 0:
        return []
    generator = torch.Generator()
    if sampling.seed is None:
        generator.seed()
    else:
        generator.manual_seed(sampling.seed)
    draws: list[float] = torch.rand(count, generator=generator, dtype=torch.float64).tolist()
    return draws


class Sampler:
    """The settings of a batch's rows as tensors."""

    def __init__(self, samplings: Sequence[Sampling], device: torch.device):
        self.hot = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
        """Rows that sample; the others are greedy."""
        hot = [samplings[row] for row in self.hot]
        self._device = device
        self._rows = torch.tensor(self.hot, dtype=torch.long, device=device)
        self._temperature = torch.tensor([s.temperature for s in hot], dtype=torch.float64, device=device)
        self._top_p = torch.tensor([s.top_p for s in hot], dtype=torch.float64, device=device)
        self._top_k = torch.tensor([s.top_k for s in hot], dtype=torch.long, device=device)
        self._restricted = any(s.top_p < 1 or s.top_k > 0 for s in hot)

    def choose(
        self, logits: Tensor, uniforms: Sequence[float], allowed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tokens ``[rows]`` and their raw log-probabilities ``[rows]`` (float32, nats).

        ``logits`` is ``[rows, vocabulary]``; ``uniforms`` holds one draw per row of ``hot``; ``allowed`` (bool,
        like ``logits``) limits the choice but not the log-probability.
        """
        logits = logits.float()
        masked = logits if allowed is None else logits.masked_fill(~allowed, float("-inf"))
        tokens = masked.argmax(dim=-1)
        if self.hot:
            draws = torch.tensor(list(uniforms), dtype=torch.float64, device=self._device)
            tokens[self._rows] = self._sample(masked[self._rows], draws)
        return tokens, logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)

    def _sample(self, logits: Tensor, draws: Tensor) -> Tensor:
        # Inverse of the cumulative distribution, in float64: 24 bits would never reach rare tokens.
        probabilities = torch.softmax(logits.double() / self._temperature[:, None], dim=-1)
        order: Tensor | None = None
        if self._restricted:
            probabilities, order = probabilities.sort(dim=-1, descending=True, stable=True)
            before = probabilities.cumsum(dim=-1) - probabilities
            rank = torch.arange(logits.shape[-1], device=logits.device)[None]
            top_k = torch.where(self._top_k > 0, self._top_k, logits.shape[-1])[:, None]
            kept = (before < self._top_p[:, None]) & (rank < top_k)
            probabilities = probabilities * kept
        cumulative = probabilities.cumsum(dim=-1)
        total = cumulative[:, -1:]
        place = torch.searchsorted(cumulative, draws[:, None] * total, right=True)[:, 0]
        # A draw so near to 1 that the product rounds up to the total must still name a possible token.
        place = torch.minimum(place, (cumulative < total).sum(dim=-1))
        return place if order is None else order.gather(1, place[:, None])[:, 0]
