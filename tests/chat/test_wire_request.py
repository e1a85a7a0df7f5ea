import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.chat.wire_request import (
    Finish,
    TokenUsage,
    check_thinking,
    finish_from_anthropic,
    finish_from_openai,
    finish_to_anthropic,
    finish_to_openai,
    max_tokens_to_anthropic,
    tool_choice_to_anthropic,
    tool_choice_to_openai,
    usage_from_anthropic,
    usage_from_openai,
    usage_to_anthropic,
    usage_to_openai,
)
from firstchair.core.errors import BadRequest, DataError

NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "parallel", "theirs"),
    [
        (None, None, None),
        ("auto", None, {"type": "auto"}),
        ("required", None, {"type": "any"}),
        ("none", None, {"type": "none"}),
        (NAMED, None, {"type": "tool", "name": "f"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("auto", False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        (NAMED, True, {"type": "tool", "name": "f", "disable_parallel_tool_use": False}),
        ("none", False, {"type": "none"}),
    ],
)
def test_tool_choice_maps_by_a_total_table(choice, parallel, theirs):
    assert tool_choice_to_anthropic(choice, parallel, has_tools=True) == theirs
    assert tool_choice_to_anthropic(choice, parallel, has_tools=False) is None
    back = tool_choice_to_openai(theirs, has_tools=True)
    if choice is not None:
        assert back["tool_choice"] == choice
    if choice != "none":
        assert back.get("parallel_tool_calls") == parallel


def test_none_never_becomes_auto_and_no_parallel_never_forces_a_tool():
    assert tool_choice_to_openai({"type": "none"}, has_tools=True) == {"tool_choice": "none"}
    assert tool_choice_to_anthropic(None, False, has_tools=True)["type"] == "auto"


@pytest.mark.parametrize("choice", ["sometimes", 3, {"type": "allowed_tools"}, {"type": "function"}])
def test_a_choice_without_a_counterpart_is_refused(choice):
    with pytest.raises(BadRequest, match="tool_choice"):
        tool_choice_to_anthropic(choice, None, has_tools=True)


def test_forcing_a_tool_while_thinking_is_refused_early():
    with pytest.raises(BadRequest, match="thinking"):
        tool_choice_to_anthropic("required", None, has_tools=True, thinking=True)
    assert tool_choice_to_anthropic("auto", None, has_tools=True, thinking=True) == {"type": "auto"}
    with pytest.raises(BadRequest, match="tool_choice"):
        tool_choice_to_openai({"type": "sometimes"}, has_tools=True)


def test_every_stop_reason_has_its_place_and_unknown_ones_are_errors():
    for word in [
        "end_turn",
        "tool_use",
        "max_tokens",
        "stop_sequence",
        "refusal",
        "pause_turn",
        "model_context_window_exceeded",
    ]:
        finish = finish_from_anthropic(word, has_calls=False)
        assert finish_to_anthropic(finish) == word
    assert finish_to_openai(Finish.STOP_SEQUENCE) == ("stop", "stop_sequence")
    assert finish_to_openai(Finish.CONTEXT_WINDOW) == ("length", "model_context_window_exceeded")
    for finish in (Finish.STOP, Finish.TOOL_CALLS, Finish.LENGTH, Finish.REFUSAL):
        word, beside = finish_to_openai(finish)
        assert beside is None
        assert finish_from_openai(word, has_calls=False) is finish
    for read in (finish_from_openai, finish_from_anthropic):
        for unknown in ("because", None):
            with pytest.raises(DataError, match="expected one of"):
                read(unknown, has_calls=False)


def test_calls_that_came_with_stop_are_calls_but_truncated_ones_stay_truncated():
    assert finish_from_openai("stop", has_calls=True) is Finish.TOOL_CALLS
    assert finish_from_anthropic("end_turn", has_calls=True) is Finish.TOOL_CALLS
    assert finish_from_openai("length", has_calls=True) is Finish.LENGTH


COUNTS = st.integers(0, 10**6)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.none() | COUNTS)
def test_usage_survives_both_wires(fresh, output, read, write, reasoning):
    usage = TokenUsage(input=fresh, output=output, cache_read=read, cache_write=write, reasoning=reasoning)
    assert usage_from_anthropic(usage_to_anthropic(usage)) == usage
    theirs = usage_to_openai(usage)
    assert usage_from_openai(theirs) == usage
    assert theirs["total_tokens"] == theirs["prompt_tokens"] + theirs["completion_tokens"]


def test_cached_tokens_are_inside_openais_prompt_and_outside_anthropics_input():
    usage = usage_from_anthropic(
        {
            "input_tokens": 5,
            "cache_read_input_tokens": 128_955,
            "cache_creation_input_tokens": 1_253,
            "output_tokens": 9,
        }
    )
    theirs = usage_to_openai(usage)
    assert theirs["prompt_tokens"] == 130_213
    assert theirs["prompt_tokens_details"]["cached_tokens"] == 128_955


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}},
        {"prompt_tokens": -1},
        {"prompt_tokens": 1.5},
        {"prompt_tokens": True},
    ],
)
def test_counts_that_cannot_be_are_refused(usage):
    with pytest.raises(DataError, match="usage"):
        usage_from_openai(usage)


def test_the_token_limit_is_required_there_and_optional_here():
    assert max_tokens_to_anthropic(None, None, default=64).defaulted
    assert max_tokens_to_anthropic(5, None, default=64).max_tokens == 5
    assert max_tokens_to_anthropic(5, 5, default=64).max_tokens == 5
    for wrong in [(5, 6), (0, None)]:
        with pytest.raises(BadRequest, match="max_tokens"):
            max_tokens_to_anthropic(*wrong, default=64)


def test_a_thinking_budget_that_would_be_refused_is_refused_here():
    check_thinking({"type": "enabled", "budget_tokens": 1024}, 2000)
    check_thinking({"type": "adaptive"}, 10)
    check_thinking(None, 10)
    for budget in (1023, 2000, None, True):
        with pytest.raises(BadRequest, match="budget"):
            check_thinking({"type": "enabled", "budget_tokens": budget}, 2000)
