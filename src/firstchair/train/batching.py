"""From examples to tensors: one optimizer step is cut into micro-batches that fit a token budget.

    packed   [1, T]   rows end to end; positions restart, attention stays inside each row (see ``attention``)
    shared   [1, T]   packed, and what rows have in common at their beginning stands once (see ``prefixes``)
    padded   [B, L]   rows of similar length side by side, padding on the right where causal attention never looks

Only the positions that predict a trained token are carried on to the LM head (``keep_K``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from firstchair.train.config import BatchLayout
from firstchair.train.examples import Example
from firstchair.train.prefixes import Segment, shared_prefixes, whole_rows

FILLER = -1
"""Key of the row in a batch without examples, which only keeps processes in step."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward pass sees. ``K`` is the number of trained tokens in it, and may be 0."""

    ids: Tensor
    """``[B, L]`` int64."""
    positions: Tensor
    """``[B, L]`` int64, from 0 in every row."""
    lengths: tuple[int, ...]
    """Tokens of each row, without padding."""
    segments: tuple[Segment, ...] | None
    """What lies where in ``ids[0]``; ``None`` when rows lie side by side."""
    keep_K: Tensor
    """``[K]`` int64: places in ``ids.flatten()`` whose next token is trained; shared ones come more than once."""
    targets_K: Tensor
    """``[K]`` int64: the trained tokens."""
    sample_K: Tensor
    """``[K]`` int64: which row each belongs to; an index into ``lengths``, ``keys`` and ``groups``."""
    keys: tuple[int, ...]
    """``Example.key`` of each row."""
    groups: tuple[int | None, ...]
    """``Example.group`` of each row."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """``Example.columns`` under the mask, each ``[K]`` float32."""

    @property
    def is_filler(self) -> bool:
        """Whether there is no example in it."""
        return self.keys == (FILLER,)

    @property
    def tokens(self) -> int:
        """Real tokens, padding not counted."""
        return sum(self.lengths)

    def to(self, device: torch.device) -> MicroBatch:
        """The same on ``device``."""
        if device.type == "cpu":
            return self
        return MicroBatch(
            ids=self.ids.to(device, non_blocking=True),
            positions=self.positions.to(device, non_blocking=True),
            lengths=self.lengths,
            segments=self.segments,
            keep_K=self.keep_K.to(device, non_blocking=True),
            targets_K=self.targets_K.to(device, non_blocking=True),
            sample_K=self.sample_K.to(device, non_blocking=True),
            keys=self.keys,
            groups=self.groups,
            columns={name: values.to(device, non_blocking=True) for name, values in self.columns.items()},
        )


def cut_step(examples: Sequence[Example], budget: int, *, layout: BatchLayout, parts: int = 1) -> list[list[Example]]:
    """Cut a step into micro-batches of at most ``budget`` tokens, padding included; their number is a multiple of
    ``parts`` (processes), the last ones empty when there are too few rows.

    Groups stay whole; a group larger than the budget gets a micro-batch of its own. Equal input gives equal cuts.
    """
    units = _units(examples)
    bins = _by_length(units, budget) if layout == "padded" else _balanced(units, budget, parts)
    bins += [[] for _ in range(-len(bins) % parts)]
    return bins


def _units(examples: Sequence[Example]) -> list[list[Example]]:
    """Examples by group, in order of first appearance; those without a group stand alone."""
    units: list[list[Example]] = []
    place: dict[int, int] = {}
    for example in examples:
        if example.group is None:
            units.append([example])
        elif example.group in place:
            units[place[example.group]].append(example)
        else:
            place[example.group] = len(units)
            units.append([example])
    return units


def _tokens(unit: Sequence[Example]) -> int:
    return sum(map(len, unit))


def _balanced(units: list[list[Example]], budget: int, parts: int) -> list[list[Example]]:
    """Longest first, each into the emptiest bin; one bin more until all fit."""
    order = sorted(range(len(units)), key=lambda index: (-_tokens(units[index]), index))
    count = max(math.ceil(sum(map(_tokens, units)) / budget), 1)
    count += -count % parts
    while True:
        loads, bins = [0] * count, [[] for _ in range(count)]  # type: tuple[list[int], list[list[int]]]
        for index in order:
            target = min(range(count), key=lambda place: (loads[place], place))
            loads[target] += _tokens(units[index])
            bins[target].append(index)
        if max(loads) <= budget or count >= len(units):
            return [[example for index in sorted(bin_) for example in units[index]] for bin_ in bins if bin_]
        count += parts


def _by_length(units: list[list[Example]], budget: int) -> list[list[Example]]:
    """Rows of similar length together, longest first."""
    order = sorted(range(len(units)), key=lambda index: (-max(map(len, units[index])), index))
    bins: list[list[Example]] = []
    width = 0
    for index in order:
        unit = units[index]
        if not bins or width * (len(bins[-1]) + len(unit)) > budget:
            bins.append([])
            width = max(map(len, unit))
        bins[-1].extend(unit)
    return bins


def collate(examples: Sequence[Example], *, layout: BatchLayout) -> MicroBatch:
    """Examples as one micro-batch on the CPU. None at all gives a batch of one untrained token (see ``cut_step``)."""
    examples = examples or [Example(np.zeros(1, np.int32), np.zeros(1, np.bool_), key=FILLER)]
    lengths = tuple(map(len, examples))
    segments: tuple[Segment, ...] | None = None
    if layout == "padded":
        longest = max(lengths)
        shape = (len(examples), longest)
        places = tuple(row * longest + np.arange(length) for row, length in enumerate(lengths))
        positions = np.tile(np.arange(longest), len(examples))
    else:
        rows = [example.ids for example in examples]
        segments, places = shared_prefixes(rows) if layout == "shared" else whole_rows(lengths)
        shape = (1, segments[-1].end)
        positions = np.zeros(shape[1], np.int64)
    ids = np.zeros(shape[0] * shape[1], np.int64)
    for place, example in zip(places, examples, strict=True):
        ids[place] = example.ids
        positions[place] = np.arange(len(example))
    trained = [np.flatnonzero(example.loss_mask) for example in examples]
    # A token is predicted at the place of the one before it in its row, which a shared beginning may hold.
    keep = [place[own - 1] for place, own in zip(places, trained, strict=True)]
    targets = [example.ids[own] for example, own in zip(examples, trained, strict=True)]
    return MicroBatch(
        ids=torch.from_numpy(ids).view(shape),
        positions=torch.from_numpy(positions).view(shape),
        lengths=lengths,
        segments=segments,
        keep_K=torch.from_numpy(np.concatenate(keep)),
        targets_K=torch.from_numpy(np.concatenate(targets).astype(np.int64)),
        sample_K=torch.from_numpy(np.repeat(np.arange(len(examples)), [len(own) for own in trained])),
        keys=tuple(example.key for example in examples),
        groups=tuple(example.group for example in examples),
        columns=_columns(examples, trained),
    )


def _columns(examples: Sequence[Example], trained: Iterable[np.ndarray]) -> dict[str, Tensor]:
    picked = list(zip(examples, trained, strict=True))
    return {
        name: torch.from_numpy(np.concatenate([example.columns[name][own] for example, own in picked]))
        for name in examples[0].columns
    }
