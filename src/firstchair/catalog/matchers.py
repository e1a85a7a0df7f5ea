"""Per-field matchers: when do two values of one argument mean the same?

A catalog declares them by field (``{"query": "fuzzy>=0.85", "tags": "set", "items[].due": "date"}``). A field
without a declaration is compared exactly, by its type in the tool's JSON Schema (``catalog.compare``).
Every matcher is a pure function of two JSON values with three answers: a matcher that cannot know says so,
and is never taken for a pass.
"""

from __future__ import annotations

import difflib
import math
import posixpath
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from rapidfuzz import fuzz

from firstchair.catalog.dates import moments, same_moment
from firstchair.core.errors import ConfigError


class Match(StrEnum):
    """The answer of a matcher."""

    SAME = "same"
    DIFFERENT = "different"
    UNDECIDED = "undecided"
    """Code cannot tell; a judge or a person may. Never counted as a pass."""


Compare = Callable[[Any, Any], Match]


@dataclass(frozen=True)
class Matcher:
    """One declared rule: how it is written, its name without parameters, and its function."""

    spec: str
    name: str
    compare: Compare


def _answer(same: bool) -> Match:
    return Match.SAME if same else Match.DIFFERENT


def typed_equal(first: Any, second: Any) -> bool:
    """Equality of JSON values as their canonical text sees it: ``1``, ``1.0`` and ``true`` are three values."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(typed_equal(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(typed_equal, first, second))
    if isinstance(first, float):
        return repr(first) == repr(second)  # 0.0 and -0.0 are equal and written apart
    return bool(first == second)


def exact(gold: Any, made: Any) -> Match:
    """Same type and value."""
    return _answer(typed_equal(gold, made))


def casefold(gold: Any, made: Any) -> Match:
    """Texts that differ only in case or in Unicode composition."""
    if not (isinstance(gold, str) and isinstance(made, str)):
        return exact(gold, made)
    return _answer(_fold(gold) == _fold(made))


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


_QUOTED = re.compile(r"\"(?:\\.|[^\"\\])*\"|`[^`]*`|(?<![^\s(\[{=:,])'(?:\\.|[^'\\])*'(?![^\s)\]}.,;:!?])")


def collapse_space(text: str) -> str:
    """Runs of spaces become one; space at line ends, and empty lines at both ends, go.

    Line breaks, the indentation of further lines and whatever stands in quotes are kept, because in a command,
    a patch or YAML they carry meaning.
    """
    out: list[str] = []
    position = 0
    for quoted in _QUOTED.finditer(text):
        out += [re.sub(r"(?<=\S)[^\S\n]+", " ", text[position : quoted.start()]), quoted.group()]
        position = quoted.end()
    out.append(re.sub(r"(?<=\S)[^\S\n]+", " ", text[position:]))
    # The look behind lets a run be tried once, not from each of its spaces: a long one took seconds.
    return re.sub(r"(?<![^\S\n])[^\S\n]+(?=\n|$)", "", "".join(out)).strip()


def ws(gold: Any, made: Any) -> Match:
    """Texts that differ only in white space that carries no meaning (see ``collapse_space``)."""
    if not (isinstance(gold, str) and isinstance(made, str)):
        return exact(gold, made)
    return _answer(collapse_space(gold) == collapse_space(made))


_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?")


def as_number(value: Any) -> Decimal | None:
    """A JSON number, or a text that is wholly one, exactly; ``None`` for everything else, booleans too."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, float):
        return Decimal(repr(value)) if math.isfinite(value) else None
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        try:
            return Decimal(value.strip())
        except InvalidOperation:  # pragma: no cover - the pattern admits only what Decimal reads
            return None
    return None


def number(tolerance: Decimal = Decimal(0), *, relative: bool = False) -> Compare:
    """Numbers, or texts of numbers, at most ``tolerance`` apart (``relative``: as a share of gold)."""

    def compare(gold: Any, made: Any) -> Match:
        wanted, found = as_number(gold), as_number(made)
        if wanted is None or found is None:
            return exact(gold, made)
        allowed = abs(wanted) * tolerance if relative else tolerance
        return _answer(abs(wanted - found) <= allowed)

    return compare


def date(gold: Any, made: Any) -> Match:
    """Texts that name one instant. ``01/04/2024``, a missing time zone or ``tomorrow`` leave it undecided."""
    if not (isinstance(gold, str) and isinstance(made, str)):
        return exact(gold, made)
    if _fold(collapse_space(gold)) == _fold(collapse_space(made)):
        return Match.SAME
    wanted, found = moments(gold), moments(made)
    if not wanted or not found:
        return Match.UNDECIDED
    answers = {same_moment(first, second) for first in wanted for second in found}
    if answers == {True}:
        return Match.SAME
    return Match.DIFFERENT if answers == {False} else Match.UNDECIDED


def path(gold: Any, made: Any) -> Match:
    """File paths after ``.``, ``..``, doubled and trailing slashes are resolved; case and root count."""
    if not (isinstance(gold, str) and isinstance(made, str) and gold and made):
        return exact(gold, made)
    return _answer(_normal_path(gold) == _normal_path(made))


def _normal_path(text: str) -> str:
    normal = posixpath.normpath(text)
    # POSIX leaves the meaning of exactly two leading slashes open, and normpath keeps them; tools do not.
    return "/" + normal.lstrip("/") if normal.startswith("/") else normal


_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PORTS = MappingProxyType({"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21})


def url(gold: Any, made: Any) -> Match:
    """URLs equal after RFC 3986 normalisation: case of scheme and host, default port, empty path, escapes.

    The order of query parameters and a slash at the end of a path can change the answer, so they count.
    """
    if not (isinstance(gold, str) and isinstance(made, str)):
        return exact(gold, made)
    return _answer(_normal_url(gold) == _normal_url(made))


def _normal_url(text: str) -> tuple[str, ...]:
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        return (text,)
    if not parts.scheme or not parts.netloc:
        return (text.strip(),)
    scheme, host = parts.scheme.lower(), (parts.hostname or "").lower()
    user = parts.netloc.rpartition("@")[0]
    shown_port = "" if port is None or port == _PORTS.get(scheme) else str(port)
    return (scheme, user, host, shown_port, *map(_unescape, (parts.path or "/", parts.query, parts.fragment)))


def _unescape(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        letter = chr(int(found[1], 16))
        return letter if letter in _UNRESERVED else found[0].upper()

    return _ESCAPE.sub(one, text)


_FIGURES = re.compile(r"(?<![\w.])[+-]?\d[\d.,:/-]*\d|(?<![\w.])[+-]?\d|\d+")


def fuzzy(threshold: float) -> Compare:
    """Texts whose edit similarity (case and space folded) is at least ``threshold``, with the same numbers.

    ``15`` for ``1.5`` or 11:00 for 10:00 is one keystroke and another action, so every number must recur.
    """

    def compare(gold: Any, made: Any) -> Match:
        if not (isinstance(gold, str) and isinstance(made, str)):
            return exact(gold, made)
        first, second = (_fold(" ".join(text.split())) for text in (gold, made))
        if sorted(_FIGURES.findall(first)) != sorted(_FIGURES.findall(second)):
            return Match.DIFFERENT
        return _answer(fuzz.ratio(first, second) >= 100 * threshold)

    return compare


def ignore(gold: Any, made: Any) -> Match:
    """Anything goes, absence too."""
    return Match.SAME


def judge(gold: Any, made: Any) -> Match:
    """Equal values are equal; anything else is for a judge."""
    return Match.SAME if typed_equal(gold, made) else Match.UNDECIDED


def as_set(gold: Any, made: Any) -> Match:
    """Lists with the same elements in any order, each used once."""
    if not (isinstance(gold, list) and isinstance(made, list)):
        return exact(gold, made)
    rest = list(made)
    for element in gold:
        for index, other in enumerate(rest):
            if typed_equal(element, other):
                del rest[index]
                break
        else:
            return Match.DIFFERENT
    return _answer(not rest)


PLAIN_MATCHERS: Mapping[str, Compare] = MappingProxyType(
    {
        "exact": exact,
        "casefold": casefold,
        "ws": ws,
        "number": number(),
        "date": date,
        "path": path,
        "url": url,
        "set": as_set,
        "ignore": ignore,
        "judge": judge,
    }
)
"""Matchers that are written by their name alone. With a parameter: ``number+0.5``, ``number+1%``, ``fuzzy>=0.8``."""

_KNOWN = (*PLAIN_MATCHERS, "number+0.5", "number+1%", "fuzzy>=0.8")
_NUMBER_SPEC = re.compile(r"number\s*(?:\+-|\+|±)\s*(\d+(?:\.\d+)?(?:[eE]-?\d{1,3})?)\s*(%?)")
_FUZZY_SPEC = re.compile(r"fuzzy\s*(?:>=|≥)\s*(\d+(?:\.\d+)?)")


def parse_matcher(spec: str) -> Matcher:
    """Read a matcher as a catalog writes it. Raises ``ConfigError`` with what is known and the nearest one."""
    if not isinstance(spec, str):
        raise ConfigError(f"matcher {spec!r}: found {type(spec).__name__}; expected one of {', '.join(_KNOWN)}")
    text = spec.strip()
    if text in PLAIN_MATCHERS:
        return Matcher(spec=text, name=text, compare=PLAIN_MATCHERS[text])
    if found := _NUMBER_SPEC.fullmatch(text):
        amount, percent = Decimal(found[1]), bool(found[2])
        compare = number(amount / 100 if percent else amount, relative=percent)
        return Matcher(spec=text, name="number", compare=compare)
    if found := _FUZZY_SPEC.fullmatch(text):
        threshold = float(found[1])
        if not 0 < threshold <= 1:
            raise ConfigError(f"matcher {spec!r}: threshold {found[1]}; expected a number above 0 and at most 1")
        return Matcher(spec=text, name="fuzzy", compare=fuzzy(threshold))
    if text.startswith("fuzzy"):
        raise ConfigError(f"matcher {spec!r}: expected a threshold; write fuzzy>=0.8")
    if text.startswith("number"):
        raise ConfigError(f"matcher {spec!r}: expected number, number+0.5 (absolute) or number+1% (of gold)")
    near = difflib.get_close_matches(text, PLAIN_MATCHERS, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"matcher {spec!r}: unknown; expected one of {', '.join(_KNOWN)}{hint}")
