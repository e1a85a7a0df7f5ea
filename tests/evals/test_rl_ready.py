import json
from dataclasses import replace

import msgspec
import pytest

from firstchair.catalog.catalog import Catalog
from firstchair.catalog.policy import RoutingPolicy, RoutingRow
from firstchair.catalog.verdict import Scored, Verdict, score
from firstchair.chat.messages import Tool, assistant_message
from firstchair.core.errors import ConfigError, DataError
from firstchair.data.golden import (
    BuildOptions,
    FreezeOptions,
    GoldenSet,
    TrainingData,
    build,
    freeze,
    verify,
)
from firstchair.data.similarity import shingles
from firstchair.engines.scripted import ScriptedEngine
from firstchair.evals.gate_files import read_parity
from firstchair.evals.gate_record import GATES, GateVerdict
from firstchair.evals.gate_thresholds import Thresholds
from firstchair.evals.replay import replay
from firstchair.evals.rl_ready import Parity, Readiness, rl_ready_gates
from firstchair.testing.sessions import trip_session, trip_tools

PASS, FAIL, UNDECIDED = GateVerdict.PASS, GateVerdict.FAIL, GateVerdict.UNDECIDED
WHEN = "2026-02-03T00:00:00Z"
HASH = "f" * 64


def catalog_with(*rows: RoutingRow) -> Catalog:
    return Catalog.from_tools("trips", trip_tools()).model_copy(
        update={"verified": True, "policy": RoutingPolicy(rows=rows) if rows else None}
    )


CATALOG = catalog_with(
    RoutingRow(id="search", intent="find a trip", route="find_trips", examples=("find me a trip",)),
    RoutingRow(id="chat", intent="small talk", route="reply", examples=("hello",)),
)


def frozen(path, catalog: Catalog, against: tuple[TrainingData, ...] = ()) -> GoldenSet:
    options = BuildOptions(name="trips", created_at=WHEN, verified=True)
    build([trip_session(number) for number in range(12)], lambda _: trip_tools(), path / "draft", options)
    freeze(
        path / "draft",
        path / "golden",
        FreezeOptions(catalog=catalog, scorer=score, created_at=WHEN, against=against),
    )
    return GoldenSet.load(path / "golden")


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> Readiness:
    """A candidate that is always right, a baseline that always stops, and all the rest in order."""
    tmp_path = tmp_path_factory.mktemp("ready")
    training = TrainingData("sft.jsonl", [("x", shingles("words of another conversation " * 9))])
    golden = frozen(tmp_path, CATALOG, (training,))
    gold = {decision.dp_id: decision.gold for decision in golden.decisions}
    right = ScriptedEngine(lambda request: gold[request.request_id])
    stops = ScriptedEngine(lambda request: assistant_message("Done."))
    return Readiness(
        candidate=replay(golden, right, None, tmp_path / "right").rows,
        template_hash=HASH,
        golden=golden,
        checked=verify(tmp_path / "golden", score)[1],
        baseline=replay(golden, stops, None, tmp_path / "stops").rows,
        catalog=CATALOG,
        parity=Parity(template_hash=HASH, other="http://127.0.0.1:8000", prompts=20, differing=0),
    )


def gates_of(ready: Readiness, **options):
    return {gate.name: gate for gate in rl_ready_gates(ready, Thresholds(), **options)}


def test_a_model_is_ready_when_all_is_in_order(ready):
    found = gates_of(ready)
    assert tuple(found) == GATES["rl_readiness"]
    assert {gate.verdict for gate in found.values()} == {PASS}
    figures = {check.metric: check for check in found["routing"].checks}
    # 60 of 60 and 36 of 36; Wilson from n/(n + 3.8415).
    assert figures["action_type"].low == pytest.approx(60 / 63.8415, abs=1e-5)
    assert figures["tool_name"].low == pytest.approx(36 / 39.8415, abs=1e-5)
    assert (figures["tool_name_gain"].value, figures["tool_name_gain"].n) == (1.0, 36)
    assert found["golden"].checks[1].note == "sft.jsonl (1 sessions)"
    assert [(part.what, part.reason) for part in found["routing"].excluded] == [
        ("skill_to_tool", "the golden set offers no skill")
    ]


def test_a_policy_that_contradicts_itself_or_is_not_there_is_no_label(ready, tmp_path):
    twice = catalog_with(
        RoutingRow(id="a", intent="a", route="book", examples=("go",)),
        RoutingRow(id="b", intent="b", route="reply", examples=("Go",)),
    )
    for number, (catalog, metric) in enumerate([(twice, "policy_errors"), (catalog_with(), "policy_rows")]):
        (tmp_path / str(number)).mkdir()
        gate = gates_of(replace(ready, golden=frozen(tmp_path / str(number), catalog), catalog=catalog))["labels"]
        assert {check.metric: check.verdict for check in gate.checks}[metric] is FAIL
        assert gate.verdict is FAIL


def test_another_catalog_than_the_golden_sets_is_refused(ready):
    with pytest.raises(ConfigError, match="'trips' is not the catalog that the golden set was frozen under"):
        gates_of(replace(ready, catalog=catalog_with()))


def test_a_golden_set_that_nobody_compared_with_the_training_data_is_not_leak_free(ready, tmp_path):
    (tmp_path / "other").mkdir()
    gate = gates_of(replace(ready, golden=frozen(tmp_path / "other", CATALOG)))["golden"]
    assert [check.verdict for check in gate.checks] == [PASS, FAIL, PASS]
    assert "golden freeze --against" in gate.checks[1].note


def test_a_check_of_the_golden_set_that_does_not_hold_fails_it(ready):
    checked = [msgspec.structs.replace(ready.checked[0], problems=("trip-1 changed",)), *ready.checked[1:]]
    gate = gates_of(replace(ready, checked=checked))["golden"]
    assert (gate.verdict, gate.checks[0].note) == (FAIL, "records: trip-1 changed")


def test_no_better_than_the_baseline_is_not_ready(ready):
    gate = gates_of(replace(ready, baseline=ready.candidate))["routing"]
    assert {check.metric: check.verdict for check in gate.checks}["tool_name_gain"] is UNDECIDED
    assert gates_of(replace(ready, candidate=ready.baseline))["routing"].verdict is FAIL


@pytest.mark.parametrize(("direct", "verdict"), [(0, PASS), (24, FAIL)])
def test_skill_decisions_that_become_direct_calls_are_bounded(ready, direct, verdict):
    skill = Tool(name="skill", description="Load a skill.", parameters={"type": "object"})
    catalogs = {"c": msgspec.structs.replace(next(iter(ready.golden.catalogs.values())), tools=(skill,))}
    wrong = Scored(strict=Verdict.WRONG_TOOL, lenient=Verdict.WRONG_TOOL, rule="tool")
    rows = [
        msgspec.structs.replace(
            row, gold_kind="tool_call", gold_tools=("skill",), made_kind="tool_call", made_tools=("skill",)
        )
        for row in ready.candidate
    ][:35]
    rows[:direct] = [msgspec.structs.replace(row, made_tools=("book",), scored=wrong) for row in rows[:direct]]
    gate = gates_of(replace(ready, candidate=rows, golden=replace(ready.golden, catalogs=catalogs)))["routing"]
    (found,) = [check for check in gate.checks if check.metric == "skill_to_tool"]
    assert (found.value, found.n, found.verdict) == (pytest.approx(direct / 35), 35, verdict)
    assert found.bound == pytest.approx(10 / 35)


@pytest.mark.parametrize(
    ("parity", "metric"),
    [
        (Parity(template_hash=HASH, other="x", prompts=20, differing=1), "differing_prompts"),
        (Parity(template_hash="0" * 64, other="x", prompts=20, differing=0), "other_template"),
        (Parity(template_hash=HASH, other="x", prompts=0, differing=0), "prompts"),
    ],
)
def test_parity_is_of_every_prompt_and_of_the_template_that_was_scored(ready, parity, metric):
    gate = gates_of(replace(ready, parity=parity))["parity"]
    assert [check.metric for check in gate.checks if check.verdict is FAIL] == [metric]


def test_what_is_missing_is_named_with_the_command_that_makes_it(ready):
    bare = replace(ready, baseline=None, catalog=None, parity=None)
    with pytest.raises(ConfigError) as caught:
        gates_of(bare)
    for words in (
        "gates rl-ready: ",
        "labels needs the catalog",
        "routing needs",
        "parity needs",
        "firstchair parity",
    ):
        assert words in str(caught.value)
    found = gates_of(bare, allow_missing=["labels", "routing", "parity"])
    assert [str(gate.verdict) for gate in found.values()] == ["not_run", "pass", "not_run", "not_run"]


def test_a_recorded_parity_is_counted_anew(tmp_path):
    path = tmp_path / "parity.json"
    comparisons = [{"match": "equal"}, {"match": "quoted"}, {"match": "ids"}]
    path.write_text(json.dumps({"template_hash": HASH, "other": "x", "holds": True, "comparisons": comparisons}))
    assert read_parity(path) == Parity(template_hash=HASH, other="x", prompts=3, differing=1)
    for text in ("{", "[]", '{"template_hash": "a", "other": "x", "comparisons": [1]}', '{"other": "x"}'):
        path.write_text(text)
        with pytest.raises(DataError, match=r"parity\.json: not what `firstchair parity --json` prints"):
            read_parity(path)
    with pytest.raises(DataError, match="No such file"):
        read_parity(tmp_path / "none.json")
