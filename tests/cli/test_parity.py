import json

import pytest
from typer.testing import CliRunner

from firstchair.chat.messages import Tool, ToolCall, assistant_message, text_message, tool_result
from firstchair.cli.main import app
from firstchair.testing.tokenizers import make_tokenizer
from firstchair.traces.session import Session, catalog_id_of
from firstchair.traces.session_file import write_sessions

TOOLS = (Tool(name="Read", description="Read.", parameters={"type": "object", "properties": {"path": {}}}),)


@pytest.fixture(params=["tiny", "qwen3", "llama3", "gemma"])
def model_dir(request, tmp_path):
    path = tmp_path / "model"
    make_tokenizer(request.param).save_pretrained(path)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["parity", *map(str, arguments)])


def test_our_renderer_equals_apply_chat_template_on_every_built_in_case(model_dir):
    result = run("--model", model_dir, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["holds"]
    assert report["counts"] == {"equal": len(report["comparisons"])}
    assert len(report["comparisons"]) > 15


def test_recorded_sessions_are_compared_and_a_difference_exits_1(tmp_path, monkeypatch):
    model = tmp_path / "model"
    make_tokenizer("tiny").save_pretrained(model)
    call = ToolCall(id="c1", name="Read", arguments='{"path":"a"}')
    compact = (text_message("user", "a"), assistant_message(calls=(call,)), tool_result(call, "x"))
    quoted = (text_message("user", "<|im_end|>"),)
    sessions = [
        Session(session_id="compact", messages=compact, catalog_id=catalog_id_of(TOOLS)),
        Session(session_id="quoted", messages=quoted),
    ]
    write_sessions(tmp_path / "out", sessions, {catalog_id_of(TOOLS): TOOLS})
    arguments = ("--model", model, "--sessions", tmp_path / "out")
    result = run(*arguments, "--json")
    assert result.exit_code == 1
    found = {one["name"]: one["match"] for one in json.loads(result.stdout)["comparisons"]}
    assert found == {"compact:1": "equal", "compact:3": "respaced", "quoted:1": "quoted"}
    shown = run(*arguments)
    assert "arguments='respaced'" in shown.stdout
    assert "template hash" in shown.stdout
    # What differs on purpose alone is no failure.
    assert run(*arguments, "--arguments", "respaced").exit_code == 0
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "out" / "sessions.jsonl").open("a") as out:
        out.write('{"session_id": "cut"')
    assert "sessions.jsonl:3" in str(run(*arguments).exception)
    assert run(*arguments, "--arguments", "respaced", "--skip-bad", "1").exit_code == 0
    assert (tmp_path / "out.skipped.jsonl").is_file()


def test_bad_options_are_named(tmp_path):
    model = tmp_path / "model"
    make_tokenizer("tiny").save_pretrained(model)
    for arguments, part in [
        (("--variables", "[1]"), "JSON object"),
        (("--variables", "{"), "not JSON"),
        (("--variables", '{"a": NaN}'), "not JSON"),
        (("--arguments", "odd"), "verbatim"),
        (("--template", "qwen3", "--base-url", "http://127.0.0.1:9"), "local mode"),
    ]:
        result = run("--model", model, *arguments)
        assert result.exception is not None
        assert part in str(result.exception)
