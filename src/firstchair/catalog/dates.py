"""Reading dates as people and models write them, without guessing.

A text gives the set of instants that it can mean: one for ``2024-04-01`` or ``April 1, 2024``, two for
``01/04/2024`` (day first or month first), none for ``tomorrow``. Nothing here reads the clock.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone

Moment = date | datetime | time
"""A day, an instant (aware or naive), or a time of day."""

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            ("jan", "january"),
            ("feb", "february"),
            ("mar", "march"),
            ("apr", "april"),
            ("may",),
            ("jun", "june"),
            ("jul", "july"),
            ("aug", "august"),
            ("sep", "sept", "september"),
            ("oct", "october"),
            ("nov", "november"),
            ("dec", "december"),
        ),
        start=1,
    )
    for name in names
}

_WEEKDAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?\.?,?\s+)?"
_CLOCK = (
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,6}))?)?)?"
    r"\s*(?P<half>[ap]\.?m\.?)?\s*(?P<zone>z|utc|gmt|[+-]\d{2}:?\d{2})?"
)
_TIME = rf"(?:(?:[t,]|\s+at\s|\s)\s*{_CLOCK})?"

_DAY_FORMS = tuple(
    re.compile(_WEEKDAY + form + _TIME)
    for form in (
        r"(?P<year>\d{4})(?P<sep>[-/.])(?P<month>\d{1,2})(?P=sep)(?P<day>\d{1,2})",
        r"(?P<name>[a-z]{3,9})\.?\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?,?\s+(?P<year>\d{4})",
        r"(?P<day>\d{1,2})(?:st|nd|rd|th)?(?:\s+of)?[\s-]+(?P<name>[a-z]{3,9})\.?,?[\s-]+(?P<year>\d{4})",
        r"(?P<first>\d{1,2})(?P<sep>[-/.])(?P<other>\d{1,2})(?P=sep)(?P<year>\d{4})",
    )
)
_CLOCK_FORM = re.compile(_CLOCK)


def moments(text: str) -> tuple[Moment, ...]:
    """Every instant that ``text`` can mean: none when it is not a complete date or time of day."""
    folded = " ".join(text.casefold().split())
    for form in _DAY_FORMS:
        if found := form.fullmatch(folded):
            return _days(found)
    found = _CLOCK_FORM.fullmatch(folded)
    if found and (found["minute"] or found["half"]):
        clock = _clock(found)
        return (clock,) if clock else ()
    return ()


def _days(found: re.Match[str]) -> tuple[Moment, ...]:
    parts = found.groupdict()
    year = int(parts["year"])
    pairs: set[tuple[int, int]]
    if parts.get("first"):
        first, other = int(parts["first"]), int(parts["other"])
        pairs = {(first, other), (other, first)}
    else:
        name = parts.get("name")
        month = _MONTHS.get(name, 0) if name else int(parts["month"])
        pairs = {(month, int(parts["day"]))}
    out: list[Moment] = []
    for month, day in sorted(pairs):
        try:
            whole = date(year, month, day)
        except ValueError:
            continue
        if parts["hour"] is None:
            out.append(whole)
        elif clock := _clock(found):
            out.append(datetime.combine(whole, clock))
    return tuple(out)


def _clock(found: re.Match[str]) -> time | None:
    hour, half = int(found["hour"]), found["half"]
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half.startswith("p") else 0)
    try:
        return time(
            hour,
            int(found["minute"] or 0),
            int(found["second"] or 0),
            int((found["fraction"] or "0").ljust(6, "0")),
            tzinfo=_zone(found["zone"]),
        )
    except ValueError:
        return None


def _zone(text: str | None) -> timezone | None:
    if text is None:
        return None
    if not text.startswith(("+", "-")):
        return UTC
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)


def same_moment(first: Moment, second: Moment) -> bool | None:
    """Whether two moments are one; ``None`` when a missing time zone leaves it open.

    A whole day equals its own midnight and no other time of the day.
    """
    if isinstance(first, time) or isinstance(second, time):
        if not (isinstance(first, time) and isinstance(second, time)):
            return False
        first, second = datetime.combine(date(2000, 1, 1), first), datetime.combine(date(2000, 1, 1), second)
    start, end = _instant(first), _instant(second)
    if (start.tzinfo is None) != (end.tzinfo is None):
        return None
    return start == end


def _instant(moment: date | datetime) -> datetime:
    return moment if isinstance(moment, datetime) else datetime.combine(moment, time())
