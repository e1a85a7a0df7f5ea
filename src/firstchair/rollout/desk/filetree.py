"""Paths, globs and searches over a file tree held as ``{path: text}``. Pure functions; folders are implied."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence

BINARY = (".pdf", ".docx", ".xlsx", ".mp4", ".png")
"""Endings of files that have no plain text; skills read them."""


def normalize(path: str) -> str:
    """``path`` without ``./``, doubled slashes and a leading slash; ``""`` is the root.

    Raises ``ValueError`` when the path leaves the tree or holds a NUL.
    """
    if "\0" in path:
        raise ValueError("path holds a NUL character")
    clean = posixpath.normpath("/" + path).lstrip("/")
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            raise ValueError(f"{path} is outside the workspace")
    return clean


def _fits(parts: Sequence[str], pattern: Sequence[str], star: str, same: Callable[[str, str], bool]) -> bool:
    """Whether ``parts`` fit ``pattern``, where ``star`` stands for any number of parts.

    Going back to the last star only is enough, so the time is bounded by the product of the two lengths.
    """
    at = place = 0
    back_at, back_place = -1, 0
    while at < len(parts):
        if place < len(pattern) and pattern[place] == star:
            back_at, back_place = at, place
            place += 1
        elif place < len(pattern) and same(pattern[place], parts[at]):
            at += 1
            place += 1
        elif back_at >= 0:
            back_at += 1
            at, place = back_at, back_place + 1
        else:
            return False
    return all(part == star for part in pattern[place:])


def _same_char(pattern: str, char: str) -> bool:
    return pattern in ("?", char)


def _same_segment(pattern: str, segment: str) -> bool:
    if "*" not in pattern and "?" not in pattern:
        return pattern == segment
    return _fits(segment, pattern, "*", _same_char)


def glob(paths: Iterable[str], pattern: str) -> list[str]:
    """The paths that match ``pattern``, sorted: ``*`` and ``?`` stay in one folder, ``**`` spans any number.

    Raises ``ValueError`` as ``normalize`` does.
    """
    segments = normalize(pattern).split("/")
    return sorted(path for path in paths if _fits(path.split("/"), segments, "**", _same_segment))


def below(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` itself or lies in it; the root holds everything."""
    return not folder or path == folder or path.startswith(folder + "/")


def grep(files: Mapping[str, str], pattern: str, folder: str) -> list[tuple[str, str]]:
    """``(path, line)`` of every line that holds ``pattern`` (plain text, any case) in or below ``folder``."""
    needle = pattern.casefold()
    return [
        (path, line)
        for path in sorted(files)
        if below(path, folder) and not path.endswith(BINARY)
        for line in files[path].split("\n")
        if needle in line.casefold()
    ]


def is_folder(paths: Iterable[str], path: str) -> bool:
    """Whether anything lies below ``path``."""
    return not path or any(other.startswith(path + "/") for other in paths)
