"""Common beginnings of rows, laid out once.

Rollouts of one prompt, or sessions over one list of tools, begin with the same tokens. Their rows make a tree: a
segment is a stretch of tokens that the same rows share, its children are what these rows go on with. Segments lie in
the batch depth first, so that all that descends from a segment follows it without a gap:

    row 0  P P P a a        P P P a a b Q Q c d d
    row 1  P P P b          └ 0..3 ──────────┘ shared by all three, its descendants end at 11
    row 2  P P P Q Q c              └┘ ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SHORTEST = 16
"""Tokens that rows must have in common to share them; fewer cost more in calls than they save."""


class Segment(NamedTuple):
    """Places ``[start, end)`` of a packed batch; places ``[end, below)`` hold what continues it."""

    start: int
    end: int
    below: int


class Tree(NamedTuple):
    """Where the tokens of some rows lie when common beginnings are kept once."""

    segments: tuple[Segment, ...]
    """Depth first; empty ones are left out."""
    places: tuple[NDArray[np.int64], ...]
    """For each row, the place of each of its tokens."""


def whole_rows(lengths: Sequence[int]) -> Tree:
    """Every row for itself, end to end."""
    ends = np.cumsum(lengths).tolist()
    starts = [end - length for end, length in zip(ends, lengths, strict=True)]
    segments = tuple(Segment(start, end, end) for start, end in zip(starts, ends, strict=True))
    return Tree(segments, tuple(np.arange(start, end) for start, end in zip(starts, ends, strict=True)))


def shared_prefixes(rows: Sequence[NDArray[np.int32]], shortest: int = SHORTEST) -> Tree:
    """The tree of ``rows``: beginnings of at least ``shortest`` tokens that several rows have in common lie once.

    Equal rows give equal trees; children stand in the order of their first row.
    """
    segments: list[Segment] = []
    places = [np.empty(len(row), np.int64) for row in rows]
    used = 0

    def lay(members: Sequence[int], done: int) -> None:
        """Lay out what ``members`` have after their first ``done`` tokens."""
        nonlocal used
        for family in _families(rows, members, done, shortest):
            common = _common(rows, family, done)
            start, used = used, used + common
            for member in family:
                places[member][done : done + common] = np.arange(start, used)
            slot = len(segments)
            if common:
                segments.append(Segment(start, used, used))
            if len(family) > 1:
                lay(family, done + common)
                segments[slot] = Segment(start, start + common, used)

    lay(range(len(rows)), 0)
    return Tree(tuple(segments), tuple(places))


def _families(rows: Sequence[NDArray[np.int32]], members: Sequence[int], done: int, shortest: int) -> list[list[int]]:
    """``members`` by their next ``shortest`` tokens; those that have fewer stand alone."""
    families: dict[object, list[int]] = {}
    for member in members:
        ahead = rows[member][done : done + shortest]
        families.setdefault(ahead.tobytes() if len(ahead) == shortest else member, []).append(member)
    return list(families.values())


def _common(rows: Sequence[NDArray[np.int32]], family: Sequence[int], done: int) -> int:
    """How many tokens after the first ``done`` all rows of the family have in common; all of them for one row."""
    first = rows[family[0]][done:]
    common = len(first)
    for member in family[1:]:
        other = rows[member][done : done + common]
        common = len(other)
        differing = np.flatnonzero(first[:common] != other)
        common = int(differing[0]) if len(differing) else common
    return common
