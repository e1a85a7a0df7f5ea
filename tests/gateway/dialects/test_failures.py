"""Errors of providers in the words of one kind, whatever shape they come in.

The bodies are typed by hand after documents and public reports; none was recorded.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.gateway.dialects.anthropic import AnthropicMessages
from firstchair.gateway.dialects.base import Failure, FailureKind
from firstchair.gateway.dialects.failures import ANTHROPIC_WORDS, OPENAI_WORDS, failure_in, retry_after_s
from firstchair.gateway.dialects.openai_chat import OpenAIChat

OPEN, A = OpenAIChat(), AnthropicMessages()


def openai(message: str, kind: str, code: Any = None, param: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic(message: str, kind: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


LONG = "This model's maximum context length is 4097 tokens. However, your messages resulted in 7575 tokens."


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, openai("bad", "invalid_request_error", None, "messages"), "bad_request"),
        (400, openai(LONG, "invalid_request_error", "context_length_exceeded", "messages"), "context_overflow"),
        (401, openai("Incorrect API key provided: sk-abc123def", "invalid_request_error", "invalid_api_key"),
         "authentication"),
        (403, openai("no", "invalid_request_error"), "permission"),
        (404, openai("no such model", "invalid_request_error", "model_not_found"), "not_found"),
        (409, openai("again", "invalid_request_error"), "bad_request"),
        (422, {"detail": [{"loc": ["body"], "msg": "x"}]}, "bad_request"),
        (429, openai("slow down", "requests", "rate_limit_exceeded"), "rate_limit"),
        (429, openai("no money", "insufficient_quota", "insufficient_quota"), "rate_limit"),
        (500, openai("oops", "server_error"), "server_error"),
        (503, openai("busy", "server_error"), "overloaded"),
        (400, anthropic("prompt is too long: 210000 tokens > 200000 maximum", "invalid_request_error"),
         "context_overflow"),
        (400, anthropic("max_tokens: required", "invalid_request_error"), "bad_request"),
        (402, anthropic("pay", "billing_error"), "budget"),
        (413, anthropic("big", "request_too_large"), "too_large"),
        (429, anthropic("slow", "rate_limit_error"), "rate_limit"),
        (500, anthropic("oops", "api_error"), "server_error"),
        (504, anthropic("late", "timeout_error"), "timeout"),
        (529, anthropic("Overloaded", "overloaded_error"), "overloaded"),
        (500, anthropic("Overloaded", "overloaded_error"), "overloaded"),
        (400, openai(LONG, "BadRequestError", 400), "context_overflow"),
        (400, {"object": "error", "message": LONG, "type": "BadRequestError", "code": 400}, "context_overflow"),
        (400, openai("the request exceeds the available context size. try increasing the context size",
                     "exceed_context_size_error", 400), "context_overflow"),
        (500, openai("the request exceeds the available context size", "exceed_context_size_error", 500),
         "context_overflow"),
        (503, openai("Loading model", "unavailable_error", 503), "overloaded"),
        # Unknown words decide nothing.
        (400, openai("x", "brand_new_error"), "bad_request"),
        (418, anthropic("x", "brand_new_error"), "bad_request"),
        (400, anthropic("x", "api_error"), "bad_request"),
        (520, anthropic("x", "brand_new_error"), "server_error"),
        (302, {}, "bad_answer"),
        # 200 with only an error.
        (200, openai("x", "rate_limit_exceeded"), "rate_limit"),
        (200, openai("x", "y", 429), "rate_limit"),
        (200, openai("x", "y", "503"), "overloaded"),
        (200, openai("x", "brand_new_error"), "bad_answer"),
        (200, {"error": "something"}, "bad_answer"),
    ],
)  # fmt: skip
def test_what_a_provider_says_is_the_kind_it_means(status, body, kind):
    for dialect in (OPEN, A):
        failure = dialect.read_failure(status, {}, orjson.dumps(body))
        assert failure.kind == kind
        assert failure.message


@given(st.integers(100, 999), st.binary(max_size=60) | st.sampled_from([b"[]", b"null", b'"x"', b'{"error":null}',
       b'{"error":{"type":3,"code":[],"message":{}}}', b"<html>", b'{"response":{"error":{"code":"x"}}}']),
       st.dictionaries(st.sampled_from(["retry-after", "date", "retry-after-ms"]), st.text(max_size=30)))  # fmt: skip
def test_reading_a_failure_never_raises_and_keeps_the_class_of_the_status(status, body, headers):
    for dialect in (OPEN, A):
        failure = dialect.read_failure(status, headers, body)
        out, _ = dialect.write_failure(failure, request_id="r")
        if 400 <= status <= 499 and status != 408:
            assert 400 <= out <= 499
        if 500 <= status <= 599:
            assert 500 <= out <= 599


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "1e99"}, 86_400.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:27:00 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, None),
    ],
)
def test_the_wait_is_read_in_seconds_or_as_a_date(headers, seconds):
    assert retry_after_s(headers) == seconds
    assert OPEN.read_failure(429, headers, b"{}").retry_after_s == seconds


def test_every_kind_has_words_on_both_wires():
    assert set(OPENAI_WORDS) == set(ANTHROPIC_WORDS) == set(FailureKind)


@pytest.mark.parametrize(
    ("kind", "openai_says", "anthropic_says"),
    [
        ("rate_limit", (429, "rate_limit_exceeded"), (429, "rate_limit_error")),
        ("overloaded", (503, "overloaded"), (529, "overloaded_error")),
        ("context_overflow", (400, "context_length_exceeded"), (400, "invalid_request_error")),
        ("budget", (429, "insufficient_quota"), (402, "billing_error")),
        ("bad_request", (400, None), (400, "invalid_request_error")),
        ("timeout", (504, "timeout"), (504, "timeout_error")),
    ],
)
def test_each_client_gets_the_error_in_its_own_words(kind, openai_says, anthropic_says):
    failure = Failure(kind=FailureKind(kind), message="m", param="messages")
    status, body = OPEN.write_failure(failure, request_id="r1")
    assert (status, body["error"]["code"]) == openai_says
    assert body["error"]["param"] == "messages"
    status, body = A.write_failure(failure, request_id="r1")
    assert (status, body["error"]["type"]) == anthropic_says
    assert body["request_id"] == "r1"
    assert "messages: m" in body["error"]["message"]


def test_an_overflow_reads_to_an_anthropic_harness_as_one():
    failure = Failure(kind=FailureKind.CONTEXT_OVERFLOW, message=LONG)
    assert A.write_failure(failure, request_id="r")[1]["error"]["message"].startswith("prompt is too long")


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-canary-123456. Find yours",
        "header Authorization: Bearer canary-123456",
        "api_key=canary-123456 is wrong",
    ],
)
def test_no_credential_and_no_control_character_reaches_a_client(text):
    failure = failure_in(openai(text + "\r\nx-evil: 1", "x"), status=400)
    assert "canary-123456" not in failure.message
    assert failure.message.isprintable()
    failure = failure_in(openai(text, "x"), status=401)
    assert failure.message.startswith("the provider refused the gateway's own credentials")


def test_a_long_message_is_cut():
    assert len(failure_in(openai("x" * 10**6, "x"), status=400).message) == 1000
