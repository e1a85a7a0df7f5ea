import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from firstchair.cli import catalog as catalog_cli
from firstchair.cli import traces as traces_cli
from firstchair.core.errors import ConfigError, DataError
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.traces.session import catalog_id_of
from firstchair.traces.session_file import read_sessions
from firstchair.traces.store import TraceStore

TOOLS = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {"required": ["city"]}}}]


def trajectory(task: int, arguments: str = '{"city": "Oslo"}', result: str = "sun") -> dict:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {
        "task_id": task,
        "trial": 0,
        "reward": float(task % 2),
        "traj": [
            {"role": "user", "content": f"weather {task}? \x1b[31mred"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "name": "look", "content": result},
            {"role": "assistant", "content": "Sunny. " + "long " * 400},
        ],
    }


def run(app, *arguments: object, code: int = 0, **options: object) -> str:
    result = CliRunner().invoke(app, [str(item) for item in arguments], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("tools.json").write_text(json.dumps(TOOLS))
    Path("runs.json").write_text(json.dumps([trajectory(0), trajectory(1, result="Error: none"), trajectory(2)]))
    run(traces_cli.app, "import", "runs.json", "--format", "tau", "--tools", "tools.json", "--label", "wave=1")
    return tmp_path


def test_importing_twice_adds_nothing(imported):
    output = run(
        traces_cli.app,
        "import",
        "runs.json",
        "--format",
        "tau",
        "--tools",
        "tools.json",
        "--label",
        "wave=1",
        "--json",
    )
    (report,) = json.loads(output)["files"]
    assert (report["added"], report["duplicates"], report["skipped_file"]) == (0, 3, None)


def test_other_labels_on_the_same_file_are_a_conflict_that_can_be_resolved(imported):
    arguments = ("import", "runs.json", "--format", "tau", "--tools", "tools.json", "--label", "wave=2")
    with pytest.raises(DataError, match="on-conflict"):
        run(traces_cli.app, *arguments)
    assert "3" in run(traces_cli.app, *arguments, "--on-conflict", "replace")
    assert "wave=2" in run(traces_cli.app, "ls")


def test_ls_filters_limits_and_speaks_json(imported):
    listed = json.loads(run(traces_cli.app, "ls", "--json"))
    assert [row["labels"]["task_id"] for row in listed] == [0, 1, 2]
    assert len(json.loads(run(traces_cli.app, "ls", "--label", "reward=1", "--tool", "look", "--json"))) == 1
    output = run(traces_cli.app, "ls", "--limit", "1", "--source", "rollout")
    assert "1 of 3 sessions" in output
    assert "task_id=0" in output
    assert "0 sessions" in run(traces_cli.app, "ls", "--since", "2020-01-01")
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        run(traces_cli.app, "ls", "--label", "reward")


def test_ls_keeps_to_one_line_a_session_in_80_columns(imported, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ids = [row["session_id"] for row in json.loads(run(traces_cli.app, "ls", "--json"))]
    output = run(traces_cli.app, "ls", "--label", "wave=1")
    lines = output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    rows = [line for line in lines if any(line.startswith(one[:10]) for one in ids)]
    assert len(rows) == 3
    assert [row.split("task_id=")[1].split()[0] for row in rows] == ["0", "1", "2"]
    assert any(line.startswith("all have source rollout") and "wave=1" in line for line in lines)
    whole = run(traces_cli.app, "ls", "--wide")
    assert all(one in whole for one in ids)
    assert "wave=1" in next(line for line in whole.splitlines() if ids[0] in line)


def test_show_is_readable_and_safe_for_a_terminal(imported):
    first = json.loads(run(traces_cli.app, "ls", "--json"))[1]["session_id"]
    output = run(traces_cli.app, "show", first)
    for words in (
        "turn 1",
        '→ look({"city": ',
        "Error: none",
        "2 tool look ERROR",
        "more characters (--full)",
        "runs.json[1]",
    ):
        assert words in output
    assert "\x1b[31mred" not in output
    assert "more characters" not in run(traces_cli.app, "show", first, "--full")
    shown = json.loads(run(traces_cli.app, "show", first, "--json"))
    assert shown["tools"][0]["name"] == "look"
    with pytest.raises(ConfigError, match="traces ls"):
        run(traces_cli.app, "show", "nobody")


def test_stats_count(imported):
    stats = json.loads(run(traces_cli.app, "stats", "--json"))
    assert (stats["sessions"], stats["messages"], stats["tool_calls"], stats["tool_errors"]) == (3, 12, 3, 1)
    assert stats["tools"] == [{"tool": "look", "sessions": 3, "calls": 3, "errors": 1}]
    output = run(traces_cli.app, "stats")
    assert "look" in output
    assert "rollout" in output


def test_export_and_import_of_the_export(imported):
    assert "2 sessions" in run(traces_cli.app, "export", "out", "--label", "reward=0")
    assert len(list(read_sessions(Path("out")))) == 2
    with pytest.raises(ConfigError, match="--force"):
        run(traces_cli.app, "export", "out")
    output = run(traces_cli.app, "import", "out", "--format", "firstchair", "--store", "other.db", "--json")
    assert json.loads(output)["files"][0]["added"] == 2


def test_delete_asks_first_and_needs_to_be_told_which(imported):
    with pytest.raises(ConfigError, match="--all"):
        run(traces_cli.app, "delete", "--yes")
    run(traces_cli.app, "delete", "--label", "reward=1", input="n\n", code=1)
    assert json.loads(run(traces_cli.app, "delete", "--label", "reward=1", "--yes", "--json")) == {"deleted": 1}
    assert "2 sessions deleted" in run(traces_cli.app, "delete", "--all", "--yes")


def test_bad_records_are_listed_in_a_side_file(imported):
    Path("mixed.json").write_text(json.dumps([trajectory(7), {"task_id": 8}, trajectory(9)]))
    command = ("import", "mixed.json", "--format", "tau", "--store", "mixed.db")
    with pytest.raises(DataError, match=r"mixed\.json\[1\]:1: traj: found no such field"):
        run(traces_cli.app, *command)
    output = run(traces_cli.app, *command, "--skip-bad", "1")
    assert "1 bad record is listed in mixed.json.skipped.jsonl" in output
    assert json.loads(Path("mixed.json.skipped.jsonl").read_text())["field"] == "traj"
    with pytest.raises(ConfigError, match="--force"):
        run(traces_cli.app, *command, "--skip-bad", "1")
    run(traces_cli.app, *command, "--skip-bad", "1", "--force", "--as-it-goes")


def test_reading_a_store_that_is_not_there_makes_none(tmp_path):
    for command in ("ls", "stats"):
        with pytest.raises(ConfigError, match="no such store"):
            run(traces_cli.app, command, "--store", tmp_path / "x.db")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_there_makes_no_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"x\.json: no such file"):
        run(traces_cli.app, "import", "x.json", "--format", "tau")
    with pytest.raises(DataError, match="a directory"):
        run(traces_cli.app, "import", ".", "--format", "tau")
    assert list(tmp_path.iterdir()) == []


def test_infer_show_lint_and_validate(imported):
    assert "1 tools written" in run(catalog_cli.app, "infer", "look.yaml")
    with pytest.raises(ConfigError, match="--force"):
        run(catalog_cli.app, "infer", "look.yaml")
    assert "look" in run(catalog_cli.app, "show", "look.yaml")
    assert json.loads(run(catalog_cli.app, "show", "look.yaml", "--json"))["verified"] is False
    findings = json.loads(run(catalog_cli.app, "lint", "look.yaml", "--json", code=1))
    assert {finding["place"] for finding in findings} == {"verified", "tools[0].parameters.required"}
    assert "3 calls in 3 sessions: all fit" in run(catalog_cli.app, "validate", "look.yaml")
    assert "all fit" in run(catalog_cli.app, "validate")


def test_validation_names_session_tool_and_path_and_fails(imported):
    Path("bad.json").write_text(json.dumps([trajectory(5, "{}"), trajectory(6, '{"city": ')]))
    run(traces_cli.app, "import", "bad.json", "--format", "tau", "--tools", "tools.json")
    output = run(catalog_cli.app, "validate", "--show", "1", code=1)
    for words in ("tau-5-0-", "look", "missing field", "$.city", "1 of 2 shown", "2 problems in 2 sessions"):
        assert words in output
    report = json.loads(run(catalog_cli.app, "validate", "--json", code=1))
    assert report["by_kind"] == {"missing_field": 1, "not_json": 1}
    assert [problem["path"] for problem in report["list"]] == ["$.city", "$"]
    assert "all fit" in run(catalog_cli.app, "validate", "--label", "task_id=0")


def test_validation_against_another_catalog_finds_unknown_tools(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with TraceStore.open("traces.db") as store:
        store.add([trip_session(0)], {catalog_id_of(trip_tools()): trip_tools()})
    Path("c.yaml").write_text("name: c\ntools: [{name: book}]\n")
    report = json.loads(run(catalog_cli.app, "validate", "c.yaml", "--json", code=1))
    assert report["by_kind"] == {"unknown_tool": 2}


def test_a_policy_and_skills_are_shown(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "name: c\nverified: true\n"
        "tools: [{name: skill, description: d, read_only: true, matchers: {x: ws}, "
        "parameters: {properties: {x: {enum: [a, b]}, y: {type: [string, 'null']}, z: true}}}]\n"
        "skills: [{name: pdf, description: Read PDFs., scripts: [{name: text}]}]\n"
        "policy: {rows: [{id: r, intent: read a PDF, route: skill, skill: pdf, examples: [e], tie_breakers: [t]}]}\n"
    )
    output = run(catalog_cli.app, "show", path)
    for words in ("verified", "a|b", "string|null", "x: ws", "Read PDFs.", "read a PDF", "read only"):
        assert words in output
    assert "nothing found" in run(catalog_cli.app, "lint", path)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ("{properties: [1]}", '{"properties": [1]}'),
        ("{required: 5}", '{"required": 5}'),
        ("{required: [{a: 1}], properties: {x: {enum: 5}, y: {type: [1, null]}}}", "x: 5, y: 1|None"),
    ],
)
def test_a_schema_that_is_none_is_shown_as_it_is_and_told_by_lint(tmp_path, schema, shown):
    path = tmp_path / "c.yaml"
    path.write_text(f"name: c\ntools: [{{name: t, parameters: {schema}}}]\n")
    assert shown in run(catalog_cli.app, "show", path)
    assert "not a JSON Schema" in run(catalog_cli.app, "lint", path, code=1).replace("\n", " ")


def test_files_of_one_command_go_in_together_or_not_at_all(imported):
    Path("a.json").write_text(json.dumps([trajectory(7)]))
    Path("b.json").write_text(json.dumps([{"task_id": 8}, trajectory(9)]))
    command = ("import", "a.json", "b.json", "--format", "tau", "--store", "both.db")
    listed = ("ls", "--store", "both.db", "--json")
    with pytest.raises(DataError, match=r"b\.json\[0\]:1: traj"):
        run(traces_cli.app, *command)
    assert json.loads(run(traces_cli.app, *listed)) == []
    output = run(traces_cli.app, *command, "--skip-bad", "1", "--json")
    assert [(file["added"], file["skipped"]) for file in json.loads(output)["files"]] == [(1, 0), (1, 1)]
    assert Path("b.json.skipped.jsonl").is_file()


def test_an_import_as_it_goes_says_what_is_in_when_a_later_file_is_bad(imported):
    Path("a.json").write_text(json.dumps([trajectory(7)]))
    Path("b.json").write_text("[7]")
    command = ["import", "a.json", "b.json", "--format", "tau", "--store", "t.db", "--as-it-goes", "--json"]
    result = CliRunner().invoke(traces_cli.app, command)
    assert isinstance(result.exception, DataError)
    assert "b.json[0]:1" in str(result.exception)
    assert [(file["path"], file["added"]) for file in json.loads(result.output)["files"]] == [("a.json", 1)]


def test_ls_says_labels_as_filters_take_them_and_what_only_the_shown_ones_share(imported):
    sessions = [
        msgspec.structs.replace(trip_session(number), catalog_id="", labels={"completed": number < 2})
        for number in range(3)
    ]
    with TraceStore.open("more.db") as store:
        store.add(sessions, {})
    ls = ("ls", "--store", "more.db")
    assert "all shown have source scripted completed=true" in run(traces_cli.app, *ls, "--limit", "2")
    assert "completed=false" in run(traces_cli.app, *ls)
    output = run(traces_cli.app, *ls, "--label", "completed=false")
    assert "it has source scripted completed=false" in output
    assert "\n1 session;" in output
    assert "completed=true" in run(traces_cli.app, "show", "trip-1", "--store", "more.db")
    one = ("--store", "more.db", "--session", "trip-1")
    assert "1 session written to" in run(traces_cli.app, "export", "one", *one)
    assert "1 session deleted" in run(traces_cli.app, "delete", *one, "--yes")


@pytest.mark.parametrize("flags", [(), ("--as-it-goes",)])
@pytest.mark.parametrize(("given", "list_name"), [((), "x.json.skipped.jsonl"), (("--skipped-file", "bad"), "bad")])
def test_files_of_one_name_share_a_list_of_bad_records(imported, flags, given, list_name):
    for place in ("a", "b"):
        Path(place).mkdir()
        Path(place, "x.json").write_text(json.dumps([{"task_id": place}, trajectory(ord(place))]))
    run(
        traces_cli.app,
        *("import", "a/x.json", "b/x.json", "--format", "tau", "--store", "x.db", "--skip-bad", 1, *flags, *given),
    )
    rows = [json.loads(line) for line in Path(list_name).read_text().splitlines()]
    assert [row["path"].partition("[")[0] for row in rows] == ["a/x.json", "b/x.json"]


@pytest.mark.parametrize("taken", ["mixed.json", "tools.json", "mixed.db", "traces.db"])
def test_a_list_of_bad_records_never_replaces_a_recording_or_the_store(imported, taken):
    Path("mixed.json").write_text(json.dumps([{"task_id": 8}, trajectory(9)]))
    before = Path(taken).read_bytes() if Path(taken).exists() else None
    command = ("import", "mixed.json", "--format", "tau", "--tools", "tools.json", "--skip-bad", 1)
    store = ("--store", "mixed.db") if taken == "mixed.db" else ()
    with pytest.raises(ConfigError, match="in use itself"):
        run(traces_cli.app, *command, *store, "--skipped-file", taken, "--force")
    assert (Path(taken).read_bytes() if Path(taken).exists() else None) == before


def test_a_list_that_cannot_be_written_keeps_nothing_of_the_import(imported):
    Path("mixed.json").write_text(json.dumps([{"task_id": 8}, trajectory(9)]))
    command = ("import", "mixed.json", "--format", "tau", "--store", "mixed.db", "--skip-bad", 1)
    with pytest.raises(ConfigError, match=r"tools\.json is a file"):
        run(traces_cli.app, *command, "--skipped-file", "tools.json/below")
    assert json.loads(run(traces_cli.app, "ls", "--store", "mixed.db", "--json")) == []


def test_deleting_where_nobody_can_be_asked_needs_yes(imported):
    # Not through CliRunner: it always gives a standard input, and here it is closed.
    command = f"{sys.executable} -m firstchair traces delete --all <&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (done.returncode, "pass --yes" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    assert "Delete 3 sessions" in done.stderr
