"""A model behind a server, asked in messages: the engine of the dialect that the server speaks."""

from __future__ import annotations

from firstchair.catalog.backends import Dialect
from firstchair.engines.anthropic_engine import AnthropicEngine
from firstchair.engines.gemini_engine import GeminiEngine
from firstchair.engines.http_engine import HttpEngine, HttpOptions
from firstchair.engines.openai_engine import OpenAIEngine


def chat_engine(
    dialect: Dialect,
    base_url: str,
    model: str,
    *,
    api_key: str = "none",
    concurrency: int = 16,
    options: HttpOptions | None = None,
) -> HttpEngine:
    """The engine; close it. ``openai`` is for every compatible server, and asks no token ids."""
    if dialect == "anthropic":
        return AnthropicEngine(base_url, model, api_key=api_key, concurrency=concurrency, options=options)
    if dialect == "gemini":
        return GeminiEngine(base_url, model, api_key=api_key, concurrency=concurrency, options=options)
    return OpenAIEngine(base_url, model, api_key=api_key, mode="chat", concurrency=concurrency, options=options)
