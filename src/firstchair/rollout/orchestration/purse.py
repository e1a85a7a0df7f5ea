"""What one rollout may spend."""

from __future__ import annotations

import asyncio


class Purse:
    """A budget in nano-USD, above 0, and what is left of it.

    Who spends holds ``turn`` from the look at ``is_empty`` to ``take``: calls come one after the other, so that only
    the last one can cost more than there was.
    """

    def __init__(self, budget_nano: int):
        self.left_nano = budget_nano
        """Below 0 when the last call cost more than there was."""
        self.turn = asyncio.Lock()
        self._is_unknown = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing may be spent any more."""
        return self._is_unknown or self.left_nano <= 0

    def take(self, cost_nano: int | None) -> None:
        """Pay. After ``None``, a cost that is not known, nobody can tell what is left: that empties it."""
        if cost_nano is None:
            self._is_unknown = True
        else:
            self.left_nano -= cost_nano
