from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.rewards.conftest import picks, says, text_of

from firstchair.core.config import validate
from firstchair.core.errors import DataError, GradingError
from firstchair.engines.base import ErrorKind, Generation, Request, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.evals.judge_calibration import (
    Calibration,
    LabelledAnswer,
    LabelledPair,
    calibrate,
    cohens_kappa,
    read_labelled,
)
from firstchair.rewards.composition import JudgeComponent
from firstchair.rewards.judge_client import JudgeClient

BETTER = {"name": "better", "kind": "judge", "mode": "pairwise", "criterion": "longer"}
MANNER = {
    "name": "manner",
    "kind": "judge",
    "mode": "rubric",
    "dimensions": [{"name": "tone", "question": "?", "scores": [0, 1]}, {"name": "depth", "question": "?"}],
}


def component(fields: dict[str, Any]) -> JudgeComponent:
    return validate(JudgeComponent, fields, source="test")


def run(reply: Any, fields: dict[str, Any], items: list[Any], **options: Any) -> Calibration:
    client = JudgeClient(ScriptedEngine(reply, model="j"))
    return asyncio.run(calibrate(client, component(fields), items, **options))


def pair(number: int, winner: Any) -> LabelledPair:
    return LabelledPair(question=f"q{number}", a=f"long answer {number}", b=f"short {number}", winner=winner)


def by_length(request: Request) -> Any:
    shown = text_of(request)
    return picks("A" if len(shown["answer A"]) > len(shown["answer B"]) else "B")


def confused(table: list[list[int]]) -> list[tuple[Any, Any, str]]:
    rows = [(i, j) for i, line in enumerate(table) for j, count in enumerate(line) for _ in range(count)]
    return [(i, j, f"c{number}") for number, (i, j) in enumerate(rows)]


@pytest.mark.parametrize(
    ("table", "kappa"),
    [
        # p_o = 35/50, p_e = ½·0.6 + ½·0.4
        ([[20, 5], [10, 15]], 0.4),
        ([[5, 0], [0, 5]], 1.0),
        ([[0, 5], [5, 0]], -1.0),
        ([[4, 4], [4, 4]], 0.0),
        # p_o = 9/12; people say 0, 1, 2 with 6, 3, 3 of 12, the judge with 5, 4, 3: p_e = (30 + 12 + 9)/144
        ([[5, 1, 0], [0, 2, 1], [0, 1, 2]], (9 / 12 - 51 / 144) / (1 - 51 / 144)),
    ],
)
def test_kappa_is_cohens(table, kappa):
    found = cohens_kappa(confused(table))
    assert found.value == pytest.approx(kappa)
    assert found.n == sum(map(sum, table))
    assert found.low is not None
    assert found.high is not None
    assert found.low <= kappa + 1e-9
    assert found.high >= kappa - 1e-9


def test_kappa_is_not_defined_where_both_always_say_one_thing():
    assert cohens_kappa(confused([[7]])).value is None
    assert cohens_kappa([]).n == 0


def test_kappa_has_no_interval_from_one_cluster():
    found = cohens_kappa([(0, 0, "c"), (1, 1, "c"), (0, 1, "c")])
    assert found.value == pytest.approx(0.4)
    assert (found.low, found.high) == (None, None)


def test_a_fair_pairwise_judge_agrees_flips_nothing_and_repeats_itself():
    found = run(by_length, BETTER, [pair(n, "a" if n % 4 else "b") for n in range(20)], repeats=2)
    (said,) = found.agreement
    assert (said.dimension, said.raw.value, said.raw.n) == ("winner", 0.75, 20)
    assert said.kappa.value == pytest.approx(0.0)
    assert found.position is not None
    assert (found.position.flips.value, found.position.flips.n) == (0.0, 20)
    assert (found.position.to_first, found.position.to_second) == (0, 0)
    assert (found.consistency.value, found.consistency.n) == (1.0, 40)
    assert (found.judge, found.component, found.items, found.repeats) == ("j", "better", 20, 2)
    assert found.unscored == {}


@pytest.mark.parametrize(("place", "first", "second"), [("A", 10, 0), ("B", 0, 10)])
def test_a_judge_that_prefers_a_place_is_found_out(place, first, second):
    found = run(lambda request: picks(place), BETTER, [pair(n, "a") for n in range(10)])
    assert found.position is not None
    assert found.position.flips.value == 1.0
    assert (found.position.to_first, found.position.to_second) == (first, second)
    # Both orders together say nothing: a tie.
    assert found.agreement[0].raw.value == 0.0


def test_a_tie_in_one_order_only_is_a_flip_and_half_a_preference():
    def reply(request: Request) -> Any:
        return picks("A") if text_of(request)["answer A"].startswith("long") else picks("tie")

    found = run(reply, BETTER, [pair(0, "a"), pair(1, "a")])
    assert found.position is not None
    assert (found.position.flips.value, found.position.to_first) == (1.0, 2)
    assert found.agreement[0].raw.value == 1.0


def test_a_judge_that_changes_its_mind_is_found_out():
    asked: dict[str, int] = {}

    def reply(request: Request) -> Any:
        text = request.messages[1].text
        asked[text] = asked.get(text, 0) + 1
        return picks("A" if asked[text] == 1 else "tie")

    found = run(reply, BETTER, [pair(n, "a") for n in range(5)], repeats=3)
    assert found.consistency.value == 0.0
    assert sum(asked.values()) == 30
    assert run(by_length, BETTER, [pair(0, "a")]).consistency.n == 0


def answer(number: int, tone: int, depth: int) -> LabelledAnswer:
    return LabelledAnswer(question=f"q{number}", answer=f"{tone}{depth}", scores={"tone": tone, "depth": depth})


def test_a_rubric_is_compared_dimension_by_dimension():
    def reply(request: Request) -> Any:
        shown = text_of(request)["answer"]
        return says({"reason": "r", "tone": int(shown[0]), "depth": 2})

    found = run(reply, MANNER, [answer(n, n % 2, n % 3) for n in range(12)])
    tone, depth = found.agreement
    assert (tone.dimension, tone.raw.value, tone.kappa.value) == ("tone", 1.0, pytest.approx(1.0))
    assert (depth.dimension, depth.raw.value, depth.kappa.value) == (
        "depth",
        pytest.approx(1 / 3),
        pytest.approx(0.0),
    )
    assert found.position is None


def test_what_the_judge_did_not_answer_is_counted_and_is_no_disagreement():
    def reply(request: Request) -> Any:
        shown = text_of(request)["answer"]
        return "hm" if shown == "00" else says({"reason": "r", "tone": int(shown[0]), "depth": int(shown[1])})

    found = run(reply, MANNER, [answer(0, 0, 0), answer(1, 1, 1), answer(2, 1, 2)])
    assert found.unscored == {"bad_json": 1}
    assert [(one.raw.value, one.raw.n) for one in found.agreement] == [(1.0, 2), (1.0, 2)]


def test_a_judge_that_never_answers_is_an_error():
    down = Generation("", Stop.ERROR, error="auth: HTTP 401: no", error_kind=ErrorKind.AUTH)
    with pytest.raises(GradingError, match="no verdict on any of 4 questions; the first: judge: config: auth"):
        run(lambda request: down, BETTER, [pair(0, "a"), pair(1, "b")])


@pytest.mark.parametrize(
    ("fields", "row", "message"),
    [
        (BETTER, {"question": "q", "a": "x", "b": "y", "winner": "A"}, r"labels\.jsonl:1: not a label"),
        (BETTER, {"question": "q", "a": "x", "winner": "a"}, "expected {question, a, b, winner}"),
        (MANNER, {"question": "q", "answer": "x", "winner": "a"}, "expected {question, answer, scores}"),
        (MANNER, {"question": "q", "answer": "x", "scores": {"tone": 2}}, r"scores\.tone: found 2; expected .*0, 1"),
        (MANNER, {"question": "q", "answer": "x", "scores": {"mood": 1}}, "no such dimension; component manner has"),
        (MANNER, None, "found no labels"),
    ],
)
def test_a_bad_label_is_named(tmp_path, fields, row, message):
    path = tmp_path / "labels.jsonl"
    path.write_text("" if row is None else json.dumps(row) + "\n")
    with pytest.raises(DataError, match=message):
        read_labelled(path, component(fields))
