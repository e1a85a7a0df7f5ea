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
    return [raw if isinstance(raw, DataError) else json.loads(raw) for _, _, raw in read_records(path, **options)]


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
        ('[{"a": 1}, {"b": ', 1, r"a\.json\[1\]:1: the file ends inside this record"),
        ('[{"a": 1},\n{"b": "x\\', 1, r"a\.json\[1\]:2: the file ends inside"),
        ('[{"a": 1}', 1, r"a\.json\[1\]:1: the file ends without ']'"),
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
    with pytest.raises(DataError, match=rf"a\.json\[{index}\]:1: found .*expected a JSON object"):
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


LINES = ['{"a": 1}', '{"b": {"c": [2]}}', '{"d": 3}']


@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("ending", ["\n", ""])
def test_a_cut_line_of_json_lines_costs_that_line_alone(tmp_path, broken, ending):
    path = tmp_path / "a.jsonl"
    lines = [line[:5] if number == broken else line for number, line in enumerate(LINES)]
    path.write_text("\n".join(lines) + ending)
    found = [(record.origin, record.raw) for record in read_records(path)]
    assert found == [(f"{path}:{number}", line.encode()) for number, line in enumerate(lines, 1)]


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_records_of_an_array_are_named_by_index_and_line(tmp_path, monkeypatch, block):
    monkeypatch.setattr(jsonstream, "BLOCK", block)
    path = tmp_path / "a.json"
    path.write_text('[\n{"a":\n1},\n\n {"b": ["\\n", 1,\n' + "2,\n" * 20 + '3]}, {"c": 1},\n{"d": 1}]')
    found = [(record.path.removeprefix(str(path)), record.line) for record in read_records(path, max_record_bytes=30)]
    assert found == [("[0]", 2), ("[1]", 5), ("[2]", 26), ("[3]", 27)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('{\n"a": [\n{"b": 1}\n]}', 1),
        ('{"a": [\n{"b": 1}\n]}', 1),
        ('{"a":\n{"b": 1}\n}\n{"c": 2}', 2),
        ('{"a": 1}{"b": 1}', 2),
    ],
)
def test_objects_that_are_not_one_a_line_are_not_taken_for_lines(tmp_path, text, count):
    path = tmp_path / "a.json"
    path.write_text(text)
    assert [bool(json.loads(record.raw)) for record in read_records(path)] == [True] * count
