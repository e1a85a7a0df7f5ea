"""Calls per minute, as an even pace."""

from __future__ import annotations

import asyncio


class Pace:
    """Spaces calls evenly at ``per_minute``; ``None`` lets all through at once."""

    def __init__(self, per_minute: float | None):
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0

    async def turn(self) -> None:
        """Wait until the next call is due."""
        if not self._gap:
            return
        now = asyncio.get_running_loop().time()
        due = max(now, self._next)
        self._next = due + self._gap
        await asyncio.sleep(due - now)
