"""The teacher that a recipe names, opened for a round."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from firstchair.catalog.backends import Dialect
from firstchair.engines.base import Sampling
from firstchair.engines.chat_engine import chat_engine
from firstchair.engines.http_engine import HttpEngine, HttpOptions, key_from
from firstchair.engines.http_retry import RetryPolicy
from firstchair.evals import metrics
from firstchair.rewards.verdict_cache import VerdictCache
from firstchair.rollout.dagger_teacher import Budget, DaggerTeacher, Spent
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.traces.session import Usage
from firstchair.train.dagger_recipe import AnthropicTeacher, OpenAITeacher, Prices, ScriptedTeacher

TeacherChoice = ScriptedTeacher | OpenAITeacher | AnthropicTeacher


def check_teacher(spec: TeacherChoice) -> str:
    """The provider's key; ``none`` where none is needed. Raises ``ConfigError`` when its variable is not set."""
    return key_from("" if isinstance(spec, ScriptedTeacher) else spec.api_key_env, field="teacher.api_key_env")


@asynccontextmanager
async def open_teacher(spec: TeacherChoice, *, cache: Path, spent: Spent) -> AsyncIterator[DaggerTeacher]:
    """The teacher for the length of the block. ``cache`` holds a provider's answers unless ``spec`` names a file;
    ``spent`` is what earlier rounds have taken of the budget.
    """
    if isinstance(spec, ScriptedTeacher):
        yield DaggerTeacher(TeacherPolicy(Teacher(), name="desk-teacher"), spent=spent)
        return
    engine, answers = _engine(spec), VerdictCache(spec.cache or cache)
    sampling = Sampling(max_new_tokens=spec.max_tokens, temperature=spec.temperature)
    try:
        yield DaggerTeacher(
            EnginePolicy(engine, sampling=sampling, record_tokens=False),
            Budget(calls=spec.budget.calls, tokens=spec.budget.tokens, usd=spec.budget.usd),
            usd=_price(spec.prices),
            cache=answers,
            identity={"type": spec.type, "temperature": spec.temperature, "max_tokens": spec.max_tokens},
            spent=spent,
        )
    finally:
        await engine.close()
        answers.close()


def _engine(spec: OpenAITeacher | AnthropicTeacher) -> HttpEngine:
    key = check_teacher(spec)
    options = HttpOptions(retry=RetryPolicy(tries=spec.tries, read_s=spec.try_s))
    dialect: Dialect = "anthropic" if isinstance(spec, AnthropicTeacher) else "openai"
    return chat_engine(dialect, spec.base_url, spec.model, api_key=key, concurrency=spec.concurrency, options=options)


def _price(prices: Prices | None) -> Callable[[Usage], float] | None:
    if prices is None:
        return None
    table = metrics.Prices(input=prices.input, output=prices.output, cached=prices.cached)

    def usd(usage: Usage) -> float:
        prompt = usage.input + usage.cache_read + usage.cache_write
        return table.usd(prompt, usage.cache_read, usage.output)

    return usd
