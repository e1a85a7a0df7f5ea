"""The gates from the command line, on small real runs: replay, episodes, a ledger, the record, the promotion."""

import json

import msgspec
import pytest

from firstchair.catalog.catalog import Catalog, catalog_yaml
from firstchair.catalog.policy import RoutingPolicy, RoutingRow
from firstchair.catalog.token_counts import TokenCounts
from firstchair.catalog.verdict import score
from firstchair.core.hashing import sha256_file
from firstchair.core.jsontext import dumps
from firstchair.data.golden import BuildOptions, FreezeOptions, TrainingData, build, freeze
from firstchair.data.similarity import shingles
from firstchair.evals.gate_record import opened
from firstchair.gateway.control.ledger import insert_records
from firstchair.gateway.control.slots import Route, SlotConfig
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.records import CallRecord, Outcome
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.train.base_model import base_model_dir

WHEN = "2026-02-03T00:00:00Z"
SESSIONS = 20
SMALL, CLAUDE = Route(provider="local", model="small"), Route(provider="anthropic", model="claude")
FEW = ("--set", "stop.malformed=0.05")
"""A hundred decisions cannot show that fewer than one in two hundred is malformed."""


def the_catalog() -> Catalog:
    found = Catalog.from_tools("trips", trip_tools())
    tools = [
        tool.model_copy(update={"kind": "convention"}) if tool.name == "remember" else tool for tool in found.tools
    ]
    rows = (RoutingRow(id="search", intent="find a trip", route="find_trips", examples=("find me a trip",)),)
    return found.model_copy(update={"verified": True, "tools": tuple(tools), "policy": RoutingPolicy(rows=rows)})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A frozen golden set, its catalog, episodes of both sides and a ledger."""
    root = tmp_path_factory.mktemp("gates")
    catalog = the_catalog()
    (root / "catalog.yaml").write_text(catalog_yaml(catalog))
    sessions = [trip_session(number) for number in range(SESSIONS)]
    build(
        sessions, lambda _: trip_tools(), root / "draft", BuildOptions(name="trips", created_at=WHEN, verified=True)
    )
    training = TrainingData("sft", [("x", shingles("words of another conversation " * 9))])
    options = FreezeOptions(catalog=catalog, scorer=score, created_at=WHEN, against=(training,))
    freeze(root / "draft", root / "golden", options)
    for name, completed in (("episodes", 20), ("baseline-episodes", 5)):
        played = [
            trip_session(number, labels={"task_id": f"t{number}", "completed": number < completed})
            for number in range(SESSIONS)
        ]
        lines = (dumps(msgspec.to_builtins(session)) + "\n" for session in played)
        (root / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    stops = [
        {"dp_id": f"trip-{session}:{index}", "message": {"role": "assistant", "content": "Done."}}
        for session in range(SESSIONS)
        for index in range(5)
    ]
    (root / "stops.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stops))
    with ControlStore.open(root / "gateway.db") as store:
        store.put_slot(SlotConfig(slot="desk", primary=CLAUDE), who="ann")
        with store.transaction() as connection:
            insert_records(connection, [record(route, n) for route in (SMALL, CLAUDE) for n in range(90)])
    return root


def record(route: Route, number: int) -> CallRecord:
    small = route is SMALL
    return CallRecord(
        call_id=f"{route}-{number}",
        received_us=1_000_000 * number,
        worker="w",
        slot="desk",
        dialect="openai",
        requested_model="desk",
        session=f"{route}-{number // 3}",
        variant="canary" if small else "primary",
        provider=route.provider,
        provider_model=route.model,
        outcome=Outcome.OK,
        status=200,
        latency_ms=50.0 if small else 250.0,
        usage=TokenCounts(input=10, output=5),
        cost_nano=1_000 if small else 9_000,
    )


@pytest.fixture
def gates(run, made, monkeypatch):
    """Runs `firstchair …` beside what was made: stdout, or stderr of a wrong input, once the exit code is checked."""
    monkeypatch.chdir(made)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("FIRSTCHAIR_WHO", "ann")
    for model, out in (("gold", "right"), ("stops.jsonl", "stops")):
        if not (made / out).exists():
            who = ("--engine", "scripted", "--model", model, "--tokenizer", base_model_dir())
            assert run("eval", "replay", "golden", *who, "--out", out)[0] == 0

    def call(*arguments, code=0):
        found, out, err = run(*arguments)
        assert found == code, out + err
        return err if code == 2 else out

    return call


CHECK = ("gates", "check", "right", "--route", "local/small", "--slot", "desk")
WHOLE = (
    *CHECK,
    *("--baseline", "stops", "--episodes", "episodes.jsonl", "--baseline-episodes", "baseline-episodes.jsonl"),
    *("--ledger", "gateway.db", "--baseline-route", "anthropic/claude", *FEW),
)


def test_a_candidate_that_passes_is_promoted_on_its_record(gates, made):
    said = gates(*WHOLE, "--out", "passed.json")
    assert "passed: all gates" in said
    assert "· convention_tool remember" in said
    data = json.loads((made / "passed.json").read_text())
    found = opened(data, "promotion")
    assert (found.passed, found.route, found.slot, found.who) == (True, "local/small", "desk", "ann")
    assert found.golden.set_sha256 == json.loads((made / "golden/manifest.json").read_text())["set_sha256"]
    assert found.candidate.rows_sha256 == sha256_file(made / "right/decisions.jsonl")
    assert found.template_hash == found.candidate.template_hash != ""
    assert found.thresholds["stop"]["malformed"] == 0.05
    inputs = {one.name: one for one in found.inputs}
    assert inputs["episodes"].sha256 == sha256_file(made / "episodes.jsonl")
    assert inputs["ledger"].details["how"] == "served"
    checks = {(gate.name, check.metric): check for gate in found.gates for check in gate.checks}
    assert checks["recovery", "recovered_episodes"].value == pytest.approx(0.75)
    assert checks["cost_latency", "usd_per_session"].value == pytest.approx(-24e-6)
    assert all(check.n > 0 and check.low is not None for check in checks.values())
    promote = ("gateway", "promote", "desk", "local/small", "--db", "gateway.db", "--gates")
    assert "expected 'local/small'" not in gates(*promote, "passed.json")
    data["gates"][0]["checks"][0]["value"] = 0.5
    (made / "forged.json").write_text(json.dumps(data))
    assert "it was changed after it was sealed" in gates(*promote, "forged.json", code=2)


def test_a_candidate_that_fails_exits_1_and_leaves_a_record_that_promotes_nothing(gates, made):
    wrong_way = [{"right": "stops", "stops": "right"}.get(word, word) for word in WHOLE]
    said = gates(*wrong_way, "--out", "failed.json", code=1)
    assert "not passed: routing fail" in said
    found = opened(json.loads((made / "failed.json").read_text()), "promotion")
    verdicts = {gate.name: str(gate.verdict) for gate in found.gates}
    assert verdicts["completion"] == "pass"
    assert verdicts["recovery"] == "fail"
    promote = ("gateway", "promote", "desk", "local/small", "--db", "gateway.db", "--gates", "failed.json")
    assert "gates.passed: found False (routing fail" in gates(*promote, code=2)


def test_too_few_samples_are_undecided_and_say_how_many_would_decide(gates):
    few = [word for word in WHOLE if word not in FEW]
    said = gates(*few, "--out", "undecided.json", code=1)
    assert "not passed: stop undecided" in said
    assert "malformed undecided; 100 samples, about 765 samples would decide" in said


def test_inputs_that_are_missing_are_named_or_left_out_on_purpose(gates, made):
    said = gates(*CHECK, code=2)
    assert "completion needs the candidate's episodes: --episodes FILE; made by: firstchair desk play" in said
    assert "cost_latency needs what calls cost: --ledger" in said
    assert not (made / "gates.json").exists()
    left = [word for name in ("completion", "recovery", "cost_latency") for word in ("--allow-missing", name)]
    said = gates(*CHECK, "--baseline", "stops", *FEW, *left, "--out", "part.json", code=1)
    assert "not passed: completion not_run, recovery not_run, cost_latency not_run" in said
    assert json.loads((made / "part.json").read_text())["passed"] is False
    assert "expected one of routing" in gates(*CHECK, "--allow-missing", "speed", code=2)
    assert "--baseline-route PROVIDER/MODEL is needed" in gates(*CHECK, "--ledger", "gateway.db", code=2)


def test_cost_may_come_from_the_tokens_of_the_runs(gates, made):
    (made / "prices.yaml").write_text("version: t\nmodels: {local/small: {input: 1, output: 2}}\n")
    routes = ("--prices", "prices.yaml", "--baseline-route", "anthropic/nobody")
    assert "no price for anthropic/nobody; add `anthropic/nobody`" in gates(
        *CHECK, "--baseline", "stops", *routes, code=2
    )


def test_a_run_of_a_part_of_the_set_is_refused(gates, run, made):
    if not (made / "part").exists():
        run("eval", "replay", "golden", "--engine", "scripted", "--model", "gold", "--out", "part", "--limit", 9)
    few = ("gates", "check", "part", "--route", "local/small", "--slot", "desk")
    assert "9 of 100 decisions of the golden set" in gates(*few, code=2)


def test_rl_may_begin_when_labels_golden_routing_and_parity_hold(gates, made):
    ready = ("gates", "rl-ready", "right", "--baseline", "stops", "--catalog", "catalog.yaml")
    said = gates(*ready, "--model", base_model_dir(), "--out", "ready.json")
    assert "passed: all gates" in said
    found = opened(json.loads((made / "ready.json").read_text()), "rl_readiness")
    assert [gate.name for gate in found.gates] == ["labels", "golden", "routing", "parity"]
    promote = ("gateway", "promote", "desk", "local/small", "--db", "gateway.db", "--gates", "ready.json")
    assert "gates.kind: found 'rl_readiness'" in gates(*promote, code=2)
    assert "parity needs a comparison of prompts: --parity FILE" in gates(*ready, "--out", "x.json", code=2)
    (made / "parity.json").write_text(gates("parity", "--model", base_model_dir(), "--json"))
    assert "passed: all gates" in gates(*ready, "--parity", "parity.json", "--out", "again.json")
    both = ("--parity", "parity.json", "--model", base_model_dir())
    assert "one of the two" in gates(*ready, *both, "--out", "x.json", code=2)


def test_a_record_is_not_written_over(gates, made):
    (made / "there.json").write_text("{}")
    assert "there.json exists; pass --force" in gates(*WHOLE, "--out", "there.json", code=2)
