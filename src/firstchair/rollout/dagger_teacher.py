"""The teacher of DAgger: a policy that says what it would do in states that somebody else reached.

    state ─► cache ─► budget ─► policy (an expert, or a provider's model; its engine retries) ─► action
               ▲                                        │ error, refusal, unreadable
               └──────── kept by content ◄── action     └─► counted; the state stays without a label

A teacher that fails says nothing: no label is guessed in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, Tool
from firstchair.core.jsontext import canonical, content_id
from firstchair.engines.base import Stop
from firstchair.rewards.verdict_cache import VerdictCache
from firstchair.rollout.policy import Policy, PolicyReply, PolicyRequest
from firstchair.traces.session import Usage

GIVE_UP = 20
"""Failures in a row after which a teacher counts as down and is not asked again: each costs its retries."""


class Untaught(StrEnum):
    """Why there is no label, beside the kinds of an engine's errors."""

    CALLS = "budget: calls"
    TOKENS = "budget: tokens"
    USD = "budget: usd"
    DOWN = "down"
    MALFORMED = "malformed"
    REFUSED = "refused"
    ERROR = "error"
    VIOLATION = "violation"
    """What it did broke a rule of the environment: it is not learnt from."""


@dataclass(frozen=True)
class Budget:
    """The most that a teacher may cost; ``None`` is no bound. Calls under way when a bound is reached are let end, so
    tokens and dollars may pass it by what those cost; calls do not.
    """

    calls: int | None = None
    tokens: int | None = None
    """Read and written together, those of the provider's cache too."""
    usd: float | None = None


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What a teacher has cost. Answers from the cache cost nothing."""

    calls: int = 0
    tokens: int = 0
    usd: float | None = None
    """``None`` where prices are not known."""
    cached: int = 0

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        usd = None if self.usd is None and other.usd is None else (self.usd or 0.0) + (other.usd or 0.0)
        return Spent(
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            usd=usd,
            cached=self.cached + other.cached,
        )

    def minus(self, before: Spent) -> Spent:
        """What came after ``before``."""
        return Spent(
            calls=self.calls - before.calls,
            tokens=self.tokens - before.tokens,
            usd=None if self.usd is None else self.usd - (before.usd or 0.0),
            cached=self.cached - before.cached,
        )


NO_BUDGET, NOTHING = Budget(), Spent()


@dataclass
class DaggerTeacher:
    """Asks ``policy`` within a budget. ``spent`` may start with what earlier rounds have cost."""

    policy: Policy
    budget: Budget = NO_BUDGET
    usd: Callable[[Usage], float] | None = None
    """The price of a call; ``None`` where it is not known."""
    cache: VerdictCache | None = None
    identity: dict[str, object] = field(default_factory=dict)
    """What, beside the question, decides the answer (model, temperature): part of the key in the cache."""
    spent: Spent = NOTHING
    failures: Counter[str] = field(default_factory=Counter)
    """Why there was no label → how often."""
    _in_a_row: int = 0

    @property
    def name(self) -> str:
        """Who teaches."""
        return self.policy.name

    @property
    def exhausted(self) -> Untaught | None:
        """Why it will not be asked again; ``None`` when it may be."""
        limit, spent = self.budget, self.spent
        if self._in_a_row >= GIVE_UP:
            return Untaught.DOWN
        if limit.calls is not None and spent.calls >= limit.calls:
            return Untaught.CALLS
        if limit.tokens is not None and spent.tokens >= limit.tokens:
            return Untaught.TOKENS
        if limit.usd is not None and (spent.usd or 0.0) >= limit.usd:
            return Untaught.USD
        return None

    async def ask(self, episode_id: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Action | None:
        """What the teacher does at the end of ``messages``; ``None`` when it does not say (see ``failures``)."""
        key = self._key(messages, tools)
        kept = self._kept(key)
        if kept is not None:
            self.spent = self.spent.plus(Spent(cached=1))
            return kept
        why = self.exhausted
        if why is not None:
            self.failures[why] += 1
            return None
        # Before the call, so that calls under way at the same time cannot pass the bound together.
        self.spent = self.spent.plus(Spent(calls=1))
        reply = await self._reply(PolicyRequest(f"{episode_id}:teacher", tuple(messages), tuple(tools)))
        self._pay(reply)
        problem = _problem(reply)
        if problem is not None:
            self.failures[problem] += 1
            self._in_a_row += 1
            return None
        self._in_a_row = 0
        assert reply.action is not None
        if self.cache is not None:
            self.cache.put(key, canonical(msgspec.to_builtins(reply.action)))
        return reply.action

    async def _reply(self, request: PolicyRequest) -> PolicyReply:
        try:
            (reply,) = await self.policy.act([request])
        except Exception as error:  # noqa: BLE001 - the rollout boundary: recorded and counted
            return PolicyReply(error=f"policy: {type(error).__name__}: {error}")
        return reply

    def _pay(self, reply: PolicyReply) -> None:
        if reply.call is None:
            return
        usage = reply.call.usage
        tokens = usage.input + usage.cache_read + usage.cache_write + usage.output
        self.spent = self.spent.plus(Spent(tokens=tokens, usd=self.usd(usage) if self.usd is not None else None))

    def _key(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        if self.cache is None:
            return ""
        return content_id(
            {
                "teacher": self.name,
                "identity": self.identity,
                "messages": msgspec.to_builtins(tuple(messages)),
                "tools": msgspec.to_builtins(tuple(tools)),
            }
        )

    def _kept(self, key: str) -> Action | None:
        text = self.cache.get(key) if self.cache is not None else None
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=Action)
        except msgspec.DecodeError:  # written by another version, or by hand
            assert self.cache is not None
            self.cache.forget(key)
            return None


def _problem(reply: PolicyReply) -> str | None:
    """Why ``reply`` is no label."""
    if reply.error is not None:
        return str(reply.error_kind or Untaught.ERROR)
    if reply.stop is Stop.REFUSAL:
        return Untaught.REFUSED
    if reply.malformed or reply.action is None:
        return Untaught.MALFORMED
    return None
