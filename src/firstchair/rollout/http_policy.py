"""Any API as a policy, through the official SDKs: what a harness of today does, retries and streaming included."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from firstchair.chat.anthropic_wire import messages_to_anthropic, tools_to_anthropic
from firstchair.chat.openai_calls import replayable
from firstchair.chat.openai_wire import messages_to_openai, tools_to_openai
from firstchair.core.clock import utc_now
from firstchair.core.errors import ConfigError, FirstchairError
from firstchair.engines.base import ErrorKind
from firstchair.engines.http_retry import kind_of_status
from firstchair.rollout.policy import PolicyReply, PolicyRequest
from firstchair.rollout.wire_reply import Dialect, Timing, read_reply


class HttpPolicy:
    """Calls ``base_url`` with the SDK of ``dialect`` (OpenAI's wants ``/v1`` in it, Anthropic's does not).

    ``options`` go into every request (``temperature``, ``max_tokens``, …); a limit of the episode lowers the tokens
    that they allow. Needs the SDK: ``pip install openai`` or
    ``anthropic``. Use it as an async context manager, or ``close`` it.
    """

    def __init__(
        self,
        dialect: Dialect,
        base_url: str,
        model: str,
        *,
        api_key: str = "none",
        stream: bool = False,
        max_retries: int = 3,
        timeout_s: float = 120.0,
        options: Mapping[str, Any] = MappingProxyType({}),
    ):
        self.name, self._dialect, self._stream = model, dialect, stream
        self._options = dict(options)
        make = _sdk(dialect)
        self._client: Any = make(base_url=base_url, api_key=api_key, max_retries=max_retries, timeout=timeout_s)

    async def __aenter__(self) -> HttpPolicy:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        """One call per request, all at once."""
        return list(await asyncio.gather(*(self._act(request) for request in requests)))

    async def _act(self, request: PolicyRequest) -> PolicyReply:
        ask = self._ask_openai if self._dialect == "openai" else self._ask_anthropic
        started, clock = utc_now(), time.perf_counter()
        try:
            payload = await ask(request)
            timing = Timing(started, (time.perf_counter() - clock) * 1000)
            return read_reply(self._dialect, payload, request.tools, timing, provider=self._dialect)
        except Exception as error:  # noqa: BLE001 - the rollout boundary: typed below, recorded and counted
            kind = _kind(error)
            return PolicyReply(error=f"{kind}: {type(error).__name__}: {error}", error_kind=kind)

    async def _ask_openai(self, request: PolicyRequest) -> dict[str, Any]:
        messages = messages_to_openai(replayable(request.messages))
        body: dict[str, Any] = {"model": self.name, "messages": messages, **self._options}
        limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
        _lower(body, limit, request.max_tokens)
        if request.tools:
            body["tools"] = tools_to_openai(request.tools)
        if not self._stream:
            return dict((await self._client.chat.completions.create(**body)).model_dump())
        body["stream_options"] = {"include_usage": True}
        async with self._client.chat.completions.stream(**body) as stream:
            return _without_helpers((await stream.get_final_completion()).model_dump())

    async def _ask_anthropic(self, request: PolicyRequest) -> dict[str, Any]:
        prompt = messages_to_anthropic(request.messages)
        body: dict[str, Any] = {"model": self.name, "max_tokens": 1024, "messages": prompt.messages, **self._options}
        _lower(body, "max_tokens", request.max_tokens)
        if prompt.system:
            body["system"] = prompt.system
        if request.tools:
            body["tools"] = tools_to_anthropic(request.tools)
        if not self._stream:
            return dict((await self._client.messages.create(**body)).model_dump())
        async with self._client.messages.stream(**body) as stream:
            return dict((await stream.get_final_message()).model_dump())


def _lower(body: dict[str, Any], limit: str, most: int | None) -> None:
    if most is not None:
        body[limit] = min(body.get(limit, most), most)


def _without_helpers(payload: dict[str, Any]) -> dict[str, Any]:
    """The answer as the server sent it: the SDK's stream helper adds fields that no request may carry back."""
    for choice in payload["choices"]:
        choice["message"].pop("parsed", None)
        for call in choice["message"].get("tool_calls") or ():
            call.pop("index", None)
            call.get("function", {}).pop("parsed_arguments", None)
    return payload


def _sdk(dialect: Dialect) -> Any:
    try:
        if dialect == "openai":
            from openai import AsyncOpenAI

            return AsyncOpenAI
        from anthropic import AsyncAnthropic
    except ImportError as error:
        raise ConfigError(f"the {dialect} SDK is not installed; run: pip install {dialect}") from error
    return AsyncAnthropic


def _kind(error: Exception) -> ErrorKind:
    status = getattr(error, "status_code", None)  # both SDKs' status errors; neither shares a base class
    if isinstance(status, int):
        return kind_of_status(status, str(error))
    # By name: an SDK wraps what fails before an answer, and lets its HTTP library's own errors (httpx in one
    # version, httpx2 in the next) through when a stream breaks.
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"APITimeoutError", "TimeoutException", "TimeoutError"}:
        return ErrorKind.TIMEOUT
    if names & {"APIConnectionError", "TransportError"}:
        return ErrorKind.CONNECTION
    known = isinstance(error, FirstchairError | KeyError | ValueError)
    return ErrorKind.BAD_RESPONSE if known else ErrorKind.ENGINE
