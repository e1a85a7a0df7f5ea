"""Questions to a judge: a model whose answer is one JSON value, read strictly, or a typed error.

    question ─► cache ─► slot, rate ─► engine (retries 429, 5xx, lost connections) ─► strict JSON ─► verdict
                  ▲                                                        │ unreadable
                  └─────────────── kept under its content ◄── verdict ◄── ONE repair call ─► JudgeError

Everything about one question ends by its deadline. A judge's failure is never a score.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from firstchair.chat.messages import Message, text_message
from firstchair.core.errors import GradingError
from firstchair.core.jsontext import JsonProblem, canonical, content_id, loads
from firstchair.engines.base import Engine, ErrorKind, Generation, Request, Sampling, Stop
from firstchair.engines.pace import Pace
from firstchair.rewards.verdict_cache import VerdictCache
from firstchair.traces.redact import REDACTED, redact_text

Verdict = TypeVar("Verdict")

FailureKind = Literal["config", "transport", "protocol"]
"""What to do about it: edit the settings, try again later, take another judge."""


class Why(StrEnum):
    """Why there is no verdict."""

    BAD_JSON = "bad_json"
    BAD_SCHEMA = "bad_schema"
    EMPTY = "empty"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    DEADLINE = "deadline"
    ERROR = "error"


class JudgeError(GradingError):
    """A judge that gave no verdict. The message holds no key, no prompt and no address with a secret in it."""

    def __init__(self, kind: FailureKind, why: Why | ErrorKind, detail: str, *, retryable: bool = False):
        self.kind, self.why, self.detail, self.retryable = kind, why, detail, retryable
        super().__init__(f"judge: {kind}: {why}: {detail}")


class Unreadable(Exception):
    """A reply that is no verdict; it is worth one repair call."""

    def __init__(self, why: Why, detail: str):
        self.why, self.detail = why, detail
        super().__init__(detail)


@dataclass(frozen=True)
class Question(Generic[Verdict]):
    """One question. ``read`` takes the JSON value and raises ``ValueError`` when it is not a verdict."""

    question_id: str
    messages: tuple[Message, ...]
    schema: Mapping[str, Any]
    read: Callable[[Any], Verdict]
    repeat: int = 0
    """Asked again on purpose when not 0: kept apart in the cache."""


def read_text(text: str, read: Callable[[Any], Verdict]) -> Verdict:
    """The verdict that is the whole of ``text``. Raises ``Unreadable``; nothing is guessed or coerced."""
    if not text.strip():
        raise Unreadable(Why.EMPTY, "")
    try:
        value = loads(text)
    except JsonProblem as error:
        raise Unreadable(Why.BAD_JSON, f"{error}: {text[:80]!r}") from None
    try:
        return read(value)
    except ValueError as error:
        raise Unreadable(Why.BAD_SCHEMA, f"{error}: {text[:80]!r}") from None


def text_of(generation: Generation) -> str:
    """What the judge said. Raises ``JudgeError`` where it said nothing, ``Unreadable`` where it was cut."""
    text = generation.message.text if generation.message is not None else generation.text
    if generation.stop is Stop.REFUSAL:
        raise JudgeError("protocol", Why.REFUSED, text[:80])
    if generation.stop is Stop.LENGTH:
        raise Unreadable(Why.TRUNCATED, text[-80:])
    if generation.stop is not Stop.END:
        kind = generation.error_kind
        why = kind or Why.ERROR
        detail = (generation.error or str(generation.stop)).removeprefix(f"{kind}: ")
        raise JudgeError(_FAILURES.get(kind, "transport"), why, detail, retryable=kind in _RETRYABLE)
    return text


_FAILURES: Mapping[ErrorKind | None, FailureKind] = {
    ErrorKind.AUTH: "config",
    ErrorKind.BAD_REQUEST: "config",
    ErrorKind.CONTEXT_OVERFLOW: "config",
    ErrorKind.BAD_RESPONSE: "protocol",
}
_RETRYABLE = frozenset({ErrorKind.RATE_LIMITED, ErrorKind.TIMEOUT, ErrorKind.CONNECTION, ErrorKind.SERVER})


_SAMPLING = Sampling(max_new_tokens=256)


class _Asking:
    """A question under way: those that ask the same wait for it, and hear of its failure too."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.error: JudgeError | None = None
        self.waiting = 0


class JudgeClient:
    """Asks one model. ``counts``: calls ``asked``, questions ``cached``, ``repaired`` and ``failed: why``."""

    def __init__(
        self,
        engine: Engine,
        *,
        sampling: Sampling = _SAMPLING,
        cache: VerdictCache | None = None,
        concurrency: int = 16,
        question_s: float = 600.0,
        requests_per_minute: float | None = None,
        secrets: Sequence[str] = (),
    ):
        """``question_s`` counts from when a question gets one of the ``concurrency`` slots. ``requests_per_minute``
        spaces the calls of this client; the engine's own retries wait as the server asks. ``secrets`` never stand in
        an error.
        """
        self._engine, self._sampling, self._cache = engine, sampling, cache or VerdictCache()
        self._slots, self._question_s, self._secrets = asyncio.Semaphore(concurrency), question_s, tuple(secrets)
        self._pace = Pace(requests_per_minute)
        self._asking: dict[str, _Asking] = {}
        self.model = engine.info().model
        self.counts: Counter[str] = Counter()

    async def ask(self, question: Question[Verdict]) -> Verdict:
        """The verdict. Raises ``JudgeError``. A question that is being asked already is not asked twice."""
        key = self._key(question)
        asking = self._asking.setdefault(key, _Asking())
        asking.waiting += 1
        try:
            async with asking.lock:
                return await self._ask_once(key, question, asking)
        finally:
            asking.waiting -= 1
            if not asking.waiting:  # a failure is not remembered beyond those that waited for it
                del self._asking[key]

    async def _ask_once(self, key: str, question: Question[Verdict], asking: _Asking) -> Verdict:
        if asking.error is not None:
            raise asking.error
        kept = self._kept(key, question)
        if kept is not None:
            self.counts["cached"] += 1
            return kept[0]
        async with self._slots:
            try:
                text = await self._within_deadline(question)
            except JudgeError as error:
                self.counts[f"failed: {error.why}"] += 1
                asking.error = error
                raise
        return question.read(loads(self._cache.put(key, canonical(loads(text)))))

    async def close(self) -> None:
        """Close the engine and the cache."""
        await self._engine.close()
        self._cache.close()

    def _key(self, question: Question[Any]) -> str:
        return content_id(
            {
                "model": self.model,
                "messages": msgspec.to_builtins(question.messages),
                "schema": question.schema,
                "sampling": msgspec.to_builtins(self._sampling),
                "repeat": question.repeat,
            }
        )

    def _kept(self, key: str, question: Question[Verdict]) -> tuple[Verdict] | None:
        text = self._cache.get(key)
        if text is None:
            return None
        try:
            return (read_text(text, question.read),)
        except Unreadable:  # written by another version, or by hand
            self._cache.forget(key)
            return None

    async def _within_deadline(self, question: Question[Any]) -> str:
        try:
            async with asyncio.timeout(self._question_s):
                return await self._ask(question)
        except TimeoutError:
            raise JudgeError(
                "transport", Why.DEADLINE, f"no verdict within {self._question_s:g} s", retryable=True
            ) from None

    async def _ask(self, question: Question[Any]) -> str:
        """The text of a readable verdict, after at most one repair."""
        said = await self._generate(question.question_id, question)
        try:
            text = text_of(said)
            read_text(text, question.read)
            return text
        except Unreadable as first:
            problem = first
        self.counts["repaired"] += 1
        said = await self._generate(f"{question.question_id}:repair", _repair(question, said, problem))
        try:
            text = text_of(said)
            read_text(text, question.read)
            return text
        except Unreadable as error:
            detail = f"{error.detail} (and before its repair: {problem.why})"
            raise JudgeError("protocol", error.why, self._clean(detail)) from None

    async def _generate(self, request_id: str, question: Question[Any]) -> Generation:
        request = Request(
            request_id=request_id,
            messages=question.messages,
            sampling=self._sampling,
            json_schema=question.schema,
        )
        await self._pace.turn()
        self.counts["asked"] += 1
        async with aclosing(cast("AsyncGenerator[Generation]", self._engine.generate([request]))) as generations:
            generation = await anext(generations)
        if generation.error is not None:
            return replace(generation, error=self._clean(generation.error))
        return generation

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return redact_text(text)


_SAID_LIMIT = 2000


def _repair(question: Question[Verdict], said: Generation, problem: Unreadable) -> Question[Verdict]:
    """The same question with the unreadable reply behind it and what is wrong with it."""
    text = said.message.text if said.message is not None else said.text
    again = (
        f"This could not be read ({problem.why}). Answer the question above again, with nothing but one JSON object "
        f"of this schema: {canonical(question.schema)}"
    )
    shown = text_message("assistant", text[:_SAID_LIMIT] or "(nothing)")
    return Question(
        question.question_id, (*question.messages, shown, text_message("user", again)), question.schema, question.read
    )
