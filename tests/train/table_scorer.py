"""Rollouts and pairs without a model: a table of log-probabilities that scores batches as a policy would."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from firstchair.train.batching import MicroBatch, collate
from firstchair.train.examples import Example


class TableScorer(nn.Module):
    """Row ``key`` of the table holds the log-probabilities of the trained tokens of the example with that key."""

    def __init__(self, logp: Sequence[Sequence[float]], entropy: Sequence[Sequence[float]] | None = None):
        super().__init__()
        self.logp = nn.Parameter(padded(logp))
        self.entropy = nn.Parameter(padded(entropy if entropy is not None else logp))
        self.calls = 0

    def places(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        rows = batch.sample_K.tolist()
        within = [rows[:place].count(row) for place, row in enumerate(rows)]
        keys = [batch.keys[row] for row in rows]
        return torch.tensor(keys, dtype=torch.long), torch.tensor(within, dtype=torch.long)

    def forward(self, batch: MicroBatch) -> Tensor:
        self.calls += 1
        return self.logp[self.places(batch)]


class EntropyTable(TableScorer):
    """One that knows entropies too."""

    def logprobs_and_entropy(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        return self(batch), self.entropy[self.places(batch)]


def padded(rows: Sequence[Sequence[float]]) -> Tensor:
    """``[rows, longest]`` float64, at least one wide."""
    table = torch.zeros(max(len(rows), 1), max([1, *map(len, rows)]), dtype=torch.float64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return table


def example(key: int, columns: Mapping[str, Sequence[float]], *, trained: int, group: int | None = None) -> Example:
    """One untrained token, then ``trained`` ones with the values of ``columns``."""
    mask = np.arange(trained + 1) > 0
    values = {name: np.array([0.0, *column], np.float32) for name, column in columns.items()}
    return Example(np.zeros(trained + 1, np.int32), mask, values, key=key, group=group)


def cut(examples: Sequence[Example], sizes: Sequence[int]) -> list[MicroBatch]:
    """Micro-batches of so many rows each; 0 makes one without any."""
    batches, first = [], 0
    for size in sizes:
        batches.append(collate(examples[first : first + size], layout="padded"))
        first += size
    assert first == len(examples)
    return batches


def run_step(objective, scorer: TableScorer, batches: Sequence[MicroBatch]):
    """What the loop makes of a step: loss, gradient of the table, metrics."""
    scorer.zero_grad()
    batches = objective.prepare(batches, scorer)
    denominator = sum(objective.weight(batch) for batch in batches) or 1.0
    loss, sums = 0.0, {}
    for batch in batches:
        terms = objective.loss(scorer, batch)
        (terms.numerator / denominator).backward()
        loss += float(terms.numerator.detach()) / denominator
        for name, (total, count) in terms.sums.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + float(total), before[1] + count)
    means = {name: total / count if count else float("nan") for name, (total, count) in sums.items()}
    return loss, scorer.logp.grad.clone(), means
