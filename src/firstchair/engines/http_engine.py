"""What every engine behind HTTP shares: bounded concurrency, order by group, retries, cancel."""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from firstchair.core.errors import ConfigError, DataError
from firstchair.engines.base import EngineInfo, ErrorKind, Generation, Request, Stop
from firstchair.engines.group_queue import GroupGate
from firstchair.engines.http_retry import HttpFailure, RetryPolicy, post_json
from firstchair.engines.inflight import InFlight


def key_from(variable: str, *, field: str) -> str:
    """The key in an environment variable that ``field`` of a recipe names; ``none``, as servers without keys like it,
    where none is named. Raises ``ConfigError`` when the variable is not set.
    """
    key = os.environ.get(variable, "") if variable else "none"
    if not key:
        raise ConfigError(f"{field}: the environment variable {variable} is not set")
    return key


@dataclass(frozen=True)
class HttpOptions:
    """What is the same for every dialect and rarely changed."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    seed: int = 0
    """Of the retries' jitter, together with the request's id: a run can be repeated."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request, over the dialect's own."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Merged into every body, for what a server has of its own; a value of ``None`` removes the key."""
    transport: httpx.AsyncBaseTransport | None = None
    """In place of sockets, for tests."""


class HttpEngine(ABC):
    """An ``Engine`` whose model is served over HTTP; a subclass knows one dialect.

    No failure of a request reaches the caller as an exception: it becomes ``Stop.ERROR`` with ``error_kind`` and
    the reason, and the other requests of the batch go on. At most ``concurrency`` requests are in flight over
    all ``generate`` calls.
    """

    name = "http"

    def __init__(
        self, base_url: str, model: str, *, headers: Mapping[str, str], options: HttpOptions, concurrency: int
    ):
        self.base_url, self.model, self.options = base_url.rstrip("/"), model, options
        self.headers = {**headers, **options.headers}
        self.revision = ""
        """Of the weights that were last pushed to the server; empty when none were. Generations carry it."""
        self._gate, self._running = GroupGate(concurrency), InFlight()
        self._client = httpx.AsyncClient(
            base_url=self.base_url,
            headers=self.headers,
            transport=options.transport,
            timeout=httpx.Timeout(options.retry.read_s, connect=options.retry.connect_s, pool=None),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        )

    def info(self) -> EngineInfo:
        """Dialect, model and address."""
        return EngineInfo(
            engine=self.name, model=self.model, revision=self.revision, details={"base_url": self.base_url}
        )

    @abstractmethod
    def build(self, request: Request, dropped: list[str]) -> tuple[str, dict[str, Any]]:
        """Path below the base URL and JSON body of ``request``. Raises ``DataError`` when it cannot be said.

        Fields of messages and tools that exist only on another wire are left out and listed in ``dropped``.
        """

    @abstractmethod
    def read(self, request: Request, payload: dict[str, Any]) -> Generation:
        """The generation in an answer. Raises ``HttpFailure`` or ``DataError`` when it is not what is promised."""

    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[Generation]:
        """Yield one generation per request as each is finished; ``GroupQueue`` gives the order of sending."""
        answers = ((request.request_id, self._answer(request)) for request in requests)
        async for generation in self._running.each(answers):
            yield generation

    async def _answer(self, request: Request) -> Generation:
        async with self._gate.turn(request.group or ("", request.request_id)):
            started = time.perf_counter()
            generation = await self._ask(request)
            return replace(generation, latency_s=time.perf_counter() - started)

    async def _ask(self, request: Request) -> Generation:
        rng = random.Random(f"{self.options.seed}:{request.request_id}")
        dropped: list[str] = []
        try:
            path, own = self.build(request, dropped)
        except DataError as error:
            return _failed(request, ErrorKind.BAD_REQUEST, str(error))
        body = {key: value for key, value in {**own, **self.options.extra_body}.items() if value is not None}
        asked = self.revision
        try:
            payload = await post_json(self._client, path, body, policy=self.options.retry, rng=rng)
            # Weights that changed on the way sampled a part of it, and nobody knows which.
            revision = asked if asked == self.revision else ""
            return replace(self.read(request, payload), dropped=tuple(dropped), revision=revision)
        except HttpFailure as failure:
            return _failed(request, failure.kind, str(failure))
        except (DataError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            reason = f"the answer is not what the protocol promises: {type(error).__name__}: {error}"
            return _failed(request, ErrorKind.BAD_RESPONSE, reason)

    async def cancel(self, request_id: str) -> bool:
        """Stop one request: its connection is closed, which makes a server stop computing."""
        return self._running.cancel(request_id)

    async def close(self) -> None:
        """Cancel what is running and close the connections."""
        self._running.cancel_all()
        await self._client.aclose()


def _failed(request: Request, kind: ErrorKind, reason: str) -> Generation:
    return Generation(request_id=request.request_id, stop=Stop.ERROR, error=f"{kind}: {reason}", error_kind=kind)
