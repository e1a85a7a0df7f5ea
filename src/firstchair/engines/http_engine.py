"""What every engine behind HTTP shares: bounded concurrency, order by group, retries, cancel."""

from __future__ import annotations

import copy
import os
import random
import re
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

import httpx

from firstchair.catalog.token_counts import TokenCounts
from firstchair.core.errors import ConfigError, DataError
from firstchair.engines.base import EngineInfo, ErrorKind, Generation, Request, Stop
from firstchair.engines.group_queue import GroupGate
from firstchair.engines.http_retry import HttpFailure, RetryPolicy, Watch, post_json
from firstchair.engines.inflight import InFlight
from firstchair.engines.pool_transport import pool_transport


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
    unsent: frozenset[str] = frozenset()
    """Fields of the body that are never sent: the model is known to refuse them."""
    optional: frozenset[str] = frozenset()
    """Fields that are left out, from then on, once the server has refused them by name; ``Generation.dropped`` lists
    them."""
    transport: httpx.AsyncBaseTransport | None = None
    """In place of sockets, for tests."""


class HttpEngine(ABC):
    """An ``Engine`` whose model is served over HTTP; a subclass knows one dialect.

    No failure of a request reaches the caller as an exception: it becomes ``Stop.ERROR`` with ``error_kind`` and
    the reason, and the other requests of the batch go on. At most ``concurrency`` requests are in flight over
    all ``generate`` calls.
    """

    name = "http"
    sampling_at = ""
    """Key of the body under which the dialect keeps its sampling fields; empty: they lie on top."""

    def __init__(
        self, base_url: str, model: str, *, headers: Mapping[str, str], options: HttpOptions, concurrency: int
    ):
        self.base_url, self.model, self.options = base_url.rstrip("/"), model, options
        self.headers = {**headers, **options.headers}
        self.revision = ""
        """Of the weights that were last pushed to the server; empty when none were. Generations carry it."""
        self._refused: set[str] = set()
        """Of ``options.optional``, what the server has refused."""
        self._gate, self._running = GroupGate(concurrency), InFlight()
        self._client = httpx.AsyncClient(
            base_url=self.base_url,
            headers=self.headers,
            transport=options.transport or pool_transport(self.base_url, limit=concurrency, tls=_tls()),
            verify=_tls(),
            timeout=httpx.Timeout(options.retry.read_s, connect=options.retry.connect_s, pool=None),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        )

    def with_model(self, model: str, *, extra_body: Mapping[str, Any], unsent: frozenset[str]) -> Self:
        """Another model at the same server: connections and slots are shared, and closing one closes all."""
        other = copy.copy(self)
        other.model, other._refused = model, set()
        other.options = replace(self.options, extra_body=extra_body, unsent=unsent)
        return other

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

    def counts(self, payload: dict[str, Any]) -> TokenCounts | None:
        """The counters of an answer; ``None`` when it has none that can be."""
        return None

    def billed_nano(self, payload: dict[str, Any]) -> int | None:
        """Nano-USD that an answer says it cost; ``None`` when it does not say."""
        return None

    def served_model(self, payload: dict[str, Any]) -> str:
        """The model that an answer says it came from."""
        return str(payload.get("model") or "")

    def check(self, payload: dict[str, Any]) -> None:  # noqa: B027 - most dialects hide nothing
        """Raise ``HttpFailure`` for an answer that hides a failure of the server, so that it is tried again."""

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
        dropped: list[str] = []
        try:
            path, own = self.build(request, dropped)
        except DataError as error:
            return _failed(request, ErrorKind.BAD_REQUEST, str(error))
        body = {key: value for key, value in {**own, **self.options.extra_body}.items() if value is not None}
        tally = _Tally(self)
        body = _without(body, self.options.unsent, self.sampling_at)
        generation = await self._read(request, path, body, tally, dropped)
        return replace(
            generation,
            usage=tally.usage,
            billed_nano=tally.billed_nano,
            served_model=tally.served_model,
            tries=tally.tries,
        )

    async def _read(
        self, request: Request, path: str, body: dict[str, Any], tally: _Tally, dropped: list[str]
    ) -> Generation:
        asked = self.revision
        try:
            payload = await self._post(request, path, body, tally, dropped)
            # Weights that changed on the way sampled a part of it, and nobody knows which.
            revision = asked if asked == self.revision else ""
            return replace(self.read(request, payload), dropped=tuple(dropped), revision=revision)
        except HttpFailure as failure:
            return _failed(request, failure.kind, str(failure))
        except (DataError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            reason = f"the answer is not what the protocol promises: {type(error).__name__}: {error}"
            return _failed(request, ErrorKind.BAD_RESPONSE, reason)

    async def _post(
        self, request: Request, path: str, body: dict[str, Any], tally: _Tally, dropped: list[str]
    ) -> dict[str, Any]:
        """The answer to ``body``, or to what is left of it when the server refuses optional fields."""
        rng = random.Random(f"{self.options.seed}:{request.request_id}")
        while True:
            sent = _without(body, self._refused, self.sampling_at)
            try:
                payload = await post_json(self._client, path, sent, policy=self.options.retry, rng=rng, watch=tally)
            except HttpFailure as failure:
                named = _refused_field(failure, sent, self.options.optional, self.sampling_at)
                if named is None:
                    raise
                self._refused.add(named)
            else:
                there = _fields(body, self.sampling_at)
                dropped += [f"{name}: the server refuses it" for name in sorted(self._refused & there)]
                return payload

    async def cancel(self, request_id: str) -> bool:
        """Stop one request: its connection is closed, which makes a server stop computing."""
        return self._running.cancel(request_id)

    async def close(self) -> None:
        """Cancel what is running and close the connections."""
        self._running.cancel_all()
        await self._client.aclose()


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Reading the certificates takes longer than all the rest of a client; once a process is enough."""
    return httpx.create_ssl_context()


class _Tally(Watch):
    """What the tries of one request came to."""

    def __init__(self, engine: HttpEngine):
        self._engine = engine
        self.tries = 0
        self.usage: TokenCounts | None = None
        self.billed_nano: int | None = None
        self.served_model = ""

    def began(self) -> None:
        self.tries += 1

    def answered(self, payload: dict[str, Any]) -> None:
        counts, billed = self._engine.counts(payload), self._engine.billed_nano(payload)
        if counts is not None:
            self.usage = counts if self.usage is None else self.usage + counts
        if billed is not None:
            self.billed_nano = billed + (self.billed_nano or 0)
        self.served_model = self._engine.served_model(payload)
        self._engine.check(payload)


def _without(body: dict[str, Any], names: Set[str], at: str) -> dict[str, Any]:
    kept = {key: value for key, value in body.items() if key not in names}
    if at in kept:
        kept[at] = {key: value for key, value in kept[at].items() if key not in names}
    return kept


def _fields(body: dict[str, Any], at: str) -> set[str]:
    return {*body, *body.get(at, ())}


def _refused_field(failure: HttpFailure, sent: dict[str, Any], optional: Set[str], at: str) -> str | None:
    """The optional field that a 400 names, in the words of any server."""
    if failure.kind is not ErrorKind.BAD_REQUEST or failure.status not in (400, 422):
        return None
    named = (name for name in sorted(optional & _fields(sent, at)) if re.search(rf"\b{name}\b", str(failure)))
    return next(named, None)


def _failed(request: Request, kind: ErrorKind, reason: str) -> Generation:
    return Generation(request_id=request.request_id, stop=Stop.ERROR, error=f"{kind}: {reason}", error_kind=kind)
