"""One POST with typed failures: what to retry, for how long, and what to call what is left."""

from __future__ import annotations

import asyncio
import email.utils
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import orjson

from firstchair.core.errors import UpstreamError
from firstchair.engines.base import ErrorKind

Answer = TypeVar("Answer")

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Of one answer. Log-probabilities of a long prompt take a few megabytes; a server may go on for ever."""

RETRYABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})

_OVERFLOW = re.compile(
    r"context[ _](?:length|window|size)|maximum context|prompt is too long|input is too long"
    r"|(?:exceeds?|longer than|greater than) the (?:maximum )?(?:model|context)|too many (?:input )?tokens"
    r"|max_model_len|context_length_exceeded|exceed_context_size"
    r"|input token count.{0,30}exceeds the maximum number of tokens",
    re.IGNORECASE,
)
"""How servers say that a prompt does not fit: OpenAI, Anthropic, Gemini, vLLM, SGLang and llama.cpp, each in their
words."""


class HttpFailure(UpstreamError):
    """A request that got no usable answer after all its tries."""

    def __init__(self, kind: ErrorKind, message: str, **fields: Any):
        self.kind = kind
        super().__init__(message, **fields)


@dataclass(frozen=True)
class RetryPolicy:
    """How long to go on. The pause before try n is uniform in [0, ``base_s`` · 2^(n-1)], at most ``max_pause_s``;
    a server's ``retry-after`` replaces it. No pause reaches past ``total_s`` since the first try.
    """

    tries: int = 5
    base_s: float = 0.5
    max_pause_s: float = 20.0
    connect_s: float = 5.0
    """One try: until the connection stands."""
    read_s: float = 120.0
    """One try: until the answer is there."""
    total_s: float = 600.0
    """All tries together."""


_BAD_KEY = re.compile(r"API_KEY_INVALID|API key not valid", re.IGNORECASE)
"""Gemini calls a wrong key a bad request."""


class Watch:
    """Hears of every try of one request."""

    def began(self) -> None:
        """A request is about to be sent."""

    def answered(self, payload: dict[str, Any]) -> None:
        """A server answered with 200 and an object. May raise ``HttpFailure``: that it is no answer after all."""


def kind_of_status(status: int, body: str) -> ErrorKind:
    """What an HTTP error is called. Total: every status from 400 has a kind."""
    if status in (400, 413, 422) and _OVERFLOW.search(body):
        return ErrorKind.CONTEXT_OVERFLOW
    if status in (429, 529):
        return ErrorKind.RATE_LIMITED
    if status in (401, 402, 403) or (status == 400 and _BAD_KEY.search(body)):
        return ErrorKind.AUTH
    if status in (408, 504):
        return ErrorKind.TIMEOUT
    return ErrorKind.SERVER if status >= 500 else ErrorKind.BAD_REQUEST


_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')
"""Google's APIs say when to come back in the body (``google.rpc.RetryInfo``), not in a header."""


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that ``retry-after-ms`` or ``retry-after`` (seconds or HTTP date) asks for; ``None`` if unreadable.

    ``now`` is seconds since the epoch.
    """
    milliseconds, value = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0.0, float(milliseconds) / 1000)
        if value is not None:
            return max(0.0, float(value))
    except ValueError:
        pass
    if value is None:
        return None
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, TypeError):
        return None


async def post_json(
    client: httpx.AsyncClient,
    path: str,
    body: Mapping[str, Any],
    *,
    policy: RetryPolicy,
    rng: random.Random,
    clock: Callable[[], float] = time.time,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """POST ``body`` as JSON and return the answer's object. Raises ``HttpFailure`` when the tries are spent."""
    watch = watch or Watch()

    def read(raw: bytes) -> dict[str, Any]:
        payload = _object(raw)
        watch.answered(payload)
        return payload

    return await _tries(client, path, body, read, policy=policy, rng=rng, clock=clock, watch=watch)


async def post_done(
    client: httpx.AsyncClient, path: str, body: Mapping[str, Any], *, policy: RetryPolicy, rng: random.Random
) -> None:
    """``post_json`` to an endpoint that says nothing but 200."""
    await _tries(client, path, body, lambda raw: None, policy=policy, rng=rng, clock=time.time, watch=Watch())


async def _tries(
    client: httpx.AsyncClient,
    path: str,
    body: Mapping[str, Any],
    read: Callable[[bytes], Answer],
    *,
    policy: RetryPolicy,
    rng: random.Random,
    clock: Callable[[], float],
    watch: Watch,
) -> Answer:
    raw, deadline = orjson.dumps(body), clock() + policy.total_s
    attempt = 1
    while True:
        watch.began()
        try:
            return read(await _once(client, path, raw, policy, clock))
        except HttpFailure as failure:
            pause = failure.retry_after_s
            if pause is None:
                pause = min(policy.max_pause_s, rng.uniform(0, policy.base_s * 2 ** (attempt - 1)))
            if not failure.retryable or attempt >= policy.tries or clock() + pause > deadline:
                times = "try" if attempt == 1 else "tries"
                raise HttpFailure(
                    failure.kind,
                    f"{failure} (after {attempt} {times})",
                    status=failure.status,
                    retryable=failure.retryable,
                    retry_after_s=failure.retry_after_s,
                ) from failure
        await asyncio.sleep(pause)
        attempt += 1


async def _once(
    client: httpx.AsyncClient, path: str, raw: bytes, policy: RetryPolicy, clock: Callable[[], float]
) -> bytes:
    try:
        # httpx's own read timeout restarts with every byte; a server that trickles would never end.
        async with asyncio.timeout(policy.connect_s + policy.read_s):
            headers = {"content-type": "application/json"}
            async with client.stream("POST", path, content=raw, headers=headers) as response:
                body = await _whole(response)
    except (TimeoutError, httpx.TimeoutException) as error:
        raise HttpFailure(
            ErrorKind.TIMEOUT,
            f"{client.base_url}: no answer within {policy.read_s:g} s ({type(error).__name__})",
            retryable=True,
        ) from error
    except httpx.TransportError as error:
        raise HttpFailure(
            ErrorKind.CONNECTION, f"{client.base_url}: {type(error).__name__}: {error}", retryable=True
        ) from error
    except httpx.HTTPError as error:
        raise HttpFailure(ErrorKind.BAD_RESPONSE, f"{type(error).__name__}: {error}") from error
    if response.status_code != 200:
        text = body.decode("utf-8", "replace")
        raise failure_of(response.status_code, text, retry_after_s(response.headers, clock()))
    return body


async def _whole(response: httpx.Response) -> bytes:
    """The body. Raises ``httpx.DecodingError`` for one that is too long."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise httpx.DecodingError(f"a body of more than {MAX_ANSWER_BYTES:,} bytes")
    return b"".join(parts)


def failure_of(status: int, body: str, after_s: float | None = None, *, where: str = "") -> HttpFailure:
    """An error answer as a failure. ``where`` says how it came, if not as the status of an answer."""
    text = body[:2000]
    delay = _RETRY_DELAY.search(body)
    if after_s is None and delay is not None:
        after_s = float(delay.group(1))
    return HttpFailure(
        kind_of_status(status, text),
        f"HTTP {where or status}: {_reason(text)}",
        status=status,
        retryable=status in RETRYABLE_STATUS,
        retry_after_s=after_s,
    )


def _object(raw: bytes) -> dict[str, Any]:
    try:
        payload = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise HttpFailure(ErrorKind.BAD_RESPONSE, f"the answer is not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise HttpFailure(ErrorKind.BAD_RESPONSE, f"the answer is {type(payload).__name__}; expected an object")
    if "error" in payload and "choices" not in payload and "content" not in payload:
        raise hidden_failure(payload["error"])
    return payload


def hidden_failure(error: Any) -> HttpFailure:
    """An error inside an answer of status 200, as gateways send it once a model has begun.

    Its ``code`` is a status where it is one; without it the request is taken to be at fault.
    """
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 400
    return failure_of(status, orjson.dumps(error).decode(), where="200 with an error")


def _reason(text: str) -> str:
    """The message inside an error body of any dialect, or the body's beginning."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text[:300] or "no body"
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(key):
            value = value[key]
    return value if isinstance(value, str) else text[:300]
