"""Who leads: a model behind a server or one loaded here, as a config says; and the one place where it is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from firstchair.core.config import Strict
from firstchair.rollout.policy import Policy

if TYPE_CHECKING:
    from firstchair.engines.base import Engine


class _Acting(Strict):
    """How it acts, wherever it runs."""

    temperature: float = Field(default=1.0, ge=0, le=100)
    """0 is greedy."""
    max_new_tokens: int = Field(default=2048, ge=1)
    """Of one action."""


class ServerPolicy(_Acting):
    """A policy behind a server."""

    type: Literal["server"]
    base_url: str
    """Of OpenAI's dialect with its ``/v1``."""
    model: str
    """Its name on that server."""
    dialect: Literal["openai", "anthropic"] = "openai"
    api_key_env: str = ""
    """Environment variable of its key; empty for a server without keys."""
    calling: Literal["native", "prompt"] = "native"
    """``prompt``: tools and calls as text, for a model trained on that."""


class LocalPolicy(_Acting):
    """A policy that is loaded into this process."""

    type: Literal["local"]
    model: Path
    """Its directory."""
    adapter: Path | None = None
    """Of PEFT, on top of it."""
    dtype: str = "float32"
    device: str = "cpu"


PolicySpec = Annotated[ServerPolicy | LocalPolicy, Field(discriminator="type")]


@asynccontextmanager
async def open_policy(
    spec: ServerPolicy | LocalPolicy, *, concurrency: int, key_field: str = "policy.api_key_env"
) -> AsyncIterator[Policy]:
    """The policy, closed at the end. ``concurrency`` is how many requests go to its server at once.

    Raises ``ConfigError`` for a key that is not set, naming ``key_field``, and for a model that cannot be loaded.
    """
    from firstchair.engines.base import Sampling
    from firstchair.rollout.engine_policy import EnginePolicy

    sampling = Sampling(max_new_tokens=spec.max_new_tokens, temperature=spec.temperature)
    if isinstance(spec, LocalPolicy):
        from firstchair.chat.trained import prompts_from, trained_renderer
        from firstchair.engines.transformers_engine import TransformersEngine

        renderer = trained_renderer(prompts_from(spec.model, spec.adapter))
        engine: Engine = TransformersEngine(
            spec.model, renderer, spec.dtype, adapter=spec.adapter, device=spec.device
        )
        policy: Policy = EnginePolicy(engine, renderer, sampling, record_tokens=False)
    else:
        engine = _server_engine(spec, concurrency, key_field)
        seeded = spec.dialect != "anthropic"
        policy = EnginePolicy(engine, None, sampling, record_tokens=False, seeded=seeded)
        if spec.calling == "prompt":
            from firstchair.rollout.orchestration.prompt_calls import PromptCalls

            policy = PromptCalls(policy)
    try:
        yield policy
    finally:
        await engine.close()


def _server_engine(spec: ServerPolicy, concurrency: int, key_field: str) -> Engine:
    from firstchair.engines.chat_engine import chat_engine
    from firstchair.engines.expert_asking import OPTIONAL_FIELDS
    from firstchair.engines.http_engine import HttpOptions, key_from

    key = key_from(spec.api_key_env, field=key_field)
    options = HttpOptions(optional=OPTIONAL_FIELDS)
    return chat_engine(spec.dialect, spec.base_url, spec.model, api_key=key, concurrency=concurrency, options=options)
