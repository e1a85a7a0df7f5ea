"""Models that are asked as tools: one question, one answer, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from firstchair.catalog.token_counts import TokenCounts
from firstchair.engines.base import ErrorKind


@dataclass(frozen=True)
class ExpertAnswer:
    """What an expert answered, or why it did not."""

    expert: str
    """Its name in the catalog."""
    text: str = ""
    served_model: str = ""
    """The exact model that the server says it used."""
    usage: TokenCounts = field(default_factory=TokenCounts)
    """Of all tries together."""
    cost_nano: int | None = None
    """Nano-USD of all tries together; ``None``: no price is known, which is not 0."""
    latency_s: float = 0.0
    error: str | None = None
    error_kind: ErrorKind | None = None
    """Set exactly when there is no answer. Says nothing about the expert's skill."""
    tries: int = 1
    cut: bool = False
    """The answer reached its token limit."""


@runtime_checkable
class ExpertPool(Protocol):
    """Asks experts by name; many calls are under way at once."""

    async def ask(self, expert: str, question: str) -> ExpertAnswer:
        """The answer of ``expert``. What fails is an answer with ``error``, not an exception."""
        ...

    async def close(self) -> None:
        """Release the connections: one per backend, kept between calls."""
        ...
