from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from firstchair.engines.base import ErrorKind
from firstchair.engines.http_retry import HttpFailure, RetryPolicy, kind_of_status, post_json, retry_after_s

FAST = RetryPolicy(tries=3, base_s=0.0)


def post(handler: Callable[[httpx.Request], Any], policy: RetryPolicy = FAST, clock: Any = None) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        transport = httpx.MockTransport(handler)
        async with httpx.AsyncClient(base_url="http://test/v1", transport=transport) as client:
            extra = {"clock": clock} if clock else {}
            return await post_json(client, "/x", {"a": 1}, policy=policy, rng=random.Random(0), **extra)

    return asyncio.run(run())


def replies(*answers: httpx.Response | Exception) -> Callable[[httpx.Request], httpx.Response]:
    waiting = list(answers)

    def handler(request: httpx.Request) -> httpx.Response:
        answer = waiting.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return handler


@pytest.mark.parametrize(
    "first",
    [
        httpx.Response(429, json={"error": {"message": "slow down"}}),
        httpx.Response(529, json={"type": "error", "error": {"message": "overloaded"}}),
        httpx.Response(503, text="busy"),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("peer closed connection without sending complete message body"),
    ],
)
def test_what_may_pass_is_tried_again(first: httpx.Response | Exception) -> None:
    assert post(replies(first, httpx.Response(200, json={"ok": 1}))) == {"ok": 1}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (httpx.Response(400, json={"error": {"message": "bad field"}}), ErrorKind.BAD_REQUEST),
        (httpx.Response(401, json={"error": {"message": "who are you"}}), ErrorKind.AUTH),
        (httpx.Response(404, json={"error": {"message": "no model"}}), ErrorKind.BAD_REQUEST),
        (httpx.Response(200, text="<html>"), ErrorKind.BAD_RESPONSE),
        (httpx.Response(200, json=[1]), ErrorKind.BAD_RESPONSE),
        (httpx.Response(200, json={"error": {"message": "hidden"}}), ErrorKind.BAD_REQUEST),
        (
            httpx.Response(400, json={"message": "This model's maximum context length is 2048 tokens"}),
            ErrorKind.CONTEXT_OVERFLOW,
        ),
    ],
)
def test_what_cannot_pass_is_tried_once_and_typed(answer: httpx.Response, kind: ErrorKind) -> None:
    with pytest.raises(HttpFailure, match="after 1 try") as caught:
        post(replies(answer))
    assert caught.value.kind is kind


def test_the_tries_are_counted_and_the_last_failure_is_told() -> None:
    busy = httpx.Response(429, json={"error": {"message": "slow down"}}, headers={"retry-after-ms": "1"})
    with pytest.raises(HttpFailure, match=r"HTTP 429: slow down \(after 3 tries\)") as caught:
        post(replies(busy, busy, busy))
    assert caught.value.kind is ErrorKind.RATE_LIMITED
    assert caught.value.status == 429
    assert caught.value.retry_after_s == 0.001


def test_a_pause_that_would_pass_the_deadline_is_not_taken() -> None:
    late = httpx.Response(429, headers={"retry-after": "100"})
    with pytest.raises(HttpFailure, match="after 1 try"):
        post(replies(late), RetryPolicy(tries=3, total_s=99), clock=lambda: 0.0)


class Largest(random.Random):
    """Draws the longest pause there may be."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_pauses_double_up_to_the_longest_and_are_drawn_below_that(monkeypatch: pytest.MonkeyPatch) -> None:
    async def paused(rng: random.Random) -> list[float]:
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        monkeypatch.setattr("firstchair.engines.http_retry.asyncio.sleep", sleep)
        busy = httpx.MockTransport(lambda request: httpx.Response(429))
        async with httpx.AsyncClient(base_url="http://test/v1", transport=busy) as client:
            with pytest.raises(HttpFailure, match="after 8 tries"):
                await post_json(client, "/x", {}, policy=RetryPolicy(tries=8), rng=rng)
        return pauses

    longest = asyncio.run(paused(Largest()))
    assert longest == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0]
    first, second = (asyncio.run(paused(random.Random(seed))) for seed in (0, 1))
    assert first != second
    assert all(0 <= pause <= most for pause, most in zip(first, longest, strict=True))


def test_an_answer_that_never_comes_is_a_timeout() -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        return httpx.Response(200)

    with pytest.raises(HttpFailure) as caught:
        post(handler, RetryPolicy(tries=1, connect_s=0.0, read_s=0.01))
    assert caught.value.kind is ErrorKind.TIMEOUT


def test_retry_after_is_seconds_a_date_or_unreadable() -> None:
    assert retry_after_s({"retry-after": "2.5"}, 0) == 2.5
    assert retry_after_s({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, 4) == 6.0
    assert retry_after_s({"retry-after": "soon"}, 0) is None
    assert retry_after_s({"retry-after": "-3"}, 0) == 0.0
    assert retry_after_s({"retry-after-ms": "500", "retry-after": "9"}, 0) == 0.5
    assert retry_after_s({}, 0) is None


@pytest.mark.parametrize(
    "body",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "prompt is too long: 200251 tokens > 200000 maximum",
        '{"error":{"code":"context_length_exceeded"}}',
        "the request exceeds the available context size, try increasing it",
        "The input (3000 tokens) is longer than the model's context length (2048 tokens).",
        "Input length (3000 tokens) exceeds the maximum allowed length; max_model_len=2048",
    ],
)
def test_every_servers_words_for_an_overlong_prompt_are_known(body: str) -> None:
    assert kind_of_status(400, body) is ErrorKind.CONTEXT_OVERFLOW


@pytest.mark.parametrize("status", range(400, 600))
def test_every_error_status_has_a_kind(status: int) -> None:
    assert isinstance(kind_of_status(status, ""), ErrorKind)


def test_an_image_that_is_too_large_is_not_an_overflow() -> None:
    assert kind_of_status(400, "image exceeds 5 MB maximum") is ErrorKind.BAD_REQUEST
