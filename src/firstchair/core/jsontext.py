"""Strict JSON text: what we accept from files, wires and models, and the one canonical form we hash.

Python's reader takes the last of two equal keys, ``NaN`` and lone surrogates without a word; each of these
has corrupted somebody's training data. Here they are errors.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

MAX_DEPTH = 64
"""Levels of nesting accepted. Python's own reader dies by RecursionError near 1,000."""


class JsonProblem(ValueError):
    """Text that is not strict JSON; ``kind`` is one word for counting, the message is for people."""

    def __init__(self, kind: str, message: str):
        self.kind = kind
        super().__init__(message)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonProblem("duplicate_key", f"key {key!r} stands twice in one object; keep one")
            seen.add(key)
    return out


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise JsonProblem("non_finite", f"number {text} does not fit a finite float")
    return value


def _no_constant(text: str) -> Any:
    raise JsonProblem("non_finite", f"{text} is not JSON; write null or a finite number")


_decoder = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_float=_finite, parse_constant=_no_constant)


_NESTING = frozenset({dict, list})


def depth_of(value: Any) -> int:
    """Nesting levels of a parsed JSON value: 0 for a scalar, 1 for ``{}`` or ``[]``. No recursion."""
    depth = 0
    level: list[Any] = [value] if value.__class__ in _NESTING else []
    while level:
        depth += 1
        level = [
            child
            for node in level
            for child in (node.values() if node.__class__ is dict else node)
            if child.__class__ in _NESTING
        ]
    return depth


def loads(text: str, *, max_depth: int = MAX_DEPTH) -> Any:
    """Parse strict JSON. Integers stay exact at any size; floats must be finite.

    Raises ``JsonProblem`` for bad syntax, duplicate keys, NaN/Infinity, lone surrogates, more than
    ``max_depth`` levels, and anything but white space after the value.
    """
    try:
        raw = text.encode("utf-8")
    except UnicodeEncodeError:
        return _loads_slowly(text, max_depth)
    value = _loads_quickly(raw, max_depth)
    return _loads_slowly(text, max_depth) if value is _UNSURE else value


def loads_bytes(raw: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """``loads`` of UTF-8 bytes. Raises ``UnicodeDecodeError`` when they are not UTF-8."""
    value = _loads_quickly(raw, max_depth)
    return _loads_slowly(raw.decode("utf-8"), max_depth) if value is _UNSURE else value


_UNSURE = object()
_quick_decode = msgspec.json.Decoder().decode
_quick_encode = msgspec.json.Encoder().encode


def _loads_quickly(raw: bytes, max_depth: int) -> Any:
    """The value, or ``_UNSURE`` where the text may not be strict JSON; only the slow reader says why.

    msgspec refuses everything that ``loads`` refuses except depth and duplicate keys. Those are excluded by
    counting colons: outside of strings each stands for one member, and a dropped member takes at least one
    along, so equal counts before and after prove that none was dropped. An escaped colon would upset the count.
    """
    if b"\\u003" in raw:
        return _UNSURE
    try:
        value = _quick_decode(raw)
        if raw.count(b":") != _quick_encode(value).count(b":"):
            return _UNSURE
    except (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError):
        return _UNSURE
    return value if depth_of(value) <= max_depth else _UNSURE


@contextmanager
def _told_as_problems(max_depth: int) -> Iterator[None]:
    """What Python's reader raises, as ``JsonProblem``."""
    try:
        yield
    except JsonProblem:
        raise
    except json.JSONDecodeError as error:
        raise JsonProblem("syntax", f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise JsonProblem("too_deep", f"nested deeper than {max_depth} levels") from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise JsonProblem("number", str(error)) from None


def _loads_slowly(text: str, max_depth: int) -> Any:
    with _told_as_problems(max_depth):
        value = _decoder.decode(text)
    _check(value, text, max_depth)
    return value


def loads_at(text: str, start: int, *, max_depth: int = MAX_DEPTH) -> tuple[Any, int]:
    """Parse the strict JSON value that begins at ``text[start]``; returns it and the index after it.

    What follows the value is the caller's. Raises ``JsonProblem`` as ``loads`` does.
    """
    with _told_as_problems(max_depth):
        value, end = _decoder.raw_decode(text, start)
    _check(value, text[start:end], max_depth)
    return value, end


def _check(value: Any, text: str, max_depth: int) -> None:
    # Counting brackets is cheap; only text with many of them can be deep.
    if text.count("[") + text.count("{") > max_depth and depth_of(value) > max_depth:
        raise JsonProblem("too_deep", f"nested deeper than {max_depth} levels")
    # Only an escape, or text that already holds one, can carry half of a surrogate pair.
    if "\\u" in text or not text.isascii():
        try:
            dumps(value).encode("utf-8")
        except UnicodeEncodeError as error:
            bad = error.object[error.start]
            raise JsonProblem("surrogate", f"lone surrogate U+{ord(bad):04X}; it is not Unicode text") from None


def dumps(value: Any) -> str:
    """JSON as ``json.dumps`` spaces it, key order and non-ASCII kept: what models and wires see."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def canonical(value: Any) -> str:
    """The one text of a value: sorted keys, no spaces, non-ASCII kept. ``1`` and ``1.0`` stay apart."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def sha256_text(text: str) -> str:
    """Hex SHA-256 of UTF-8 text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def content_id(value: Any) -> str:
    """Hex SHA-256 of the canonical JSON of ``value``: the name under which content is stored once."""
    return sha256_text(canonical(value))
