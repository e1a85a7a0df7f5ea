"""Direct preference optimisation on the one training loop: two replies to one prompt, one of them better.

The two examples of a pair share ``Example.group``. Column ``chosen`` is 1 at every token of the better reply and 0 at
every token of the other; column ``reference``, the reference's log-probabilities, is completed by ``prepare``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from firstchair.core.errors import DataError
from firstchair.train.batching import MicroBatch
from firstchair.train.columns import column, row_values
from firstchair.train.objective import LossTerms
from firstchair.train.reduction import row_means, row_sums
from firstchair.train.reference import Reference, with_reference
from firstchair.train.rl_config import Dpo, PreferenceLoss
from firstchair.train.scorer import TokenScorer


def preference_loss(h_P: Tensor, *, loss: PreferenceLoss, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """The loss of each pair, ``[P]``, where ``h = log π(chosen)/ref(chosen) − log π(rejected)/ref(rejected)``.

    ``sigmoid``: ``−(1 − ε)·log σ(βh) − ε·log σ(−βh)`` (Rafailov et al. 2023, eq. 7; with label smoothing ε the
    conservative form of Mitchell's note of 2023). ``ipo``: ``(h − 1/(2β))²`` (Azar et al. 2023, eq. 17, τ = β).
    """
    if loss == "ipo":
        return (h_P - 1 / (2 * beta)).square()
    right, wrong = functional.logsigmoid(beta * h_P), functional.logsigmoid(-beta * h_P)
    return -(1 - label_smoothing) * right - label_smoothing * wrong


@dataclass(frozen=True, slots=True)
class DpoObjective:
    """Prefer the chosen reply to the rejected one, more than the reference does."""

    settings: Dpo
    reference: Reference | None = None
    """Needed unless the examples have the column."""
    name: str = "dpo"

    def prepare(self, step: Sequence[MicroBatch], scorer: TokenScorer) -> Sequence[MicroBatch]:
        """Add the reference's log-probabilities where they are missing.

        Raises ``DataError`` when a group is not one chosen and one rejected row, ``ConfigError`` without a reference.
        """
        return [self._complete(batch, scorer) for batch in step]

    def weight(self, batch: MicroBatch) -> float:
        """Pairs of which both sides have a trained token."""
        return float(len(_pairs(batch)))

    def loss(self, scorer: TokenScorer, batch: MicroBatch) -> LossTerms:
        """Sum over pairs, and how the policy ranks them. A pair with a side without trained tokens is left out."""
        logp_K = scorer(batch)
        rows = len(batch.keys)
        chosen, rejected = torch.tensor(_pairs(batch), dtype=torch.long, device=batch.sample_K.device).view(-1, 2).T
        per_row = row_means if self.settings.length_normalised else row_sums
        gain = per_row(logp_K - column(batch, "reference"), batch.sample_K, rows)
        h_P = gain[chosen] - gain[rejected]
        settings = self.settings
        losses_P = preference_loss(
            h_P, loss=settings.loss, beta=settings.beta, label_smoothing=settings.label_smoothing
        )
        logp = row_sums(logp_K.detach(), batch.sample_K, rows)
        metrics = {
            "accuracy": (h_P > 0).double() + (h_P == 0).double() / 2,
            "margin": settings.beta * h_P,
            "chosen_logp": logp[chosen],
            "rejected_logp": logp[rejected],
        }
        count = float(len(h_P))
        sums = {name: (values.detach().double().sum(), count) for name, values in metrics.items()}
        pairs = sum(group is not None for group in batch.groups) / 2
        sums["left_out"] = (torch.tensor(pairs - count, dtype=torch.float64), pairs)
        return LossTerms(losses_P.sum(), sums)

    def _complete(self, batch: MicroBatch, scorer: TokenScorer) -> MicroBatch:
        _pairs(batch)
        return with_reference(batch, scorer, self.reference)


def _pairs(batch: MicroBatch) -> list[tuple[int, int]]:
    """Rows (chosen, rejected) of every pair of which both sides have a trained token, in order of appearance."""
    members: dict[int, list[int]] = {}
    for row, group in enumerate(batch.groups):
        if group is None and not batch.is_filler:
            raise DataError(f"row {batch.keys[row]}: no group, which is what ties it to its pair", field="group")
        if group is not None:
            members.setdefault(group, []).append(row)
    sides = row_values(batch, "chosen")
    pairs = []
    for group, rows in members.items():
        found = sorted((side for row in rows if (side := sides[row]) is not None), reverse=True)
        if len(rows) != 2 or found not in ([], [0.0], [1.0], [1.0, 0.0]):
            raise DataError(
                f"group {group}: {len(rows)} rows with {found}; expected one with 1 and one with 0", field="chosen"
            )
        if len(found) == 2:
            first, second = rows
            pairs.append((first, second) if sides[first] else (second, first))
    return pairs
