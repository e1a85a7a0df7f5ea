"""The whole loop in small: real HTTP, a real store, the shipped base model, real training, a real report."""

import asyncio
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from firstchair.cli.demo import app
from firstchair.cli.demo_live import live_sessions
from firstchair.cli.demo_run import Clock, DemoOptions, Scores, next_commands, run_demo, summary_of
from firstchair.core.errors import ConfigError
from firstchair.data.golden import GoldenSet
from firstchair.engines.weights import weights_revision
from firstchair.evals.completion import completion
from firstchair.evals.run_record import load_run
from firstchair.gateway.control.store import ControlStore
from firstchair.rollout.episodes import run_episodes
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.testing.environment import WordEnvironment, WordExpert, WordTask
from firstchair.traces.store import TraceStore


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "run"
    run_demo(
        DemoOptions(out=out, sessions=24, golden=6, episodes=2, grpo_batches=1, grpo_prompts=6, dagger_episodes=3)
    )
    return out


def test_every_rate_of_the_summary_has_its_count_and_interval(out):
    summary = json.loads((out / "summary.json").read_text())
    expected = {"options", "baseline", "sft", "strict_pass_by_kind", "completion", "golden_sha256", "seconds"}
    assert summary.keys() == expected | {"rl", "recovery_cases", "gates", "gateway"}
    assert list(summary["gates"]) == ["baseline", "sft", "rl"]
    for name, verdicts in summary["gates"].items():
        record = json.loads((out / "gates" / f"{name}.json").read_text())
        assert verdicts == {gate["name"]: gate["verdict"] for gate in record["gates"]}
        assert len(verdicts) == 6
    for kinds in summary["strict_pass_by_kind"].values():
        assert kinds.keys() == {"convention tools", "final reply", "universal tools"}
    assert summary["options"] == {
        "sessions": 24,
        "golden": 6,
        "episodes": 2,
        "mistake_rate": 0.04,
        "epochs": 1.0,
        "reinforce": True,
        "grpo_batches": 1,
        "grpo_prompts": 6,
        "dagger_episodes": 3,
        "seed": 0,
    }
    assert summary["completion"].pop("errors") == {"before": {}, "after": {}, "rl": {}}
    for part in ("baseline", "sft", "rl", "completion", "recovery_cases"):
        for name, rate in summary[part].items():
            assert rate.keys() == {"value", "n", "low", "high"}, name
            if rate["n"]:
                assert rate["low"] <= rate["value"] <= rate["high"], name
    assert {"strict_pass", "lenient_pass", "malformed"} <= summary["baseline"].keys()
    assert summary["completion"]["before"]["n"] == summary["completion"]["after"]["n"] == 2


def test_episodes_that_failed_are_told_with_their_reasons(out):
    async def played(fault: str):
        tasks = [WordTask(task_id="a", words=("fox",), fault=fault), WordTask(task_id="b", words=("owl",))]
        policy = TeacherPolicy(WordExpert())
        return completion([episode async for episode in run_episodes(WordEnvironment, tasks, policy)])

    run, golden = load_run(out / "sft"), GoldenSet.load(out / "golden")
    before, after = (Scores(run, asyncio.run(played(fault))) for fault in ("", "step"))
    told = summary_of(DemoOptions(out=out), {"baseline": before, "sft": after}, golden, Clock())["completion"]
    assert told["after"]["n"] == 1
    assert told["errors"] == {"before": {}, "after": {"environment.step": 1}}


def test_both_runs_are_on_the_one_frozen_set(out):
    golden = GoldenSet.load(out / "golden")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["golden_sha256"] == golden.set_sha256
    for name in ("baseline", "sft", "rl"):
        run = load_run(out / name)
        assert run.finished
        assert run.record.golden.set_sha256 == golden.set_sha256
    assert golden.manifest.leakage
    assert {row["dimension"] for row in map(json.loads, (out / "corrections.jsonl").open())} > {"confirmed"}


def test_the_reinforced_model_began_as_the_trained_one_and_took_the_slot(out):
    ready = json.loads((out / "gates" / "rl-ready.json").read_text())
    assert (ready["kind"], ready["candidate"]["path"]) == ("rl_readiness", str(out / "sft"))
    begun = [json.loads((out / name / "run.json").read_text())["base_revision"] for name in ("grpo", "dagger")]
    models = [load_run(out / name).record.candidate.revision for name in ("sft", "rl")]
    assert begun == [models[0], weights_revision(out / "grpo" / "model")]
    assert models[1] == weights_revision(out / "dagger" / "model") not in begun
    with ControlStore.open(out / "gateway" / "gateway.db", must_exist=True) as store:
        promote = next(entry for entry in store.audit_log() if entry.action == "slot.promote")
    verdicts = json.loads((out / "summary.json").read_text())["gates"]["rl"]
    assert all(
        f"{gate} {verdict}" in promote.details["override"] for gate, verdict in verdicts.items() if verdict != "pass"
    )


def test_every_call_of_the_harness_is_one_ledger_row_and_one_call_of_a_recorded_session(out):
    through = json.loads((out / "summary.json").read_text())["gateway"]
    assert through["calls"] == through["ledger_rows"] > 0
    with TraceStore.open(out / "traces.db", must_exist=True) as store:
        sessions = list(store.sessions())
    assert through["recorded_sessions"] == len(sessions) == 24 + 6 + 48 + sum(live_sessions(2)) + 1
    assert through["calls"] == sum(len(session.calls) for session in sessions)
    assert through["harness_errors"] == 0
    for session in sessions:
        assert session.labels.keys() >= {"slot", "variant", "task_id", "trial", "end", "completed"}
        assert session.source == ("production" if session.session_id.startswith("desk-4-") else "scripted")
        assert all(call.error is None and call.slot == "orchestrator" for call in session.calls)


def test_the_ledger_tells_who_answered_before_and_after_promote_during_the_outage_and_after_rollback(out):
    through = json.loads((out / "summary.json").read_text())["gateway"]
    served = through["served_by"]
    assert list(served) == ["before_promote", "after_promote", "during_outage", "after_rollback"]
    assert {phase: set(counts) for phase, counts in served.items()} == {
        "before_promote": {"incumbent"},
        "after_promote": {"candidate"},
        "during_outage": {"incumbent"},
        "after_rollback": {"incumbent"},
    }
    with TraceStore.open(out / "traces.db", must_exist=True) as store:
        cut = [session for session in store.sessions(source="production") if session.labels["variant"] == "mixed"]
    assert len(cut) == 1
    assert [call.provider for call in cut[0].calls[:3]] == ["candidate", "candidate", "incumbent"]
    with ControlStore.open(out / "gateway" / "gateway.db", must_exist=True) as store:
        actions = [entry.action for entry in store.audit_log()][::-1]
        promote = next(entry for entry in store.audit_log() if entry.action == "slot.promote")
        assert store.workers() == []
    assert actions == ["slot.set", "slot.promote", "slot.rollback"]
    assert promote.details["override"] == through["override"] != ""
    money = through["pretend_usd"]
    assert money["candidate"]["saved_usd"] > 0
    assert money["incumbent"]["saved_usd"] == 0
    assert money["total"]["calls"] == through["calls"]


def test_the_report_stands_alone(out):
    page = (out / "report.html").read_text()
    assert "src=" not in page.split("<body")[0]
    assert re.findall(r"<link[^>]*>", page) == ['<link rel="icon" href="data:,">']


def test_nothing_is_replaced_unless_a_demo_made_it(out, tmp_path):
    with pytest.raises(ConfigError, match="--force"):
        run_demo(DemoOptions(out=out))
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="no demo made it"):
        run_demo(DemoOptions(out=tmp_path), force=True)
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_the_commands_it_ends_with_name_what_it_wrote(out):
    commands = next_commands(out)
    assert f"firstchair traces ls --store {out}/traces.db" in commands
    named = [Path(word) for command in commands for word in shlex.split(command) if word.startswith(str(out))]
    assert len(named) == 7
    assert all(path.exists() for path in named)


@pytest.mark.parametrize(
    "options", [("--epochs", "inf"), ("--epochs", "nan"), ("--seed", "-1"), ("--seed", "99999999999")]
)
def test_a_number_out_of_range_is_refused_before_anything_is_made(options, tmp_path):
    result = CliRunner().invoke(app, ["--out", str(tmp_path / "new"), *options])
    assert result.exit_code == 2
    assert options[0] in result.output
    assert not (tmp_path / "new").exists()
