"""What a failure leads to, and which routes a call is tried on: the rules as tables."""

import random

import pytest

from firstchair.chat import schema_check
from firstchair.chat.messages import Tool, ToolCall, assistant_message
from firstchair.gateway.attempts import Verdict, decide, drawn, malformed_calls, pause_s, plan, worth_telling
from firstchair.gateway.control.slots import Bands, Canary, Retries, Route, SlotConfig
from firstchair.gateway.dialects.base import Failure, FailureKind

RETRIES = Retries(attempts=3, backoff_s=1, max_backoff_s=4)


def decided(kind: FailureKind, *, tries=1, constrained=False, left_s=100.0, retry_after_s=None):
    failure = Failure(kind=kind, message="x", retry_after_s=retry_after_s)
    return decide(failure, tries=tries, constrained=constrained, retries=RETRIES, left_s=left_s, rng=random.Random(0))


FIRST_TRY = {
    FailureKind.BAD_REQUEST: Verdict.STOP,
    FailureKind.BUDGET: Verdict.NEXT,
    FailureKind.AUTHENTICATION: Verdict.NEXT,
    FailureKind.PERMISSION: Verdict.NEXT,
    FailureKind.NOT_FOUND: Verdict.NEXT,
    FailureKind.TOO_LARGE: Verdict.NEXT,
    FailureKind.CONTEXT_OVERFLOW: Verdict.NEXT,
    FailureKind.TIMEOUT: Verdict.NEXT,
    FailureKind.RATE_LIMIT: Verdict.RETRY,
    FailureKind.OVERLOADED: Verdict.RETRY,
    FailureKind.SERVER_ERROR: Verdict.RETRY,
    FailureKind.CONNECT: Verdict.RETRY,
    FailureKind.BAD_ANSWER: Verdict.RETRY,
    FailureKind.MALFORMED_CALL: Verdict.CONSTRAIN,
}


@pytest.mark.parametrize("kind", list(FailureKind))
def test_every_failure_has_its_consequence(kind):
    assert decided(kind).verdict is FIRST_TRY[kind]


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if FIRST_TRY[kind] is Verdict.RETRY])
def test_when_the_tries_are_spent_the_next_route_is_due(kind):
    assert decided(kind, tries=2).verdict is Verdict.RETRY
    assert decided(kind, tries=3).verdict is Verdict.NEXT


def test_a_malformed_call_is_repeated_once_under_constraint():
    assert decided(FailureKind.MALFORMED_CALL, constrained=True).verdict is Verdict.NEXT


@pytest.mark.parametrize("kind", list(FailureKind))
def test_nothing_is_tried_past_the_total_timeout(kind):
    assert decided(kind, left_s=0).verdict is Verdict.STOP


def test_retry_after_is_honoured_to_the_letter():
    assert decided(FailureKind.RATE_LIMIT, retry_after_s=3.5) == (Verdict.RETRY, 3.5)
    assert decided(FailureKind.OVERLOADED, retry_after_s=0) == (Verdict.RETRY, 0)


@pytest.mark.parametrize(("retry_after_s", "left_s"), [(5, 100), (3, 3), (3, 2)])
def test_a_pause_that_is_too_long_means_the_next_route(retry_after_s, left_s):
    assert decided(FailureKind.RATE_LIMIT, retry_after_s=retry_after_s, left_s=left_s).verdict is Verdict.NEXT


def test_pauses_double_with_jitter_up_to_their_limit():
    rng = random.Random(1)
    for tries, full in ((1, 1), (2, 2), (3, 4), (9, 4)):
        pauses = [pause_s(None, tries, RETRIES, rng) for _ in range(200)]
        assert full / 2 <= min(pauses) < full * 0.55
        assert full * 0.95 < max(pauses) <= full


def slot(percent: float, sticky_by="session") -> SlotConfig:
    return SlotConfig(
        slot="main",
        primary=Route(provider="a", model="big"),
        fallbacks=(Route(provider="b", model="other"),),
        canary=Canary(route=Route(provider="c", model="small"), percent=percent, sticky_by=sticky_by, bands=Bands()),
    )


def test_a_canary_gets_about_its_share_and_keeps_its_sessions():
    config = slot(20)
    chosen = [drawn(config, session=f"s{n}", key_id="k", call_id="c") for n in range(2000)]
    assert 320 < sum(chosen) < 480
    again = [drawn(config, session=f"s{n}", key_id="other", call_id="d") for n in range(2000)]
    assert chosen == again


def test_a_canary_at_nought_is_never_tried_and_one_at_a_hundred_always_first():
    for number in range(300):
        routes = plan(slot(0), session=f"s{number}", key_id="k", call_id="c")
        assert [choice.route.provider for choice in routes] == ["a", "b"]
        routes = plan(slot(100), session=f"s{number}", key_id="k", call_id="c")
        assert [(choice.variant, choice.route.provider) for choice in routes][:2] == [
            ("canary", "c"),
            ("fallback", "a"),
        ]


def test_a_canary_sticks_to_what_the_slot_says():
    for sticky_by, fields in (("key", {"key_id"}), ("call", {"call_id"})):
        base = {"session": "s", "key_id": "k", "call_id": "c"}
        config = slot(50, sticky_by)
        for field in base:
            seen = {drawn(config, **(base | {field: f"{field}{n}"})) for n in range(40)}
            assert len(seen) == (2 if field in fields else 1)


TOOLS = (
    Tool(
        name="add",
        parameters={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    ),
)


@pytest.mark.parametrize(
    ("name", "arguments", "fine"),
    [
        ("add", '{"a":1}', True),
        ("add", '{"a":"1"}', False),
        ("add", "{}", False),
        ("add", '{"a":1', False),
        ("add", "[1]", False),
        ("sub", '{"a":1}', False),
    ],
)
def test_a_call_is_malformed_when_its_tool_cannot_take_it(name, arguments, fine):
    call = ToolCall(id="1", name=name, arguments=arguments)
    message = assistant_message(calls=(ToolCall(id="0", name="add", arguments='{"a":0}'), call))
    assert malformed_calls(message, TOOLS) == (() if fine else (call,))


def test_equal_schemas_of_many_requests_are_compiled_once(monkeypatch):
    built = []
    build = schema_check._build
    monkeypatch.setattr(schema_check, "_build", lambda schema: built.append(schema) or build(schema))
    message = assistant_message(calls=(ToolCall(id="c", name="f", arguments='{"once": 1}'),))
    for limit in (2, 2, 2, 0):
        schema = {"type": "object", "properties": {"once": {"type": "integer", "maximum": limit}}}
        tools = (Tool(name="f", description="", parameters=schema),)
        assert bool(malformed_calls(message, tools)) == (limit == 0)
    assert len(built) == 2


@pytest.mark.parametrize("value", [2**70, "\ud800"])
def test_a_schema_that_has_no_bytes_is_checked_all_the_same(value):
    schema = {"type": "object", "properties": {"a": {"enum": [value]}}}
    tools = (Tool(name="f", description="", parameters=schema),)
    wrong = assistant_message(calls=(ToolCall(id="c", name="f", arguments='{"a": 1}'),))
    assert malformed_calls(wrong, tools) == wrong.tool_calls


@pytest.mark.parametrize(
    ("kinds", "heard"),
    [
        ("overloaded context_overflow", 0),
        ("rate_limit not_found", 0),
        ("overloaded authentication context_overflow", 0),
        ("timeout too_large", 0),
        ("overloaded rate_limit", 1),
        ("context_overflow overloaded", 1),
        ("context_overflow not_found", 1),
        ("bad_request", 0),
    ],
)
def test_the_client_hears_of_the_last_failure_that_may_pass_else_of_the_last(kinds, heard):
    failures = [Failure(kind=FailureKind(kind), message=kind) for kind in kinds.split()]
    assert worth_telling(failures) is failures[heard]
