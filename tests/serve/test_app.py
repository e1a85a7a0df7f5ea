"""The orchestrator as OpenAI's SDK sees it: real sockets, scripted policy and experts."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from firstchair.catalog.prices import ModelPrice, PriceTable
from firstchair.chat.messages import assistant_message
from firstchair.engines.base import ErrorKind, Generation, Request, Stop
from firstchair.engines.expert import ExpertAnswer, ExpertPool
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.desk.server import running_app
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.orchestration.limits import OrchestrationLimits
from firstchair.rollout.orchestration.simulated import EXPERTS, STRONGEST, SimulatedPool, answer_of
from firstchair.rollout.orchestration.simulated_tasks import simulated_tasks
from firstchair.rollout.orchestration.simulated_world import Demonstrator, presented
from firstchair.rollout.policy import Policy
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.serve.app import Door, build_app
from firstchair.serve.orchestrator import Defaults, Shared
from firstchair.serve.under_way import UnderWay
from firstchair.testing.orchestration import ScriptedExperts, calls, failing, model_on_offer, never

OFFER = (model_on_offer("big"), model_on_offer("model_x7k2", "small"))
PRICE = ModelPrice.model_validate({"input": 1, "output": 2})
ASK: list[Any] = [{"role": "user", "content": "What is 6 · 7?"}]
DEFAULTS = Defaults(8, None, {}, OrchestrationLimits(), answer_after_s=60, timeout_s=60)
DOOR = Door("orchestrator", (), 64, 100_000, frozenset({"big", "small"}))
PAGE = Path(__file__).parents[2] / "docs/serve.md"
WAIT_S = 120


def leader(request: Request) -> Generation:
    """Asks big and small once, then answers with what big said."""
    heard = [message.text for message in request.messages if message.role == "tool"]
    both = calls(("big", {"input": "6*7?"}), ("model_x7k2", {"input": "6*7?"}), text="I ask both.")
    message = assistant_message(f"So it is.\nFINAL_ANSWER: {heard[0]}") if heard else both
    return Generation("", Stop.END, message=message, prompt_tokens=100, output_tokens=10)


@dataclass
class World:
    """One server and what stands behind it."""

    engine: ScriptedEngine
    experts: ScriptedExperts
    log: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def client(self, key: str = "any") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def post(self, **body: Any) -> httpx.Response:
        sent = {"model": "orchestrator", "messages": ASK} | body
        return httpx.post(f"{self.url}/v1/chat/completions", json=sent, timeout=WAIT_S)


@contextmanager
def world(
    answer: Any = lambda *_: "42",
    *,
    replies: Any = leader,
    policy: Policy | None = None,
    pool: ExpertPool | None = None,
    offer: Any = OFFER,
    defaults: Defaults = DEFAULTS,
    door: Door = DOOR,
    tracer: Any = None,
    under_way: UnderWay | None = None,
) -> Iterator[World]:
    engine, experts = ScriptedEngine(replies, model="leader"), ScriptedExperts(answer)
    one = World(engine, experts)
    prices = PriceTable("test", {"leader": PRICE})
    policy = policy or EnginePolicy(engine, record_tokens=False)
    shared = Shared(policy, lambda *_: offer, pool or experts, lambda: None, prices, tracer)

    def log(event: str, **fields: Any) -> None:
        one.log.append({"event": event, **fields})

    with running_app(build_app(shared, defaults, door, log, under_way or UnderWay())) as server:
        one.url = server.base_url
        yield one


def logged(one: World, reply: httpx.Response) -> dict[str, Any]:
    """The log's line of a request: it is written when the answer is out, so it may come after it."""
    while True:
        for line in tuple(one.log):
            if line["request_id"] == reply.headers["x-request-id"]:
                return line
        threading.Event().wait(0.01)


@pytest.fixture(scope="module")
def usual() -> Iterator[World]:
    with world(lambda expert, _: "42" if expert == "big" else failing(ErrorKind.RATE_LIMITED)) as one:
        yield one


def test_a_whole_answer_has_what_it_took(usual: World) -> None:
    with usual.client() as client:
        raw = client.chat.completions.with_raw_response.create(model="orchestrator", messages=ASK)
    answer = raw.parse()
    assert answer.choices[0].message.content == "42"
    assert answer.choices[0].finish_reason == "stop"
    found = answer.model_extra["firstchair"]  # type: ignore[index]
    big, small = found["experts"]
    assert big == {"name": "big", "calls": 1, "cost_usd": 0.002, "latency_s": 0.5, "errors": 0}
    assert (small["name"], small["errors"], small["cost_usd"]) == ("small", 1, 0)
    assert (found["cost_usd"], found["policy_cost_usd"]) == (0.002, 0.00024)
    assert (found["steps"], found["end"], found["salvaged"], found["budget_spent"]) == (2, "answered", False, False)
    assert found["tools"] == []
    assert "trace" not in found
    assert len(found["session_id"]) > 8
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (200, 20, 220)
    assert usage.completion_tokens_details.reasoning_tokens == 10  # type: ignore[union-attr]
    assert raw.headers["x-firstchair-cost-usd"] == "0.002000000"
    assert raw.headers["x-firstchair-policy-cost-usd"] == "0.000240000"
    assert raw.headers["x-firstchair-trace-id"] == found["trace_id"]
    assert answer._request_id == found["trace_id"]
    assert usual.engine.seen[-2].messages[1].text == "Problem: What is 6 · 7?"


def test_a_stream_says_who_is_asked_and_ends_with_what_it_took(usual: World) -> None:
    body = {"stream": True, "stream_options": {"include_usage": True}}
    text = usual.post(**body).text
    events = [event for event in text.split("\n\n") if event]
    first = json.loads(events[0].removeprefix("data: "))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[1:3] == [": asked big", ": asked model_x7k2"]
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[3:-1]]
    assert ["firstchair" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["usage"]["total_tokens"] == 220
    assert chunks[-1]["firstchair"]["cost_usd"] == 0.002
    with usual.client().chat.completions.stream(model="orchestrator", messages=ASK) as stream:
        assert stream.get_final_completion().choices[0].message.content == "42"


@pytest.mark.parametrize("include_usage", [True, False])
def test_the_sdk_reads_cost_and_experts_from_the_last_chunk(
    usual: World, include_usage: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if include_usage else {}
    page = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert page
    shown: dict[str, Any] = {}
    exec(page[1], shown)
    with usual.client() as client:
        assert (shown["ask"](client, ASK, **options)["cost_usd"], capsys.readouterr().out) == (0.002, "42")
        chunks = list(client.chat.completions.create(model="orchestrator", messages=ASK, stream=True, **options))
        with client.chat.completions.stream(model="orchestrator", messages=ASK, **options) as stream:
            events = [event.chunk for event in stream if event.type == "chunk"]
    for seen in (chunks, events):
        *before, last = seen
        assert not any("firstchair" in (chunk.model_extra or {}) for chunk in before)
        found = last.model_extra["firstchair"]  # type: ignore[index]
        assert (found["cost_usd"], [row["name"] for row in found["experts"]]) == (0.002, ["big", "small"])
        # With usage the last chunk has no choices, without it no usage.
        assert (len(last.choices), last.usage is not None) == ((0, True) if include_usage else (1, False))


def test_the_asynchronous_client_streams_too(usual: World) -> None:
    async def ask() -> tuple[str, Any]:
        async with openai.AsyncOpenAI(base_url=f"{usual.url}/v1", api_key="any") as client:
            stream = await client.chat.completions.create(model="orchestrator", messages=ASK, stream=True)
            seen = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in seen)
            return text, seen[-1].model_extra

    text, extra = asyncio.run(ask())
    assert text == "42"
    assert extra["firstchair"]["end"] == "answered"


def test_the_conversation_its_rules_and_its_wishes_reach_the_policy(usual: World) -> None:
    messages = [
        {"role": "system", "content": "Answer in French."},
        {"role": "user", "content": "Remember six."},
        {"role": "assistant", "content": "I do."},
        {"role": "user", "content": [{"type": "text", "text": "Times seven?"}]},
    ]
    wishes = {"budget_usd": 0.5, "preference": {"accuracy": 0.5, "cost": 1, "big": 0}, "trace": True}
    with usual.client() as client:
        answer = client.chat.completions.create(
            model="orchestrator", messages=messages, extra_body={"firstchair": wishes}
        )
    system, problem = usual.engine.seen[-2].messages[:2]
    assert system.text.endswith("keep to them:\nAnswer in French.")
    assert problem.text == (
        "Problem: The conversation so far:\n\nUser: Remember six.\n\nAssistant: I do.\n\nNow the user says:\n\n"
        "Times seven?\n\nKeep it cheap. What counts, by weight: accuracy 0.5, cost 1, big 0.\n\n"
        "All models together may cost at most $0.5."
    )
    trace = answer.model_extra["firstchair"]["trace"]  # type: ignore[index]
    assert [(one["name"], one["label"], one["error"]) for one in trace["calls"]] == [
        ("big", "big", None),
        ("small", "model_x7k2", "rate_limited"),
    ]
    assert trace["messages"][-1]["content"] == "So it is.\nFINAL_ANSWER: 42"


def test_a_budget_holds_and_is_said_to_be_spent(usual: World) -> None:
    before = len(usual.experts.asked)
    found = usual.post(firstchair={"budget_usd": 0.0002}).json()
    assert found["choices"][0]["message"]["content"] == "42"
    assert found["firstchair"]["budget_spent"] is True
    assert usual.experts.asked[before:] == [("big", "6*7?")]
    # The policy's own first step alone costs more than that.
    found = usual.post(firstchair={"budget_usd": 0.0001}).json()
    assert len(usual.experts.asked) == before + 1
    assert (found["firstchair"]["cost_usd"], found["firstchair"]["experts"]) == (0, [])


def test_fewer_steps_and_tokens_cut_a_request(usual: World) -> None:
    found = usual.post(firstchair={"max_steps": 1}).json()
    assert (found["choices"][0]["finish_reason"], found["firstchair"]["end"]) == ("length", "max_steps")
    assert (found["choices"][0]["message"]["content"], found["firstchair"]["salvaged"]) == ("42", True)
    found = usual.post(max_completion_tokens=10).json()
    assert (found["choices"][0]["finish_reason"], found["firstchair"]["end"]) == ("length", "cut")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "messages[0].content",
        ),
        ({"firstchair": {"budget_usd": 0}}, "firstchair.budget_usd"),
        ({"firstchair": {"budget_usd": -1}}, "firstchair.budget_usd"),
        ({"firstchair": {"budget": 1}}, "firstchair.budget"),
        ({"firstchair": {"max_steps": 9}}, "firstchair.max_steps"),
        ({"firstchair": {"max_steps": 0}}, "firstchair.max_steps"),
        ({"firstchair": {"preference": {"nobody": 1}}}, "firstchair.preference.nobody"),
        ({"firstchair": {"preference": {"cost": -1}}}, "firstchair.preference.cost"),
        ({"firstchair": 1}, "firstchair"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(usual: World, change: dict[str, Any], param: str) -> None:
    reply = usual.post(**change)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_errors_have_openais_types() -> None:
    door = replace(DOOR, keys=("right", "other"), max_body_bytes=2000)
    with world(door=door) as one:
        with one.client("wrong") as client, pytest.raises(openai.AuthenticationError) as refused:
            client.chat.completions.create(model="orchestrator", messages=ASK)
        assert refused.value.code == "invalid_api_key"
        with one.client("wrong") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with one.client("other") as client:
            assert [model.id for model in client.models.list()] == ["orchestrator"]
            with pytest.raises(openai.NotFoundError) as unknown:
                client.chat.completions.create(model="gpt", messages=ASK)
            assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
            with pytest.raises(openai.APIStatusError) as long:
                client.chat.completions.create(
                    model="orchestrator", messages=[{"role": "user", "content": "x" * 3000}]
                )
            assert (long.value.status_code, long.value.code) == (413, "request_too_large")
        assert httpx.get(f"{one.url}/v1/nothing", timeout=WAIT_S).json()["error"]["code"] == "unknown_url"
        assert httpx.get(f"{one.url}/v1/chat/completions", timeout=WAIT_S).status_code == 405
        key = {"authorization": "Bearer right"}
        broken = httpx.post(f"{one.url}/v1/chat/completions", content=b"{", headers=key, timeout=WAIT_S)
        assert broken.status_code == 400
        assert not one.experts.asked


def broken(kind: ErrorKind) -> Callable[[Request], Generation]:
    return lambda _: Generation("", Stop.ERROR, error=f"{kind}: secret words", error_kind=kind)


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (ErrorKind.CONNECTION, 500, None),
        (ErrorKind.CONTEXT_OVERFLOW, 400, "context_length_exceeded"),
        (ErrorKind.RATE_LIMITED, 429, "rate_limit_exceeded"),
        (ErrorKind.TIMEOUT, 504, "timeout"),
    ],
)
def test_a_policy_that_breaks_is_a_typed_error_without_its_servers_words(
    kind: ErrorKind, status: int, code: str
) -> None:
    with world(replies=broken(kind)) as one:
        reply = one.post()
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
        assert "the model that leads could not answer" in reply.text or status == 400
        assert "secret" not in reply.text
        with pytest.raises(openai.APIError) as in_stream:
            list(one.client().chat.completions.create(model="orchestrator", messages=ASK, stream=True))
        assert in_stream.value.code == code


def test_experts_that_all_fail_are_no_error_of_the_server() -> None:
    with world(lambda *_: failing(ErrorKind.SERVER)) as one:
        reply = one.post()
    assert reply.status_code == 200
    assert [row["errors"] for row in reply.json()["firstchair"]["experts"]] == [1, 1]


def big_alone(small: Callable[[], Awaitable[str]]) -> Callable[[str, str], Any]:
    """Big answers at once, and small is what the test makes of it."""
    return lambda expert, _: "42" if expert == "big" else small()


def failed(one: World, *, stream: bool) -> openai.APIError:
    """What the SDK raises."""
    with one.client() as client, pytest.raises(openai.APIError) as caught:
        answer: Any = client.chat.completions.create(model="orchestrator", messages=ASK, stream=stream)
        list(answer)
    return caught.value


def spent_on_big(error: openai.APIError) -> Any:
    """What an error says of its cost, after big has answered and small was cut short."""
    assert isinstance(error.body, dict)
    found = error.body["firstchair"]
    assert (found["cost_usd"], found["known_cost_usd"], found["unpriced_calls"]) == (None, 0.002, 1)
    assert [(row["name"], row["calls"], row["cost_usd"], row["errors"]) for row in found["experts"]] == [
        ("big", 1, 0.002, 0),
        ("small", 1, None, 1),
    ]
    assert (found["policy_cost_usd"], found["steps"], found["end"]) == (0.00012, 1, "cancelled")
    return found


def counted_once(one: World, status: int, requests: int) -> None:
    """Metrics and log have what ``requests`` cost that were cut short like that."""
    metrics = httpx.get(f"{one.url}/metrics", timeout=WAIT_S).text
    for line in (
        f'requests_total{{status="{status}"}} {requests}',
        f'ends_total{{end="cancelled"}} {requests}',
        f'calls_total{{name="big"}} {requests}',
        f'calls_total{{name="small"}} {requests}',
        f'cost_usd_total{{name="big"}} {requests * 0.002}',
        f'unpriced_calls_total{{name="small"}} {requests}',
        "running_requests 0",
    ):
        assert f"firstchair_serve_{line}\n" in metrics
    logged = [line for line in one.log if line["status"] == status]
    assert [(line["calls"], line["cost_nano"], line["known_cost_nano"]) for line in logged] == [
        (2, None, 2_000_000)
    ] * requests


def test_a_request_that_takes_too_long_is_ended_and_says_what_it_has_cost() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    late = replace(DEFAULTS, timeout_s=1.0)
    with (
        world(big_alone(never), defaults=late, tracer=provider.get_tracer("test")) as one,
        ThreadPoolExecutor() as threads,
    ):
        whole, streamed = threads.map(lambda stream: failed(one, stream=stream), (False, True))
        assert isinstance(whole, openai.APIStatusError)
        assert (whole.status_code, whole.code, streamed.code) == (504, "timeout", "timeout")
        counted_once(one, 504, 2)
    traces = {spent_on_big(whole)["trace_id"], spent_on_big(streamed)["trace_id"]}
    assert whole.response.headers["x-firstchair-trace-id"] in traces
    roots = [span for span in exporter.get_finished_spans() if span.name == "invoke_agent orchestrator"]
    assert {f"{span.context.trace_id:032x}" for span in roots} == traces
    assert {span.attributes["error.type"] for span in roots} == {"cancelled"}


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_the_process_cuts_a_request_short_and_says_what_it_has_cost(stream: bool) -> None:
    under_way, draining = UnderWay(), []

    async def small() -> str:
        draining.append(asyncio.create_task(under_way.drain(0)))
        return await never()

    with world(big_alone(small), under_way=under_way) as one:
        error = failed(one, stream=stream)
        assert error.code == "overloaded"
        spent_on_big(error)
        counted_once(one, 503, 1)
        assert under_way.cut == 1
        refused = one.post()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["message"] == "this server is stopping and takes no new requests; try again"
        health = httpx.get(f"{one.url}/healthz", timeout=WAIT_S)
        assert (health.status_code, health.json()["status"]) == (503, "stopping")


class Held:
    """An expert that answers once it is let go, and tells how many wait and how many were cancelled."""

    def __init__(self) -> None:
        self.asked, self.cancelled = threading.Semaphore(0), threading.Semaphore(0)

    async def __call__(self) -> str:
        self.asked.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
        return ""


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_everything_under_way(stream: bool) -> None:
    held = Held()
    with world(big_alone(held), door=replace(DOOR, concurrency=1)) as one:
        body = {"model": "orchestrator", "messages": ASK, "stream": stream}

        async def leave() -> None:
            async with httpx.AsyncClient(timeout=WAIT_S) as client:
                sending = asyncio.create_task(client.post(f"{one.url}/v1/chat/completions", json=body))
                assert await asyncio.to_thread(held.asked.acquire, timeout=WAIT_S)
                # There is one place, and it is taken.
                full = await client.post(f"{one.url}/v1/chat/completions", json=body)
                assert (full.status_code, full.headers["retry-after"]) == (429, "1")
                assert full.json()["error"]["type"] == "rate_limit_error"
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

        asyncio.run(leave())
        assert held.cancelled.acquire(timeout=WAIT_S)
        while one.log[-1]["status"] != 499:
            threading.Event().wait(0.01)
        assert httpx.get(f"{one.url}/healthz", timeout=WAIT_S).json()["running"] == 0
        counted_once(one, 499, 1)


class AllAtOnce:
    """A pool that answers when everybody has asked."""

    def __init__(self, pool: SimulatedPool, count: int):
        self._pool, self._barrier = pool, asyncio.Barrier(count)

    async def ask(self, expert: str, question: str) -> ExpertAnswer:
        await self._barrier.wait()
        return await self._pool.ask(expert, question)

    async def close(self) -> None:
        await self._pool.close()


def test_64_requests_at_once_know_nothing_of_each_other() -> None:
    tasks = simulated_tasks(64, seed=3)
    strongest = next(expert for expert in EXPERTS if expert.name == STRONGEST)
    expected = [answer_of(strongest, task, 5) for task in tasks]
    pool = AllAtOnce(SimulatedPool(tasks, seed=5), len(tasks))
    policy = TeacherPolicy(Demonstrator(tasks, dearest=True))
    offer = presented(EXPERTS, "named", None)  # type: ignore[arg-type]

    async def ask_all(url: str) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            made = (
                client.chat.completions.create(
                    model="orchestrator", messages=[{"role": "user", "content": task.problem}]
                )
                for task in tasks
            )
            return await asyncio.gather(*made)

    with world(policy=policy, pool=pool, offer=offer) as one:
        answers = asyncio.run(ask_all(one.url))
        metrics = httpx.get(f"{one.url}/metrics", timeout=WAIT_S).text
    for answer, known in zip(answers, expected, strict=True):
        assert answer.choices[0].message.content in known.text
        assert answer.model_extra["firstchair"]["cost_usd"] == known.cost_nano / 1e9
    assert len({answer.id for answer in answers}) == 64
    assert 'firstchair_serve_requests_total{status="200"} 64' in metrics
    assert f'firstchair_serve_calls_total{{name="{STRONGEST}"}} 64' in metrics


def test_spans_hang_below_the_clients_trace() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with world(tracer=provider.get_tracer("test")) as one:
        reply = httpx.post(
            f"{one.url}/v1/chat/completions",
            json={"model": "orchestrator", "messages": ASK},
            headers={"traceparent": f"00-{trace}-{parent}-01"},
            timeout=WAIT_S,
        )
        assert reply.headers["x-firstchair-trace-id"] == trace == logged(one, reply)["trace_id"]
    root = next(span for span in exporter.get_finished_spans() if span.name == "invoke_agent orchestrator")
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == (trace, parent)


def test_the_log_has_no_content(usual: World) -> None:
    line = logged(usual, usual.post())
    assert (line["event"], line["status"], line["end"], line["calls"], line["cost_nano"]) == (
        *("request", 200, "answered", 2, 2_000_000),
    )
    assert "6" not in {str(value) for value in line.values()}
    assert not any("What is" in str(line) for line in usual.log)
