"""Every benchmark's stand-in against a real server, in the environment that ``make inspect-env`` makes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.services import missing

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import ToolCall
from firstchair.data.orchestration.views import views_of
from firstchair.testing.scripted_upstream import Fault, Reply, Script, ScriptedUpstream, Seen, scripted_upstream

ROOT = Path(__file__).parents[3]
NAMES = ("mmlu_pro", "supergpqa", "frames", "hle", "bfcl", "tau2", "gaia")

LETTERS = {"7 times 8": "C", "photosynthesis": "B", "falls freely": "D", "cheque": "B"}
"""Of MMLU-Pro; the last is wrong."""
LETTERS |= {"derivative": "A", "insulin": "C", "splits its input": "A"}
"""Of SuperGPQA; the last is wrong."""
CALLS = {
    "30 by 40": [("rectangle_area", {"width": 30, "height": 40})],
    "in Oslo": [("rectangle_area", {"width": 1, "height": 1})],
    "Rome and in Bern": [("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Bern"})],
}
"""Of BFCL; the second is wrong."""
SUBMITTED = {"spiders": "24", "nearest to the sun": "mercury", "primary colours": "red, green, blue"}
"""Of GAIA; the last is wrong."""


class World:
    """A candidate and a helper that always do the same, but for faults of the helper."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def answer(self, seen: Seen) -> Reply:
        messages = seen.body["messages"]
        text = json.dumps(messages, ensure_ascii=False)
        if seen.body["model"] == "judge":
            return self.helper(messages, text)
        reply = {"usage": TokenCounts(input=100, cache_read=20, output=10), "model": "candidate-2026-11"}
        for key, letter in LETTERS.items():
            if key in text:
                return Reply(text=f"Let me think.\n\nANSWER: {letter}", **reply)
        for key, calls in CALLS.items():
            if key in text:
                made = tuple(ToolCall.of(f"c{i}", name, given) for i, (name, given) in enumerate(calls))
                return Reply(calls=made, **reply)
        for key, answer in SUBMITTED.items():
            if key in text and seen.body.get("tools"):
                return Reply(calls=(ToolCall.of("c0", "submit", {"answer": answer}),), **reply)
        return Reply(text="20 times 30 are 600. Answer: 24\nConfidence: 70%", **reply)

    def helper(self, messages: list[dict[str, Any]], text: str) -> Reply:
        if "<scenario>" in text:  # the customer of tau2
            turns = sum(message["role"] == "assistant" for message in messages)
            return Reply(text="What do you say?" if turns == 0 else "###STOP###", model="helper-1")
        if "reference answer" in text:  # FRAMES
            if "Eiffel" in text:
                return Reply(text='{"reason": "the same", "verdict": "correct"}', model="helper-1")
            if "Bologna" in text:
                return Reply(text='```json\n{"reason": "other", "verdict": "not correct"}\n```', model="helper-1")
            return Reply(text="I would say it is correct.", model="helper-1")
        if "rotations of a cube" in text:  # HLE; its first try is turned away
            self.asked["cube"] += 1
            fault = Fault("status", status=429) if self.asked["cube"] == 1 else None
            return Reply(text="The same.\nGRADE: C", fault=fault, model="helper-1")
        if "noble gas" in text:
            return Reply(text="Another one, so it is not correct.\nGRADE: I", model="helper-1")
        return Reply(fault=Fault("status", status=400, message="no images here"))


def with_inspect(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """A script of this folder in the environment that has Inspect."""
    python = ROOT / ".venv-inspect" / "bin" / "python"
    if not python.exists():
        missing("Inspect", "make inspect-env")
    command, pipe = [python, Path(__file__).with_name(script), *arguments], subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def started(upstream: ScriptedUpstream, out: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    """Stand-ins, being played."""
    return with_inspect("inspect_play.py", f"{upstream.base_url}/v1", out, *arguments)


def runs_of(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """The lines that it prints."""
    out, err = process.communicate()
    assert process.returncode == 0, err[-4000:]
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Benchmark → its run, and under ``out`` where they are."""
    out = tmp_path_factory.mktemp("bench")
    with scripted_upstream(Script(by=World().answer)) as upstream:
        runs = runs_of(started(upstream, out, *NAMES))
    return {"out": out, **{run["benchmark"]: run for run in runs}}


def rows(played: dict[str, Any], name: str) -> list[dict[str, Any]]:
    assert "error" not in played[name], played[name]
    return [json.loads(line) for line in (played["out"] / name / "rows.jsonl").read_text().splitlines()]


def grades(played: dict[str, Any], name: str) -> dict[str, Any]:
    """Sample → score under seed 0, in the order of the records; seed 1 must say the same."""
    both = [{row["sample_id"]: row["score"] for row in rows(played, name) if row["seed"] == seed} for seed in (0, 1)]
    assert both[0] == both[1]
    return both[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mmlu_pro", [1.0, 1.0, 1.0, 0.0]),
        ("supergpqa", [1.0, 1.0, 0.0]),
        ("frames", [1.0, 0.0, None]),
        ("hle", [1.0, 0.0, None]),
        ("bfcl", [1.0, 0.0, 1.0, 1.0]),
        ("tau2", [1.0, 1.0]),
        ("gaia", [1.0, 1.0, 0.0]),
    ],
)
def test_a_stand_in_is_played_and_graded_by_the_benchmarks_own_scorer(
    played: dict[str, Any], name: str, expected: list[float | None]
):
    found = grades(played, name)
    assert list(found.values()) == expected
    run, graded = played[name], [score for score in expected if score is not None]
    summary = run["summary"]
    assert summary["graded"] == 2 * len(graded)
    assert summary["over_samples"]["value"] == pytest.approx(sum(graded) / len(graded))
    assert summary["over_seeds"]["seeds"] == 2
    assert summary["served_models"] == ["candidate-2026-11"]
    # gpt-5: $1.25 in and $10 out a million tokens, cached input at its own price.
    assert summary["cost"]["endpoint_usd"] > 0
    assert summary["cost"]["usage"]["cache_read"] == 20 * sum(row["calls"] for row in rows(played, name))
    views = list(views_of(played["out"] / name / "sessions.jsonl")())
    assert [view.correct for view in views] == [row["correct"] for row in rows(played, name)]
    assert all(view.messages for view in views)
    assert len(list((played["out"] / name / "inspect").glob("seed-*/*.eval"))) == 2


class Stuck(World):
    """Never answers the question about the cheque, until it is ``free``."""

    free = False

    def answer(self, seen: Seen) -> Reply:
        (key,) = [key for key in LETTERS if key in json.dumps(seen.body["messages"])]
        self.asked[key] += 1
        if key == "cheque" and not self.free:
            return Reply(fault=Fault("hang_before_headers"))
        return super().answer(seen)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_and_asks_nothing_twice_that_was_answered(tmp_path: Path, how: signal.Signals):
    world = Stuck()
    with scripted_upstream(Script(by=world.answer)) as upstream:
        process = started(upstream, tmp_path, "mmlu_pro")
        log = tmp_path / "mmlu_pro" / "inspect" / "seed-0"
        # Three are answered and kept, the fourth is under way.
        while world.asked["cheque"] < 1 or sum(name.startswith("samples/") for name in names_in(log)) < 3:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(how)
        said, _ = process.communicate(timeout=120)
        assert how is signal.SIGKILL or "mmlu_pro, seed 0: interrupted" in said
        assert not (tmp_path / "mmlu_pro" / "rows.jsonl").exists()
        world.free = True
        (run,) = runs_of(started(upstream, tmp_path, "--resume", "mmlu_pro"))
        assert world.asked.total() == 4 * 2 + 1
        assert world.asked["cheque"] == 3
        assert list(grades({"out": tmp_path, "mmlu_pro": run}, "mmlu_pro").values()) == [1.0, 1.0, 1.0, 0.0]
        (again,) = runs_of(started(upstream, tmp_path, "--resume", "mmlu_pro"))
        assert world.asked.total() == 4 * 2 + 1
        assert again["summary"] == run["summary"]


def names_in(log: Path) -> list[str]:
    """What Inspect's log of a seed holds on disk; nothing while it is being written."""
    try:
        return [name for path in log.glob("*.eval") for name in zipfile.ZipFile(path).namelist()]
    except (zipfile.BadZipFile, OSError):
        return []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_grader_that_fails_or_cannot_be_read_leaves_a_sample_ungraded(played: dict[str, Any]):
    unread = [row for row in rows(played, "frames") if row["outcome"] != "graded"]
    assert {row["outcome"] for row in unread} == {"ungraded"}
    assert all(re.search(r"cannot be read: I would say it is correct", row["error"]) for row in unread)
    broken = [row for row in rows(played, "hle") if row["outcome"] != "graded"]
    assert {row["outcome"] for row in broken} == {"ungraded"}
    assert all("no images here" in row["error"] for row in broken)
    assert played["hle"]["summary"]["ungraded"] == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_our_sandbox_does_what_inspect_asks_of_one_and_lets_nothing_out():
    (found,) = runs_of(with_inspect("sandbox_play.py"))
    folder = found.pop("folder of")
    assert found["says"] == [0, f"kept\r\n{folder}\n", ""]
    assert found["input"] == [0, "42\n", ""]
    assert found["env"] == [0, f"x = y\n{folder}/a\n", ""]
    assert found["fails"] == [3, "", "no\n"]
    assert found["missing"][0] == 127
    assert found["text"] == "kept\r\n"
    assert found["bytes"] == list(range(256))
    assert "Network is unreachable" in found["network"][2]
    assert "Read-only file system" in found["home"][2]
    names = {
        "late": "TimeoutError",
        "root": "SandboxUserUnsupportedError",
        "flood": "OutputLimitExceededError",
        "no text": "UnicodeDecodeError",
        "no file": "FileNotFoundError",
        "folder": "IsADirectoryError",
        "over a folder": "IsADirectoryError",
        **dict.fromkeys(("away", "outside", "upwards"), "PermissionError"),
        "shadow": "FileNotFoundError",  # the link leads to a file that the sandbox does not have
        "left": False,
    }
    assert {name: found[name] for name in names} == names


SPIDERS = "How many legs do three healthy spiders have together?"


def curious(seen: Seen) -> Reply:
    """Looks at the attachment, leaves a note, reads it with the other tool, and answers."""
    messages = seen.body["messages"]
    turn = sum(message["role"] == "assistant" for message in messages)
    asked = (
        ("bash", {"command": "cat shared_files/standin-gaia-1.txt; cat /etc/shadow; echo 24 > note"}),
        ("python", {"code": "print('note:', open('note').read())"}),
        ("submit", {"answer": "24"}),
    )
    return Reply(calls=(ToolCall.of(f"c{turn}", *asked[turn]),))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_gaia_is_played_in_our_sandbox_with_its_attachment(tmp_path: Path):
    records, attachments = tmp_path / "gaia.jsonl", tmp_path / "2023" / "validation"
    whole = (ROOT / "tests" / "data" / "benchmarks" / "gaia.jsonl").read_text()
    records.write_text("".join(line for line in whole.splitlines(keepends=True) if SPIDERS in line))
    attachments.mkdir(parents=True)
    (attachments / "standin-gaia-1.txt").write_text("eight each")
    with scripted_upstream(Script(by=curious)) as upstream:
        options = ("--records", tmp_path, "--sandbox", "process", "--seeds", "1")
        (run,) = runs_of(started(upstream, tmp_path / "out", *options, "gaia"))
    assert run["sandbox"] == "process"
    assert run["summary"]["by_seed"] == [{"seed": 0, "mean": 1.0, "graded": 1}]
    (view,) = views_of(tmp_path / "out" / "gaia" / "sessions.jsonl")()
    said = [message.text for message in view.messages if message.role == "tool"]
    assert "eight each" in said[0]
    assert "/etc/shadow: No such file" in said[0]
    assert "note: 24" in said[1]
    assert " shared_files/standin-gaia-1.txt" in view.messages[1].text
