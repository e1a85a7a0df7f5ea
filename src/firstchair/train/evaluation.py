"""What the loop measures on held-out rows, between steps: at the start, every so many steps and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from firstchair.core.errors import DataError
from firstchair.train.config import BatchLayout
from firstchair.train.dist import World
from firstchair.train.examples import Example
from firstchair.train.nll import held_out_batches, held_out_nll
from firstchair.train.objective import Objective
from firstchair.train.scorer import TokenScorer


class Evaluation(Protocol):
    """Measures the model as it stands; leaves it as it was."""

    def __call__(self, scorer: TokenScorer, world: World) -> Mapping[str, float]:
        """Figures by name, equal for any cut into micro-batches and any number of processes."""
        ...


@dataclass(frozen=True, slots=True)
class HeldOutNll:
    """The loss of held-out records, whatever is trained for."""

    rows: Iterable[Example]
    micro_tokens: int
    layout: BatchLayout

    def __call__(self, scorer: TokenScorer, world: World) -> Mapping[str, float]:
        """``nll`` of a token and ``nll_sample_mean``, in nats, and what they are means of."""
        nll = held_out_nll(scorer, self.rows, micro_tokens=self.micro_tokens, layout=self.layout, world=world)
        return {
            "nll": nll.per_token,
            "nll_sample_mean": nll.per_sample,
            "tokens": int(nll.tokens),
            "samples": int(nll.samples),
        }


@dataclass(frozen=True, slots=True)
class HeldOutObjective:
    """What the objective itself says of held-out rows: its loss and its metrics, as in a step of training."""

    objective: Objective
    rows: Iterable[Example]
    """Groups lie together, and 256 rows never end inside one."""
    micro_tokens: int
    layout: BatchLayout

    def __call__(self, scorer: TokenScorer, world: World) -> Mapping[str, float]:
        """``loss``, the metrics, and ``weight``: what the loss is a mean of. Without dropout and without a graph.

        Raises ``DataError`` when the rows have no weight.
        """
        loss, weight = 0.0, 0.0
        sums: dict[str, list[float]] = {}
        was_training = scorer.training
        scorer.eval()
        try:
            with torch.no_grad():
                for raw in held_out_batches(self.rows, self.micro_tokens, self.layout, world):
                    (batch,) = self.objective.prepare([raw.to(scorer.device)], scorer)
                    terms = self.objective.loss(scorer, batch)
                    weight += self.objective.weight(batch)
                    loss += float(terms.numerator)
                    for name, (total, count) in terms.sums.items():
                        pair = sums.setdefault(name, [0.0, 0.0])
                        pair[0] += float(total)
                        pair[1] += count
        finally:
            scorer.train(was_training)
        names = sorted(sums)
        loss, weight, *pairs = world.add([loss, weight, *(value for name in names for value in sums[name])])
        if not weight:
            raise DataError("nothing in the held-out rows counts in the loss; check data.dev")
        counted = {name: (pairs[2 * place], pairs[2 * place + 1]) for place, name in enumerate(names)}
        means = {name: total / count for name, (total, count) in counted.items() if count}
        return {"loss": loss / weight, **means, "weight": weight}
