import json
from collections import Counter

import msgspec
import pytest
from tests.evals.rows import row

from firstchair.chat.actions import Action
from firstchair.evals.failures import failure_map
from firstchair.evals.metrics import (
    METRICS,
    Prices,
    cost,
    excluded,
    length_bucket,
    measure,
    standard_slices,
    undecided,
    verdict_counts,
)
from firstchair.evals.routing import confusion, routing_table
from firstchair.evals.run_record import ROWS, DecisionRow

ROWS_BY_HAND = (
    row(0),  # a call, exactly right
    row(1, strict="wrong_args"),  # right leniently
    row(2, verdict="wrong_args"),
    row(3, made=("u",), verdict="wrong_tool", tags=("recovery",)),
    row(4, made=(), verdict="premature_stop", known_bad_call=True),
    row(5, gold=(), made=()),  # stopped where gold stops
    row(6, gold=(), made=("t",), verdict="failed_to_stop"),
    row(7, verdict="malformed", rule="malformed_json"),
    row(8, verdict="known_bad_repeated", known_bad_call=True),
    row(9, verdict="error", rule="server", stop="error", error="down"),
    row(10, verdict="error", rule="context_overflow", covered=False, stop=""),
)


def test_every_metric_has_its_hand_counted_value():
    found = {name: (rate.value, rate.n) for name, rate in measure(ROWS_BY_HAND).items()}
    assert found == {
        "strict_pass": (2 / 9, 9),
        "lenient_pass": (3 / 9, 9),
        "action_type": (6 / 9, 9),  # 0 1 2 3 5 8
        "tool_name": (4 / 7, 7),  # 0 1 2 8 of the seven where gold calls
        "argument_quality": (2 / 4, 4),
        "argument_exact": (1 / 7, 7),
        "recovery": (0.0, 1),
        "stop_precision": (1 / 2, 2),
        "stop_recall": (1 / 2, 2),
        "format_validity": (8 / 9, 9),
        "malformed": (1 / 9, 9),
        "omit_compliance": (1 / 2, 2),
        "undecided": (0.0, 9),
        "coverage": (10 / 11, 11),
        "errors": (1 / 10, 10),
    }
    assert list(found) == [metric.name for metric in METRICS]


def test_every_total_of_a_run_can_be_recounted_from_the_lines_of_its_file(runs):
    run = runs[0]
    lines = [json.loads(line) for line in (run.path / ROWS).read_text(encoding="utf-8").split("\n") if line]
    strict = [line["scored"]["strict"] for line in lines]
    lenient = [line["scored"]["lenient"] for line in lines]
    found = measure(run.rows)
    assert found["strict_pass"].value == strict.count("pass") / len(lines)
    assert found["lenient_pass"].value == lenient.count("pass") / len(lines)
    assert found["malformed"].value == lenient.count("malformed") / len(lines)
    stops = [line for line in lines if line["made_kind"] == "final_reply"]
    assert found["stop_precision"].value == sum(line["gold_kind"] == "final_reply" for line in stops) / len(stops)
    assert {str(key): count for key, count in verdict_counts(run.rows, "lenient").items() if count} == Counter(
        lenient
    )
    assert sum(cluster.count for cluster in failure_map(run.rows)) == len(lines) - lenient.count("pass")
    matrix = confusion(run.rows)
    assert sum(map(sum, matrix.cells)) == len(lines)
    table = {tool.tool: tool for tool in routing_table(run.rows)}
    assert table["book"].support == sum("book" in line.get("gold_tools", []) for line in lines)
    assert table["book"].made == sum("book" in line.get("made_tools", []) for line in lines)


def test_every_rate_carries_its_count_and_an_interval_that_holds_it(runs):
    for rate in measure(runs[0].rows).values():
        if rate.n:
            assert 0 <= rate.low <= rate.value <= rate.high <= 1


def test_the_routing_table_counts_support_recall_and_precision():
    rows = [
        row(0),
        row(1),
        row(2, made=("u",), verdict="wrong_tool"),
        row(3, gold=("u",), made=("u",)),
        row(4, gold=()),
    ]
    table = {tool.tool: tool for tool in routing_table(rows, {"t": "convention"})}
    assert (table["t"].support, table["t"].made, table["t"].kind) == (3, 3, "convention")
    assert table["t"].recall.value == table["t"].precision.value == pytest.approx(2 / 3)
    assert (table["u"].recall.value, table["u"].precision.value) == (1.0, 0.5)
    assert (table["final_reply"].support, table["final_reply"].made) == (1, 0)
    assert table["final_reply"].precision.value is None


def test_parallel_calls_count_for_each_of_their_tools():
    table = {tool.tool: tool for tool in routing_table([row(0, gold=("t", "u"), made=("u",), verdict="wrong_args")])}
    assert (table["t"].recall.value, table["u"].recall.value) == (0.0, 1.0)


def test_the_matrix_calls_out_skills_that_became_direct_calls():
    rows = [
        row(0, gold=("skill",), made=("Bash",), verdict="wrong_tool"),
        row(1, gold=("skill",), made=("skill",)),
        row(2, gold=("skill",), made=("skill_script",), verdict="wrong_tool"),
        row(3, gold=("skill_script",), made=("Read",), verdict="wrong_tool"),
        row(4, gold=("skill",), made=(), verdict="premature_stop"),
        row(5, gold=("Bash",), verdict="malformed"),
    ]
    matrix = confusion(rows)
    assert (matrix.skill_cases, matrix.skill_to_tool) == (5, 2)
    assert matrix.gold == ("skill", "Bash", "skill_script")
    assert set(matrix.made) == {"skill", "Bash", "skill_script", "Read", "final_reply", "malformed"}
    assert matrix.cells[0][matrix.made.index("Bash")] == 1


def test_the_failure_map_clusters_by_verdict_tool_and_field_largest_first():
    wrong = [row(n, verdict="wrong_args", s={"field": f"items[{n}].due"}) for n in range(3)]
    rows = [
        *wrong,
        row(3, made=("u",), verdict="wrong_tool"),
        row(4, verdict="malformed", rule="unclosed_call"),
        row(5),
    ]
    clusters = failure_map(rows)
    assert [(c.verdict, c.tool, c.field, c.count) for c in clusters] == [
        ("wrong_args", "t", "items[].due", 3),
        ("malformed", "t", "unclosed_call", 1),
        ("wrong_tool", "t", "→ u", 1),
    ]
    assert clusters[0].share == pytest.approx(0.6)
    assert clusters[0].dp_ids == ("s0:0", "s0:1", "s0:2")


def test_a_strict_map_also_holds_what_passes_leniently():
    rows = [row(0, strict="wrong_args", rule="numeric", s={"field": "n"}), row(1)]
    assert failure_map(rows, "lenient") == []
    assert [(c.field, c.count) for c in failure_map(rows, "strict")] == [("n", 1)]


def test_a_mismatch_is_wrong_only_against_verified_gold():
    assert not undecided(row(0, verdict="wrong_tool", verified=True))
    assert undecided(row(0, verdict="wrong_tool", verified=False))
    assert undecided(row(0, verdict="wrong_args", verified=True, s={"undecided": True}))
    assert not undecided(row(0, verdict="malformed", verified=False))
    assert not undecided(row(0, verified=False))


def test_every_excluded_decision_is_listed_with_its_reason():
    found = excluded(ROWS_BY_HAND)
    assert [(part.reason, part.dp_ids) for part in found] == [("context_overflow", ("s2:0",)), ("server", ("s1:4",))]


def test_slices_are_by_kind_tag_provenance_and_length():
    rows = [
        row(0, provenance="production", prompt_tokens=100, tags=("stop", "x")),
        row(1, gold=("u",), made=("u",), prompt_tokens=5000),
        row(2, gold=(), made=(), prompt_tokens=300),
        row(3, prompt_tokens=10**6),
        row(4),
    ]
    found = standard_slices(rows, {"t": "universal", "u": "convention"})
    assert {part.name: part.lenient.n for part in found["tool kind"]} == {
        "universal tools": 3,
        "convention tools": 1,
        "final reply": 1,
    }
    assert {part.name for part in found["tag"]} == {"stop", "x"}
    assert {part.name: part.lenient.n for part in found["provenance"]} == {"production": 1, "unknown": 4}
    assert [part.name for part in found["context length"]] == [
        "length unknown",
        "1 to 256 tokens",
        "257 to 512 tokens",
        "4,097 to 8,192 tokens",
        "over 65,536 tokens",
    ]
    assert length_bucket(row(0, prompt_tokens=256)) == "1 to 256 tokens"


def test_cost_is_tokens_times_prices_and_latency_has_quantiles():
    rows = [row(n, prompt_tokens=1000, cached_tokens=400, output_tokens=100, latency_s=n + 1.0) for n in range(10)]
    found = cost(rows, Prices(input=1.0, output=10.0, cached=0.1))
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (10_000, 4_000, 1_000)
    assert found.usd == pytest.approx((6000 * 1.0 + 4000 * 0.1 + 1000 * 10.0) / 1e6)
    assert found.usd_per_session == pytest.approx(found.usd / 2)
    assert (found.latency_mean_s, found.latency_p50_s) == (5.5, 5.5)
    assert found.latency_p95_s == pytest.approx(9.55)
    assert cost([]).latency_p95_s is None
    assert cost(rows).usd is None


def test_rows_survive_their_line():
    whole = row(
        3, action=Action(kind="final_reply", text="\u2028"), ids=(1,), s={"fields": ("a",), "undecided": True}
    )
    assert msgspec.json.decode(msgspec.json.encode(whole), type=DecisionRow) == whole
