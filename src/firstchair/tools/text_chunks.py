"""Text cut into passages that know their line, and into the words they are found by. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import regex

CHUNK_CHARS = 1_200
"""Of a passage, about 200 words: five of them fit what a model is shown of one result."""

# Scripts without spaces between words are found by their characters.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}"
_WORD = regex.compile(rf"[{_UNSPACED}]|[\p{{L}}\p{{M}}\p{{N}}--[{_UNSPACED}]]+", regex.V1)


class Chunk(NamedTuple):
    """A passage."""

    line: int
    """Of its beginning, counted from 1."""
    text: str


def words(text: str) -> list[str]:
    """The words of ``text``, without case; ``snake_case`` and ``dotted.names`` are several."""
    return [word.casefold() for word in _WORD.findall(text)]


def chunks(text: str) -> Iterator[Chunk]:
    """``text`` in passages of at most ``CHUNK_CHARS``, cut at line ends, after a blank line where one is in the
    second half; a longer line is cut anywhere. Passages without a word are left out.
    """
    taken: list[str] = []
    first, size = 1, 0
    for line, part in _parts(text):
        if taken and (size + len(part) > CHUNK_CHARS or (size > CHUNK_CHARS // 2 and not taken[-1].strip())):
            yield from _chunk(first, taken)
            taken, size = [], 0
        if not taken:
            first = line
        taken.append(part)
        size += len(part)
    yield from _chunk(first, taken)


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their ends and numbers; a line that is too long in several parts."""
    for number, line in enumerate(text.split("\n"), start=1):
        whole = line + "\n"
        for start in range(0, len(whole), CHUNK_CHARS):
            yield number, whole[start : start + CHUNK_CHARS]


def _chunk(first: int, parts: list[str]) -> Iterator[Chunk]:
    text = "".join(parts)
    blank = len(text) - len(text.lstrip("\n"))
    if _WORD.search(text):
        yield Chunk(first + blank, text.strip("\n"))
