"""The record that every training method feeds to the trainer: one token stream and what is known about its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from firstchair.core.errors import DataError


@dataclass(frozen=True, slots=True)
class Example:
    """One token stream. All arrays have the length of ``ids``."""

    ids: NDArray[np.int32]
    """``[n]``."""
    loss_mask: NDArray[np.bool_]
    """``[n]``; True where the token is predicted in the loss. The first token has nothing to be predicted from."""
    columns: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Per-token values by name, each ``[n]`` (behaviour log-probabilities, advantages); read only under the mask."""
    key: int = 0
    """Which row of the data set it is, for messages and for order."""
    group: int | None = None
    """Examples with one group stay in one micro-batch (both sides of a preference pair)."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trained_tokens(self) -> int:
        """How many tokens are in the loss."""
        return int(np.count_nonzero(self.loss_mask))

    def validate(self, *, vocab_size: int) -> None:
        """Raise ``DataError`` when lengths differ, an id is outside the vocabulary or the first token is trained."""
        lengths = {"loss_mask": len(self.loss_mask), **{name: len(values) for name, values in self.columns.items()}}
        for name, length in lengths.items():
            if length != len(self.ids):
                raise DataError(f"{length} values for {len(self.ids)} tokens; expected one each", field=name)
        if not len(self.ids):
            raise DataError("no tokens", field="ids")
        low, high = int(self.ids.min()), int(self.ids.max())
        if low < 0 or high >= vocab_size:
            raise DataError(
                f"ids span {low}..{high}; the model knows {vocab_size} tokens: is this its tokenizer?", field="ids"
            )
        if self.loss_mask[0]:
            raise DataError(
                "the first token is in the loss, and nothing stands before it to predict it", field="loss_mask"
            )
