"""An audit of one source, or of two against each other, with the text that the pairs share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from firstchair.core.progress import Progress, progress
from firstchair.data.near_duplicates import leaks, near_duplicates, with_shared_text
from firstchair.data.similarity import Pair, Shingles, shingles
from firstchair.data.sources import conversation_texts

Item = TypeVar("Item")

MAX_SHARED_TEXTS = 1000
"""Texts are read again and compared word by word for this many pairs, the most similar first."""


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found."""

    threshold: float
    left: int
    """Conversations on the left."""
    right: int = 0
    """Conversations on the right; 0 for an audit of one source."""
    pairs: tuple[Pair, ...] = ()
    """``left`` and ``right`` are ids; inside one source ``left`` is the earlier one."""


def audit_sources(left: str, right: str, threshold: float) -> Audit:
    """Compare ``left`` with ``right``, or with itself when ``right`` is empty. Only shingles are kept in memory."""
    own = _shingled(left)
    other = _shingled(right) if right else []
    with progress("audit", len(own) + len(other), unit="sessions") as bar:
        pairs = leaks(own, other, threshold, bar=bar) if right else near_duplicates(own, threshold, bar=bar)
    pairs.sort(key=lambda pair: (-pair.similarity, pair.left, pair.right))
    shown = _with_texts(pairs[:MAX_SHARED_TEXTS], left, right or left)
    return Audit(threshold=threshold, left=len(own), right=len(other), pairs=(*shown, *pairs[MAX_SHARED_TEXTS:]))


def _shingled(where: str) -> list[tuple[str, Shingles]]:
    with progress(f"read {where}", 0, unit="sessions") as bar:
        return [(key, shingles(text)) for key, text in _counted(conversation_texts(where), bar)]


def _counted(items: Iterator[Item], bar: Progress) -> Iterator[Item]:
    for item in items:
        yield item
        bar.advance()


def _with_texts(pairs: list[Pair], left: str, right: str) -> list[Pair]:
    if not pairs:
        return []
    wanted = ({pair.left for pair in pairs}, {pair.right for pair in pairs})
    texts = [
        {key: text for key, text in conversation_texts(where) if key in keys}
        for where, keys in zip((left, right), wanted, strict=True)
    ]
    return with_shared_text(pairs, texts[0].__getitem__, texts[1].__getitem__)
