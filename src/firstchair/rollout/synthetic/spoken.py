"""Whether a text says something: numbers and dates in any usual spelling, words as whole words."""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache

from firstchair.rollout.synthetic.domain import Fact, Info

_NUMBER = re.compile(r"(?<![\w])(?<!\d[.,:/-])-?\d+(?:,\d{3})*(?:\.\d+)?(?![\w]|[.,:/-]\d)")
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def says(text: str, value: str) -> bool:
    """Whether ``text`` has ``value`` in it. A number is found as ``1250``, ``1,250`` and ``1250.00``, a date as
    ``2026-03-14``, ``March 14`` and ``14 March``; anything else as whole words, whatever their case and spacing.
    """
    number = _as_number(value)
    if number is not None:
        return any(_as_number(found) == number for found in _NUMBER.findall(text))
    return _pattern(value).search(_plain(text)) is not None


def conveyed(text: str, info: Info) -> bool:
    """Whether ``text`` tells ``info`` in one of its ways."""
    return any(says(text, way) for way in info.any_of)


def asks(text: str, fact: Fact) -> bool:
    """Whether ``text`` is a question about ``fact``."""
    return "?" in text and any(says(text, topic) for topic in fact.topics)


def _as_number(text: str) -> float | None:
    if not _NUMBER.fullmatch(text):
        return None
    return float(text.replace(",", ""))


def _plain(text: str) -> str:
    return " ".join(text.casefold().replace("\u2019", "'").split())


@lru_cache(maxsize=4096)
def _pattern(value: str) -> re.Pattern[str]:
    ways = [re.escape(_plain(way)) for way in (value, *_spoken_date(value))]
    return re.compile(rf"(?<!\w)(?:{'|'.join(ways)})(?!\w)")


def _spoken_date(value: str) -> list[str]:
    if not _ISO_DATE.fullmatch(value):
        return []
    try:
        day = date.fromisoformat(value)
    except ValueError:
        return []
    month = _MONTHS[day.month - 1]
    ending = "th" if day.day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    days = (str(day.day), f"{day.day}{ending}")
    return [
        way
        for name in (month, month[:3])
        for number in days
        for way in (f"{name} {number}", f"{number} {name}", f"{number} of {name}")
    ]
