"""Every inbound dialect through every outbound one, with the vendors' own SDKs, whole and streamed."""

import asyncio
import json
import re
from contextlib import contextmanager

import anthropic
import httpx
import msgspec
import openai
import pytest

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import ToolCall
from firstchair.gateway.records import Outcome
from firstchair.testing.gateway_server import provider, running_gateway
from firstchair.testing.scripted_upstream import Fault, Reply, Script

OUTBOUND = ("anthropic", "openai", "openai-compatible")
TEXT = "Grüße, 世界 🌍"
CALLS = (
    ToolCall(id="call_a1", name="look_up", arguments='{"q":"a"}'),
    ToolCall(id="call_b2", name="look_up", arguments='{"q":"b"}'),
)
USAGE = TokenCounts(input=11, cache_read=30, output=7)
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


@contextmanager
def gateway_to(tmp_path, upstream, kind, **slot):
    slots = [{"slot": "main", "primary": {"provider": "up", "model": "their-model"}, **slot}]
    with running_gateway(tmp_path, {"up": provider(upstream.base_url, kind)}, slots) as gateway:
        yield gateway


def chat_args(**more):
    tool = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
    return {"model": "main", "messages": [{"role": "user", "content": "Hi"}], "tools": [tool], **more}


def messages_args(**more):
    tool = {"name": "look_up", "input_schema": SCHEMA}
    messages = [{"role": "user", "content": "Hi"}]
    return {"model": "main", "max_tokens": 100, "messages": messages, "tools": [tool], **more}


def check_record(gateway, upstream, dialect, stream):
    (record,) = gateway.records()
    assert record.outcome is Outcome.OK
    assert (record.dialect, record.stream, record.slot, record.requested_model) == (dialect, stream, "main", "main")
    assert (record.provider, record.provider_model, record.variant) == ("up", "their-model", "primary")
    assert record.answer.text == TEXT
    assert [(call.name, call.parsed()) for call in record.answer.tool_calls] == [
        (call.name, call.parsed()) for call in CALLS
    ]
    # Responses always says how much of the output was reasoning.
    assert msgspec.structs.replace(record.usage, reasoning=None) == USAGE
    assert not record.estimated
    assert [attempt.failure for attempt in record.attempts] == [None]
    assert record.malformed_calls == 0
    assert record.ttft_ms is not None
    assert upstream.requests[0].body["model"] == "their-model"
    assert gateway.key not in str(upstream.requests[0].headers)


@pytest.mark.parametrize("kind", OUTBOUND)
def test_chat_completions_whole_and_streamed(tmp_path, upstream, kind):
    upstream.script = Script((Reply(text=TEXT, calls=CALLS, usage=USAGE),))
    with gateway_to(tmp_path, upstream, kind) as gateway:
        client = openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0)
        raw = client.chat.completions.with_raw_response.create(**chat_args())
        assert raw.headers["x-firstchair-provider"] == "up/their-model"
        whole = raw.parse()
        message = whole.choices[0].message
        assert message.content == TEXT
        assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"q": "a"}, {"q": "b"}]
        assert whole.usage.prompt_tokens == 41
        assert raw.headers["x-request-id"] == gateway.records()[0].call_id
        check_record(gateway, upstream, "openai", False)
        with client.chat.completions.stream(**chat_args()) as stream:
            streamed = stream.get_final_completion()
        assert streamed.choices[0].message.content == TEXT
        calls = streamed.choices[0].message.tool_calls
        assert [json.loads(call.function.arguments) for call in calls] == [{"q": "a"}, {"q": "b"}]
        assert streamed.choices[0].finish_reason == "tool_calls"
        assert streamed.usage is None
        first, second = gateway.records(2)
        assert second.stream
        assert (second.answer, second.usage, second.finish) == (first.answer, first.usage, first.finish)
        client.close()


@pytest.mark.parametrize("kind", OUTBOUND)
def test_messages_whole_and_streamed(tmp_path, upstream, kind):
    upstream.script = Script((Reply(text=TEXT, calls=CALLS, usage=USAGE),))
    with gateway_to(tmp_path, upstream, kind) as gateway:
        client = anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0)
        whole = client.messages.create(**messages_args())
        assert [block.type for block in whole.content] == ["text", "tool_use", "tool_use"]
        assert whole.content[0].text == TEXT
        assert [block.input for block in whole.content[1:]] == [{"q": "a"}, {"q": "b"}]
        assert (whole.usage.input_tokens, whole.usage.cache_read_input_tokens) == (11, 30)
        assert whole._request_id == gateway.records()[0].call_id
        check_record(gateway, upstream, "anthropic", False)
        with client.messages.stream(**messages_args()) as stream:
            streamed = stream.get_final_message()
        assert [block.type for block in streamed.content] == ["text", "tool_use", "tool_use"]
        assert streamed.content[0].text == TEXT
        assert streamed.stop_reason == "tool_use"
        first, second = gateway.records(2)
        assert (second.answer, second.usage, second.finish) == (first.answer, first.usage, first.finish)
        client.close()


@pytest.mark.parametrize("kind", OUTBOUND)
def test_asynchronous_clients_stream_at_once(tmp_path, upstream, kind):
    upstream.script = Script((Reply(text=TEXT),))

    async def talk(gateway):
        chat = openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0)
        messages = anthropic.AsyncAnthropic(base_url=gateway.url, auth_token=gateway.key, api_key=None, max_retries=0)

        async def one_chat():
            stream = await chat.chat.completions.create(
                **chat_args(stream=True, stream_options={"include_usage": True})
            )
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].usage.completion_tokens == 5
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

        async def one_message():
            async with messages.messages.stream(**messages_args()) as stream:
                return await stream.get_final_text()

        async def one_response():
            async with chat.responses.stream(model="main", input="Hi") as stream:
                return (await stream.get_final_response()).output_text

        texts = await asyncio.gather(*(work() for work in (one_chat, one_message, one_response) * 4))
        await chat.close()
        await messages.close()
        return texts

    with gateway_to(tmp_path, upstream, kind) as gateway:
        assert asyncio.run(talk(gateway)) == [TEXT] * 12
        records = gateway.records(12)
        assert len(records) == 12
        assert {record.outcome for record in records} == {Outcome.OK}


@pytest.mark.parametrize("kind", OUTBOUND)
def test_responses_whole_and_streamed(tmp_path, upstream, kind):
    upstream.script = Script((Reply(text=TEXT, calls=CALLS, usage=USAGE),))
    tool = {"type": "function", "name": "look_up", "parameters": SCHEMA, "strict": False}
    asked = {"model": "main", "input": "Hi", "tools": [tool], "store": False}
    with gateway_to(tmp_path, upstream, kind) as gateway:
        client = openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0)
        whole = client.responses.create(**asked)
        assert whole.output_text == TEXT
        calls = [item for item in whole.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == [{"q": "a"}, {"q": "b"}]
        assert (whole.usage.input_tokens, whole.usage.input_tokens_details.cached_tokens) == (41, 30)
        check_record(gateway, upstream, "responses", False)
        with client.responses.stream(**asked) as stream:
            streamed = stream.get_final_response()
        assert streamed.output_text == TEXT
        assert len([item for item in streamed.output if item.type == "function_call"]) == 2
        first, second = gateway.records(2)
        assert (second.answer, second.usage, second.finish) == (first.answer, first.usage, first.finish)
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            client.responses.create(**asked, previous_response_id="resp_1")
        assert gateway.records(3)[2].outcome is Outcome.REFUSED
        client.close()


@pytest.mark.parametrize("kind", OUTBOUND)
@pytest.mark.parametrize("store", [True, None])
def test_no_provider_is_asked_to_store_a_response(tmp_path, upstream, kind, store):
    asked = {"model": "main", "input": "Hi", "max_output_tokens": 9} | ({} if store is None else {"store": store})
    with gateway_to(tmp_path, upstream, kind) as gateway:
        client = openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0)
        told = client.responses.with_raw_response.create(**asked)
        client.close()
        assert told.headers["x-firstchair-dropped"] == "store"
        assert gateway.records()[0].dropped == ("store",)
    sent = upstream.requests[0].body
    assert sent.get("store", False) is False
    assert ("store" in sent) == (kind == "openai")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limit", [None, 77])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_token_limit_that_the_gateway_put_in_is_listed_with_its_value(tmp_path, upstream, path, limit, stream):
    asked = {"model": "main", "stream": stream}
    if path == "/v1/responses":
        asked |= {"input": "Hi", "store": False, "max_output_tokens": limit}
    else:
        asked |= {"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": limit}
    with gateway_to(tmp_path, upstream, "anthropic", max_tokens_default=333) as gateway:
        response = httpx.post(gateway.url + path, json=asked, headers={"x-api-key": gateway.key})
        (record,) = gateway.records()
    assert upstream.requests[0].body["max_tokens"] == (limit or 333)
    assert response.headers.get("x-firstchair-dropped") == (None if limit else "max_tokens=333")
    assert record.dropped == (() if limit else ("max_tokens=333",))


@pytest.mark.parametrize("header", [("x-api-key", ""), ("authorization", "Bearer ")])
def test_every_endpoint_takes_the_key_in_either_header(tmp_path, upstream, header):
    hello = [{"role": "user", "content": "Hi"}]
    bodies = {
        "/v1/chat/completions": {"messages": hello},
        "/v1/responses": {"input": "Hi"},
        "/v1/messages": {"messages": hello, "max_tokens": 5},
        "/v1/messages/count_tokens": {"messages": hello},
    }
    name, before = header
    with gateway_to(tmp_path, upstream, "anthropic") as gateway:
        # Some clients send both, one of them meant for the vendor.
        for other in ({}, {"authorization": "Bearer theirs", "x-api-key": "theirs"}):
            headers = {**other, name: before + gateway.key}
            for path, body in bodies.items():
                response = httpx.post(gateway.url + path, json={"model": "main", **body}, headers=headers)
                assert response.status_code == 200, (path, response.text)
            assert httpx.get(gateway.url + "/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_that_anthropic_never_signed_is_not_shown_to_it(tmp_path, upstream, stream):
    history = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hmm", "signature": ""},
                {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "user", "content": "And now?"},
    ]
    with gateway_to(tmp_path, upstream, "anthropic") as gateway:
        for unsigned in (True, False):
            history[1]["content"][0]["signature"] = "" if unsigned else "c2lnbmVk"
            body = {"model": "main", "max_tokens": 9, "stream": stream, "messages": history, "made_up": 1}
            headers = {"x-api-key": gateway.key}
            assert httpx.post(gateway.url + "/v1/messages", json=body, headers=headers).status_code == 200
    first, second = (seen.body for seen in upstream.requests)
    assert first["messages"][1]["content"] == history[1]["content"][1:]
    assert first["made_up"] == 1
    assert second["messages"] == history


CHOICES = [
    # Chat Completions' words, Messages' words, Responses' words.
    ("auto", {"type": "auto"}, "auto"),
    ("required", {"type": "any"}, "required"),
    ("none", {"type": "none"}, "none"),
    (
        {"type": "function", "function": {"name": "look_up"}},
        {"type": "tool", "name": "look_up"},
        {"type": "function", "name": "look_up"},
    ),
]


@pytest.mark.parametrize(
    ("chat", "messages", "responses", "parallel"),
    # Nobody says beside "none" whether calls may be parallel.
    [(*choice, None) for choice in CHOICES]
    + [(*choice, parallel) for choice in CHOICES if choice[0] != "none" for parallel in (True, False)],
)
def test_the_choice_of_tools_means_the_same_to_every_provider(
    tmp_path, upstream, backup, chat, messages, responses, parallel
):
    slots = [
        {"slot": "to-chat", "primary": {"provider": "chat", "model": "m"}},
        {"slot": "to-messages", "primary": {"provider": "messages", "model": "m"}},
    ]
    providers = {"chat": provider(upstream.base_url), "messages": provider(backup.base_url, "anthropic")}
    # Messages says it the other way round.
    one_only = {} if parallel is None else {"disable_parallel_tool_use": not parallel}
    asked = {
        "/v1/chat/completions": chat_args(tool_choice=chat),
        "/v1/messages": messages_args(tool_choice={**messages, **one_only}),
        "/v1/responses": {
            "input": "Hi",
            "store": False,
            "tools": [{"type": "function", "name": "look_up", "parameters": SCHEMA, "strict": False}],
            "tool_choice": responses,
        },
    }
    with running_gateway(tmp_path, providers, slots) as gateway:
        for path, body in asked.items():
            extra = {} if parallel is None or path == "/v1/messages" else {"parallel_tool_calls": parallel}
            for model in ("to-chat", "to-messages"):
                response = httpx.post(
                    gateway.url + path, json={**body, **extra, "model": model}, headers={"x-api-key": gateway.key}
                )
                assert response.status_code == 200, response.text
    assert [seen.body["tool_choice"] for seen in upstream.requests] == [chat] * 3
    assert {seen.body.get("parallel_tool_calls") for seen in upstream.requests} == {parallel}
    for seen in backup.requests:
        choice = dict(seen.body["tool_choice"])
        assert choice.pop("disable_parallel_tool_use", False) is (parallel is False)
        assert choice == messages


@pytest.mark.parametrize(
    ("primary", "spare"), [("openai-compatible", "anthropic"), ("anthropic", "openai"), ("anthropic", "anthropic")]
)
@pytest.mark.parametrize("call_ids", [("call_x|1:2", "call_x 2"), ("a" * 66, "b" * 70)], ids=["odd", "long"])
def test_a_fallback_understands_the_call_ids_of_the_other_vendor(
    tmp_path, upstream, backup, primary, spare, call_ids
):
    """Harnesses replay ids that other providers made; each answer still belongs to its call."""
    upstream.script = Script((Reply(fault=Fault("status", status=503)),))
    slot = {
        "slot": "main",
        "primary": {"provider": "up", "model": "first"},
        "fallbacks": [{"provider": "spare", "model": "second"}],
        "retries": {"attempts": 1},
    }
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": json.dumps({"q": call_id})}}
        for call_id in call_ids
    ]
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": call_id, "content": f"for {call_id}"} for call_id in reversed(call_ids)),
    ]
    providers = {"up": provider(upstream.base_url, primary), "spare": provider(backup.base_url, spare)}
    with running_gateway(tmp_path, providers, [slot]) as gateway:
        body = {**chat_args(), "messages": history}
        response = httpx.post(gateway.url + "/v1/chat/completions", json=body, headers={"x-api-key": gateway.key})
        assert response.status_code == 200, response.text
        assert response.headers["x-firstchair-provider"] == "spare/second"
        assert gateway.records()[0].variant == "fallback"
    (seen,) = backup.requests
    if spare == "anthropic":
        _, said, answers = seen.body["messages"]
        used = {block["input"]["q"]: block["id"] for block in said["content"] if block["type"] == "tool_use"}
        told = {block["tool_use_id"]: block["content"] for block in answers["content"]}
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call_id) for call_id in used.values())
        texts = {call_id: told[used[call_id]] for call_id in call_ids}
        texts = {k: v if isinstance(v, str) else v[0]["text"] for k, v in texts.items()}
        assert texts == {call_id: f"for {call_id}" for call_id in call_ids}
    else:
        # The client's own dialect: what it sent goes on as it is.
        assert seen.body["messages"] == history


@pytest.mark.parametrize("inbound", ["openai", "anthropic"])
def test_a_provider_with_a_rule_for_call_ids_gets_ids_that_fit_alike_in_every_turn(tmp_path, upstream, inbound):
    """The session began on Claude and goes on at Mistral, which takes nine letters or digits and nothing else."""
    foreign, its_own = "toolu_01A09q90qw90lq917835lq9", "Ab3dE6gH9"
    upstream.script = Script((Reply(calls=(ToolCall(id=its_own, name="look_up", arguments='{"q":"a"}'),)),))

    def turn(call_id):
        if inbound == "anthropic":
            use = {"type": "tool_use", "id": call_id, "name": "look_up", "input": {"q": "a"}}
            result = {"type": "tool_result", "tool_use_id": call_id, "content": "found"}
            return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        function = {"name": "look_up", "arguments": '{"q":"a"}'}
        return [
            {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call_id, "content": "found"},
        ]

    providers = {"up": provider(upstream.base_url, call_ids="mistral")}
    slots = [{"slot": "main", "primary": {"provider": "up", "model": "mistral-large"}}]
    history = [{"role": "user", "content": "Hi"}, *turn(foreign)]
    with running_gateway(tmp_path, providers, slots) as gateway:
        if inbound == "anthropic":
            messages = anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0)
            made = messages.messages.create(**messages_args(messages=history)).content[-1].id
            messages.messages.create(**messages_args(messages=[*history, *turn(made)]))
            messages.close()
        else:
            chat = openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0)
            answer = chat.chat.completions.create(**chat_args(messages=history, seed=7))
            made = answer.choices[0].message.tool_calls[0].id
            chat.chat.completions.create(**chat_args(messages=[*history, *turn(made)], seed=7))
            chat.close()
        assert [record.dropped for record in gateway.records(2)] == [(), ()]
        assert foreign.encode() in gateway.records(2)[1].request
    assert made == its_own
    first, second = ([_ids(row) for row in seen.body["messages"][1:]] for seen in upstream.requests)
    fitting = first[0]
    assert re.fullmatch(r"[A-Za-z0-9]{9}", fitting)
    assert first == [fitting, fitting]
    assert second == [fitting, fitting, its_own, its_own]
    if inbound == "openai":
        assert upstream.requests[0].body["seed"] == 7


def _ids(row):
    """The id of a row's one tool call, made or answered, in Chat Completions."""
    return row["tool_call_id"] if row["role"] == "tool" else row["tool_calls"][0]["id"]


def test_a_call_keeps_the_chat_template_of_the_provider_that_served_it(tmp_path, upstream, backup):
    template = "a" * 64
    up = provider(upstream.base_url, template_hash=template)
    slot = {
        "slot": "main",
        "primary": {"provider": "up", "model": "m"},
        "fallbacks": [{"provider": "next", "model": "m"}],
        "retries": {"attempts": 1},
    }
    upstream.script = Script((Reply(text="Hello."), Reply(fault=Fault("status", status=500))))
    with running_gateway(tmp_path, {"up": up, "next": provider(backup.base_url)}, [slot]) as gateway:
        for _ in range(2):
            answer = httpx.post(
                gateway.url + "/v1/messages", json=messages_args(), headers={"x-api-key": gateway.key}, timeout=60
            )
            assert answer.status_code == 200
        first, second = gateway.records(2)
    assert (first.provider, first.template_hash) == ("up", template)
    assert (second.provider, second.template_hash) == ("next", "")
