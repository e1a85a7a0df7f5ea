"""The command end to end: policy and experts behind real sockets, tools in this process, graded groups in a file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstchair.chat.messages import ToolCall
from firstchair.data.orchestration.groups import read_groups
from firstchair.testing.scripted_answers import Fault, Reply, Script, Seen
from firstchair.testing.scripted_upstream import ScriptedUpstream, scripted_upstream

CALLS = (
    ToolCall.of("a", "near_9b", {"input": "What is 1 + 1?"}),
    ToolCall.of("b", "calculator", {"expression": "1 + 1"}),
)
SETUP = """
catalog: {catalog}
tools:
  work_dir: {work}
  tools: [{{type: calculator}}, {{type: file_read}}]
"""
CATALOG = """
experts: [{{model: lab/near-9b, category: local_open_source, summary: A small model.}}]
endpoints: {{near_9b: "{url}/v1"}}
"""


def reply(seen: Seen) -> Reply:
    """The expert knows; the policy asks it and the calculator, reads a file, then answers. Problem 2 is too much."""
    body = seen.body
    if body["model"] == "lab/near-9b":
        return Reply(text="It is 2.")
    if "problem 2" in str(body["messages"]):
        return Reply(fault=Fault("status", status=400))
    rounds = sum(message["role"] == "assistant" for message in body["messages"])
    if rounds == 0:
        return Reply(text="I ask.", calls=CALLS)
    if rounds == 1:
        return Reply(calls=(ToolCall.of("c", "file_read", {"path": "hint.txt"}),))
    return Reply(text="FINAL_ANSWER: 2")


def text_reply(seen: Seen) -> Reply:
    """The same by a policy that writes its calls as text."""
    made = reply(seen)
    written = "\n".join(
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>' for call in made.calls
    )
    return Reply(text=f"{made.text}\n{written}" if written else made.text, fault=made.fault)


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with scripted_upstream(Script(by=reply)) as running:
        yield running


@pytest.fixture
def files(tmp_path: Path, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    rows = [{"task_id": f"t{n}", "problem": f"What is 1 + 1, problem {n}?", "gold_answer": "2"} for n in range(3)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "hint.txt").write_text("two")
    (tmp_path / "catalog.yaml").write_text(CATALOG.format(url=upstream.base_url))
    setup = SETUP.format(catalog=tmp_path / "catalog.yaml", work=tmp_path / "work")
    (tmp_path / "setup.yaml").write_text(setup)
    return tmp_path


def command(files: Path, upstream: ScriptedUpstream, *more: str) -> list[str]:
    return [
        *("orchestrate", "run", str(files / "tasks.jsonl"), "--out", str(files / "groups.jsonl")),
        *("--setup", str(files / "setup.yaml"), "--base-url", f"{upstream.base_url}/v1"),
        *("--served-model", "policy", "--samples", "2", *more),
    ]


@pytest.mark.parametrize("calling", ["native", "prompt"])
def test_tasks_are_played_by_real_experts_and_tools_and_kept_graded(run, files, upstream, calling):
    upstream.script = Script(by=reply if calling == "native" else text_reply)
    code, out, err = run(*command(files, upstream, "--calling", calling))
    assert code == 1, err
    assert "every trajectory of 1 task broke; run the same command again" in err
    assert "the first that broke: " in out
    assert "correct 4, ungraded 2" in out
    assert "experts: $0\n" in out
    groups = {group.task.task_id: group.trajectories for group in read_groups(files / "groups.jsonl")}
    assert sorted(groups) == ["t0", "t1", "t2"]
    for found in groups["t0"]:
        assert (found.correct, found.final_answer, found.end) == (True, "2", "answered")
        near, calculator, read = found.dispatches
        assert (near.name, near.cost_nano, near.error_kind) == ("near_9b", 0, None)
        assert (calculator.name, read.name) == ("calculator", "file_read")
        assert [message.text for message in found.messages if message.role == "tool"][1:] == ["2", "two"]
        assert [tool.name for tool in found.tools] == ["near_9b", "calculator", "file_read"]
        assert "Pricing: $0.00/1M input" in (found.tools[0].description or "")
        assert found.prompt_tokens > 0
    assert [found.end for found in groups["t2"]] == ["failed", "failed"]
    own = [seen.body for seen in upstream.requests if seen.body["model"] == "policy"]
    assert all(("tools" in body) is (calling == "native") for body in own)
    assert not list((files / "temp").iterdir())
    # The same command again goes on with what is left.
    upstream.script = Script(by=lambda seen: Reply(text="FINAL_ANSWER: 2"))
    code, out, _ = run(*command(files, upstream, "--calling", calling, "--json"))
    assert code == 0
    assert json.loads(out)["finished_before"] == 2
    assert json.loads(out)["tally"]["nudges"] == {"no_delegation": 4}
    _, out, _ = run(*command(files, upstream, "--calling", calling, "--samples", "3"))
    assert "with fewer samples than asked for: 3 tasks of those" in out


def test_another_run_does_not_go_on_in_the_same_file(run, files, upstream):
    upstream.script = Script(by=lambda seen: Reply(text="FINAL_ANSWER: 2"))
    assert run(*command(files, upstream, "--samples", "1"))[0] == 0
    groups = files / "groups.jsonl"
    before = groups.read_bytes()
    assert json.loads(groups.with_suffix(".run.json").read_text())["max_steps"] == 8
    another = ("--samples", "1", "--seed", "1", "--temperature", "0", "--set", "limits.delegation_nudges=0")
    (files / "catalog.yaml").write_text((files / "catalog.yaml").read_text().replace("small", "tiny"))
    code, _, err = run(*command(files, upstream, *another))
    assert (code, groups.read_bytes()) == (2, before)
    assert "groups.jsonl: was made by another run; choose another --out, or pass --force to begin it anew:\n" in err
    assert "\n  policy.temperature: recorded 1.0, asked 0.0\n" in err
    assert "\n  seed: recorded 0, asked 1\n" in err
    assert "\n  setup.limits.delegation_nudges: recorded 2, asked 0\n" in err
    assert '\n  offered.near_9b.expert.summary: recorded "A small model.", asked "A tiny model."\n' in err
    assert run(*command(files, upstream, *another, "--force"))[0] == 0
    assert [one.nudges for group in read_groups(groups) for one in group.trajectories] == [{}] * 3
    # Another server of the same name may go on with it, and faster.
    with scripted_upstream(upstream.script) as moved:
        code, out, _ = run(*command(files, moved, *another, "--concurrency", "2", "--json"))
    assert (code, json.loads(out)["finished_before"]) == (0, 3)


def test_the_tasks_themselves_are_not_replaced_by_groups(run, files, upstream):
    tasks = files / "tasks.jsonl"
    before = tasks.read_bytes()
    code, _, err = run(*command(files, upstream, "--out", str(tasks), "--force"))
    assert (code, tasks.read_bytes()) == (2, before)
    assert "is the file of tasks" in err


def test_an_anonymised_offer_tells_no_name(run, files, upstream):
    code, _, err = run(*command(files, upstream, "--set", "offer.anonymised=true", "--samples", "1"))
    assert code == 1, err
    first = next(iter(read_groups(files / "groups.jsonl"))).trajectories[0]
    (label,) = first.labels
    assert (label[:6], first.labels[label]) == ("model_", "near_9b")
    assert "near" not in str(first.tools[0])
    assert first.tools[0].name == label
    # A preference stands in the prompt, so it may not name whom the offer hides.
    (files / "tasks.jsonl").write_text('{"task_id": "t", "problem": "1 + 1?", "preference": {"near_9b": 1}}\n')
    again = ("--set", "offer.anonymised=true", "--samples", "1", "--force")
    code, out, _ = run(*command(files, upstream, *again))
    assert code == 1
    assert "task t: its preference names near_9b; offer.anonymised hides that name" in " ".join(out.split())


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ((), "exactly one of --model DIR and --base-url URL"),
        (("--base-url", "http://127.0.0.1:1/v1"), "needs --served-model"),
        (("--model", "nowhere", "--calling", "prompt"), "--calling prompt is for --base-url"),
        (("--model", "nowhere", "--set", "offr.sampled=true"), "did you mean offer?"),
        (("--model", "nowhere", "--set", "experts=[nobody]"), "nobody: no such expert"),
        (("--model", "nowhere", "--set", "offer.jitter=0.2"), "jitter moves the prices of a sampled offer alone"),
        (("--model", "nowhere", "--set", "offer.sampled=true"), "6 models and 0 basic tools cannot be sampled"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_played(run, files, flags, named):
    code, _, err = run("orchestrate", "run", str(files / "tasks.jsonl"), "--out", str(files / "g.jsonl"), *flags)
    assert code == 2
    assert named in err
    assert not (files / "g.jsonl").exists()
