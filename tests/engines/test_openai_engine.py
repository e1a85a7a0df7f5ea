from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from firstchair.chat.messages import Tool, ToolCall, assistant_message, text_message, tool_result
from firstchair.engines.base import Engine, ErrorKind, Generation, Request, Sampling, Stop
from firstchair.engines.http_engine import HttpOptions
from firstchair.engines.http_retry import RetryPolicy
from firstchair.engines.openai_engine import OpenAIEngine
from firstchair.testing.environment import STORE
from firstchair.testing.fault_server import Answer, FaultServer, Seen

ASK = (text_message("user", "hi"),)
FAST = HttpOptions(retry=RetryPolicy(tries=2, base_s=0.0, connect_s=1, read_s=5))


def chat_answer(content: str | None = "hello", finish: Any = "stop", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    return {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


def completion_answer(
    ids: list[int], logprobs: list[float] | None, finish: str = "stop", **choice: Any
) -> dict[str, Any]:
    own = {
        "index": 0,
        "text": "text",
        "finish_reason": finish,
        "token_ids": ids,
        "prompt_token_ids": [5, 6],
        **choice,
    }
    own["logprobs"] = None if logprobs is None else {"token_logprobs": logprobs}
    return {"id": "x", "choices": [own], "usage": {"prompt_tokens": 2, "completion_tokens": len(ids)}}


def generate(
    server: FaultServer, *requests: Request, options: HttpOptions = FAST, **engine: Any
) -> dict[str, Generation]:
    async def run() -> dict[str, Generation]:
        client = OpenAIEngine(f"{server.base_url}/v1", "m", options=options, **engine)
        assert isinstance(client, Engine)
        out = {generation.request_id: generation async for generation in client.generate(requests)}
        await client.close()
        return out

    return asyncio.run(run())


def one(answer: Answer | dict[str, Any], request: Request | None = None, **engine: Any) -> tuple[Generation, Seen]:
    reply = answer if isinstance(answer, Answer) else Answer(answer)
    with FaultServer(lambda seen, number: reply) as server:
        out = generate(server, request or Request(request_id="a", messages=ASK), **engine)
        return out["a"], server.seen[0]


def test_chat_mode_sends_messages_and_tools_and_reads_the_message_with_its_calls() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "store", "arguments": '{"word": "fox"}'}}
    request = Request(request_id="a", messages=ASK, tools=(STORE,), sampling=Sampling(seed=3, top_k=5))
    generation, seen = one(chat_answer(None, "tool_calls", tool_calls=[call]), request)
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["authorization"] == "Bearer none"
    assert seen.body["messages"] == [{"role": "user", "content": "hi"}]
    assert seen.body["tools"][0]["function"]["name"] == "store"
    assert (seen.body["seed"], seen.body["top_k"], seen.body["temperature"]) == (3, 5, 0.0)
    assert generation.stop is Stop.END
    assert generation.message is not None
    assert generation.message.tool_calls[0].parsed() == {"word": "fox"}
    assert (generation.prompt_tokens, generation.cached_tokens, generation.output_tokens) == (10, 4, 3)
    assert generation.latency_s > 0


def test_a_call_in_the_history_that_cannot_be_read_is_sent_as_an_object() -> None:
    said = assistant_message(calls=(ToolCall(id="c1", name="store", arguments='{"word": '),))
    _, seen = one(
        chat_answer(), Request(request_id="a", messages=(*ASK, said, tool_result(said.tool_calls[0], "no")))
    )
    sent = seen.body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"__malformed_arguments__": '{"word": '}


def test_without_tools_and_seed_their_keys_are_absent() -> None:
    _, seen = one(chat_answer())
    assert not {"tools", "seed", "top_k", "return_token_ids"} & set(seen.body)


def test_token_mode_sends_ids_and_returns_ids_and_logprobs() -> None:
    request = Request(request_id="a", prompt_ids=(5, 6))
    generation, seen = one(completion_answer([7, 8], [-0.5, -0.25]), request)
    assert seen.path == "/v1/completions"
    assert seen.body["prompt"] == [5, 6]
    assert seen.body["return_token_ids"] is True
    assert generation.ids == (7, 8)
    assert generation.logprobs == (-0.5, -0.25)
    assert generation.prompt_ids == (5, 6)
    assert generation.text == "text"


class LetterRenderer:
    """Ids are letters."""

    template_hash = "abc"
    stop_ids = (9,)

    def prompt_ids(self, messages: Sequence[Any], tools: Sequence[Tool]) -> list[int]:
        return [5, 6]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(96 + number) for number in ids)


def test_a_renderer_renders_the_prompt_and_decodes_the_ids_with_special_tokens_kept() -> None:
    generation, seen = one(completion_answer([1, 2], None), renderer=LetterRenderer())
    assert generation.text == "ab"
    assert generation.logprobs is None
    assert seen.body["stop_token_ids"] == [9]
    assert OpenAIEngine("http://x/v1", "m", LetterRenderer()).info().template_hash == "abc"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer",
    [
        completion_answer([7, 8], [-0.5]),
        completion_answer([7], [None]),  # type: ignore[list-item]
        completion_answer([7], [-0.5], prompt_token_ids=[5, 7]),
        completion_answer([7], [-0.5], finish="abort"),
        {"choices": []},
        {"id": "x"},
        {"choices": [{"finish_reason": "stop"}]},
    ],
)
def test_an_answer_that_breaks_the_protocol_is_an_error_and_not_a_reply(answer: dict[str, Any]) -> None:
    generation, _ = one(answer, Request(request_id="a", prompt_ids=(5, 6)))
    assert generation.stop is Stop.ERROR
    assert generation.error_kind is ErrorKind.BAD_RESPONSE


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("stop", Stop.END),
        ("tool_calls", Stop.END),
        ("length", Stop.LENGTH),
        ("content_filter", Stop.REFUSAL),
        (None, Stop.ERROR),
        ("", Stop.ERROR),
        ("abort", Stop.ERROR),
    ],
)
def test_every_finish_reason_is_mapped_and_an_unknown_one_is_no_stop(reason: str | None, stop: Stop) -> None:
    generation, _ = one(chat_answer(finish=reason))
    assert generation.stop is stop
    assert (generation.error is None) == (generation.stop is not Stop.ERROR)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer({"error": {"message": "maximum context length is 10 tokens"}}, 400), ErrorKind.CONTEXT_OVERFLOW),
        (Answer({"error": {"message": "no such field"}}, 400), ErrorKind.BAD_REQUEST),
        (Answer({"error": {"message": "key?"}}, 401), ErrorKind.AUTH),
        (Answer({"error": {"message": "slow"}}, 429), ErrorKind.RATE_LIMITED),
        (Answer(b"bad gateway", 502), ErrorKind.SERVER),
        (Answer(chat_answer(), cut_after=20), ErrorKind.CONNECTION),
        (Answer(b"{not json"), ErrorKind.BAD_RESPONSE),
    ],
)
def test_a_failure_is_typed_and_never_an_exception(answer: Answer, kind: ErrorKind) -> None:
    generation, _ = one(answer)
    assert generation.stop is Stop.ERROR
    assert generation.error_kind is kind
    assert (generation.error or "").startswith(kind)


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    with FaultServer(lambda seen, number: Answer()) as server:
        pass
    out = generate(server, Request(request_id="a", messages=ASK))
    assert out["a"].error_kind is ErrorKind.CONNECTION


def test_a_server_that_stalls_is_a_timeout() -> None:
    options = HttpOptions(retry=RetryPolicy(tries=1, connect_s=1, read_s=0.05))
    generation, _ = one(Answer(stall=True), options=options)
    assert generation.error_kind is ErrorKind.TIMEOUT


def test_one_failing_request_leaves_the_others_and_a_busy_server_is_asked_again() -> None:
    def script(seen: Seen, number: int) -> Answer:
        if seen.body["messages"][0]["content"] == "bad":
            return Answer({"error": {"message": "no"}}, 400)
        if number == 0:
            return Answer({}, 429, {"retry-after-ms": "1"})
        return Answer(chat_answer())

    with FaultServer(script) as server:
        words = ["good", "bad", "fine"]
        out = generate(server, *(Request(request_id=w, messages=(text_message("user", w),)) for w in words))
    assert [out[word].stop for word in words] == [Stop.END, Stop.ERROR, Stop.END]
    assert 3 <= len(server.seen) <= 4


def test_concurrency_is_bounded_and_groups_take_turns() -> None:
    with FaultServer(lambda seen, number: Answer(chat_answer())) as server:
        requests = [
            Request(request_id=f"{group}{n}", group=group, messages=(text_message("user", f"{group}{n}"),))
            for group in "ab"
            for n in range(4)
        ]
        out = generate(server, *requests, concurrency=2)
    assert len(out) == 8
    assert server.most == 2
    sent = [seen.body["messages"][0]["content"] for seen in server.seen]
    assert set(sent[:2]) == {"a0", "b0"}
    assert [word for word in sent if word[0] == "a"] == ["a0", "a1", "a2", "a3"]


def test_a_request_can_be_cancelled_while_the_others_go_on() -> None:
    def script(seen: Seen, number: int) -> Answer:
        return Answer(stall=True) if seen.body["messages"][0]["content"] == "slow" else Answer(chat_answer())

    async def run(server: FaultServer) -> dict[str, Generation]:
        engine = OpenAIEngine(f"{server.base_url}/v1", "m", options=FAST, concurrency=2)
        requests = [Request(request_id=w, messages=(text_message("user", w),)) for w in ("slow", "quick", "after")]
        out = {}
        async for generation in engine.generate(requests):
            out[generation.request_id] = generation
            if len(out) == 2:
                assert await engine.cancel("slow")
        assert not await engine.cancel("slow")
        await engine.close()
        return out

    with FaultServer(script) as server:
        out = asyncio.run(run(server))
    assert out["slow"].stop is Stop.CANCELLED
    assert out["quick"].stop is out["after"].stop is Stop.END


def test_what_the_server_cannot_be_asked_for_is_refused_before_it_is_asked() -> None:
    request = Request(request_id="a", prompt_ids=(5, 6), constrain=True)
    with FaultServer(lambda seen, number: Answer()) as server:
        out = generate(server, request)
    assert out["a"].error_kind is ErrorKind.BAD_REQUEST
    assert not server.seen


def test_constrained_chat_asks_the_server_for_strict_tools() -> None:
    request = Request(request_id="a", messages=ASK, tools=(STORE,), constrain=True)
    _, seen = one(chat_answer(), request)
    assert seen.body["tools"][0]["function"]["strict"] is True


def test_extra_fields_are_merged_and_none_takes_one_away() -> None:
    options = HttpOptions(extra_body={"max_tokens": None, "max_completion_tokens": 5}, headers={"x-slot": "s"})
    _, seen = one(chat_answer(), options=options)
    assert "max_tokens" not in seen.body
    assert seen.body["max_completion_tokens"] == 5
    assert seen.headers["x-slot"] == "s"


def test_chat_ids_are_kept_where_they_were_asked_for() -> None:
    answer = chat_answer()
    answer["prompt_token_ids"] = [1, 2, 3]
    answer["choices"][0] |= {"token_ids": [4], "logprobs": {"content": [{"token": "x", "logprob": -0.5}]}}
    generation, seen = one(answer, ask_ids=True)
    assert seen.body["return_token_ids"] is True
    assert (generation.prompt_ids, generation.ids, generation.logprobs) == ((1, 2, 3), (4,), (-0.5,))
