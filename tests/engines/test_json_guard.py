"""The rules that a grammar cannot state."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.engines.json_guard import MAX_DEPTH, JsonGuard


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ('{"a": 1, "b": 2}', True),
        ('{"a": 1, "a": 2}', False),
        ('{"a": {"a": {"a": 1}}, "b": {"a": 1}}', True),
        ('[{"a": 1}, {"a": 2}]', True),
        ('{"a": "a", "b": "a"}', True),
        ('{"\\u0061": 1, "a": 2}', False),
        ('{"a\\"": 1, "a\\\\": 2}', True),
        ('{"x": 1e308}', True),
        ('{"x": 1e309}', False),
        ('{"x": -1e400', False),
        ('{"x": "1e400"}', True),
        ('{"x": ' + "9" * 4001, False),
        ("[" * MAX_DEPTH, True),
        ("[" * (MAX_DEPTH + 1), False),
        ("[]" * (MAX_DEPTH + 1), True),
    ],
)
def test_keys_numbers_and_depth_are_watched(text, fine):
    whole = JsonGuard().feed(text.encode())
    guard = JsonGuard()
    bytewise = all(guard.feed(bytes([byte])) for byte in text.encode())
    assert whole is bytewise is fine


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.booleans())
def test_what_json_writes_is_never_turned_down(value, ascii_only):
    guard = JsonGuard()
    assert guard.feed(json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))
    assert not guard.in_string


def test_a_copy_goes_its_own_way():
    guard = JsonGuard()
    guard.feed(b'{"a": 1, ')
    twin = guard.copy()
    assert not twin.feed(b'"a"')
    assert guard.feed(b'"b": 2}')
