import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import SkipBad, read_jsonl, read_lines, write_jsonl
from firstchair.core.jsontext import (
    MAX_DEPTH,
    JsonProblem,
    _loads_slowly,
    canonical,
    dumps,
    loads,
    loads_at,
    loads_bytes,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_a_value_survives_its_text(value):
    assert loads(dumps(value)) == value
    assert canonical(loads(canonical(value))) == canonical(value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"a": 1, "a": 2}', "duplicate_key"),
        ('{"a": NaN}', "non_finite"),
        ("[1e999]", "non_finite"),
        ("[Infinity]", "non_finite"),
        ('"\\ud800"', "surrogate"),
        ('{"\\udfff": 1}', "surrogate"),
        ("[" * 100 + "]" * 100, "too_deep"),
        ("[" * 100_000, "too_deep"),
        ('{"a": 1', "syntax"),
        ('{"a": 1} x', "syntax"),
        ("1" * 5000, "number"),
        ("", "syntax"),
    ],
)
def test_text_that_is_not_strict_json_is_named(text, kind):
    with pytest.raises(JsonProblem) as caught:
        loads(text)
    assert caught.value.kind == kind


def test_integers_stay_exact_and_floats_stay_floats():
    assert loads("123456789012345678901234567890") == 123456789012345678901234567890
    assert canonical(loads('{"b": 1.0, "a": 1}')) == '{"a":1,"b":1.0}'


def test_lines_survive_bom_crlf_and_line_separators(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + '{"a": "x\u2028y"}\r\n\r\n{"a": 2}\r\n'.encode())
    assert list(read_jsonl(path)) == [(1, {"a": "x\u2028y"}), (3, {"a": 2})]


def test_a_bad_line_is_named_and_may_be_skipped(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:2: not strict JSON"):
        list(read_jsonl(path))
    skip = SkipBad(allowed=1)
    assert [row["a"] for _, row in read_jsonl(path, skip=skip)] == [1, 3]
    assert skip.skipped[0].line == 2


def test_nothing_is_overwritten_and_a_failed_write_leaves_nothing(tmp_path: Path):
    path = tmp_path / "out.jsonl"
    write_jsonl(path, [{"a": 1}])
    with pytest.raises(ConfigError, match="--force"):
        write_jsonl(path, [{"a": 2}])
    with pytest.raises(ZeroDivisionError):
        write_jsonl(path, ({"a": 1 // n} for n in (1, 0)), force=True)
    assert path.read_text() == '{"a": 1}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_value_inside_longer_text_is_read_to_its_end():
    text = 'call {"a": [1, 2]} rest'
    assert loads_at(text, 5) == ({"a": [1, 2]}, 18)
    for bad, kind in [('x{"a": 1', "syntax"), ('x{"a": NaN}', "non_finite"), ("x" + "[" * 100_000, "too_deep")]:
        with pytest.raises(JsonProblem) as caught:
            loads_at(bad, 1)
        assert caught.value.kind == kind


def _differs(text: str) -> bool:
    """Whether the quick reader and the strict one disagree about ``text``."""
    try:
        slow = _loads_slowly(text, MAX_DEPTH)
    except JsonProblem as problem:
        try:
            loads(text)
        except JsonProblem as other:
            return str(problem) != str(other)
        return True
    return repr(loads(text)) != repr(slow)


@given(VALUES, st.booleans(), st.booleans())
def test_the_quick_reader_agrees_with_the_strict_one(value, ascii_only, indent):
    assert not _differs(json.dumps(value, ensure_ascii=ascii_only, indent=2 if indent else None))


@given(st.text(alphabet='{}[]":,ab\\u003Aa:dD8 \n0e-.1', max_size=40))
def test_the_quick_reader_agrees_on_text_that_is_almost_json(text):
    assert not _differs(text)
    assert not _differs('{"a:b":"' + text + '","a:b":1}')


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "b": {"k": 1, "k": 2}}',
        '{"a": ":", "a": "::"}',
        '{"a": "\\u003a", "a": ":"}',
        '{"a": "\\u003A\\u003A", "a": "x"}',
        "[123456789012345678901234567890, 1.0, -0.0, 1E400]",
        "-0",
        '"\\ud83d\\ude00"',
        '"\\ude00\\ud83d"',
        "[0.1, 1e-400, 5e-324, 1.7976931348623157e308, 0.30000000000000004]",
    ],
)
def test_the_quick_reader_agrees_on_known_traps(text):
    assert not _differs(text)


def test_bytes_that_are_not_utf8_say_so():
    with pytest.raises(UnicodeDecodeError):
        loads_bytes(b'{"a": "\xff"}')
    assert loads_bytes('{"a": "é"}'.encode()) == {"a": "é"}


def test_a_file_read_tells_its_bytes(tmp_path: Path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000))
    seen: list[int] = []
    assert sum(1 for _ in read_lines(path, on_bytes=seen.append)) == 1000
    assert sum(seen) == path.stat().st_size


def test_a_damaged_archive_is_named(tmp_path: Path):
    path = tmp_path / "rows.jsonl.gz"
    whole = gzip.compress(b'{"a": 1}\n' * 1000)
    for damaged in (whole[:-20], whole[:12] + b"\xff\xff\xff" + whole[15:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"rows\.jsonl\.gz:\d+: unreadable"):
            list(read_lines(path))
