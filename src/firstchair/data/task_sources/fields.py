"""What the converters of all sources share: fields of a row, and tasks with ids that depend on the problem alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from firstchair.core.errors import DataError
from firstchair.core.jsontext import sha256_text
from firstchair.rewards.answers.choice import LETTERS, gold_option

Fields = Mapping[str, Any]


class Unusable(Exception):
    """A sound record that makes no task; ``str()`` is the reason under which it is counted."""


def text_of(row: Fields, name: str) -> str:
    """The text in ``name``, stripped; empty for null. Raises ``DataError`` when the field is missing or no text."""
    if name not in row:
        raise DataError(f"missing; the record has {', '.join(sorted(row)) or 'no fields'}", field=name)
    value = row[name]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"found {type(value).__name__}; expected text", field=name)
    return value.strip()


def section(row: Fields, name: str) -> Fields:
    """The object in ``name``. Raises ``DataError`` when it is missing or something else."""
    value = row.get(name)
    if not isinstance(value, dict):
        raise DataError(f"found {type(value).__name__}; expected an object", field=name)
    return value


def items(row: Fields, name: str, kind: type) -> list[Any]:
    """The list in ``name``, empty when it is missing or null. Raises ``DataError`` unless all of it is ``kind``."""
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise DataError(f"expected a list of {kind.__name__}", field=name)
    return value


def problem_key(problem: str) -> str:
    """Hex digest under which equal problems meet: case, white space and ids play no part."""
    return sha256_text(" ".join(problem.casefold().split()))


def task_id(source: str, problem: str) -> str:
    """An id that depends on the source and the problem, and not on where or when it was read."""
    return f"{source}-{problem_key(problem)[:16]}"


_OPTION = re.compile(r"^[ \t]*[(\[*]*([A-Z])[*]*[).:\]][)*]*[ \t]+(\S[^\n]*?)[ \t]*$", re.MULTILINE)


def options_in(problem: str, gold: str | None) -> tuple[str, ...]:
    """The options of a multiple-choice question: the last lines ``A. …``, ``B. …``, and so on, of its text.

    Empty unless ``gold`` is one of them: a list in a problem alone makes no multiple-choice question.
    """
    found: list[str] = []
    for match in _OPTION.finditer(problem):
        if match[1] == "A":
            found = []
        if len(found) < len(LETTERS) and match[1] == LETTERS[len(found)]:
            found.append(match[2])
    if gold is None or len(found) < 2 or len(gold) > max(map(len, found), default=0) + 10:
        return ()
    return tuple(found) if gold_option(gold, found) else ()
