"""Which examples an optimizer step sees."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from firstchair.train.examples import Example


class StepSource(Protocol):
    """Feeds the loop; asked once per step, in order, from the cursor on."""

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        ...

    @property
    def total_tokens(self) -> int:
        """About how many tokens the whole run sees, for the progress bar."""
        ...

    def examples(self, cursor: int) -> Sequence[Example]:
        """The examples of the step that begins after ``cursor`` examples; equal cursors give equal examples."""
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

    def __init__(self, rows: Rows, *, per_step: int, epochs: float, max_steps: int | None, seed: int):
        self._rows, self._per_step, self._seed = rows, per_step, seed
        self._total = per_step * max_steps if max_steps is not None else max(round(epochs * len(rows)), 1)
        self._order: tuple[int, NDArray[np.int64]] | None = None

    @property
    def total_steps(self) -> int:
        """Steps until the last example."""
        return math.ceil(self._total / self._per_step)

    @property
    def total_tokens(self) -> int:
        """Rows to see × mean length."""
        return round(self._total * sum(map(len, self._rows)) / len(self._rows))

    def examples(self, cursor: int) -> list[Example]:
        """Up to ``per_step`` rows."""
        return [self._row(place) for place in range(cursor, min(cursor + self._per_step, self._total))]

    def epoch(self, cursor: int) -> float:
        """Examples consumed / rows."""
        return cursor / len(self._rows)

    def _row(self, place: int) -> Example:
        epoch, offset = divmod(place, len(self._rows))
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng((self._seed, epoch)).permutation(len(self._rows)))
        return self._rows[int(self._order[1][offset])]
