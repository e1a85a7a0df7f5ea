"""The airline example in reduced form: sessions of the same format, written here, through the real command line."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.examples.conftest import load_example

example = load_example("tau_airline")


def tool(name: str, **properties: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {field: {"type": kind} for field, kind in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": f"Do {name}.", "parameters": schema}}


TOOLS = [
    tool("get_user_details", user_id="string"),
    tool("cancel_reservation", reservation_id="string"),
    tool("transfer_to_human_agents", summary="string"),
]
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "junco")


def trajectory(task_id: int, trial: int, reward: float, **changes: Any) -> dict[str, Any]:
    """One trajectory as τ-bench writes it; tasks differ in their words, so that no two resemble each other."""
    words = [WORDS[(task_id * 3 + place * (task_id + trial + 1)) % len(WORDS)] for place in range(8)]
    user, booking = f"{words[0]}_{words[1]}_{task_id}{trial}", f"R{task_id}{trial}X"

    def call(number: int, name: str, **arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": json.dumps(arguments)}
        made = {"id": f"call_{task_id}_{trial}_{number}", "function": function, "type": "function"}
        return {"content": None, "role": "assistant", "tool_calls": [made]}

    def result(number: int, name: str, text: str) -> dict[str, Any]:
        return {"tool_call_id": f"call_{task_id}_{trial}_{number}", "role": "tool", "name": name, "content": text}

    second = changes.pop("tool", "cancel_reservation")
    field = {"transfer_to_human_agents": "summary"}.get(second, "reservation_id")
    traj = [
        {"role": "system", "content": "# Airline policy\n\nConfirm before you change anything."},
        {"role": "user", "content": f"Hi, {' '.join(words)}: please cancel {booking}. I am {user}."},
        call(0, "get_user_details", user_id=user),
        result(0, "get_user_details", json.dumps({"reservations": [booking]})),
        {
            "content": f"Shall I cancel {booking} for {words[2]}? It costs {task_id}{trial} dollars.",
            "role": "assistant",
        },
        {"role": "user", "content": f"Yes, {words[3]} {words[5]}."},
        call(1, second, **{field: booking}),
        result(1, second, "Error: not allowed" if reward == 0 else "done"),
        {"content": f"{booking} is cancelled, {words[4]} {words[6]}.", "role": "assistant"},
        {"role": "user", "content": "###STOP###"},
    ]
    info = {
        "task": {"user_id": user, "actions": [], "instruction": f"cancel {booking}", "outputs": []},
        "source": "user",
        "user_cost": 0.01,
        "reward_info": {"reward": reward, "info": {}, "actions": []},
    }
    return {"task_id": task_id, "reward": reward, "info": info, "traj": traj, "trial": trial, **changes}


def folder(path: Path, rows: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = TOOLS) -> Path:
    path.mkdir()
    (path / "tools.json").write_text(json.dumps(tools))
    with gzip.open(path / "trajectories.json.gz", "wt", encoding="utf-8") as out:
        json.dump(rows, out)
    return path


ROWS = [trajectory(task, trial, float(task % 2 == 0 or trial == 1)) for task in range(6) for trial in range(2)]


def test_a_folder_without_what_is_needed_stops_at_once(tmp_path, capsys, run):
    (tmp_path / "empty").mkdir()
    assert example.main([str(tmp_path / "empty"), "--out", str(tmp_path / "out")], run) == 1
    assert "tools.json: no such file" in capsys.readouterr().err
    (tmp_path / "empty" / "tools.json").write_text("[]")
    assert example.main([str(tmp_path / "empty"), "--out", str(tmp_path / "out2")], run) == 1
    assert "no trajectories; expected files that end in .json" in capsys.readouterr().err
    assert example.main([str(tmp_path / "empty"), "--out", str(tmp_path / "out2")], run) == 1
    assert "exists; choose another --out" in capsys.readouterr().err


def test_without_a_session_that_reached_its_goal_the_reason_is_said(tmp_path, capsys, run):
    rows = [trajectory(task, 0, 0.0) for task in range(6)]
    assert example.main([str(folder(tmp_path / "in", rows)), "--out", str(tmp_path / "out")], run) == 1
    captured = capsys.readouterr()
    assert "no session left to build from" in captured.err
    assert "the held-out tasks have no session with reward 1.0" in captured.err
    assert not (tmp_path / "out" / "golden").exists()


def test_a_tool_that_the_catalog_does_not_know_is_named(tmp_path, capsys, run):
    tools = [*TOOLS, tool("teleport", reservation_id="string")]
    assert example.main([str(folder(tmp_path / "in", ROWS, tools)), "--out", str(tmp_path / "out")], run) == 1
    captured = capsys.readouterr()
    assert "tool 'teleport' was on offer but is not in catalog 'tau-airline'" in captured.err
    assert "pass it as --catalog" in captured.err


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A model of a few thousand weights."""
    from firstchair.train.tiny import build_model, build_tokenizer, save_model

    directory = tmp_path_factory.mktemp("model") / "base"
    tokenizer = build_tokenizer([json.dumps(row) for row in ROWS], 400)
    model = build_model(len(tokenizer), hidden=16, layers=1, heads=2, intermediate=32, max_positions=4096)
    save_model(model, tokenizer, directory)
    return directory


def test_the_whole_loop_runs_and_ends_in_a_report(tmp_path, capsys, run, base):
    rows = [*ROWS, trajectory(6, 0, 1.0, tool="book_a_rocket"), trajectory(7, 0, 1.0, traj="lost")]
    arguments = ["--skip-bad", "1", "--model", str(base), "--max-new-tokens", "4", "--heldout", "0.4"]
    arguments += ["--set", "max_steps=1", "--set", "data.max_tokens=2048", "--set", "batch.micro_tokens=2048"]
    out = tmp_path / "out"
    code = example.main([str(folder(tmp_path / "in", rows)), "--out", str(out), *arguments], run)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert "skipped" in captured.out
    assert "book_a_rocket" in captured.out
    for name in ("report.html", "report.json", "golden/manifest.json", "before/run.json", "after/run.json"):
        assert (out / name).is_file(), name
    heldout = [json.loads(line) for line in (out / "split" / "heldout.jsonl").read_text().split("\n") if line]
    train = [json.loads(line) for line in (out / "split" / "train.jsonl").read_text().split("\n") if line]
    assert not {row["group"] for row in heldout} & {row["group"] for row in train}
    golden = [json.loads(line) for line in (out / "golden" / "sessions.jsonl").read_text().split("\n") if line]
    assert golden
    assert {row["labels"]["reward"] for row in golden} == {1.0}
    assert {row["session_id"] for row in golden} <= {row["session_id"] for row in heldout}
    assert json.loads((out / "before" / "run.json").read_text())
