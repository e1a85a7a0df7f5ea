"""What the loop is fed with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from firstchair.core.errors import IntegrityError
from firstchair.data.prompt_source import EpochOrder
from firstchair.train.examples import Example


@dataclass(frozen=True, slots=True)
class Feed:
    """What the loop trains on before it asks again."""

    steps: Sequence[Sequence[Example]]
    """The examples of one optimizer step; of several where these share a batch of rollouts. A step without examples
    leaves the weights as they are."""
    cursor: int
    """Where the next feed begins."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What is to be logged with its steps: rewards, lengths, how many were left out."""
    work: int | None = None
    """How far it takes the progress bar, in ``Source.unit``; ``None``: by its tokens."""


class Source(Protocol):
    """Feeds the loop; asked in order, from the cursor on. What it needs beside the cursor to go on is its state."""

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        ...

    @property
    def total_work(self) -> int:
        """About how much the whole run is, for the progress bar."""
        ...

    @property
    def unit(self) -> str:
        """In what it is counted: ``tok``, ``rollouts``."""
        ...

    def feed(self, cursor: int) -> Feed:
        """What comes after ``cursor`` (rows, or prompts); equal cursors and states give equal examples."""
        ...

    def state(self) -> bytes:
        """What a checkpoint must keep beside the cursor; empty when that is all."""
        ...

    def restore(self, state: bytes) -> None:
        """Take up a state from a checkpoint. Raises ``IntegrityError`` when it is not one of this source."""
        ...

    def epoch(self, cursor: int) -> float:
        """How often the data was gone through by then."""
        ...


class Rows(Protocol):
    """Examples by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...

    def __iter__(self) -> Iterator[Example]: ...


class EpochSource:
    """Rows in a new random order every epoch; steps run on over the end of an epoch, so only the last may be short.

    The order of epoch e is a function of (seed, e) alone: the cursor is all that a checkpoint needs.
    """

    def __init__(
        self, rows: Rows, *, per_step: int, epochs: float, max_steps: int | None, seed: int, together: int = 1
    ):
        """``together`` rows that follow each other are drawn, counted and kept together: the sides of a pair."""
        self._rows, self._per_step, self._together = rows, per_step, together
        self._count = len(rows) // together
        self._order = EpochOrder(self._count, seed)
        self._total = per_step * max_steps if max_steps is not None else max(round(epochs * self._count), 1)

    @property
    def total_steps(self) -> int:
        """Steps until the last example."""
        return math.ceil(self._total / self._per_step)

    unit = "tok"

    @property
    def total_work(self) -> int:
        """Tokens: rows to see × mean length."""
        return round(self._total * sum(map(len, self._rows)) / self._count)

    def feed(self, cursor: int) -> Feed:
        """One step of up to ``per_step`` rows."""
        end = min(cursor + self._per_step, self._total)
        return Feed([[row for place in range(cursor, end) for row in self._at(place)]], cursor=end)

    def state(self) -> bytes:
        """The cursor is all."""
        return b""

    def restore(self, state: bytes) -> None:
        """Nothing to take up."""
        if state:
            raise IntegrityError("it holds a state of a source of rollouts; this run trains on rows of a file")

    def epoch(self, cursor: int) -> float:
        """Examples consumed / rows."""
        return cursor / self._count

    def _at(self, place: int) -> list[Example]:
        first = self._order.row(place) * self._together
        rows = [self._rows[first + side] for side in range(self._together)]
        # Named after the place: a step that runs over the end of an epoch may hold the same rows twice.
        return rows if self._together == 1 else [replace(row, group=place) for row in rows]
