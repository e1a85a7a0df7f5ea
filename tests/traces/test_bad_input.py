"""Broken files: named by place and field, nothing added; with an allowance the rest goes in, the bad are listed."""

import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firstchair.core.errors import ConfigError, DataError, RunFailed
from firstchair.core.jsonl import MAX_LINE_BYTES, SkipBad, read_jsonl
from firstchair.traces.importers import ImportOptions
from firstchair.traces.importing import check_side_files, import_file, write_skipped
from firstchair.traces.store import TraceStore

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
GOOD = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
ASKED = [GOOD[0], {"role": "assistant", "content": None, "tool_calls": [CALL]}]


def line(name: object, messages: object = None, **fields: object) -> str:
    return json.dumps({"id": name, "messages": GOOD if messages is None else messages, **fields}, ensure_ascii=False)


def nested(levels: int) -> str:
    return '{"id": "deep", "messages": ' + json.dumps(GOOD) + ', "x": ' + "[" * levels + "]" * levels + "}"


def used(*, prompt_tokens: int = 1, latency_ms: int = 1) -> str:
    response = {"usage": {"prompt_tokens": prompt_tokens}, "choices": [{"message": GOOD[1]}]}
    row = {"session_id": "x", "request": {"messages": GOOD[:1]}, "response": response, "latency_ms": latency_ms}
    return json.dumps(row)


BAD = {
    "truncated": ('{"id": "x", "messages": [{"role": "us', None, "not strict JSON"),
    "not json": ("hello", None, "not strict JSON"),
    "a list": ("[1, 2]", None, "expected one JSON object a line"),
    "wrong tool_call_id": (
        line("x", [*ASKED, {"role": "tool", "tool_call_id": "c2", "content": ""}]),
        "messages[2].tool_call_id",
        "'c1'",
    ),
    "result without call": (
        line("x", [GOOD[0], {"role": "tool", "tool_call_id": "c1", "content": ""}]),
        "messages[1].tool_call_id",
        "without any call",
    ),
    "result twice": (
        line("x", [*ASKED, *[{"role": "tool", "tool_call_id": "c1", "content": ""}] * 2]),
        "messages[3].tool_call_id",
        "no call of the message before waits",
    ),
    "two calls, one id": (
        line("x", [GOOD[0], {"role": "assistant", "tool_calls": [CALL, CALL]}]),
        "messages[1].tool_calls[1].id",
        "twice",
    ),
    "lone surrogate": ('{"id": "x", "messages": [{"role": "user", "content": "\\ud800"}]}', None, "lone surrogate"),
    "deep": (nested(100), None, "deeper than 64"),
    "very deep": (nested(100_000), None, "deeper than 64"),
    "nan": ('{"id": "x", "reward": NaN, "messages": []}', None, "NaN is not JSON"),
    "infinity": ('{"id": "x", "reward": 1e999, "messages": []}', None, "finite"),
    "key twice": ('{"id": "x", "id": "y", "messages": []}', None, "twice"),
    "no messages": ('{"id": "x"}', "messages", "no such field"),
    "messages of another kind": (line("x", "hi"), "messages", "found str"),
    "empty conversation": (line("x", []), "messages", "found no message"),
    "unknown role": (line("x", [{"role": "wizard", "content": "x"}]), "messages[0].role", "wizard"),
    "message that is none": (line("x", [7]), "messages[0]", "number"),
    "id with spaces": (line("a b"), "session_id", "white space"),
    "id of another kind": (line(["x"]), "id", "found list"),
    "labels of another kind": (line("x", labels=[1]), "labels", "found list"),
    "a time that is none": (line("x", created_at="soon"), "created_at", "ISO 8601"),
    "a time past the last year": (line("x", created_at="9999-12-31T23:59:59-23:00"), "created_at", "out of range"),
    "a time before the first year": (line("x", created_at="0001-01-01T00:00:00+23:00"), "created_at", "out of range"),
    "a token count that is none": (used(prompt_tokens=10**25), "calls[0].usage", "outside 0 to"),
    "a latency that no float holds": (used(latency_ms=10**400), "latency_ms", "float"),
    "an id with other content": (line("ok1", [GOOD[0]]), "session_id", "--on-conflict"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_named_and_nothing_is_added(store: TraceStore, tmp_path, name):
    text, field, words = BAD[name]
    path = tmp_path / "in.jsonl"
    path.write_text(f"{line('ok1')}\n{text}\n{line('ok2')}\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        import_file(store, path, "openai", ImportOptions())
    assert str(caught.value).startswith(f"{path}:2: ")
    assert caught.value.field == field
    assert words in str(caught.value)
    assert store.count() == 0


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_passed_over_when_asked(tmp_path, name):
    path = tmp_path / "in.jsonl"
    path.write_text(f"{line('ok1')}\n{BAD[name][0]}\n{line('ok2')}\n", encoding="utf-8")
    skip = SkipBad(allowed=1)
    with TraceStore.open(tmp_path / "t.db") as store:
        report = import_file(store, path, "openai", ImportOptions(skip=skip))
        assert report.added == store.count() == 2
    assert [str(error).startswith(f"{path}:2: ") for error in skip.skipped] == [True]


def test_one_bad_record_more_than_allowed_adds_nothing(store: TraceStore, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(f"{line('ok1')}\nx\ny\n")
    with pytest.raises(DataError, match=r"in\.jsonl:3"):
        import_file(store, path, "openai", ImportOptions(skip=SkipBad(allowed=1)))
    assert store.count() == 0


def test_the_side_file_lists_places_and_reasons_and_is_not_overwritten(tmp_path):
    path = tmp_path / "side.jsonl"
    errors = [DataError("why", path="in.jsonl", line=3, field="id"), DataError("why not", path="in.json[7]")]
    assert write_skipped(path, errors, force=False) == 2
    rows = [row for _, row in read_jsonl(path)]
    assert rows[0] == {"path": "in.jsonl", "line": 3, "field": "id", "reason": "why"}
    with pytest.raises(ConfigError, match="--force"):
        check_side_files([path], [tmp_path / "in.jsonl"], force=False)
    with pytest.raises(ConfigError, match="is in use itself"):
        check_side_files([path], [tmp_path / "in.jsonl", tmp_path / "x" / ".." / "side.jsonl"], force=True)


@pytest.mark.parametrize("format_name", ["openai", "anthropic", "conversations", "tau", "otel", "firstchair"])
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_said_to_be_empty(tmp_path, format_name, content):
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    with (
        TraceStore.open(tmp_path / "t.db") as store,
        pytest.raises(DataError, match=r"in\.jsonl: found no record"),
    ):
        import_file(store, path, format_name, ImportOptions())


@pytest.mark.parametrize("format_name", ["openai", "anthropic", "conversations", "tau", "otel", "firstchair"])
@pytest.mark.parametrize("content", [b"\xff\xfe{\x00}\x00\n", b"{}\n", b'{"a": \n', b"\x00\x00", b"[[]]", b"]"])
def test_no_format_takes_rubbish_or_crashes_on_it(tmp_path, format_name, content):
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    with TraceStore.open(tmp_path / "t.db") as store:
        with pytest.raises(DataError, match=r"in\.jsonl"):
            import_file(store, path, format_name, ImportOptions())
        assert store.count() == 0


def test_a_missing_file_is_named(tmp_path):
    with TraceStore.open(tmp_path / "t.db") as store, pytest.raises(DataError, match="no such file"):
        import_file(store, tmp_path / "absent.jsonl", "openai", ImportOptions())


def test_bom_crlf_and_line_separators_are_no_fault(store: TraceStore, tmp_path):
    path = tmp_path / "in.jsonl"
    odd = [{"role": "user", "content": "a\u2028b\u2029c\x85d\x0be\r\n"}, GOOD[1]]
    path.write_bytes(b"\xef\xbb\xbf" + f"{line('a', odd)}\r\n\r\n{line('b')}\r\n".encode())
    assert import_file(store, path, "openai", ImportOptions()).added == 2
    assert store.get("a").messages[0].text == odd[0]["content"]


def test_an_overlong_line_is_named_and_the_next_is_read(tmp_path):
    path = tmp_path / "in.jsonl"
    with path.open("w") as out:
        out.write(f"{line('ok1')}\n")
        out.write(line("big", [{"role": "user", "content": "x" * 50_000_000}]) + "\n")
        out.write(f"{line('ok2')}\n")
    skip = SkipBad(allowed=1)
    with TraceStore.open(tmp_path / "t.db") as store:
        with pytest.raises(DataError, match=rf"in\.jsonl:2: line of 50,0\d\d,\d\d\d bytes; .*{MAX_LINE_BYTES:,}"):
            import_file(store, path, "openai", ImportOptions())
        assert import_file(store, path, "openai", ImportOptions(skip=skip)).added == 2


def test_a_tau_list_cut_off_in_the_middle_names_the_record(tmp_path):
    whole = json.dumps([{"task_id": number, "reward": 1, "traj": GOOD} for number in range(5)])
    path = tmp_path / "t.json"
    path.write_text(whole[:-30])
    with TraceStore.open(tmp_path / "t.db") as store:
        with pytest.raises(DataError, match=r"t\.json\[4\]:1: the file ends inside this record"):
            import_file(store, path, "tau", ImportOptions())
        assert store.count() == 0
        assert import_file(store, path, "tau", ImportOptions(skip=SkipBad(allowed=1))).added == 4


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"task_id": None}, "task_id"),
        ({"reward": "high"}, "reward"),
        ({"trial": True}, "trial"),
        ({"traj": None}, "traj"),
        ({"traj": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, "traj[0].tool_call_id"),
        ({"traj": [{"role": "user", "content": 5}]}, "traj[0].content"),
    ],
)
def test_tau_faults_are_named_by_field(tmp_path, fields, field):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"task_id": 1, "trial": 0, "reward": 1.0, "traj": GOOD, **fields}]))
    with TraceStore.open(tmp_path / "t.db") as store, pytest.raises(DataError) as caught:
        import_file(store, path, "tau", ImportOptions())
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{path}[0]:1: {field}")


def test_no_credential_reaches_the_store_or_an_error(tmp_path):
    canary = "sk-canary-0123456789abcdef"
    headers = {"authorization": f"Bearer {canary}", "x-api-key": canary}
    rows = [
        {"id": "a", "messages": GOOD, "headers": headers, "config": {"api_key": canary, "note": f"uses {canary}"}},
        {
            "session_id": "b",
            "headers": headers,
            "request": {"messages": GOOD[:1], "extra_headers": headers},
            "response": {"error": {"type": canary, "message": f"bad key {canary}"}},
        },
        {"id": "c", "messages": GOOD, "api_key": canary, "created_at": "bad"},
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    skip = SkipBad(allowed=1)
    with TraceStore.open(tmp_path / "t.db") as store:
        assert import_file(store, path, "openai", ImportOptions(skip=skip)).added == 2
    write_skipped(tmp_path / "side.jsonl", skip.skipped, force=False)
    for file in tmp_path.iterdir():
        if file != path:
            assert canary.encode() not in file.read_bytes(), file


SLOW_IMPORT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background hands down that it is ignored
from pathlib import Path
import firstchair.traces.store as module
from firstchair.cli.main import main
real = module._insert
def slow(connection, table, rows):
    real(connection, table, rows)
    if table.name == "sessions":
        print("batch", flush=True)
        time.sleep(0.2)
module.BATCH = 20
module._insert = slow
sys.argv[0] = "firstchair"
main()
"""


def start_import(tmp_path: Path, *flags: str) -> subprocess.Popen[str]:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{line(f's{number}')}\n" for number in range(400)))
    store = tmp_path / "t.db"
    command = [sys.executable, "-c", SLOW_IMPORT, "traces", "import", str(path), "--format", "openai"]
    process = subprocess.Popen(
        [*command, "--store", str(store), *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline() == "batch\n"
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("flags", [(), ("--as-it-goes",)])
def test_an_interrupted_import_leaves_the_store_whole_and_runs_again(tmp_path, how, flags):
    process = start_import(tmp_path, *flags)
    process.send_signal(how)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == (1 if how is signal.SIGINT else -signal.SIGKILL), errors
    assert "Traceback" not in errors
    database = sqlite3.connect(tmp_path / "t.db")
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
    with TraceStore.open(tmp_path / "t.db", must_exist=True) as store:
        there = store.count()
        assert there % 20 == 0
        assert (there > 0) == bool(flags)
        report = import_file(store, tmp_path / "in.jsonl", "openai", ImportOptions())
        assert (report.added, report.duplicates) == (400 - there, there)
        assert store.count() == 400


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
from firstchair.cli.main import main
sys.argv[0] = "firstchair"
main()
"""


def test_a_full_disk_is_said_and_leaves_the_store_as_it_was(tmp_path):
    path = tmp_path / "in.jsonl"
    text = [{"role": "user", "content": "x" * 5000}, GOOD[1]]
    path.write_text("".join(f"{line(f's{number}', text)}\n" for number in range(400)))
    store_path = tmp_path / "t.db"
    with TraceStore.open(store_path) as store:
        (tmp_path / "first.jsonl").write_text(f"{line('first')}\n")
        import_file(store, tmp_path / "first.jsonl", "openai", ImportOptions())
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            LIMITED,
            "traces",
            "import",
            str(path),
            "--format=openai",
            f"--store={store_path}",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "free space and run again" in done.stderr
    assert "Traceback" not in done.stderr
    with TraceStore.open(store_path) as store:
        assert [session.session_id for session in store.sessions()] == ["first"]
        assert import_file(store, path, "openai", ImportOptions()).added == 400


def test_a_full_disk_under_a_side_file_is_said(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match="No space left"):
        write_skipped(tmp_path / "side.jsonl", [DataError("why")], force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_waits_for_another_and_both_get_in(tmp_path):
    process = start_import(tmp_path)
    began = time.monotonic()
    with TraceStore.open(tmp_path / "t.db", must_exist=True) as store:
        (tmp_path / "other.jsonl").write_text(f"{line('other')}\n")
        process.send_signal(signal.SIGINT)
        import_file(store, tmp_path / "other.jsonl", "openai", ImportOptions())
        assert store.count() == 1
    process.communicate(timeout=30)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_cut_line_of_tau_or_otel_lines_is_the_only_one_lost(tmp_path, broken):
    message = [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    rows = {
        "tau": [{"task_id": number, "reward": 1, "traj": GOOD} for number in range(3)],
        "otel": [{"trace_id": f"t{n}", "attributes": {"gen_ai.input.messages": message}} for n in range(3)],
    }
    for name, records in rows.items():
        lines = [json.dumps(record) for record in records]
        lines[broken] = lines[broken][:-20]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(lines) + "\n")
        skip = SkipBad(allowed=1)
        with TraceStore.open(tmp_path / f"{name}.db") as store:
            assert import_file(store, path, name, ImportOptions(skip=skip)).added == 2
        assert [(error.path, error.line) for error in skip.skipped] == [(str(path), broken + 1)]
