"""Names with wildcards, as shells know them: ``*``, ``?`` and ``[…]``."""

from __future__ import annotations

import re
from fnmatch import translate


def is_glob(pattern: str) -> bool:
    """Whether ``pattern`` has a wildcard."""
    return any(mark in pattern for mark in "*?[")


def glob_match(pattern: str, text: str) -> bool:
    """File-name globs, upper and lower case told apart on every system."""
    return re.match(translate(pattern), text) is not None


def literal_length(pattern: str) -> int:
    """Characters of a glob that stand for themselves; a ``[…]`` counts for one."""
    return len(re.sub(r"[*?]", "", re.sub(r"\[!?\]?[^]]*\]", "x", pattern)))
