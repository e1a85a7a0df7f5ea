"""Token counts of the vendors as disjoint counters, and back.

Counts that cannot be (negative, parts larger than their whole, absurdly large) count as nothing said: a good answer
never fails for its bill. The raw object is kept beside, and the caller marks what it estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.wire_request import (
    TokenUsage,
    usage_from_anthropic,
    usage_from_openai,
    usage_to_anthropic,
    usage_to_openai,
)
from firstchair.core.errors import DataError

MAX_COUNT = 10**12
"""Tokens; more than any answer can cost, and far inside of 64 bits."""
WRITE_1H = "cache_write_1h_tokens"
"""Our key in ``prompt_tokens_details``: the part of ``cache_write_tokens`` that is kept for an hour."""


def counts_from_openai(usage: Any) -> TokenCounts | None:
    """Counters of a Chat Completions ``usage``; ``None`` when it says nothing that can be."""
    if not isinstance(usage, Mapping) or not _objects(usage, "prompt_tokens_details", "completion_tokens_details"):
        return None
    try:
        read = usage_from_openai(usage)
    except DataError:
        return None
    hour = (usage.get("prompt_tokens_details") or {}).get(WRITE_1H, 0)
    return _counts(read, hour)


def counts_from_anthropic(usage: Any) -> TokenCounts | None:
    """Counters of a Messages ``usage``; ``None`` when it says nothing that can be."""
    if not isinstance(usage, Mapping) or not _objects(usage, "output_tokens_details", "cache_creation"):
        return None
    try:
        read = usage_from_anthropic(usage)
    except DataError:
        return None
    split = usage.get("cache_creation") or {}
    hour, short = split.get("ephemeral_1h_input_tokens", 0), split.get("ephemeral_5m_input_tokens", 0)
    if not read.cache_write and _is_count(hour) and _is_count(short):
        # Only the split was told.
        read = TokenUsage(read.input, read.output, read.cache_read, hour + short, read.reasoning)
    return _counts(read, hour)


def counts_from_gemini(usage: Any) -> TokenCounts | None:
    """Counters of a Gemini ``usageMetadata``; ``None`` when it says nothing that can be.

    ``promptTokenCount`` holds the cached part; thoughts are billed as output and stand beside the candidates' tokens.
    """
    if not isinstance(usage, Mapping):
        return None
    names = ("promptTokenCount", "cachedContentTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount")
    counts = [usage.get(name) or 0 for name in (*names, "thoughtsTokenCount")]
    if not all(map(_is_count, counts)):
        return None
    prompt, cached, tools, candidates, thoughts = counts
    return _counts(TokenUsage(prompt - cached + tools, candidates + thoughts, cached, 0, thoughts or None), 0)


def _objects(usage: Mapping[str, Any], *keys: str) -> bool:
    return all(isinstance(usage.get(key), Mapping | None) for key in keys)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def _counts(read: TokenUsage, hour: Any) -> TokenCounts | None:
    main = (read.input, read.cache_read, read.cache_write, read.output)
    if not all(_is_count(value) for value in (*main, hour)) or hour > read.cache_write:
        return None
    reasoning = read.reasoning if _is_count(read.reasoning) and read.reasoning <= read.output else None  # type: ignore[operator]
    return TokenCounts(
        input=read.input,
        cache_read=read.cache_read,
        cache_write_5m=read.cache_write - hour,
        cache_write_1h=hour,
        output=read.output,
        reasoning=reasoning,
    )


def _usage(counts: TokenCounts) -> TokenUsage:
    return TokenUsage(
        input=counts.input,
        output=counts.output,
        cache_read=counts.cache_read,
        cache_write=counts.cache_write_5m + counts.cache_write_1h,
        reasoning=counts.reasoning,
    )


def counts_to_openai(counts: TokenCounts) -> dict[str, Any]:
    """``usage`` of a Chat Completions answer."""
    out = usage_to_openai(_usage(counts))
    if counts.cache_write_1h:
        out["prompt_tokens_details"][WRITE_1H] = counts.cache_write_1h
    return out


def counts_to_anthropic(counts: TokenCounts) -> dict[str, Any]:
    """``usage`` of a Messages answer."""
    out = usage_to_anthropic(_usage(counts))
    if counts.cache_write_5m or counts.cache_write_1h:
        out["cache_creation"] = {
            "ephemeral_5m_input_tokens": counts.cache_write_5m,
            "ephemeral_1h_input_tokens": counts.cache_write_1h,
        }
    return out
