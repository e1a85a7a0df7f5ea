from __future__ import annotations

import asyncio
from typing import Any

import pytest

from firstchair.chat.messages import text_message
from firstchair.engines.anthropic_engine import AnthropicEngine
from firstchair.engines.base import ErrorKind, Generation, Request, Sampling, Stop
from firstchair.engines.http_engine import HttpOptions
from firstchair.engines.http_retry import RetryPolicy
from firstchair.testing.environment import STORE
from firstchair.testing.fault_server import Answer, FaultServer, Seen

ASK = (text_message("system", "be brief"), text_message("user", "hi"))


def answer(stop_reason: Any = "tool_use") -> dict[str, Any]:
    content = [
        {"type": "thinking", "thinking": "a fox", "signature": "sig"},
        {"type": "tool_use", "id": "t1", "name": "store", "input": {"word": "fox"}},
    ]
    usage = {"input_tokens": 5, "cache_read_input_tokens": 128, "cache_creation_input_tokens": 2, "output_tokens": 9}
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": stop_reason,
        "usage": usage,
    }


def one(reply: Answer, request: Request) -> tuple[Generation, list[Seen]]:
    async def run(server: FaultServer) -> Generation:
        engine = AnthropicEngine(server.base_url, "m", options=HttpOptions(retry=RetryPolicy(tries=1)))
        (generation,) = [generation async for generation in engine.generate([request])]
        await engine.close()
        return generation

    with FaultServer(lambda seen, number: reply) as server:
        return asyncio.run(run(server)), server.seen


def test_a_call_with_thinking_is_read_and_input_counters_are_added_up() -> None:
    generation, (seen,) = one(Answer(answer()), Request(request_id="a", messages=ASK, tools=(STORE,)))
    assert seen.path == "/v1/messages"
    assert seen.headers["x-api-key"] == "none"
    assert "be brief" in str(seen.body["system"])
    assert seen.body["tools"][0]["input_schema"] == STORE.parameters
    assert generation.stop is Stop.END
    assert generation.message is not None
    assert generation.message.thinking == "a fox"
    assert generation.message.tool_calls[0].parsed() == {"word": "fox"}
    assert (generation.prompt_tokens, generation.cached_tokens, generation.output_tokens) == (135, 128, 9)


def test_a_base_url_with_v1_asks_for_the_same_path() -> None:
    async def ask(server: FaultServer) -> None:
        engine = AnthropicEngine(server.base_url + "/v1/", "m")
        async for _ in engine.generate([Request(request_id="a", messages=ASK)]):
            pass
        await engine.close()

    with FaultServer(lambda seen, number: Answer(answer())) as server:
        asyncio.run(ask(server))
    assert [seen.path for seen in server.seen] == ["/v1/messages"]


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", Stop.END),
        ("tool_use", Stop.END),
        ("stop_sequence", Stop.END),
        ("max_tokens", Stop.LENGTH),
        ("model_context_window_exceeded", Stop.LENGTH),
        ("refusal", Stop.REFUSAL),
        ("pause_turn", Stop.ERROR),
        ("something", Stop.ERROR),
        (None, Stop.ERROR),
    ],
)
def test_every_stop_reason_is_mapped_and_an_unknown_one_is_no_stop(reason: str | None, stop: Stop) -> None:
    generation, _ = one(Answer(answer(reason)), Request(request_id="a", messages=ASK))
    assert generation.stop is stop


@pytest.mark.parametrize(
    "request_",
    [
        Request(request_id="a", prompt_ids=(1,)),
        Request(request_id="a", messages=ASK, constrain=True),
        Request(request_id="a", messages=ASK, sampling=Sampling(seed=1)),
    ],
)
def test_what_the_api_has_no_field_for_is_refused(request_: Request) -> None:
    generation, seen = one(Answer(answer()), request_)
    assert generation.error_kind is ErrorKind.BAD_REQUEST
    assert not seen


def test_overloaded_is_a_rate_limit_of_its_own_status() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    generation, _ = one(Answer(body, 529), Request(request_id="a", messages=ASK))
    assert generation.error_kind is ErrorKind.RATE_LIMITED
    assert "HTTP 529: Overloaded" in (generation.error or "")


def test_a_schema_for_the_reply_is_not_on_this_wire_and_the_generation_says_so() -> None:
    asked = Request(request_id="r", messages=(text_message("user", "hi"),), json_schema={"type": "object"})
    generation, _ = one(Answer(answer("end_turn")), asked)
    assert generation.dropped == ("json_schema",)
