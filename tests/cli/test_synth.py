"""``firstchair synth``: list, check, make; with a scripted author and a model on a real socket."""

import json

import msgspec
import pytest
from tests.rollout.synthetic.kennel import MULTI, READ, REFUSAL, ROWS, TABLES, TOOLS, kennel
from typer.testing import CliRunner

from firstchair.cli.synth import app
from firstchair.core.errors import ConfigError, FirstchairError
from firstchair.rollout.synthetic.domain import domain_text
from firstchair.testing.fault_server import Answer, FaultServer


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, FirstchairError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kennel.json"
    path.write_text(domain_text(kennel(READ, REFUSAL).domain))
    return path


def test_ls_counts_what_a_domain_holds(file):
    (row,) = json.loads(run("ls", file, "--json"))
    assert (row["domain"], row["rows"], row["tools"], row["tasks"], row["refusal"]) == ("kennel", 60, 9, 2, 1)
    shown = run("ls", "hotel", "fleet", "--wide")
    assert "fleet" in shown
    assert "the Hotel Meridian" in shown


def test_check_passes_what_is_sound_and_names_what_is_not(file, tmp_path):
    assert "kennel" in run("check", file)
    twice = kennel(READ, READ)
    file.write_text(domain_text(twice.domain))
    assert f"{twice.domain.tasks[0].task_id}: duplicate: as" in run("check", file, code=1)
    file.write_text(file.read_text().replace("SELECT * FROM bills", "SELECT * FROM cats"))
    assert "kennel: tool list_bills: sql: 'SELECT * FROM cats': no such table: cats" in run("check", file, code=1)


def test_check_asks_a_model_when_there_is_one(file):
    def answer(_seen, _number):
        message = {"role": "assistant", "content": "I do not know."}
        return Answer({"choices": [{"message": message, "finish_reason": "stop"}]})

    with FaultServer(answer) as server:
        url = f"{server.base_url}/v1"
        shown = run("check", file, "--solver-base-url", url, "--solver-model", "m", "--trials", 2, code=1)
        assert shown.count("never_solved (0 of 2 solved)") == 2
        assert len(server.seen) == 4
        assert server.seen[0].body["temperature"] == 1.0
    with pytest.raises(ConfigError, match="needs --solver-model"):
        run("check", file, "--solver-base-url", url)
    with pytest.raises(ConfigError, match="--solver-base-url: openai needs the server's address"):
        run("check", file, "--solver-model", "m")


def test_make_writes_a_domain_from_what_an_author_wrote(tmp_path):
    stages = {
        "tables": {"title": "the kennel", "today": "2026-02-01", "rules": ["Be kind."], "tables": TABLES},
        **{f"rows {name}": {"rows": rows} for name, rows in ROWS.items()},
        "tools": {"tools": TOOLS},
        "tasks 0": {"tasks": [READ, MULTI]},
        "tasks 1": {"tasks": [REFUSAL, READ]},
    }
    author, out = tmp_path / "author.jsonl", tmp_path / "out"
    rows = [{"stage": stage, "attempt": 0, "text": json.dumps(value)} for stage, value in stages.items()]
    author.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["make", "kennel", "--description", "A kennel.", "--out", out, "--engine", "scripted", "--model", author]
    shown = run(*words, "--tasks", 4, "--batch", 2)
    assert shown.endswith(f"{out / 'domain.json'}: 3 of 4 tasks kept\n")
    assert "duplicate: as kennel-" in shown
    assert [task["depth"] for task in msgspec.json.decode((out / "domain.json").read_bytes())["tasks"]] == [
        "read",
        "multi",
        "refusal",
    ]
    run("check", out / "domain.json")
    assert json.loads(run(*words, "--tasks", 4, "--batch", 2, "--json"))["drops"] == {"duplicate": 1}
    with pytest.raises(ConfigError, match="name 'My kennel': expected a lower-case letter"):
        run("make", "My kennel", *words[2:])
    with pytest.raises(
        FirstchairError, match="no reply for tasks 2:0; give the --tasks and --batch that it was written"
    ):
        run(*words, "--out", tmp_path / "other", "--tasks", 6, "--batch", 2)
    author.write_text('{"stage": 1}\n')
    with pytest.raises(ConfigError, match=r"author.jsonl:1: expected \{stage, attempt, text\}"):
        run(*words)
    with pytest.raises(ConfigError, match="--base-url: openai needs the server's address"):
        run("make", "kennel", "--description", "A kennel.", "--out", out, "--model", "m")
