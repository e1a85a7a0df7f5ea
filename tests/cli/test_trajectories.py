"""The ``trajectories`` commands, from a file of groups to a file that a recipe trains on."""

import json

import pytest
from rich.console import Console

from firstchair.cli.train_view import _counts
from firstchair.data.orchestration.groups import Group, encode_group
from firstchair.data.sft import read_sft
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.testing.trajectories import clean_trajectory, dispatched, trajectory_groups
from firstchair.train.token_sets import TokenCounts


@pytest.fixture
def groups(tmp_path):
    path = tmp_path / "groups.jsonl"
    path.write_bytes(b"".join(encode_group(group) + b"\n" for group in trajectory_groups(6)))
    return path


def test_statistics_are_shown_as_tables_and_as_json(run, groups):
    code, out, _ = run("trajectories", "stats", groups)
    assert code == 0
    for word in ("math", "not clean because", "no_delegation", "claude_opus_4_8", "ends: answered", "kept: 6"):
        assert word in out
    code, out, _ = run("trajectories", "stats", groups, "--json")
    assert json.loads(out)["total"]["trajectories"] == 48


@pytest.mark.parametrize(("nano", "cost"), [(12_000, "$0.0000120"), (None, "unknown")])
def test_a_cost_below_a_hundredth_of_a_cent_is_not_shown_as_nothing(run, tmp_path, nano, cost):
    made = clean_trajectory(dispatches=(dispatched(cost_nano=nano),))
    task = OrchestrationTask(task_id=made.task_id, problem="6 x 7?", gold_answer="42")
    (tmp_path / "groups.jsonl").write_bytes(encode_group(Group(task=task, trajectories=(made,))) + b"\n")
    _, out, _ = run("trajectories", "stats", tmp_path / "groups.jsonl")
    (row,) = [line for line in out.splitlines() if line.startswith("qwen3_5_9b")]
    assert row.split()[4] == cost


def test_groups_become_records_and_some_of_them_are_chosen(run, groups, tmp_path):
    code, out, _ = run("trajectories", "serialize", groups, "--out", tmp_path / "sft.jsonl")
    assert code == 0
    assert "left out, nothing to train in them" in out
    records = list(read_sft(tmp_path / "sft.jsonl"))
    code, out, _ = run("trajectories", "select", tmp_path / "sft.jsonl", "--out", tmp_path / "some.jsonl")
    assert code == 0
    assert "left out, wrong: " in out
    chosen = list(read_sft(tmp_path / "some.jsonl"))
    assert chosen == [r for r in records if r.meta["correct"] and r.meta["routed"] and r.meta["clean"]]
    more = ("--which", "correct", "--no-clean", "--json", "--out", tmp_path / "correct.jsonl")
    code, out, _ = run("trajectories", "select", tmp_path / "sft.jsonl", *more)
    found = json.loads(out)
    assert found["records"] == sum(bool(record.meta["correct"]) for record in records)
    assert found["records"] + sum(found["left_out"].values()) == len(records)
    code, _, _ = run("trajectories", "serialize", groups, "--kept", "--out", tmp_path / "kept.jsonl")
    assert code == 0
    assert all(record.meta["kept"] for record in read_sft(tmp_path / "kept.jsonl"))


def test_a_dry_run_says_how_many_records_a_recipe_leaves_out_and_why(capsys):
    train = TokenCounts(records=3, left_out={"wrong": 2, "unclean: cut": 1})
    Console().print(_counts({"train": train, "dev": TokenCounts(records=1)}))
    lines = [line.split("│")[1:4] for line in capsys.readouterr().out.split("\n") if "│" in line]
    shown = {name.strip(): (left.strip(), right.strip()) for name, left, right in lines}
    assert shown["left_out"] == ("3", "0")
    assert (shown["wrong"], shown["unclean: cut"]) == (("2", "0"), ("1", "0"))


def test_a_page_is_written_with_its_companions_and_replaces_nothing_unasked(run, groups, tmp_path):
    code, out, _ = run("trajectories", "view", groups, "--out", tmp_path / "view.html")
    assert code == 0
    assert "view.html: 48 records" in out
    assert {"view.html", "view.json", "view.txt"} <= {path.name for path in tmp_path.iterdir()}
    code, _, err = run("trajectories", "view", groups, "--out", tmp_path / "view.html")
    assert code == 2
    assert "--force" in err
    code, out, _ = run("trajectories", "view", groups, "--out", tmp_path / "view.html", "--force", "--json")
    assert json.loads(out)["records"] == 48


def test_what_is_no_file_of_groups_is_refused_by_name(run, tmp_path):
    (tmp_path / "x.jsonl").write_text("{}\n")
    code, _, err = run("trajectories", "stats", tmp_path / "x.jsonl")
    assert code == 2
    assert "x.jsonl:1: not a group of trajectories" in err
    code, _, err = run("trajectories", "select", tmp_path / "none.jsonl", "--out", tmp_path / "y.jsonl")
    assert code == 2
    assert "none.jsonl: no such file" in err
