from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from firstchair.catalog.backends import VENDORS, Backend
from firstchair.catalog.experts import Expert, ExpertCatalog
from firstchair.catalog.prices import ModelPrice, PriceTable
from firstchair.catalog.token_counts import TokenCounts
from firstchair.core.config import validate
from firstchair.core.errors import ConfigError
from firstchair.engines.base import ErrorKind
from firstchair.engines.expert import ExpertAnswer, ExpertPool
from firstchair.engines.expert_asking import asking
from firstchair.engines.live_experts import LiveExperts
from firstchair.testing.fault_server import Answer, FaultServer, Seen

WIRE = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "fixtures").glob("*.json")}
"""Answers as the vendors document them, by provider and name."""
KEYS = {
    "OPENAI_API_KEY": "tulip7rose",
    "ANTHROPIC_API_KEY": "sk-ant-test",
    "GEMINI_API_KEY": "AIza-test",
    "OPENROUTER_API_KEY": "sk-or-test",
}
MODELS = {
    "openai": "gpt-5",
    "anthropic": "claude-opus-4-8",
    "gemini": "gemini-2.5-pro",
    "openrouter": "qwen/qwen3.5-9b",
    "local": "Qwen/Qwen3.5-9B",
}
PRICES = PriceTable(
    "test", {**PriceTable.load().models, "gemini-2.5-pro": ModelPrice(input=1.25, output=10, cache_read=0.125)}
)


def wire(provider: str, name: str) -> Answer:
    found = WIRE[provider][name]
    return Answer(found["body"], found["status"], found.get("headers", {}))


def catalog(url: str, *providers: str, limits: dict[str, Any] | None = None, **fields: Any) -> ExpertCatalog:
    """One expert for each provider, all at ``url``."""
    experts, routes = [], {}
    for provider in providers:
        expert = {"model": MODELS[provider], "category": "cloud_frontier", "summary": "x", **fields}
        route = {"provider": provider, "model": MODELS[provider], "base_url": url}
        experts.append(expert)
        routes[Expert(**expert).name] = route
    data = {"experts": experts, "routes": routes, "providers": {one: limits or {} for one in providers}}
    return validate(ExpertCatalog, data, source="test")


def run(
    server: FaultServer,
    work: Callable[[LiveExperts], Coroutine[Any, Any, Any]],
    *providers: str,
    prices: PriceTable = PRICES,
    **fields: Any,
) -> tuple[Any, LiveExperts]:
    async def go() -> tuple[Any, LiveExperts]:
        pool = LiveExperts(catalog(server.base_url, *providers, **fields), prices, KEYS)
        assert isinstance(pool, ExpertPool)
        try:
            return await work(pool), pool
        finally:
            await pool.close()

    return asyncio.run(go())


def ask_once(
    provider: str, *answers: Answer, prices: PriceTable = PRICES, **fields: Any
) -> tuple[ExpertAnswer, list[Seen], LiveExperts]:
    """One question; the server gives ``answers`` in order, the last one again and again."""
    with FaultServer(lambda seen, number: answers[min(number, len(answers) - 1)]) as server:

        async def one(pool: LiveExperts) -> ExpertAnswer:
            return await pool.ask(pool.experts[0], "What is six times seven?")

        answer, pool = run(server, one, provider, prices=prices, **fields)
        return answer, server.seen, pool


# --- the contract of each wire ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "path", "header", "usage", "nano", "served"),
    [
        (
            "openai",
            "/chat/completions",
            ("authorization", "Bearer tulip7rose"),
            TokenCounts(input=99, cache_read=1920, output=519, reasoning=448),
            # 99·1.25 + 1920·0.125 + 519·10 = 123.75 + 240 + 5190 millionths of a dollar
            5_553_750,
            "gpt-5-2025-08-07",
        ),
        (
            "anthropic",
            "/v1/messages",
            ("x-api-key", "sk-ant-test"),
            TokenCounts(input=21, cache_read=1000, cache_write_5m=200, cache_write_1h=100, output=88),
            # 21·5 + 1000·0.5 + 200·6.25 + 100·10 + 88·25 = 105 + 500 + 1250 + 1000 + 2200
            5_055_000,
            "claude-opus-4-8-20260401",
        ),
        (
            "gemini",
            "/models/gemini-2.5-pro:generateContent",
            ("x-goog-api-key", "AIza-test"),
            TokenCounts(input=200, cache_read=1000, output=100, reasoning=91),
            # 200·1.25 + 1000·0.125 + 100·10 = 250 + 125 + 1000
            1_375_000,
            "gemini-2.5-pro",
        ),
        (
            "openrouter",
            "/chat/completions",
            ("authorization", "Bearer sk-or-test"),
            TokenCounts(input=94, cache_read=100, output=20, reasoning=0),
            # What OpenRouter says it charged, whatever the table says: 0.0000224 dollars.
            22_400,
            "qwen/qwen3.5-9b",
        ),
        (
            "local",
            "/chat/completions",
            ("authorization", "Bearer none"),
            TokenCounts(input=94, cache_read=100, output=20, reasoning=0),
            0,
            "qwen/qwen3.5-9b",
        ),
    ],
)
def test_a_question_is_asked_in_the_vendors_wire_and_its_answer_counted_and_priced(
    provider: str, path: str, header: tuple[str, str], usage: TokenCounts, nano: int, served: str
) -> None:
    answer, (seen,), pool = ask_once(provider, wire(provider if provider != "local" else "openrouter", "answer"))
    assert (seen.path, seen.headers[header[0]]) == (path, header[1])
    assert "What is six times seven?" in json.dumps(seen.body)
    assert answer.text == "The answer is 42."
    assert (answer.usage, answer.cost_nano, answer.served_model) == (usage, nano, served)
    assert (answer.error, answer.error_kind, answer.tries, answer.cut) == (None, None, 1, False)
    assert answer.latency_s > 0
    assert dict(pool.counts) == {"asked": 1, "answered": 1}


@pytest.mark.parametrize(
    ("provider", "name", "kind", "words"),
    [
        ("openai", "overflow", ErrorKind.CONTEXT_OVERFLOW, "272000"),
        ("anthropic", "overflow", ErrorKind.CONTEXT_OVERFLOW, "prompt is too long"),
        ("gemini", "overflow", ErrorKind.CONTEXT_OVERFLOW, "input token count"),
        ("gemini", "key", ErrorKind.AUTH, "API key not valid"),
        ("gemini", "other", ErrorKind.BAD_RESPONSE, "found 'OTHER'"),
        ("openrouter", "no credits", ErrorKind.AUTH, "Insufficient credits"),
    ],
)
def test_what_cannot_pass_is_asked_once_and_typed(provider: str, name: str, kind: ErrorKind, words: str) -> None:
    answer, seen, pool = ask_once(provider, wire(provider, name))
    assert len(seen) == answer.tries == 1
    assert answer.error_kind is kind
    assert words in (answer.error or "")
    assert answer.text == ""
    assert pool.counts[f"failed: {kind}"] == 1
    assert pool.counts["answered"] == 0


@pytest.mark.parametrize(
    ("provider", "name", "kind"),
    [
        ("openai", "rate limit", ErrorKind.RATE_LIMITED),
        ("anthropic", "overloaded", ErrorKind.RATE_LIMITED),
        ("gemini", "rate limit", ErrorKind.RATE_LIMITED),
    ],
)
def test_a_busy_server_is_asked_again_when_it_says_and_three_times_in_all(
    provider: str, name: str, kind: ErrorKind
) -> None:
    busy = wire(provider, name)
    answer, seen, pool = ask_once(provider, busy, busy, wire(provider, "answer"))
    assert (answer.text, answer.tries, len(seen)) == ("The answer is 42.", 3, 3)
    assert (pool.counts["answered"], pool.counts["retried"]) == (1, 1)
    answer, seen, pool = ask_once(provider, busy)
    assert (answer.error_kind, answer.tries, len(seen)) == (kind, 3, 3)
    assert answer.cost_nano == 0
    assert "after 3 tries" in (answer.error or "")


def test_a_wait_that_is_longer_than_all_tries_may_take_is_not_waited_for() -> None:
    body = WIRE["openai"]["rate limit"]["body"]
    answer, seen, _ = ask_once("openai", Answer(body, 429, {"retry-after": "3600"}))
    assert (answer.error_kind, len(seen)) == (ErrorKind.RATE_LIMITED, 1)


# --- what a question costs --------------------------------------------------------------------------------------


def test_an_answer_that_failed_on_the_way_is_paid_for_and_asked_again() -> None:
    failed, good = wire("openrouter", "failed in the choice"), wire("openrouter", "answer")
    answer, seen, _ = ask_once("openrouter", failed, wire("openrouter", "failed in the body"), good)
    assert (answer.text, answer.tries, len(seen)) == ("The answer is 42.", 3, 3)
    # 194 − 0 and 94 fresh tokens; 0.0000195 + 0.0000224 dollars
    assert answer.usage == TokenCounts(input=288, cache_read=100, output=21, reasoning=0)
    assert answer.cost_nano == 41_900


def test_a_failure_keeps_what_its_tries_cost() -> None:
    answer, seen, _ = ask_once("openrouter", wire("openrouter", "failed in the choice"), limits={"retries": 0})
    assert (answer.error_kind, len(seen)) == (ErrorKind.SERVER, 1)
    assert answer.cost_nano == 19_500


def test_a_missing_price_is_no_cost_of_nothing() -> None:
    answer, _, pool = ask_once("gemini", wire("gemini", "answer"), prices=PriceTable("empty", {}))
    assert answer.cost_nano is None
    assert answer.usage.output == 100
    assert pool.counts["price missing"] == 1


def test_an_answer_without_usage_has_no_known_cost() -> None:
    body = {key: value for key, value in WIRE["openai"]["answer"]["body"].items() if key != "usage"}
    answer, _, _ = ask_once("openai", Answer(body))
    assert (answer.text, answer.cost_nano) == ("The answer is 42.", None)
    local, _, _ = ask_once("local", Answer(body))
    assert local.cost_nano == 0


# --- parameters -------------------------------------------------------------------------------------------------


def at(provider: str, model: str) -> Backend:
    return Backend(provider, VENDORS[provider].base_url, model, "")  # type: ignore[arg-type, index]


@pytest.mark.parametrize(
    ("provider", "model", "limit", "temperature"),
    [
        ("openai", "gpt-5", 16_384, 1.0),
        ("openai", "gpt-5.5", 16_384, 1.0),
        ("openrouter", "openai/gpt-5-mini", 16_384, 1.0),
        ("openai", "gpt-4.1", 4096, 0.2),
        ("anthropic", "claude-opus-4-8", 4096, None),
        ("anthropic", "claude-opus-4-7-20260101", 4096, None),
        ("openrouter", "anthropic/claude-opus-4.8", 4096, None),
        ("anthropic", "claude-sonnet-4-6", 4096, 0.2),
        ("local", "Qwen/Qwen3.5-9B", 4096, 0.2),
    ],
)
def test_models_get_the_limit_that_they_need_and_no_parameter_that_they_refuse(
    provider: str, model: str, limit: int, temperature: float | None
) -> None:
    expert = Expert(model=model, category="cloud_frontier", summary="x", max_tokens=4096, temperature=0.2)
    how = asking(expert, at(provider, model))
    assert how.sampling.max_new_tokens == limit
    assert ("temperature" in how.unsent) == (temperature is None)
    if temperature is not None:
        assert how.sampling.temperature == temperature
    long = expert.model_copy(update={"max_tokens": 30_000})
    assert asking(long, at(provider, model)).sampling.max_new_tokens == 30_000


def test_what_is_sent_holds_the_limit_under_the_name_that_the_vendor_takes() -> None:
    bodies = {}
    for provider in ("openai", "anthropic", "gemini", "openrouter"):
        _, (seen,), _ = ask_once(provider, wire(provider, "answer"), max_tokens=20_000, temperature=0.3)
        bodies[provider] = seen.body
    assert (bodies["openai"]["max_completion_tokens"], bodies["openai"]["temperature"]) == (20_000, 1.0)
    assert "max_tokens" not in bodies["openai"]
    assert bodies["anthropic"]["max_tokens"] == 20_000
    assert "temperature" not in bodies["anthropic"]
    assert bodies["gemini"]["generationConfig"] == {"maxOutputTokens": 20_000, "temperature": 0.3}
    assert (bodies["openrouter"]["max_tokens"], bodies["openrouter"]["temperature"]) == (20_000, 0.3)
    assert not any("top_p" in body for body in bodies.values())


def test_a_temperature_that_nobody_asked_for_is_not_sent() -> None:
    for provider in ("gemini", "openrouter"):
        _, (seen,), _ = ask_once(provider, wire(provider, "answer"))
        assert "temperature" not in json.dumps(seen.body)


@pytest.mark.parametrize(
    ("provider", "refusal"),
    [
        ("openrouter", WIRE["openai"]["temperature"]),
        ("openrouter", WIRE["anthropic"]["temperature"]),
        (
            "gemini",
            {
                "status": 400,
                "body": {"error": {"code": 400, "message": "temperature is not supported", "status": "x"}},
            },
        ),
    ],
)
def test_a_parameter_that_a_server_refuses_by_name_is_left_out_from_then_on(
    provider: str, refusal: dict[str, Any]
) -> None:
    def script(seen: Seen, number: int) -> Answer:
        return Answer(refusal["body"], 400) if "temperature" in json.dumps(seen.body) else wire(provider, "answer")

    async def two(pool: LiveExperts) -> list[ExpertAnswer]:
        return [await pool.ask(pool.experts[0], "one"), await pool.ask(pool.experts[0], "two")]

    with FaultServer(script) as server:
        (first, second), _ = run(server, two, provider, temperature=0.2)
    assert (first.text, first.tries, second.tries) == ("The answer is 42.", 2, 1)
    assert len(server.seen) == 3


def test_a_400_that_names_nothing_optional_is_an_error_after_one_try() -> None:
    answer, seen, _ = ask_once("openrouter", Answer({"error": {"message": "bad messages"}}, 400), temperature=0.2)
    assert (answer.error_kind, len(seen)) == (ErrorKind.BAD_REQUEST, 1)


# --- limits, faults, ends ---------------------------------------------------------------------------------------


def test_experts_of_one_server_share_its_slots_and_each_server_has_its_own() -> None:
    def script(seen: Seen, number: int) -> Answer:
        return wire("anthropic" if "messages" in seen.path else "openai", "answer")

    with FaultServer(script) as server:
        experts = [
            {"model": name, "category": "cloud_frontier", "summary": "x"}
            for name in ("gpt-5", "gpt-5-mini", "claude-opus-4-8")
        ]
        routes = {
            Expert(**one).name: {
                "provider": "anthropic" if one["model"].startswith("claude") else "openai",
                "model": one["model"],
                "base_url": server.base_url,
            }
            for one in experts
        }
        own = validate(
            ExpertCatalog,
            {"experts": experts, "routes": routes, "providers": {"openai": {"concurrency": 2}}},
            source="test",
        )

        async def go() -> list[ExpertAnswer]:
            pool = LiveExperts(own, PRICES, KEYS)
            assert len(pool._lanes) == 2
            answers = await asyncio.gather(*(pool.ask(pool.experts[n % 2], f"{n}") for n in range(12)))
            assert server.most == 2
            answers += await asyncio.gather(*(pool.ask("claude_opus_4_8", f"{n}") for n in range(6)))
            await pool.close()
            return answers

        answers = asyncio.run(go())
    assert {answer.text for answer in answers} == {"The answer is 42."}
    assert server.most > 2
    assert {seen.body["model"] for seen in server.seen} == {"gpt-5", "gpt-5-mini", "claude-opus-4-8"}


def test_a_provider_is_asked_no_faster_than_its_rate() -> None:
    async def three(pool: LiveExperts) -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await asyncio.gather(*(pool.ask("gpt_5", f"{n}") for n in range(3)))
        return loop.time() - started

    with FaultServer(lambda seen, number: wire("openai", "answer")) as server:
        took, _ = run(server, three, "openai", limits={"requests_per_minute": 1200})
    assert took >= 0.1  # the third waits for two gaps of 50 ms


@pytest.mark.parametrize(
    ("answer", "kind", "tries"),
    [
        (Answer(b"<html>"), ErrorKind.BAD_RESPONSE, 1),
        (Answer({"choices": []}), ErrorKind.BAD_RESPONSE, 1),
        (Answer({"choices": 3, "usage": "x"}), ErrorKind.BAD_RESPONSE, 1),
        (Answer(WIRE["openai"]["answer"]["body"], cut_after=30), ErrorKind.CONNECTION, 2),
        (Answer(stall=True), ErrorKind.TIMEOUT, 2),
        (Answer(b"", 503, {"retry-after-ms": "1"}), ErrorKind.SERVER, 2),
    ],
)
def test_every_fault_is_an_answer_with_its_kind(answer: Answer, kind: ErrorKind, tries: int) -> None:
    timeout_s = 0.1 if answer.stall else 30
    found, _, pool = ask_once("openai", answer, limits={"retries": 1, "timeout_s": timeout_s})
    assert (found.error_kind, found.tries) == (kind, tries)
    assert (found.text, found.cost_nano) == ("", 0)
    assert pool.counts[f"failed: {kind}"] == 1


def test_a_key_that_a_server_repeats_is_not_in_the_error() -> None:
    answer, _, _ = ask_once("openai", wire("openai", "key"))
    assert answer.error_kind is ErrorKind.AUTH
    assert "tulip7rose" not in (answer.error or "")


def test_an_answer_of_nothing_but_reasoning_is_cut_and_paid_for() -> None:
    answer, _, pool = ask_once("openai", wire("openai", "all reasoning"))
    assert (answer.text, answer.cut, answer.error_kind) == ("", True, None)
    assert answer.usage.reasoning == answer.usage.output == 16_384
    assert pool.counts["cut"] == 1
    cut, _, _ = ask_once("gemini", wire("gemini", "cut"))
    assert (cut.text, cut.cut, cut.usage.reasoning) == ("", True, 100)


@pytest.mark.parametrize(("provider", "name"), [("anthropic", "refusal"), ("gemini", "blocked")])
def test_a_refusal_is_an_empty_answer_and_counted(provider: str, name: str) -> None:
    answer, _, pool = ask_once(provider, wire(provider, name))
    assert (answer.text, answer.error_kind, pool.counts["refused"]) == ("", None, 1)


def test_who_is_not_there_and_who_cannot_be_reached_is_said() -> None:
    async def unknown(pool: LiveExperts) -> ExpertAnswer:
        return await pool.ask("nobody", "x")

    with FaultServer(lambda seen, number: Answer()) as server:
        answer, _ = run(server, unknown, "openai")
    assert answer.error_kind is ErrorKind.BAD_REQUEST
    assert "nobody: no such expert; expected one of gpt_5" in (answer.error or "")
    with pytest.raises(ConfigError, match="claude_opus_4_8 cannot be reached") as caught:
        LiveExperts(ExpertCatalog.load(), PRICES, {"OPENAI_API_KEY": "k"})
    assert "gpt_5_5" not in str(caught.value)


def test_closing_ends_what_is_under_way() -> None:
    came = threading.Event()

    def script(seen: Seen, number: int) -> Answer:
        came.set()
        return Answer(stall=True)

    async def leave(pool: LiveExperts) -> ExpertAnswer:
        waiting = asyncio.ensure_future(pool.ask("gpt_5", "x"))
        await asyncio.to_thread(came.wait, 10)
        await pool.close()
        return await waiting

    with FaultServer(script) as server:
        answer, _ = run(server, leave, "openai")
    assert answer.error_kind is ErrorKind.ENGINE
