from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from firstchair.catalog.catalog import load_catalog
from firstchair.cli.desk import app
from firstchair.core.errors import ConfigError, DataError, FirstchairError, RunFailed
from firstchair.data.corrections import read_corrections
from firstchair.rollout.actor_app import build_app
from firstchair.rollout.desk.definitions import desk_catalog
from firstchair.rollout.desk.server import running_app
from firstchair.rollout.desk.teacher import Teacher
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.traces.decisions import decision_points
from firstchair.traces.session import catalog_id_of
from firstchair.traces.session_file import read_catalogs, read_sessions, write_sessions
from firstchair.traces.store import TraceStore


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def lines(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.split("\n") if line]


def test_tasks_are_printed_as_a_table_and_as_json() -> None:
    table = run("tasks", "--n", "2", "--seed", "7")
    assert table.exit_code == 0
    assert "desk-7-1" in table.stdout
    tasks = lines(run("tasks", "--n", "2", "--seed", "7", "--json"))
    assert [task["task_id"] for task in tasks] == ["desk-7-0", "desk-7-1"]


def test_tasks_keep_to_one_line_each_unless_they_are_asked_for_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [line for line in run("tasks", "--n", "5").stdout.splitlines() if line.startswith("desk-0-")]
    assert len(rows) == 5
    assert all(len(row) <= 80 for row in rows)
    whole = run("tasks", "--n", "5", "--wide").stdout
    for task in lines(run("tasks", "--n", "5", "--json")):
        assert task["turns"][0]["user"] in whole


def test_show_prints_one_session_to_read() -> None:
    shown = run("show", "--number", "2")
    assert shown.exit_code == 0
    for part in ("system: ", "user: ", "assistant thinks: ", "assistant calls: ", "completed: True"):
        assert part in shown.stdout
    (session,) = lines(run("show", "--number", "2", "--json"))
    assert session["labels"]["completed"] is True


def test_play_with_the_teacher_gives_completion_with_its_interval(tmp_path: Path) -> None:
    out = tmp_path / "played"
    (found,) = lines(run("play", "--teacher", "--n", "8", "--json", "--out", str(out)))
    assert found["completed"]["value"] == 1.0
    assert found["completed"]["n"] == 8
    assert 0 < found["completed"]["low"] < 1
    assert found["errors"] == {}
    assert sum(1 for _ in read_sessions(out)) == 8
    table = run("play", "--teacher", "--n", "8", "--mistake-rate", "1")
    assert "policy row" in table.stdout
    assert "0.0%" in table.stdout


def test_how_arguments_are_written_is_said_for_a_model_that_is_loaded_here() -> None:
    with pytest.raises(ConfigError, match="--arguments is for --model"):
        raise_from(run("play", "--teacher", "--arguments", "respaced"))


def test_play_calls_a_server_in_either_dialect() -> None:
    with running_app(build_app(Teacher(), "t"), model="t") as server:
        for dialect, url in (("openai", server.openai_url), ("anthropic", server.base_url)):
            options = ("--base-url", url, "--served-model", "t", "--dialect", dialect)
            (found,) = lines(run("play", "--n", "2", "--json", *options))
            assert found["completed"]["value"] == 1.0


def test_record_writes_files_or_a_store_and_the_same_again_adds_nothing(tmp_path: Path) -> None:
    with running_app(build_app(Teacher(mistake_rate=0.2, seed=3), "desk-teacher")) as server:
        options = ("--n", "5", "--base-url", server.openai_url, "--json")
        (first,) = lines(run("record", *options, "--out", str(tmp_path / "files")))
        store = str(tmp_path / "store.db")
        (second,) = lines(run("record", *options, "--store", store))
        (third,) = lines(run("record", *options, "--store", store))
    assert (first["new"], second["new"], third["new"]) == (5, 5, 0)
    assert first["calls"] > 20
    sessions = list(read_sessions(tmp_path / "files"))
    assert {session.source for session in sessions} == {"scripted"}
    catalogs = read_catalogs(tmp_path / "files" / "catalogs.jsonl")
    assert set(catalogs) == {session.catalog_id for session in sessions}
    with TraceStore.open(store) as opened:
        assert {s.session_id for s in opened.sessions()} == {s.session_id for s in sessions}


def test_a_recording_without_a_server_fails_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "files"
    result = run("record", "--n", "2", "--out", str(out), "--base-url", "http://127.0.0.1:9/v1")
    assert isinstance(result.exception, RunFailed)
    assert "2 of 2 episodes failed" in str(result.exception)
    assert not out.exists()


def test_a_store_that_cannot_be_used_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    store = tmp_path / "notes.txt"
    store.write_text("not a database")
    # Nothing listens there: an error about the store can only come before the recording.
    result = run("record", "--n", "2", "--store", str(store), "--base-url", "http://127.0.0.1:9/v1")
    assert isinstance(result.exception, FirstchairError)
    assert "notes.txt" in str(result.exception)
    assert store.read_text() == "not a database"


@pytest.mark.parametrize(
    "arguments",
    [
        ("record", "--n", "1"),
        ("record", "--n", "1", "--out", "a", "--store", "b"),
        ("record", "--n", "1", "--out", "a", "--base-url", "http://x/v1", "--mistake-rate", "0.5"),
        ("record", "--n", "1", "--out", "."),
        ("play", "--n", "1"),
        ("play", "--n", "1", "--teacher", "--base-url", "http://x/v1"),
        ("play", "--n", "1", "--teacher", "--out", "."),
        ("play", "--n", "1", "--teacher", "--adapter", "."),
    ],
)
def test_a_command_line_that_does_not_fit_together_is_refused_before_anything_runs(
    arguments: tuple[str, ...],
) -> None:
    assert isinstance(run(*arguments).exception, ConfigError)


@pytest.mark.parametrize(
    "arguments",
    [
        ("tasks", "--n", "0"),
        ("tasks", "--seed", "99999999999"),
        ("record", "--mistake-rate", "2"),
        ("record", "--mistake-rate", "nan"),
        ("play", "--teacher", "--temperature", "inf"),
        ("play", "--dialect", "x"),
    ],
)
def test_a_value_out_of_range_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_the_catalog_is_written_whole_and_verified(tmp_path: Path) -> None:
    out = tmp_path / "desk.yaml"
    assert run("catalog", "--out", str(out)).exit_code == 0
    assert load_catalog(out) == desk_catalog()
    assert desk_catalog().verified
    assert out.read_text(encoding="utf-8") == run("catalog").stdout
    with pytest.raises(ConfigError, match="--force"):
        raise_from(run("catalog", "--out", str(out)))
    assert run("catalog", "--out", str(out), "--force").exit_code == 0


def test_a_review_writes_the_corrections_of_what_was_recorded(tmp_path: Path) -> None:
    store, out = tmp_path / "traces.db", tmp_path / "corrections.jsonl"
    run("record", "--n", "6", "--store", str(store), "--mistake-rate", "0.3")
    (found,) = lines(run("review", str(store), "--out", str(out), "--json"))
    rows = read_corrections(out)
    assert found["sessions"] == 6
    assert sum(found["corrections"].values()) == len(rows) > 0
    assert "confirmed" not in found["corrections"]
    words = run("review", str(store), "--out", str(out), "--confirm", "--force").stdout
    assert f"{len(read_corrections(out))} corrections of 6 sessions (confirmed " in words
    with TraceStore.open(store) as opened:
        decided = sum(len(decision_points(session)) for session in opened.sessions())
    assert len(read_corrections(out)) == decided
    with pytest.raises(ConfigError, match="--force"):
        raise_from(run("review", str(store), "--out", str(out)))


def test_sessions_of_another_platform_are_not_reviewed(tmp_path: Path) -> None:
    write_sessions(tmp_path / "trips", [trip_session(1)], {catalog_id_of(trip_tools()): trip_tools()})
    with pytest.raises(DataError, match="'trip-1' is not the desk's"):
        raise_from(run("review", str(tmp_path / "trips"), "--out", str(tmp_path / "x.jsonl")))
    assert not (tmp_path / "x.jsonl").exists()


def test_a_review_of_nothing_says_so(tmp_path: Path) -> None:
    TraceStore.open(tmp_path / "empty.db").close()
    with pytest.raises(DataError, match="found no session to review"):
        raise_from(run("review", str(tmp_path / "empty.db"), "--out", str(tmp_path / "x.jsonl")))
    assert not (tmp_path / "x.jsonl").exists()


def raise_from(result: Result) -> None:
    assert result.exception is not None
    raise result.exception
