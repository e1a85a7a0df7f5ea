from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from firstchair.chat.actions import Action
from firstchair.chat.anthropic_wire import message_from_anthropic_response, tools_to_anthropic
from firstchair.chat.messages import ToolCall
from firstchair.chat.openai_wire import message_from_openai_response, tools_to_openai
from firstchair.rollout.actor_app import build_app, fit, output_tokens
from firstchair.rollout.desk.server import TeacherServer, running_app
from firstchair.testing.environment import STORE, WordExpert

ASK = [{"role": "system", "content": "You store words."}, {"role": "user", "content": "Please store the word fox"}]
TOOLS_O, TOOLS_A = tools_to_openai((STORE,)), tools_to_anthropic((STORE,))


@pytest.fixture(scope="module")
def server() -> Iterator[TeacherServer]:
    with running_app(build_app(WordExpert(), "expert"), model="expert") as running:
        yield running


@pytest.fixture
def openai_client(server: TeacherServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.openai_url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(server: TeacherServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.base_url, api_key="any", max_retries=0) as client:
        yield client


def without(value: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in keys}


def test_openai_streamed_and_buffered_give_the_same_object(openai_client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": "expert", "messages": ASK, "tools": TOOLS_O}
    whole = openai_client.chat.completions.create(**body)
    with openai_client.chat.completions.stream(**body, stream_options={"include_usage": True}) as stream:
        joined = stream.get_final_completion()
    one, other = whole.model_dump(), joined.model_dump()
    for call in other["choices"][0]["message"]["tool_calls"]:
        # The helper's own fields; the server sent neither.
        del call["index"], call["function"]["parsed_arguments"]
    one, other = message_from_openai_response(one), message_from_openai_response(other)
    assert one == other
    assert one.thinking == "The word is fox."
    assert one.text == "Storing it."
    assert one.tool_calls[0].parsed() == {"word": "fox"}
    assert whole.id == joined.id
    assert whole.usage is not None
    assert joined.usage is not None
    assert whole.usage.model_dump() == joined.usage.model_dump()
    assert whole.choices[0].finish_reason == joined.choices[0].finish_reason == "tool_calls"


def test_anthropic_streamed_and_buffered_give_the_same_object(anthropic_client: anthropic.Anthropic) -> None:
    body: dict[str, Any] = {
        "model": "expert",
        "max_tokens": 500,
        "system": ASK[0]["content"],
        "messages": ASK[1:],
        "tools": TOOLS_A,
    }
    whole = anthropic_client.messages.create(**body)
    with anthropic_client.messages.stream(**body) as stream:
        joined = stream.get_final_message()
    one, other = whole.model_dump(), joined.model_dump()
    assert message_from_anthropic_response(one) == message_from_anthropic_response(other)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert whole.stop_reason == joined.stop_reason == "tool_use"
    assert whole.usage.input_tokens == joined.usage.input_tokens > 0
    assert whole.usage.output_tokens == joined.usage.output_tokens > 0


def test_both_dialects_go_on_after_a_tool_result(
    openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
) -> None:
    first = openai_client.chat.completions.create(model="expert", messages=ASK, tools=TOOLS_O)  # type: ignore[arg-type]
    call = first.choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "stored fox"}
    last = openai_client.chat.completions.create(model="expert", messages=[*ASK, call, result], tools=TOOLS_O)  # type: ignore[list-item,arg-type]
    assert last.choices[0].message.content == "Done: äöü 🦊."
    assert last.choices[0].finish_reason == "stop"
    body: dict[str, Any] = {"model": "expert", "max_tokens": 500, "tools": TOOLS_A}
    reply = anthropic_client.messages.create(**body, messages=ASK[1:])  # type: ignore[arg-type]
    blocks = [block.model_dump(exclude_none=True) for block in reply.content]
    result = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": "stored fox"}
    turns = [*ASK[1:], {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
    end = anthropic_client.messages.create(**body, messages=turns)  # type: ignore[arg-type]
    assert end.stop_reason == "end_turn"
    assert end.content[-1].text == "Done: äöü 🦊."  # type: ignore[union-attr]


def test_equal_requests_get_equal_answers(openai_client: openai.OpenAI) -> None:
    replies = [
        openai_client.chat.completions.create(model="expert", messages=ASK, tools=TOOLS_O)  # type: ignore[arg-type]
        for _ in range(2)
    ]
    assert without(replies[0].model_dump(), "created") == without(replies[1].model_dump(), "created")


def test_models_and_health_are_told(server: TeacherServer, openai_client: openai.OpenAI) -> None:
    assert [model.id for model in openai_client.models.list()] == ["expert"]
    assert httpx.get(f"{server.base_url}/healthz").json() == {"status": "ok", "model": "expert"}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 2}, "n"),
        ({"stop": ["x"]}, "stop"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"best_of": 3}, "best_of"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "assistant", "content": "me"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"tools": {}}, "tools"),
    ],
)
def test_what_openai_clients_cannot_have_is_refused_by_name(
    server: TeacherServer, change: dict[str, Any], param: str
) -> None:
    reply = httpx.post(f"{server.openai_url}/chat/completions", json={"model": "expert", "messages": ASK, **change})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 0},
        {"stop_sequences": ["x"]},
        {"tool_choice": {"type": "any"}},
        {"foo": 1},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}]},
    ],
)
def test_what_anthropic_clients_cannot_have_is_refused_in_their_shape(
    server: TeacherServer, change: dict[str, Any]
) -> None:
    body = {"model": "expert", "max_tokens": 50, "messages": ASK[1:], **change}
    reply = httpx.post(f"{server.base_url}/v1/messages", json=body)
    assert reply.status_code == 400
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'{"model": "expert", "messages": [NaN]}', b"[" * 5000, b"\xff"])
def test_a_body_that_is_no_request_is_refused_and_the_server_lives_on(server: TeacherServer, raw: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/messages"):
        assert httpx.post(server.base_url + path, content=raw).status_code == 400
    assert httpx.get(f"{server.base_url}/healthz").status_code == 200


def test_an_unknown_model_is_not_found_in_each_dialect(
    openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no 'gpt'") as caught:
        openai_client.chat.completions.create(model="gpt", messages=ASK)  # type: ignore[arg-type]
    assert caught.value.code == "model_not_found"
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        anthropic_client.messages.create(model="gpt", max_tokens=5, messages=ASK[1:])  # type: ignore[arg-type]


def test_an_unknown_path_and_method_name_the_known_ones(server: TeacherServer) -> None:
    assert "use one of" in httpx.get(f"{server.base_url}/v2").json()["error"]["message"]
    assert httpx.get(f"{server.openai_url}/chat/completions").status_code == 405


def test_a_failing_expert_is_a_server_error_in_each_dialect() -> None:
    class Broken:
        def act(self, messages: Any, tools: Any) -> Action:
            raise ZeroDivisionError("secret detail")

    async def run() -> tuple[httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(build_app(Broken(), "expert"))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"model": "expert", "messages": ASK[1:], "max_tokens": 9}
            return await client.post("/v1/chat/completions", json=body), await client.post("/v1/messages", json=body)

    for reply in asyncio.run(run()):
        assert reply.status_code == 500
        assert "ZeroDivisionError" in reply.text
        assert "secret" not in reply.text


def test_an_output_limit_cuts_and_says_so(openai_client: openai.OpenAI) -> None:
    reply = openai_client.chat.completions.create(model="expert", messages=ASK, tools=TOOLS_O, max_tokens=2)  # type: ignore[arg-type]
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.tool_calls is None


def test_a_cut_drops_whole_calls_and_never_half_a_character() -> None:
    call = ToolCall.of("a", "store", {"word": "fox"})
    action = Action(kind="tool_call", calls=(call,), text="äöü", thinking="ab")
    for limit in range(1, output_tokens(action)):
        cut, was_cut = fit(action, limit)
        assert was_cut
        assert output_tokens(cut) <= limit
        assert "äöü".startswith(cut.text)
        assert cut.calls == ()
    assert fit(action, output_tokens(action)) == (action, False)
    assert fit(action, None) == (action, False)


def test_a_long_body_is_refused_while_it_is_read(monkeypatch: pytest.MonkeyPatch, server: TeacherServer) -> None:
    monkeypatch.setattr("firstchair.rollout.actor_app.MAX_BODY_BYTES", 1000)
    reply = httpx.post(f"{server.base_url}/v1/messages", content=b"x" * 2000)
    assert reply.status_code == 413
    assert json.loads(reply.content)["error"]["type"] == "request_too_large"
