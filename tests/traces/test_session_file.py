import json

import msgspec
import pytest

from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import SkipBad
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.traces.session import Session, catalog_id_of
from firstchair.traces.session_file import read_catalogs, read_sessions, write_sessions
from firstchair.traces.store import StoredTools, TraceStore

TOOLS = trip_tools()
CATALOGS = {catalog_id_of(TOOLS): TOOLS, "unused": ()}
SESSIONS = [trip_session(number) for number in range(3)]


def test_an_export_is_read_back_equal(tmp_path):
    assert write_sessions(tmp_path / "out", iter(SESSIONS), CATALOGS) == 3
    assert list(read_sessions(tmp_path / "out")) == SESSIONS
    assert list(read_sessions(tmp_path / "out" / "sessions.jsonl")) == SESSIONS
    assert read_catalogs(tmp_path / "out") == {SESSIONS[0].catalog_id: TOOLS}


def test_store_to_export_to_store_loses_nothing(store: TraceStore, tmp_path):
    store.add(SESSIONS, CATALOGS, received={SESSIONS[0].catalog_id: "[wire]"})
    write_sessions(tmp_path / "out", store.sessions(), StoredTools(store), received=store.received)
    text = (tmp_path / "out" / "sessions.jsonl").read_bytes()
    assert text.count(b"\n") == 3
    assert "\u2028".encode() in text, "non-ASCII is kept as it is"
    assert store.add(read_sessions(tmp_path / "out"), read_catalogs(tmp_path / "out")).duplicates == 3


def test_an_export_replaces_nothing_unless_told(tmp_path):
    write_sessions(tmp_path / "out", SESSIONS, CATALOGS)
    with pytest.raises(ConfigError, match="--force"):
        write_sessions(tmp_path / "out", SESSIONS[:1], CATALOGS)
    write_sessions(tmp_path / "out", SESSIONS[:1], CATALOGS, force=True)
    assert len(list(read_sessions(tmp_path / "out"))) == 1


def test_a_session_whose_tools_are_not_given_is_not_written(tmp_path):
    with pytest.raises(DataError, match=r"trip-0.*not given"):
        write_sessions(tmp_path / "out", SESSIONS, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"colour": "red"}, "colour"),
        ({"schema_version": "9.0"}, "schema_version"),
        ({"messages": [{"role": "wizard"}]}, "messages[0].role"),
        ({"messages": []}, "messages"),
        ({"turns": [{"start": 2, "end": 99}]}, "turns"),
        ({"session_id": ""}, "session_id"),
        ({"source": "dream"}, "source"),
        ({"labels": 3}, "labels"),
        ({"calls": [{"call_id": "m", "message_index": 99}]}, "calls[0].message_index"),
        ({"created_at": "never"}, "created_at"),
    ],
)
def test_a_broken_record_is_named_and_may_be_passed_over(tmp_path, change, field):
    write_sessions(tmp_path / "out", SESSIONS[:2], CATALOGS)
    path = tmp_path / "out" / "sessions.jsonl"
    first, second, _ = path.read_text().split("\n")
    path.write_text(first + "\n" + json.dumps({**json.loads(second), **change}) + "\n")
    with pytest.raises(DataError) as caught:
        list(read_sessions(path))
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{path}:2: {field}")
    skip = SkipBad(allowed=1)
    assert list(read_sessions(path, skip=skip)) == SESSIONS[:1]
    assert len(skip.skipped) == 1


def test_a_tool_list_under_a_wrong_id_is_refused(tmp_path):
    write_sessions(tmp_path / "out", SESSIONS, CATALOGS)
    path = tmp_path / "out" / "catalogs.jsonl"
    path.write_text(path.read_text().replace("find_trips", "find_tripz"))
    with pytest.raises(DataError, match=r"catalogs\.jsonl:1: catalog_id: .*export again"):
        read_catalogs(tmp_path / "out")


def test_defaults_are_left_out_and_come_back():
    session = Session(session_id="s", messages=SESSIONS[0].messages)
    assert json.loads(msgspec.json.encode(session)).keys() == {"session_id", "messages"}
