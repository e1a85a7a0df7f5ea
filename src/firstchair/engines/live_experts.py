"""Experts behind real servers: one question, one answer, and what it cost to the last nano-dollar.

    ask(expert, question) ─► pace of its server ─► slot ─► tries: 429, 5xx, timeouts, lost connections ─► ExpertAnswer
                             └──── shared by all experts of that server, as are its connections ────┘

What fails is an answer with ``error_kind``. It is counted, and says nothing about the expert's skill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import httpx

from firstchair.catalog.backends import Backend, reachable, unreachable
from firstchair.catalog.experts import ExpertCatalog, ProviderLimits
from firstchair.catalog.prices import ModelPrice, PriceTable
from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import text_message
from firstchair.core.errors import ConfigError
from firstchair.engines.base import ErrorKind, Generation, Request, Sampling, Stop
from firstchair.engines.chat_engine import chat_engine
from firstchair.engines.expert import ExpertAnswer
from firstchair.engines.expert_asking import OPTIONAL_FIELDS, asking
from firstchair.engines.http_engine import HttpEngine, HttpOptions
from firstchair.engines.http_retry import RetryPolicy
from firstchair.engines.pace import Pace
from firstchair.traces.redact import REDACTED, redact_text

PAUSES_S = 60.0
"""What all pauses between the tries of one question may add to the tries themselves."""


@dataclass(frozen=True)
class _Lane:
    """One server: its connections, its slots and its pace."""

    engine: HttpEngine
    pace: Pace
    key: str


@dataclass(frozen=True)
class _Reached:
    """One expert at its server."""

    backend: Backend
    lane: _Lane
    engine: HttpEngine
    sampling: Sampling
    price: ModelPrice | None


class LiveExperts:
    """The experts of ``catalog``, each at the first server that ``environ`` has a key for. An ``ExpertPool``.

    ``counts``: questions ``asked``, ``answered``, ``retried``, ``cut``, ``refused``, ``price missing`` and
    ``failed: KIND``. Raises ``ConfigError`` listing what is missing where an expert cannot be reached: narrow the
    catalog (``only``, ``without``) instead of finding out in the middle of a run.
    """

    def __init__(
        self,
        catalog: ExpertCatalog,
        prices: PriceTable,
        environ: Mapping[str, str],
        *,
        seed: int = 0,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        """``seed`` is of the pauses' jitter. ``transport`` takes the place of sockets, for tests."""
        found, missing = reachable(catalog, environ)
        if missing:
            raise ConfigError(unreachable(missing))
        self._seed, self._transport = seed, transport
        self._lanes: dict[tuple[str, str, str], _Lane] = {}
        self._experts: dict[str, _Reached] = {}
        for name, backend in found.items():
            lane = self._lane(backend, catalog.providers.get(backend.provider, ProviderLimits()), environ)
            how = asking(catalog.expert(name), backend)
            engine = lane.engine.with_model(backend.model, extra_body=how.extra_body, unsent=how.unsent)
            self._experts[name] = _Reached(backend, lane, engine, how.sampling, backend.price(prices))
        self._number = 0
        self.counts: Counter[str] = Counter()

    @property
    def experts(self) -> tuple[str, ...]:
        """Who can be asked."""
        return tuple(self._experts)

    async def ask(self, expert: str, question: str) -> ExpertAnswer:
        """The answer of ``expert``. What fails is an answer with ``error``, an unknown name too."""
        self.counts["asked"] += 1
        reached = self._experts.get(expert)
        if reached is None:
            error = f"{expert}: no such expert; expected one of {', '.join(self._experts)}"
            answer = ExpertAnswer(expert, error=error, error_kind=ErrorKind.BAD_REQUEST, cost_nano=0, tries=0)
        else:
            await reached.lane.pace.turn()
            answer = _answer(expert, await self._generate(reached, expert, question), reached)
        self._count(answer)
        return answer

    async def close(self) -> None:
        """Stop what is under way and close the connections."""
        for lane in self._lanes.values():
            await lane.engine.close()

    async def _generate(self, reached: _Reached, expert: str, question: str) -> Generation:
        self._number += 1
        request = Request(
            request_id=f"{expert}:{self._number}",
            messages=(text_message("user", question),),
            sampling=reached.sampling,
        )
        async with aclosing(cast("AsyncGenerator[Generation]", reached.engine.generate([request]))) as generations:
            generation = await anext(generations)
        if generation.stop is Stop.REFUSAL:
            self.counts["refused"] += 1
        return generation

    def _count(self, answer: ExpertAnswer) -> None:
        self.counts["answered" if answer.error_kind is None else f"failed: {answer.error_kind}"] += 1
        for word, happened in (
            ("retried", answer.tries > 1),
            ("cut", answer.cut),
            ("price missing", answer.cost_nano is None),
        ):
            if happened:
                self.counts[word] += 1

    def _lane(self, backend: Backend, limits: ProviderLimits, environ: Mapping[str, str]) -> _Lane:
        where = (backend.provider, backend.base_url, backend.key_env)
        if where not in self._lanes:
            key = environ.get(backend.key_env, "")
            engine = self._open(backend, limits, key or "none")
            self._lanes[where] = _Lane(engine, Pace(limits.requests_per_minute), key)
        return self._lanes[where]

    def _open(self, backend: Backend, limits: ProviderLimits, key: str) -> HttpEngine:
        tries = 1 + limits.retries
        policy = RetryPolicy(tries=tries, read_s=limits.timeout_s, total_s=tries * limits.timeout_s + PAUSES_S)
        options = HttpOptions(retry=policy, seed=self._seed, optional=OPTIONAL_FIELDS, transport=self._transport)
        return chat_engine(
            backend.dialect,
            backend.base_url,
            backend.model,
            api_key=key,
            concurrency=limits.concurrency,
            options=options,
        )


def _answer(expert: str, generation: Generation, reached: _Reached) -> ExpertAnswer:
    failed = generation.stop in (Stop.ERROR, Stop.CANCELLED)
    return ExpertAnswer(
        expert=expert,
        text="" if failed or generation.message is None else generation.message.text,
        served_model=generation.served_model,
        usage=generation.usage or TokenCounts(),
        cost_nano=_cost_nano(generation, reached, failed=failed),
        latency_s=generation.latency_s,
        error=_reason(generation, reached.lane.key) if failed else None,
        error_kind=(generation.error_kind or ErrorKind.ENGINE) if failed else None,
        tries=generation.tries,
        cut=generation.stop is Stop.LENGTH,
    )


def _reason(generation: Generation, key: str) -> str:
    """Why there is no answer, without the key: some servers repeat what they were sent."""
    reason = generation.error or str(generation.stop)
    return redact_text(reason.replace(key, REDACTED) if key else reason)


def _cost_nano(generation: Generation, reached: _Reached, *, failed: bool) -> int | None:
    """Nano-USD of every try that was answered; tries that nobody counted (a timeout, a 500) are not in it."""
    if reached.backend.provider == "openrouter" and generation.billed_nano is not None:
        # Exact: which of its servers answered, and at which price, only OpenRouter knows.
        return generation.billed_nano
    if generation.usage is None:
        return 0 if failed or reached.backend.provider == "local" else None
    return None if reached.price is None else reached.price.cost_nano(generation.usage)
