"""Preference pairs as rows: both sides of pair i are rows 2i (chosen) and 2i + 1 (rejected)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firstchair.chat.renderer import Renderer
from firstchair.chat.token_conversation import TokenConversation
from firstchair.core.errors import DataError
from firstchair.data.pairs import check_pairs_file, pair_from_row
from firstchair.train.examples import Example
from firstchair.train.fitting import Fit
from firstchair.train.token_sets import TokenSet, TokenSource
from firstchair.train.tokenising import Row, row_of


@dataclass(frozen=True, slots=True)
class PairLines:
    """Preference pairs: a row for each side, the prompt and then its action, which alone is trained."""

    def check(self, path: Path) -> None:
        """Against its manifest, where one lies beside it."""
        check_pairs_file(path)

    def render(
        self, line: dict[str, Any], default_id: str, renderer: Renderer, source: TokenSource
    ) -> Sequence[TokenConversation]:
        """Chosen, rejected."""
        pair = pair_from_row(line, default_id=default_id)
        flags = (*(False for _ in pair.messages), True)
        return [
            stream
            for side in (pair.chosen, pair.rejected)
            for stream in renderer.segments((*pair.messages, side), pair.tools, flags, source.history)
        ]

    def rows(self, streams: Sequence[TokenConversation], source: TokenSource) -> list[Row]:
        """Both sides, or neither when one is too long under ``skip``."""
        chosen, rejected = streams
        if chosen.ids == rejected.ids:
            raise DataError("both sides are the same tokens, so nothing to prefer; remove the pair", field="rejected")
        sides = []
        for name, stream in (("chosen", chosen), ("rejected", rejected)):
            try:
                sides.append(row_of(stream, source, instead="skip"))
            except DataError as error:
                raise DataError(error.reason, field=name) from None
        if all(side.fit is Fit.WHOLE for side in sides):
            return sides
        return [Row(Fit.SKIPPED, side.ids[:0], side.loss_mask[:0], side.full_length) for side in sides]


class PairRows:
    """The sides of pairs as examples: column ``chosen`` says which is which, ``group`` ties the two together."""

    def __init__(self, rows: TokenSet):
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Example:
        row = self._rows[index]
        chosen = np.full(len(row), float(index % 2 == 0), np.float32)
        return Example(row.ids, row.loss_mask, {"chosen": chosen}, key=index, group=index // 2)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))
