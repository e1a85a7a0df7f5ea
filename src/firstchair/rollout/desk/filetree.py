"""Paths, globs and searches over a file tree held as ``{path: text}``. Pure functions; folders are implied."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

BINARY = (".pdf", ".docx", ".xlsx", ".mp4", ".png")
"""Endings of files that have no plain text; skills read them."""


def normalize(path: str) -> str:
    """``path`` without ``./``, doubled slashes and a leading slash; ``""`` is the root.

    Raises ``ValueError`` when the path leaves the tree or holds a NUL.
    """
    if "\0" in path:
        raise ValueError("path holds a NUL character")
    clean = posixpath.normpath("/" + path.strip()).lstrip("/") if path.strip() else ""
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            raise ValueError(f"{path} is outside the workspace")
    return "" if clean == "." else clean


@lru_cache(maxsize=1024)
def glob_regex(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression: ``*`` and ``?`` stay in one folder, ``**/`` spans any number of them."""
    out, index = [], 0
    while index < len(pattern):
        if pattern.startswith("**/", index):
            out.append("(?:[^/]+/)*")
            index += 3
        elif pattern.startswith("**", index):
            out.append(".*")
            index += 2
        else:
            char = pattern[index]
            out.append({"*": "[^/]*", "?": "[^/]"}.get(char) or re.escape(char))
            index += 1
    return re.compile("".join(out), re.DOTALL)


def glob(paths: Iterable[str], pattern: str) -> list[str]:
    """The paths that match ``pattern``, sorted. Raises ``ValueError`` as ``normalize`` does."""
    matches = glob_regex(normalize(pattern)).fullmatch
    return sorted(path for path in paths if matches(path))


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
