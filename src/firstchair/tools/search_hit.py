"""What a search finds, whatever finds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from firstchair.core.errors import UpstreamError


@dataclass(frozen=True)
class Hit:
    """One result."""

    title: str
    url: str
    """Of a page; ``path:line`` in local files."""
    text: str
    score: float | None = None
    """As the backend counts it, higher is better; ``None`` where it gives none."""


class SearchBackend(Protocol):
    """Where ``web_search`` looks."""

    async def search(self, query: str, limit: int) -> Sequence[Hit]:
        """The best hits, best first; none when nothing fits.

        Raises ``UpstreamError`` when the backend failed, ``ToolFailed`` when it refused the query.
        """
        ...

    async def close(self) -> None:
        """Release what is held."""
        ...


def read_results(answer: dict[str, Any], name: str, limit: int) -> tuple[Hit, ...]:
    """The first ``limit`` of ``{"results": [{title, url, content, score}, …]}``, as Tavily and SearXNG both answer.

    Raises ``UpstreamError``, naming ``name``, for another form.
    """
    results = answer.get("results")
    if not isinstance(results, list) or not all(isinstance(one, dict) for one in results):
        raise UpstreamError(f"{name}: the answer has no list of results; found the fields {sorted(answer)}")
    return tuple(map(_hit, results[:limit]))


def _hit(one: dict[str, Any]) -> Hit:
    title, url, text = (str(one.get(name) or "") for name in ("title", "url", "content"))
    score = one.get("score")
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    return Hit(title, url, text, float(score) if is_number and score is not None else None)
