"""Near-duplicates inside a set, and leakage between two: MinHash-LSH proposes, exact Jaccard decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from datasketch import MinHash, MinHashLSH

from firstchair.core.errors import ConfigError
from firstchair.core.progress import Progress, Silent
from firstchair.data.sft import BRANCH
from firstchair.data.similarity import (
    THRESHOLD,
    Pair,
    Shingles,
    conversation_text,
    jaccard,
    shared_text,
    text_shingles,
)
from firstchair.traces.session import Session

NUM_PERM = 192
MAX_MISS = 0.002
"""The largest chance that a pair exactly at the threshold is not proposed; it falls quickly above."""


def bands_for(threshold: float) -> tuple[int, int]:
    """Bands b and rows r for LSH: the most rows (fewest false proposals) that still find pairs at ``threshold``.

    A pair of similarity s is proposed with probability 1 − (1 − s^r)^b. At 0.6: b 48, r 4, found with 0.9987; at 0.7
    0.99999, and a pair at 0.2 is proposed with 0.07. Raises ``ConfigError`` for a threshold outside 0.1 to 1.
    """
    if not 0.1 <= threshold <= 1:
        raise ConfigError(f"similarity threshold: found {threshold}; expected 0.1 to 1")
    rows = max(rows for rows in range(1, 33) if (1 - threshold**rows) ** (NUM_PERM // rows) <= MAX_MISS)
    return NUM_PERM // rows, rows


class _Index:
    """The sessions seen so far, and which of them a new one resembles."""

    def __init__(self, threshold: float):
        self.threshold = threshold
        self.sets: list[tuple[str, Shingles]] = []
        self.lsh = MinHashLSH(threshold=threshold, num_perm=NUM_PERM, params=bands_for(threshold))
        self.blank = MinHash(num_perm=NUM_PERM, hashfunc=int)

    def signature(self, own: Shingles) -> MinHash:
        sketch = self.blank.copy()
        # MinHash wants 32-bit hashes; the low half of a mixed 64-bit hash is one.
        sketch.update_batch((own & 0xFFFFFFFF).tolist())
        return sketch

    def add(self, session_id: str, own: Shingles, sketch: MinHash | None = None) -> None:
        if len(own):
            self.lsh.insert(len(self.sets), self.signature(own) if sketch is None else sketch)
        self.sets.append((session_id, own))

    def matches(self, own: Shingles, sketch: MinHash | None = None) -> Iterator[tuple[str, float]]:
        """Earlier sessions whose exact similarity reaches the threshold, in their order."""
        if not len(own):
            return
        for place in sorted(self.lsh.query(self.signature(own) if sketch is None else sketch)):
            session_id, other = self.sets[place]
            # |A ∩ B| ≤ min and |A ∪ B| ≥ max, so sizes alone can rule a pair out.
            if min(len(own), len(other)) < self.threshold * max(len(own), len(other)):
                continue
            similarity = jaccard(own, other)
            if similarity >= self.threshold:
                yield session_id, similarity


def session_of_record(record_id: str) -> str:
    """The session that an SFT record is of: ``s`` for ``s``, and for ``s:3#gold``, its branch at decision 3."""
    branch = record_id.removesuffix(BRANCH)
    return record_id if branch == record_id else branch.rpartition(":")[0]


def near_duplicates(
    sets: Iterable[tuple[str, Shingles]], threshold: float = THRESHOLD, *, bar: Progress | None = None
) -> list[Pair]:
    """Pairs inside one set, each once: ``left`` is the earlier session.

    A session and the training records that branch off it are no pair: they share their beginning by design.
    """
    bar = bar or Silent()
    index, pairs = _Index(threshold), []
    for session_id, own in sets:
        sketch = index.signature(own)
        pairs += [
            Pair(left=other, right=session_id, similarity=s)
            for other, s in index.matches(own, sketch)
            if session_of_record(other) != session_of_record(session_id)
        ]
        index.add(session_id, own, sketch)
        bar.advance()
    return pairs


def leaks(
    left: Iterable[tuple[str, Shingles]],
    right: Iterable[tuple[str, Shingles]],
    threshold: float = THRESHOLD,
    *,
    bar: Progress | None = None,
) -> list[Pair]:
    """Pairs between two sets: ``left`` from the first, ``right`` from the second (the smaller one, best)."""
    bar = bar or Silent()
    index, pairs = _Index(threshold), []
    for session_id, own in left:
        index.add(session_id, own)
        bar.advance()
    for session_id, own in right:
        pairs += [Pair(left=other, right=session_id, similarity=s) for other, s in index.matches(own)]
        bar.advance()
    return pairs


class Avoid:
    """Tells training sessions that resemble a golden one, as they stream by."""

    def __init__(self, sets: Iterable[tuple[str, Shingles]], threshold: float = THRESHOLD):
        self._index = _Index(threshold)
        for session_id, own in sets:
            self._index.add(session_id, own)

    def match(self, session: Session) -> Pair | None:
        """The first golden session that ``session`` (the pair's ``right``) resembles."""
        return self.match_shingles(session.session_id, text_shingles(session))

    def match_shingles(self, own_id: str, own: Shingles) -> Pair | None:
        """The first of the set that a text with the shingles ``own`` (the pair's ``right``) resembles."""
        found = next(self._index.matches(own), None)
        return found and Pair(left=found[0], right=own_id, similarity=found[1])


def drop_near_duplicates(sessions: Sequence[Session], threshold: float) -> tuple[list[Session], list[Pair]]:
    """The sessions without those that resemble one kept before them; a pair's ``right`` is the one left out."""
    index = _Index(threshold)
    kept: list[Session] = []
    dropped: list[Pair] = []
    for session in sessions:
        own = text_shingles(session)
        sketch = index.signature(own)
        found = next(index.matches(own, sketch), None)
        if found is None:
            index.add(session.session_id, own, sketch)
            kept.append(session)
        else:
            dropped.append(Pair(left=found[0], right=session.session_id, similarity=round(found[1], 4)))
    return kept, dropped


def with_shared_text(pairs: Iterable[Pair], left: Callable[[str], str], right: Callable[[str], str]) -> list[Pair]:
    """The pairs with the text that both sides hold; ``left`` and ``right`` give the text of an id."""
    return [
        msgspec.structs.replace(pair, shared_text=shared_text(left(pair.left), right(pair.right))) for pair in pairs
    ]


def texts_of(sessions: Mapping[str, Session]) -> Callable[[str], str]:
    """A lookup of conversation texts for ``with_shared_text``."""
    return lambda session_id: conversation_text(sessions[session_id].messages)
