"""The example as it stands: simulated experts, and real ones behind real sockets, through the real command line."""

import asyncio
import json

import pytest
from tests.examples.conftest import load_example

from firstchair.chat.messages import ToolCall
from firstchair.data.orchestration.groups import read_groups
from firstchair.testing.scripted_answers import Reply, Script, Seen
from firstchair.testing.scripted_upstream import scripted_upstream

example = load_example("models_as_tools")


def test_rules_with_simulated_experts_lie_as_they_must(run, tmp_path):
    example.main(["--out", str(tmp_path), "--count", "40"], run)
    points = {point["policy"]: point for point in json.loads((tmp_path / "pareto.json").read_text())}
    assert set(points) == {"always strongest", "always cheapest", "random", "oracle"}
    right = {name: point["accuracy"]["value"] for name, point in points.items()}
    cost = {name: point["cost_usd"]["value"] for name, point in points.items()}
    assert right["always cheapest"] < right["always strongest"] <= right["oracle"]
    assert cost["always cheapest"] < cost["oracle"] < cost["always strongest"]
    assert points["always cheapest"]["latency_s"]["value"] > 1
    assert points["oracle"]["kind"] == "bound"
    assert not points["oracle"]["frontier"]
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 40
    assert "sim-0-0:0" in (tmp_path / "trajectories.txt").read_text()
    # Another seed plays other tasks, and mixes with none that are there.
    for path in asyncio.run(example.simulate(2, 1, tmp_path)):
        assert [group.task.task_id for group in read_groups(path)] == ["sim-1-0", "sim-1-1"]


def reply(seen: Seen) -> Reply:
    """The policy asks both experts, and believes the second."""
    if seen.body["model"] != "lead":
        return Reply(text=f"FINAL_ANSWER: {'1600' if seen.body['model'] == 'large-70b' else '1599'}")
    if any(message["role"] == "tool" for message in seen.body["messages"]):
        return Reply(text="FINAL_ANSWER: 1600")
    asked = [("a", "small_9b"), ("b", "large_70b")]
    return Reply(calls=tuple(ToolCall.of(call, name, {"input": "The sum?"}) for call, name in asked))


def test_two_endpoints_are_asked_and_what_they_said_is_kept(run, tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(example.TASKS.read_text().splitlines()[0] + "\n")
    with scripted_upstream(Script(by=reply)) as upstream:
        url = f"{upstream.base_url}/v1"
        named = ["--policy", f"lead={url}", "--expert", f"small-9b={url}", "--expert", f"large-70b={url}"]
        example.main(["--out", str(tmp_path / "out"), "--tasks", str(tasks), *named], run)
    group = json.loads((tmp_path / "out" / "lead.jsonl").read_text())
    assert [one["correct"] for one in group["trajectories"]] == [True] * 8
    assert {call["name"] for one in group["trajectories"] for call in one["dispatches"]} == {"small_9b", "large_70b"}
    assert (tmp_path / "out" / "pareto.html").is_file()


@pytest.mark.parametrize("given", [["--policy", "a=http://x/v1"], ["--expert", "a=b"], ["--policy", "a"]])
def test_half_an_answer_to_who_plays_is_refused(given, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        example.main(["--out", str(tmp_path), *given])
    assert ended.value.code == 2
    assert "expert" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--expert", "a=http://127.0.0.1:9/v1"], "give --policy and at least two --expert, or neither"),
        (["--policy", "a=http://127.0.0.1:9/v1"], "give --policy and at least two --expert, or neither"),
        ([], "expected a directory"),
    ],
)
def test_what_cannot_be_played_is_refused_in_a_line(arguments, words, run, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as done:
        example.main(["--out", str(tmp_path / "file"), *arguments], run)
    assert done.value.code == 2
    assert words in capsys.readouterr().err
