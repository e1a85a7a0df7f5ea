import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstchair.core import jsonstream
from firstchair.core.errors import DataError
from firstchair.core.jsonstream import read_records

TEXT = st.text(alphabet='{}[]"\\,: \u2028é\n😀a', max_size=12)
OBJECTS = st.lists(
    st.dictionaries(TEXT, TEXT | st.lists(st.dictionaries(TEXT, TEXT, max_size=2)), max_size=3), max_size=5
)


def records(path: Path, **options: int) -> list:
    return [raw if isinstance(raw, DataError) else json.loads(raw) for _, raw in read_records(path, **options)]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OBJECTS, st.integers(1, 40), st.sampled_from(["array", "pretty", "lines", "bom"]), st.booleans())
def test_records_come_out_whole_whatever_the_blocks(tmp_path, monkeypatch, objects, block, form, ascii_only):
    monkeypatch.setattr(jsonstream, "BLOCK", block)
    lines = "\r\n".join(json.dumps(item, ensure_ascii=ascii_only) for item in objects)
    text = {
        "array": json.dumps(objects, ensure_ascii=ascii_only),
        "pretty": json.dumps(objects, ensure_ascii=ascii_only, indent=1),
        "lines": lines,
        "bom": "\ufeff" + lines,
    }[form]
    path = tmp_path / "a.json"
    path.write_bytes(text.encode())
    assert records(path) == objects


def test_an_archive_is_read_and_its_bytes_counted(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps([{"a": n} for n in range(100)]).encode()))
    seen: list[int] = []
    assert sum(1 for _ in read_records(path, on_bytes=seen.append)) == 100
    assert sum(seen) == path.stat().st_size


@pytest.mark.parametrize(
    ("text", "good", "words"),
    [
        ('[{"a": 1}, {"b": ', 1, r"a\.json\[1\]: the file ends inside this record"),
        ('[{"a": 1}, {"b": "x\\', 1, r"a\.json\[1\]: the file ends inside"),
        ('[{"a": 1}', 1, r"a\.json\[1\]: the file ends without ']'"),
    ],
)
def test_a_truncated_file_gives_its_whole_records_and_the_fault(tmp_path, text, good, words):
    path = tmp_path / "a.json"
    path.write_text(text)
    *whole, fault = records(path)
    assert len(whole) == good
    with pytest.raises(DataError, match=words):
        raise fault


@pytest.mark.parametrize(
    ("text", "index"),
    [("[1]", 0), ('[{"a": 1} 7]', 1), ('{"a": 1} x', 1), ('[{}] {"a": 1}', 1), ("[[{}]]", 0), ("null", 0), ("]", 0)],
)
def test_what_is_no_object_stops_the_reading(tmp_path, text, index):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"a\.json\[{index}\]: found .*expected a JSON object"):
        records(path)


def test_an_overlong_record_is_let_go_and_the_rest_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonstream, "BLOCK", 100)
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"a": 1}, {"b": "}\\" * 5000}, {"c": [0] * 500}, {"d": 4}]))
    first, second, third, last = records(path, max_record_bytes=1000)
    assert (first, last) == ({"a": 1}, {"d": 4})
    for fault, size in ((second, r"15,0\d\d"), (third, r"1,5\d\d")):
        with pytest.raises(DataError, match=rf"record of {size} bytes; the limit is 1,000"):
            raise fault


def test_an_empty_file_has_no_records(tmp_path):
    path = tmp_path / "a.json"
    for text in ("", " \n", "\ufeff", "[]"):
        path.write_text(text)
        assert records(path) == []
