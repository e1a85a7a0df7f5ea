"""The scripted upstream: official SDKs read right objects from it, and every fault does what its name says."""

import asyncio
import json
import socket

import anthropic
import httpx
import openai
import pytest

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import ToolCall
from firstchair.chat.wire_request import Finish
from firstchair.gateway.dialects.base import EngineTokens
from firstchair.testing.scripted_upstream import Fault, Raw, Reply, Script, Seen, scripted_upstream

MESSAGES = [{"role": "user", "content": "hi"}]
CALLS = (ToolCall.of("call_1", "weather", {"city": "Köln"}), ToolCall.of("call_2", "time", {"zone": "x" * 60}))
FULL = Reply(
    text="Grüße 👋 aus Köln",
    thinking="They greet me.",
    calls=CALLS,
    usage=TokenCounts(input=5, cache_read=7, cache_write_5m=11, cache_write_1h=13, output=17, reasoning=3),
)
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
WIRES = pytest.mark.parametrize("wire", list(PATHS))
PATHS["responses"] = "/v1/responses"


def gpt(upstream) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{upstream.base_url}/v1", api_key="k", max_retries=0)


def claude(upstream) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=upstream.base_url, api_key="k", max_retries=0)


def post(upstream, wire: str, *, stream: bool = True, timeout: float = 5, **fields) -> httpx.Response:
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 9, "stream": stream, **fields}
    return httpx.post(upstream.base_url + PATHS[wire], json=body, timeout=timeout, trust_env=False)


def so_far(upstream, wire: str, *, stream: bool = True) -> tuple[bytes, Exception | None]:
    """What came before the end, and how it ended."""
    body = {"model": "m", "messages": MESSAGES, "stream": stream}
    got = b""
    try:
        with (
            httpx.Client(timeout=5, trust_env=False) as client,
            client.stream("POST", upstream.base_url + PATHS[wire], json=body) as answer,
        ):
            for part in answer.iter_raw():
                got += part
    except httpx.HTTPError as error:
        return got, error
    return got, None


def read_until(upstream, wire: str, end: bytes, count: int) -> socket.socket:
    """A connection on which the answer came as far as ``count`` times ``end``."""
    body = json.dumps({"model": "m", "messages": MESSAGES, "stream": True}).encode()
    connection = socket.create_connection(("127.0.0.1", upstream.port), timeout=5)
    connection.sendall(
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATHS[wire].encode(), len(body))
    )
    connection.sendall(body)
    got = b""
    while got.count(end) < count:
        got += connection.recv(65536)
    return connection


# --- right objects ----------------------------------------------------------------------------------------------


def check_openai(answer) -> None:
    choice = answer.choices[0]
    assert choice.message.content == FULL.text
    assert [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls] == [
        (call.id, call.name, call.arguments) for call in CALLS
    ]
    assert choice.message.reasoning_content == FULL.thinking
    assert choice.finish_reason == "tool_calls"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (36, 17)
    assert answer.usage.prompt_tokens_details.cached_tokens == 7
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3


def check_anthropic(answer) -> None:
    thinking, text, *calls = answer.content
    assert (thinking.thinking, thinking.signature, text.text) == (FULL.thinking, FULL.signature, FULL.text)
    assert [(call.id, call.name, call.input) for call in calls] == [(c.id, c.name, c.parsed()) for c in CALLS]
    assert answer.stop_reason == "tool_use"
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (5, 7, 17)
    assert usage.cache_creation_input_tokens == 24
    assert usage.cache_creation.ephemeral_1h_input_tokens == 13


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_sdks_read_whole_and_streamed_answers(interleaved):
    reply = Reply(text=FULL.text, thinking=FULL.thinking, calls=CALLS, usage=FULL.usage, interleaved=interleaved)
    with scripted_upstream(reply) as upstream:
        with gpt(upstream) as client:
            check_openai(client.chat.completions.create(model="m", messages=MESSAGES))
            options = {"stream_options": {"include_usage": True}}
            with client.chat.completions.stream(model="m", messages=MESSAGES, **options) as stream:
                final = stream.get_final_completion()
            assert [c.function.arguments for c in final.choices[0].message.tool_calls] == [c.arguments for c in CALLS]
            assert final.usage.prompt_tokens == 36
        with claude(upstream) as client:
            check_anthropic(client.messages.create(model="m", messages=MESSAGES, max_tokens=9))
            with client.messages.stream(model="m", messages=MESSAGES, max_tokens=9) as stream:
                check_anthropic(stream.get_final_message())
        assert [seen.body.get("stream", False) for seen in upstream.requests] == [False, True, False, True]
        assert upstream.requests[0].headers["authorization"] == "Bearer k"
        assert upstream.requests[2].headers["anthropic-version"]


def test_the_asynchronous_sdks_read_them_too():
    async def ask(upstream):
        async with openai.AsyncOpenAI(base_url=f"{upstream.base_url}/v1", api_key="k", max_retries=0) as client:
            check_openai(await client.chat.completions.create(model="m", messages=MESSAGES))
            async with client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.content == FULL.text
        async with anthropic.AsyncAnthropic(base_url=upstream.base_url, api_key="k", max_retries=0) as client:
            check_anthropic(await client.messages.create(model="m", messages=MESSAGES, max_tokens=9))
            async with client.messages.stream(model="m", messages=MESSAGES, max_tokens=9) as stream:
                check_anthropic(await stream.get_final_message())

    with scripted_upstream(FULL) as upstream:
        asyncio.run(ask(upstream))
        assert upstream.most == 1
        assert upstream.disconnects == 0


def test_the_sdk_reads_responses_too():
    with scripted_upstream(FULL) as upstream, gpt(upstream) as client:
        whole = client.responses.create(model="m", input="hi")
        with client.responses.stream(model="m", input="hi") as stream:
            final = stream.get_final_response()
        assert whole.output_text == final.output_text == FULL.text
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
        assert final.usage.input_tokens == 36
        upstream.script = Script((Reply(text="x", finish="tired", usage={"input_tokens": -1}),))
        odd = post(upstream, "responses").text.split("data: ")[-1]
        assert json.loads(odd)["response"]["incomplete_details"] == {"reason": "tired"}
        assert json.loads(odd)["response"]["usage"] == {"input_tokens": -1}


@pytest.mark.parametrize("kind", ["error_late", "no_terminal", "cut_after_events", "broken_json", "comments"])
def test_faults_of_responses_streams(kind):
    with scripted_upstream(Reply(text="fine", fault=Fault(kind, after=5, message="late"))) as upstream:
        got, error = so_far(upstream, "responses")
        assert b"response.created" in got
        assert (b"response.completed" in got) == (kind in ("comments", "broken_json"))
        assert (b'"type":"error"' in got) == (kind == "error_late")
        assert (error is not None) == (kind == "cut_after_events")


def test_models_and_token_counts():
    with scripted_upstream(Script(models=("a", "b"), input_tokens=7)) as upstream:
        with gpt(upstream) as client:
            assert [model.id for model in client.models.list()] == ["a", "b"]
        with claude(upstream) as client:
            assert [model.id for model in client.models.list()] == ["a", "b"]
            assert client.messages.count_tokens(model="a", messages=MESSAGES).input_tokens == 7


def test_answers_come_in_order_the_last_one_stays_and_a_function_may_choose():
    def by(seen: Seen) -> Reply:
        return Reply(text=seen.body["messages"][0]["content"].upper())

    with scripted_upstream(Script((Reply(text="1"), Reply(text="2")))) as upstream:
        texts = [post(upstream, "openai", stream=False).json()["choices"][0]["message"]["content"] for _ in "abc"]
        assert texts == ["1", "2", "2"]
        upstream.script = Script(by=by)
        assert post(upstream, "anthropic", stream=False).json()["content"][0]["text"] == "HI"
        assert len(upstream.requests) == 4


def test_token_ids_come_when_asked_for_whole_and_streamed():
    tokens = EngineTokens(prompt_ids=(1, 2), completion_ids=(3, 4, 5), logprobs=(-0.1, -0.2, -0.3))
    with scripted_upstream(Reply(text="x" * 70, tokens=tokens)) as upstream:
        whole = post(upstream, "openai", stream=False, return_token_ids=True, logprobs=True).json()
        assert (whole["prompt_token_ids"], whole["choices"][0]["token_ids"]) == ([1, 2], [3, 4, 5])
        assert [row["logprob"] for row in whole["choices"][0]["logprobs"]["content"]] == [-0.1, -0.2, -0.3]
        assert "prompt_token_ids" not in post(upstream, "openai", stream=False).json()
        lines = post(upstream, "openai", return_token_ids=True).text.splitlines()
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert chunks[0]["prompt_token_ids"] == [1, 2]
        assert [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", ())] == [3, 4, 5]


def test_malformed_arguments_go_out_as_the_model_wrote_them():
    with scripted_upstream(Reply(calls=(ToolCall(id="c", name="f", arguments='{"a": '),))) as upstream:
        whole = post(upstream, "openai", stream=False).json()
        assert whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": '
        assert r'"partial_json":"{\"a\": "' in post(upstream, "anthropic").text


@pytest.mark.parametrize("usage", [{"prompt_tokens": -5, "completion_tokens": 10**15}, None])
def test_absurd_and_missing_usage(usage):
    with scripted_upstream(Reply(text="x", usage=usage)) as upstream:
        body = post(upstream, "openai", stream=False).json()
        assert body.get("usage") == usage
        assert ("usage" in post(upstream, "anthropic").text) == (usage is not None)


def test_a_raw_answer_goes_out_byte_for_byte():
    raw = Raw(body=(b"data: 1\n\n", b"data: 2\n\n"), content_type="text/event-stream", headers={"x-a": "b"})
    with scripted_upstream(raw) as upstream:
        answer = post(upstream, "openai")
        assert (answer.content, answer.headers["x-a"]) == (b"data: 1\n\ndata: 2\n\n", "b")


# --- faults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 500, 503, 529])
def test_error_statuses_raise_the_sdks_own_errors(status):
    fault = Fault("status", status=status, retry_after="7", message="scripted")
    with scripted_upstream(Reply(fault=fault)) as upstream:
        with gpt(upstream) as client, pytest.raises(openai.APIStatusError) as seen:
            client.chat.completions.create(model="m", messages=MESSAGES)
        assert (seen.value.status_code, seen.value.response.headers["retry-after"]) == (status, "7")
        with claude(upstream) as client, pytest.raises(anthropic.APIStatusError) as also:
            client.messages.create(model="m", messages=MESSAGES, max_tokens=9)
        assert also.value.status_code == status
        assert also.value.body["error"]["message"] == "scripted"


def test_a_closed_port_refuses_and_opens_again_on_the_same_number():
    with scripted_upstream() as upstream, gpt(upstream) as client:
        client.models.list()
        upstream.close_port()
        with pytest.raises(openai.APIConnectionError):
            client.models.list()
        upstream.open_port()
        assert client.models.list().data


@WIRES
@pytest.mark.parametrize("kind", ["hang_before_headers", "hang_after_headers", "hang_after_events"])
def test_a_hanging_answer_comes_when_it_is_released(wire, kind):
    with scripted_upstream(Reply(text="slow", fault=Fault(kind, after=3))) as upstream:
        connection = read_until(upstream, wire, b"\r\n\r\n" if kind == "hang_after_headers" else b"data:", 0)
        if kind == "hang_after_events":
            connection.close()
            connection = read_until(upstream, wire, b"data:", 3)
        upstream.wait_until(lambda seen: seen.open == 1)
        connection.close()
        upstream.wait_until(lambda seen: seen.open == 0)
        assert upstream.disconnects == len(upstream.requests)


@WIRES
def test_a_released_answer_is_whole(wire):
    async def both(upstream) -> str:
        asked = asyncio.create_task(asyncio.to_thread(post, upstream, wire))
        await asyncio.to_thread(upstream.wait_until, lambda seen: seen.holding == 1)
        upstream.release()
        return (await asked).text

    with scripted_upstream(Reply(text="slow", fault=Fault("hang_after_events", after=2))) as upstream:
        text = asyncio.run(both(upstream))
        assert "slow" in text
        assert text.endswith("[DONE]\n\n" if wire == "openai" else '{"type":"message_stop"}\n\n')


@WIRES
@pytest.mark.parametrize("stream", [True, False])
def test_cuts(wire, stream):
    with scripted_upstream(Reply(text="never whole", fault=Fault("cut_before_headers"))) as upstream:
        got, error = so_far(upstream, wire, stream=stream)
        assert (got, type(error)) == (b"", httpx.RemoteProtocolError)
        upstream.script = Script((Reply(text="never whole", fault=Fault("cut_after_bytes", after=20)),))
        got, error = so_far(upstream, wire, stream=stream)
        assert (len(got), type(error)) == (20, httpx.RemoteProtocolError)
        upstream.script = Script((Reply(text="never whole", fault=Fault("cut_after_events", after=2)),))
        got, error = so_far(upstream, wire, stream=stream)
        assert isinstance(error, httpx.RemoteProtocolError)
        assert got.count(b"data:") == (2 if stream else 0)


@WIRES
def test_errors_inside_a_stream(wire):
    with scripted_upstream(Reply(text="a", fault=Fault("error_first", status=529))) as upstream:
        answer = post(upstream, wire)
        assert (answer.status_code, answer.text.count("data:"), "error" in answer.text) == (200, 1, True)
        upstream.script = Script((Reply(text="a", fault=Fault("error_late", after=3, message="late")),))
        answer = post(upstream, wire)
        assert answer.text.count("data:") == 4
        assert "late" in answer.text.splitlines()[-2]
        upstream.script = Script((Reply(text="a", fault=Fault("only_error", message="only")),))
        answer = post(upstream, wire)
        assert (answer.status_code, answer.json()["error"]["message"]) == (200, "only")
    with scripted_upstream(Reply(text="a", fault=Fault("error_late", after=3, message="late"))) as upstream:
        if wire == "openai":
            with gpt(upstream) as client, pytest.raises(openai.APIError, match="late"):
                list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))
        else:
            with claude(upstream) as client, pytest.raises(anthropic.APIError, match="late"):
                list(client.messages.create(model="m", messages=MESSAGES, max_tokens=9, stream=True))


@WIRES
@pytest.mark.parametrize("stream", [True, False])
def test_broken_content(wire, stream):
    with scripted_upstream(Reply(text="fine", fault=Fault("broken_json", after=1))) as upstream:
        text = post(upstream, wire, stream=stream).text
        line = text.split("\n\n")[1].split("data: ")[1] if stream else text
        with pytest.raises(json.JSONDecodeError):
            json.loads(line)
        upstream.script = Script((Reply(text="fine", fault=Fault("broken_utf8", after=1)),))
        with pytest.raises(UnicodeDecodeError):
            post(upstream, wire, stream=stream).content.decode()
        upstream.script = Script((Reply(fault=Fault("not_json")),))
        assert post(upstream, wire, stream=stream).text.startswith("<html>")


@WIRES
@pytest.mark.parametrize("kind", ["split_utf8", "comments", "slow"])
def test_odd_but_legal_streams_are_read_whole(wire, kind):
    with scripted_upstream(Reply(text=FULL.text, calls=CALLS, fault=Fault(kind))) as upstream:
        if wire == "openai":
            with gpt(upstream) as client, client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
                assert stream.get_final_completion().choices[0].message.content == FULL.text
        else:
            with (
                claude(upstream) as client,
                client.messages.stream(model="m", messages=MESSAGES, max_tokens=9) as got,
            ):
                assert got.get_final_message().content[0].text == FULL.text
        assert (": OPENROUTER" in post(upstream, wire).text) == (kind == "comments")


@WIRES
def test_streams_without_their_end(wire):
    with scripted_upstream(Reply(text="a", fault=Fault("no_terminal"))) as upstream:
        text = post(upstream, wire).text
        assert '"a"' in text
        assert not any(word in text for word in ("[DONE]", "message_stop", "message_delta", '"stop"', "end_turn"))
        upstream.script = Script((Reply(text="a", fault=Fault("no_done")),))
        text = post(upstream, wire).text
        assert ('"stop"' in text, "end_turn" in text) == (wire == "openai", wire == "anthropic")
        assert not any(word in text for word in ("[DONE]", "message_stop"))


@WIRES
def test_any_finish_reason_goes_out(wire):
    with scripted_upstream(Script((Reply(text="a", finish="tired"), Reply(finish=Finish.LENGTH)))) as upstream:
        assert '"tired"' in post(upstream, wire).text
        assert ('"length"' if wire == "openai" else '"max_tokens"') in post(upstream, wire).text


def test_interleaved_calls_alternate():
    with scripted_upstream(Reply(calls=CALLS, interleaved=True)) as upstream:
        lines = [json.loads(line[6:]) for line in post(upstream, "openai").text.splitlines() if line[6:7] == "{"]
        calls = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in lines]
        assert [call[0]["index"] for call in calls if call][:4] == [0, 1, 0, 1]


def test_unknown_paths_and_bodies_that_are_no_json():
    with scripted_upstream() as upstream:
        assert httpx.get(upstream.base_url + "/nothing", trust_env=False).status_code == 404
        answer = httpx.post(upstream.base_url + PATHS["openai"], content=b"{", trust_env=False)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
