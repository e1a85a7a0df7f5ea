import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.core.errors import DataError
from firstchair.traces.times import microseconds, normal_time, utc_text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-01-31", "2026-01-31T00:00:00.000000Z"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000000Z"),
        ("2026-01-31T12:00:00.5+02:00", "2026-01-31T10:00:00.500000Z"),
        ("2026-01-31 12:00", "2026-01-31T12:00:00.000000Z"),
        ("0026-01-01", "0026-01-01T00:00:00.000000Z"),
        (1_700_000_000, "2023-11-14T22:13:20.000000Z"),
        (1_700_000_000.25, "2023-11-14T22:13:20.250000Z"),
        (1_700_000_000_000, "2023-11-14T22:13:20.000000Z"),
        (1_700_000_000_000_000, "2023-11-14T22:13:20.000000Z"),
        (1_700_000_000_000_000_000, "2023-11-14T22:13:20.000000Z"),
        (0, "1970-01-01T00:00:00.000000Z"),
        (None, ""),
        ("", ""),
    ],
)
def test_a_time_in_any_spelling_becomes_one(value, expected):
    assert normal_time(value) == expected


@pytest.mark.parametrize(
    "value",
    ["soon", "2026-13-01", "9999-12-31T23:59:59-23:00", True, [], float("nan"), float("inf"), 10**30, -(10**30)],
)
def test_what_is_no_time_is_refused(value):
    with pytest.raises(DataError, match="created_at"):
        normal_time(value)


@given(st.datetimes())
def test_microseconds_survive_their_text(moment):
    micros = microseconds(moment.isoformat())
    assert microseconds(utc_text(micros)) == micros
