import dataclasses

import msgspec
import pytest

from firstchair.core.errors import ConfigError, DataError
from firstchair.engines.base import ErrorKind, Generation, Sampling, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.evals.compare import compare
from firstchair.evals.metrics import measure
from firstchair.evals.replay import ReplayOptions, replay
from firstchair.evals.rescore import rescore
from firstchair.evals.run_record import Run


def changed(run: Run, **fields) -> Run:
    return Run(run.path, msgspec.structs.replace(run.record, **fields), run.rows)


def test_flips_add_up_to_the_difference(runs):
    before, after = runs
    found = compare(before, after)
    change = found.metrics["lenient_pass"]
    fixed, broken = len(found.lenient.fixed), len(found.lenient.broken)
    assert fixed > broken
    assert change.difference.value == pytest.approx((fixed - broken) / 60)
    assert change.before == measure(before.rows)["lenient_pass"]
    assert change.after == measure(after.rows)["lenient_pass"]
    assert change.difference.low > 0
    assert found.lenient.p < 0.01
    assert (found.before, found.after, found.paired) == ("base", "tuned", 60)


def test_each_flip_says_from_what_to_what(runs):
    found = compare(*runs)
    assert all(flip.before != "pass" and flip.after == "pass" for flip in found.lenient.fixed)
    assert all(flip.before == "pass" and flip.after != "pass" for flip in found.lenient.broken)
    backwards = compare(*runs[::-1])
    assert [flip.dp_id for flip in backwards.lenient.broken] == [flip.dp_id for flip in found.lenient.fixed]


def test_a_run_against_itself_changes_nothing(runs):
    found = compare(runs[0], runs[0])
    assert found.lenient.fixed == found.lenient.broken == ()
    assert found.lenient.p == 1.0
    for change in found.metrics.values():
        if change.difference.value is not None:
            assert (change.difference.value, change.difference.low, change.difference.high) == (0.0, 0.0, 0.0)


def test_tools_are_compared_where_gold_takes_them(runs):
    tools = {tool.tool: tool for tool in compare(*runs, {"remember": "convention"}).tools}
    assert set(tools) == {"find_trips", "book", "remember", "final_reply"}
    assert (tools["remember"].kind, tools["remember"].support) == ("convention", 12)
    assert tools["remember"].lenient.after.value > tools["remember"].lenient.before.value


def test_another_golden_set_is_refused_by_that_name(runs):
    golden = msgspec.structs.replace(runs[1].record.golden, set_sha256="0" * 64)
    with pytest.raises(
        ConfigError,
        match=r"(?s)they differ in:\n  golden hash: set_sha256.*eval score RUN --golden SET.* or replay both",
    ):
        compare(runs[0], changed(runs[1], golden=golden))


def test_other_decisions_are_refused_by_that_name(golden, runs, tmp_path):
    few = replay(golden, ScriptedEngine([], model="tuned"), None, tmp_path / "few", ReplayOptions(limit=5))
    with pytest.raises(ConfigError, match=r"(?s)\n  decisions: number of decisions: 60 before, 5 after"):
        compare(runs[0], few)
    with pytest.raises(ConfigError, match=r"fix: replay both .*same decisions.*same engine and sampling"):
        compare(runs[0], changed(few, salvage=True))
    with pytest.raises(ConfigError, match=r"fix: score both .*; replay with the same engine"):
        compare(runs[0], changed(runs[1], salvage=True, scorer_version="0"))


def test_another_serving_config_is_refused_unless_allowed_and_then_named(runs):
    sampling = msgspec.structs.replace(runs[1].record.sampling, temperature=0.7)
    other = changed(runs[1], sampling=sampling, constrain=True)
    with pytest.raises(
        ConfigError, match=r"(?s)serving config: sampling\.temperature: 0\.0 before, 0\.7 after.*constrain"
    ):
        compare(runs[0], other)
    found = compare(runs[0], other, allow_serving=True)
    assert len(found.serving_differs) == 2


def test_other_weights_are_what_a_comparison_is_for(runs):
    candidate = msgspec.structs.replace(runs[1].record.candidate, model="x", adapter="y", revision="z")
    assert compare(runs[0], changed(runs[1], candidate=candidate)).after == "x + y"


def test_another_scorer_is_refused(runs):
    with pytest.raises(ConfigError, match=r"(?s)scorer_version.*firstchair eval score"):
        compare(runs[0], changed(runs[1], scorer_version="0"))


def test_decisions_that_either_run_could_not_answer_are_left_out_and_counted(golden, runs, tmp_path):
    down = Generation("", Stop.ERROR, error="down", error_kind=ErrorKind.SERVER)
    gold = {decision.dp_id: decision.gold for decision in golden.decisions}
    engine = ScriptedEngine(lambda r: down if r.request_id.endswith(":0") else gold[r.request_id])
    found = compare(runs[0], replay(golden, engine, None, tmp_path / "c", ReplayOptions(sampling=Sampling())))
    assert (found.paired, found.left_out) == (48, 12)


def test_stored_replies_are_scored_again_by_other_rules(golden, runs, tmp_path):
    loose = {"find_trips": {"city": "ignore"}, "book": {"$": "ignore"}}
    catalogs = {name: msgspec.structs.replace(row, matchers=loose) for name, row in golden.catalogs.items()}
    looser = dataclasses.replace(golden, catalogs=catalogs)
    again = rescore(runs[0], looser, tmp_path / "again")
    before, after = measure(runs[0].rows)["lenient_pass"].value, measure(again.rows)["lenient_pass"].value
    assert after > before
    assert measure(again.rows)["strict_pass"] == measure(runs[0].rows)["strict_pass"]
    assert [row.text for row in again.rows] == [row.text for row in runs[0].rows]


def test_a_run_of_other_decisions_cannot_be_scored_again(golden, runs, tmp_path):
    fewer = dataclasses.replace(golden, decisions=golden.decisions[1:])
    with pytest.raises(DataError, match="trip-0:0: golden set 'trips' has no such decision"):
        rescore(runs[0], fewer, tmp_path / "again")
    assert not (tmp_path / "again").exists()
