"""Times of recordings: many spellings in, one spelling (ISO 8601, UTC, ``Z``) out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from firstchair.core.errors import DataError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(text: str, *, field: str = "created_at") -> int | None:
    """Microseconds since 1970 of an ISO 8601 time; ``None`` for the empty text (the recording does not say).

    A date alone is its midnight; a time without an offset is UTC. Raises ``DataError``.
    """
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise DataError(
            f"found {text[:40]!r}; expected an ISO 8601 time such as 2026-01-31T12:00:00Z", field=field
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        # In UTC: with its offset a moment of the year 9999 may be of the year 10000, which nothing here can write.
        return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    except OverflowError:
        raise DataError(f"found {text[:40]!r}; the year is out of range", field=field) from None


def utc_text(microseconds_since_1970: int) -> str:
    """``2026-01-31T12:00:00.000000Z`` of microseconds since 1970."""
    moment = _EPOCH + timedelta(microseconds=microseconds_since_1970)
    # Not strftime: it writes the year 26 with two digits.
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def normal_time(value: object, *, field: str = "created_at") -> str:
    """A recorded time in our spelling: ISO 8601 text, or a number since 1970 in s, ms, µs or ns by its size.

    ``None`` and the empty text become the empty text. Raises ``DataError``.
    """
    if value is None or value == "":
        return ""
    if isinstance(value, str):
        micros = microseconds(value, field=field)
        return "" if micros is None else utc_text(micros)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"found {type(value).__name__}; expected an ISO 8601 time or a number", field=field)
    magnitude = abs(value)
    # Seconds pass 1e11 in the year 5138; every larger unit passed it in 1973, so ranges do not meet.
    scaled = (
        value * 1_000_000
        if magnitude < 1e11
        else value * 1_000
        if magnitude < 1e14
        else value
        if magnitude < 1e17
        else value // 1_000
    )
    try:
        return utc_text(int(scaled))
    except (OverflowError, ValueError):
        raise DataError(f"found {value}; the year is out of range", field=field) from None
