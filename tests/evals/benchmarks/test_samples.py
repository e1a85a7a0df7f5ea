"""What Inspect logged of a sample, as a row and a session. The log's objects are stood in for by their attributes."""

from types import SimpleNamespace
from typing import Any

import pytest

from firstchair.catalog.prices import ModelPrice, PriceTable
from firstchair.catalog.token_counts import TokenCounts
from firstchair.core.errors import DataError
from firstchair.data.orchestration.views import session_view
from firstchair.evals.benchmarks.samples import row_of, score_value, session_of
from firstchair.traces.checks import check_session

PRICES = PriceTable("test", {"gpt-5": ModelPrice(input="1", output="10", cache_read="0.1")})


def message(role: str, content: Any, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(role=role, content=content, **fields)


def call(text: str = "24", *, role: str | None = None, served: str = "gpt-5-2026-01-01", **fields: Any) -> Any:
    usage = SimpleNamespace(
        input_tokens=100,
        output_tokens=10,
        input_tokens_cache_read=50,
        input_tokens_cache_write=None,
        reasoning_tokens=4,
    )
    choice = SimpleNamespace(message=message("assistant", text, tool_calls=None))
    output = SimpleNamespace(model=served, usage=usage, choices=[choice], completion=text)
    given = {
        "model": f"openai-api/firstchair/{served}",
        "error": None,
        "cache": None,
        "call": None,
        "working_time": 0.5,
    }
    opening = [message("system", "Be brief."), message("user", [SimpleNamespace(type="text", text="How many?")])]
    return SimpleNamespace(event="model", role=role, input=opening, output=output, **{**given, **fields})


def sample(*events: Any, value: Any = "C", **fields: Any) -> Any:
    score = SimpleNamespace(value=value, answer=None, explanation="because")
    given = {
        "id": 7,
        "input": "How many?",
        "target": ["24"],
        "events": events,
        "scores": {"judge": score},
        "error": None,
        "limit": None,
        "working_time": 2.0,
        "started_at": "2026-11-30T12:00:00+00:00",
    }
    return SimpleNamespace(**{**given, **fields})


def read(logged: Any) -> Any:
    return row_of(logged, 3, PRICES, "gpt-5")


def test_a_row_keeps_endpoint_and_helper_apart():
    found = read(sample(call("Let me see"), call("24"), call("yes", role="grader", served="judge-1")))
    assert (found.sample_id, found.seed, found.outcome, found.score, found.correct) == ("7", 3, "graded", 1.0, True)
    assert (found.calls, found.helper_calls, found.answer, found.target) == (2, 1, "24", "24")
    assert found.usage == TokenCounts(input=200, cache_read=100, output=20, reasoning=8)
    # 200 · $1 + 100 · $0.1 + 20 · $10 a million tokens = $0.00041
    assert found.cost_nano == 410_000
    assert found.helper_cost_nano is None  # nobody knows what judge-1 costs
    assert (found.latency_s, found.total_s) == (1.0, 2.0)
    assert (found.served_models, found.helper_models) == (("gpt-5-2026-01-01",), ("judge-1",))


def test_what_the_endpoint_says_of_its_cost_wins():
    billed = call(call=SimpleNamespace(response={"usage": {"cost": 0.0003}}))
    assert read(sample(billed)).cost_nano == 300_000
    routed = call(call=SimpleNamespace(response={"firstchair": {"cost_usd": 0.002, "policy_cost_usd": 0.0005}}))
    assert read(sample(routed)).cost_nano == 2_500_000
    unknown = call(call=SimpleNamespace(response={"firstchair": {"cost_usd": None, "policy_cost_usd": 0.0005}}))
    assert read(sample(unknown)).cost_nano is None
    tabled = call(call=SimpleNamespace(response={"firstchair": {"cost_usd": 0.002, "policy_cost_usd": None}}))
    assert read(sample(tabled)).cost_nano == 2_000_000 + 205_000


def test_a_grading_that_failed_is_ungraded_and_never_wrong():
    error = SimpleNamespace(message="ModelGenerateError: Request: {a long one} RateLimitError: 429")
    failed = call("", role="grader", error="RateLimitError: 429")
    found = read(sample(call("24"), failed, scores=None, error=error))
    assert (found.outcome, found.score, found.correct, found.error) == ("ungraded", None, None, "RateLimitError: 429")
    nan = read(sample(call("24"), value=float("nan")))
    assert (nan.outcome, nan.score) == ("ungraded", None)
    assert nan.error == "the grader's verdict cannot be read: because"
    assert read(sample(call("24"), scores={})).error == "no grade"


def test_an_endpoint_that_failed_is_no_wrong_answer():
    error = SimpleNamespace(message="APIConnectionError")
    found = read(sample(call("", error="refused"), scores=None, error=error))
    assert (found.outcome, found.score, found.cost_nano, found.served_models) == ("failed", None, 0, ())
    unasked = read(sample(scores=None, error=SimpleNamespace(message="no sandbox")))
    assert (unasked.outcome, unasked.answer, unasked.calls) == ("failed", "", 0)


@pytest.mark.parametrize(
    ("value", "score"),
    [("C", 1.0), ("I", 0.0), ("P", 0.5), (1, 1.0), (0.25, 0.25), (True, 1.0), ({"score": "I", "confidence": 3}, 0.0)],
)
def test_values_of_inspect_become_numbers(value: Any, score: float):
    assert score_value(value) == score


@pytest.mark.parametrize("value", [2, -0.5, "correct", "not correct", {"other": 1}, [1.0]])
def test_a_value_that_is_no_score_is_refused(value: Any):
    with pytest.raises(DataError, match="expected a number from 0 to 1"):
        score_value(value)


def test_a_session_shows_the_endpoints_conversation_and_its_grade():
    acted = SimpleNamespace(id="c1", function="submit", arguments={"answer": "24"})
    last = call("24")
    last.input = [
        *last.input,
        message("assistant", [SimpleNamespace(type="reasoning", reasoning="hm", redacted=False)], tool_calls=[acted]),
        message("tool", "noted", tool_call_id="c1", function="submit", error=None),
    ]
    logged = sample(last, call("yes", role="grader"), value="I")
    session = session_of(logged, read(logged), benchmark="gaia")
    check_session(session)
    view = session_view(session)
    assert (view.id, view.task, view.domain, view.correct, view.broken) == ("gaia:7:3", "7", "gaia", False, False)
    assert (view.problem, view.answer, view.gold) == ("How many?", "24", "24")
    assert view.cost_usd == pytest.approx(0.000205)
    assert [said.role for said in view.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert view.messages[2].calls == (("submit", '{"answer": "24"}'),)
    assert view.messages[2].thinking == "hm"


def test_a_sample_that_broke_before_its_first_call_shows_what_was_asked():
    logged = sample(scores=None, error=SimpleNamespace(message="no sandbox"))
    view = session_view(session_of(logged, read(logged), benchmark="gaia"))
    assert (view.problem, view.correct, view.broken) == ("How many?", None, True)
