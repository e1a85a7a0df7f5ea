"""The vendors' own SDKs read what we write: their types, and their stream readers over real bytes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import anthropic
import openai
import orjson
import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.gateway.dialects.streams import ANTHROPIC, OPENAI, anthropic_bytes, openai_bytes, read_events, written

from firstchair.gateway.dialects.anthropic import AnthropicMessages
from firstchair.gateway.dialects.base import Dialect, Failure, FailureKind
from firstchair.gateway.dialects.openai_chat import OpenAIChat

# The SDKs' own HTTP library, whichever it is in their version.
HTTP: Any = import_module(anthropic.DefaultHttpxClient.__mro__[1].__module__.split(".")[0])
OPEN, A = OpenAIChat(), AnthropicMessages()
USER: Any = [{"role": "user", "content": "x"}]
REQUESTS = {
    "openai": OPEN.read_request(
        {"model": "m", "messages": USER, "stream": True, "stream_options": {"include_usage": True}}
    ),
    "anthropic": A.read_request({"model": "m", "messages": USER, "max_tokens": 9}),
}
CASES: list[tuple[Dialect, bytes, Any, str]] = [(OPEN, openai_bytes(k), v[1], k) for k, v in OPENAI.items()]
CASES += [(A, anthropic_bytes(k), v[1], k) for k, v in ANTHROPIC.items()]
EACH = pytest.mark.parametrize(("dialect", "raw", "body"), [c[:3] for c in CASES], ids=[c[3] for c in CASES])


def openai_client(raw: bytes, status: int = 200, kind: str = "text/event-stream") -> openai.OpenAI:
    answer = HTTP.MockTransport(lambda _: HTTP.Response(status, content=raw, headers={"content-type": kind}))
    return openai.OpenAI(api_key="k", max_retries=0, http_client=HTTP.Client(transport=answer))


def anthropic_client(raw: bytes, status: int = 200, kind: str = "text/event-stream") -> anthropic.Anthropic:
    answer = HTTP.MockTransport(lambda _: HTTP.Response(status, content=raw, headers={"content-type": kind}))
    return anthropic.Anthropic(api_key="k", max_retries=0, http_client=HTTP.Client(transport=answer))


@EACH
def test_the_openai_sdk_reads_every_answer_whole_and_streamed(dialect, raw, body):
    whole = OPEN.write_answer(dialect.read_answer(body), REQUESTS["openai"], model="m").body
    parsed = ChatCompletion.model_validate(whole, strict=True)
    stream = written(OPEN.writer(REQUESTS["openai"], model="m"), read_events(dialect, raw))
    text, calls, finish, usage = "", {}, None, None
    with openai_client(stream) as client:
        for chunk in client.chat.completions.create(model="m", messages=USER, stream=True):
            ChatCompletionChunk.model_validate(chunk.model_dump(exclude_unset=True), strict=True)
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or ():
                    kept = calls.setdefault(call.index, [call.id, call.function.name, ""])
                    kept[2] += call.function.arguments
    message = parsed.choices[0].message
    assert text == (message.content or "")
    assert [call[:2] for call in calls.values()] == [[c.id, c.function.name] for c in message.tool_calls or ()]
    assert finish == parsed.choices[0].finish_reason
    assert usage == parsed.usage


@EACH
def test_the_anthropic_sdk_reads_every_answer_whole_and_streamed(dialect, raw, body):
    whole = A.write_answer(dialect.read_answer(body), REQUESTS["anthropic"], model="m").body
    parsed = Message.model_validate(whole)
    stream = written(A.writer(REQUESTS["anthropic"], model="m"), read_events(dialect, raw))
    with anthropic_client(stream) as client, client.messages.stream(model="m", max_tokens=9, messages=USER) as sdk:
        final = sdk.get_final_message()
    assert [b.type for b in final.content if b.type == "tool_use"] == [
        b.type for b in parsed.content if b.type == "tool_use"
    ]
    assert [b.input for b in final.content if b.type == "tool_use"] == [
        b.input for b in parsed.content if b.type == "tool_use"
    ]
    assert "".join(b.text for b in final.content if b.type == "text") == "".join(
        b.text for b in parsed.content if b.type == "text"
    )
    assert (final.stop_reason, final.stop_sequence) == (parsed.stop_reason, parsed.stop_sequence)
    assert final.usage.output_tokens == parsed.usage.output_tokens
    assert final.usage.input_tokens == parsed.usage.input_tokens
    assert final.usage.cache_read_input_tokens == parsed.usage.cache_read_input_tokens


@pytest.mark.parametrize(
    ("kind", "openai_error", "anthropic_error"),
    [
        ("rate_limit", openai.RateLimitError, anthropic.RateLimitError),
        ("bad_request", openai.BadRequestError, anthropic.BadRequestError),
        ("authentication", openai.AuthenticationError, anthropic.AuthenticationError),
        ("not_found", openai.NotFoundError, anthropic.NotFoundError),
        ("overloaded", openai.InternalServerError, anthropic.InternalServerError),
        ("context_overflow", openai.BadRequestError, anthropic.BadRequestError),
    ],
)
def test_the_sdks_raise_their_own_errors_for_ours(kind, openai_error, anthropic_error):
    failure = Failure(kind=FailureKind(kind), message="the reason")
    status, body = OPEN.write_failure(failure, request_id="r")
    with (
        pytest.raises(openai_error, match="the reason"),
        openai_client(orjson.dumps(body), status, "application/json") as client,
    ):
        client.chat.completions.create(model="m", messages=USER)
    status, body = A.write_failure(failure, request_id="r")
    with (
        pytest.raises(anthropic_error, match="the reason"),
        anthropic_client(orjson.dumps(body), status, "application/json") as client,
    ):
        client.messages.create(model="m", max_tokens=9, messages=USER)


def test_the_sdks_raise_for_an_error_event_after_content():
    failure = Failure(kind=FailureKind.OVERLOADED, message="the reason")
    events = read_events(OPEN, openai_bytes("text"))[:3]
    writer = OPEN.writer(REQUESTS["openai"], model="m")
    with (
        pytest.raises(openai.APIError, match="the reason"),
        openai_client(written(writer, events) + writer.fail(failure)) as client,
    ):
        list(client.chat.completions.create(model="m", messages=USER, stream=True))
    other = A.writer(REQUESTS["anthropic"], model="m")
    with (
        pytest.raises(anthropic.APIStatusError, match="the reason"),
        anthropic_client(written(other, events) + other.fail(failure)) as client,
    ):
        list(client.messages.create(model="m", max_tokens=9, messages=USER, stream=True))
