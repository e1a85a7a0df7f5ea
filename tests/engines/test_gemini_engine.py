from __future__ import annotations

import asyncio
from typing import Any

import pytest

from firstchair.catalog.token_counts import TokenCounts
from firstchair.catalog.usage import counts_from_gemini
from firstchair.chat.messages import ImagePart, Message, assistant_message, text_message
from firstchair.core.errors import DataError
from firstchair.engines.base import Engine, ErrorKind, Generation, Request, Sampling, Stop
from firstchair.engines.gemini_engine import GeminiEngine
from firstchair.engines.http_engine import HttpOptions
from firstchair.engines.http_retry import RetryPolicy
from firstchair.testing.environment import STORE
from firstchair.testing.fault_server import Answer, FaultServer, Seen

ASK = (text_message("system", "be brief"), text_message("user", "hi"))
USAGE = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 60,
    "toolUsePromptTokenCount": 7,
    "candidatesTokenCount": 5,
    "thoughtsTokenCount": 20,
}


def answer(reason: Any = "STOP", parts: Any = ({"text": "a fox"},)) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": reason, "index": 0}
    return {"candidates": [candidate], "usageMetadata": USAGE, "modelVersion": "gemini-x-001"}


def one(reply: dict[str, Any], request: Request) -> tuple[Generation, list[Seen]]:
    async def run(server: FaultServer) -> Generation:
        options = HttpOptions(retry=RetryPolicy(tries=1))
        engine = GeminiEngine(server.base_url + "/v1beta", "models/gemini-x", api_key="k", options=options)
        assert isinstance(engine, Engine)
        (generation,) = [generation async for generation in engine.generate([request])]
        await engine.close()
        return generation

    with FaultServer(lambda seen, number: Answer(reply)) as server:
        return asyncio.run(run(server)), server.seen


def test_a_conversation_goes_out_as_contents_and_the_answer_comes_back_with_its_thoughts_apart() -> None:
    talk = (*ASK, assistant_message("hello", thinking="greet"), text_message("user", "which animal?"))
    request = Request(
        request_id="a",
        messages=talk,
        sampling=Sampling(max_new_tokens=50, temperature=0.5, top_p=0.9, top_k=4, seed=7),
    )
    generation, (seen,) = one(
        answer(parts=({"text": "hm", "thought": True}, {"text": "a "}, {"text": "fox"})), request
    )
    assert seen.path == "/v1beta/models/gemini-x:generateContent"
    assert seen.headers["x-goog-api-key"] == "k"
    assert seen.body == {
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}]},
            {"role": "model", "parts": [{"text": "hello"}]},
            {"role": "user", "parts": [{"text": "which animal?"}]},
        ],
        "generationConfig": {"maxOutputTokens": 50, "temperature": 0.5, "topP": 0.9, "topK": 4, "seed": 7},
    }
    assert generation.stop is Stop.END
    assert generation.message is not None
    assert (generation.message.text, generation.message.thinking) == ("a fox", "hm")
    assert (generation.prompt_tokens, generation.cached_tokens, generation.output_tokens) == (107, 60, 25)
    assert generation.usage == TokenCounts(input=47, cache_read=60, output=25, reasoning=20)
    assert generation.served_model == "gemini-x-001"
    assert generation.dropped == ("messages[2]: thinking of another answer",)


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("STOP", Stop.END),
        ("MAX_TOKENS", Stop.LENGTH),
        ("SAFETY", Stop.REFUSAL),
        ("RECITATION", Stop.REFUSAL),
        ("BLOCKLIST", Stop.REFUSAL),
        ("PROHIBITED_CONTENT", Stop.REFUSAL),
        ("SPII", Stop.REFUSAL),
        ("OTHER", Stop.ERROR),
        ("MALFORMED_FUNCTION_CALL", Stop.ERROR),
        ("FINISH_REASON_UNSPECIFIED", Stop.ERROR),
        (None, Stop.ERROR),
    ],
)
def test_every_finish_reason_is_mapped_and_an_unknown_one_is_no_stop(reason: str | None, stop: Stop) -> None:
    engine = GeminiEngine("http://test", "m")
    request = Request(request_id="a", messages=ASK)
    if stop is Stop.ERROR:
        with pytest.raises(DataError, match="finishReason"):
            engine.read(request, answer(reason))
    else:
        assert engine.read(request, answer(reason)).stop is stop
    asyncio.run(engine.close())


@pytest.mark.parametrize(
    "request_",
    [
        Request(request_id="a", prompt_ids=(1,)),
        Request(request_id="a", messages=ASK, tools=(STORE,)),
        Request(request_id="a", messages=ASK, constrain=True),
        Request(request_id="a", messages=(Message(role="user", content=(ImagePart(url="https://x/y.png"),)),)),
        Request(request_id="a", messages=(*ASK, text_message("tool", "x", tool_call_id="1"))),
    ],
)
def test_what_is_not_carried_is_refused_before_it_is_sent(request_: Request) -> None:
    generation, seen = one(answer(), request_)
    assert generation.error_kind is ErrorKind.BAD_REQUEST
    assert not seen


@pytest.mark.parametrize(
    "reply",
    [
        {"candidates": []},
        {"candidates": [{"finishReason": "STOP", "content": {"parts": [{"functionCall": {"name": "x"}}]}}]},
        {"candidates": [1]},
        {"candidates": [{}, {}]},
    ],
)
def test_an_answer_that_breaks_the_protocol_is_an_error_and_not_a_reply(reply: dict[str, Any]) -> None:
    generation, _ = one(reply, Request(request_id="a", messages=ASK))
    assert generation.error_kind is ErrorKind.BAD_RESPONSE


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        {"promptTokenCount": -1},
        {"promptTokenCount": 1, "cachedContentTokenCount": 2},
        {"promptTokenCount": "3"},
    ],
)
def test_counts_that_cannot_be_are_none(usage: Any) -> None:
    assert counts_from_gemini(usage) is None


def test_counts_add_up_and_reasoning_is_told_when_one_tells() -> None:
    one, two = TokenCounts(input=1, output=2, reasoning=1), TokenCounts(input=3, cache_write_1h=4)
    assert one + two == TokenCounts(input=4, cache_write_1h=4, output=2, reasoning=1)
    assert (two + two).reasoning is None
