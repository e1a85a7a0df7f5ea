"""OpenAI Chat Completions: JSON Lines of ``{"messages", "tools"}``, or of ``{"request", "response"}`` exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from firstchair.chat.messages import Message
from firstchair.chat.openai_wire import message_from_openai_response, messages_from_openai, tools_from_openai
from firstchair.core.errors import DataError
from firstchair.traces.importers.api_log import import_api_log
from firstchair.traces.importers.base import Imported, ImportOptions
from firstchair.traces.importers.exchanges import Dialect, count
from firstchair.traces.session import CallTokens, Usage


def import_openai(path: Path, options: ImportOptions) -> Iterator[Imported]:
    """Stream the sessions of a file. A failed tool result begins with ``[tool_error] `` or a given prefix."""
    return import_api_log(path, options, OPENAI)


def read_openai_messages(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """The ``messages`` of a request or record. Raises ``DataError``."""
    rows = row.get("messages")
    if not isinstance(rows, list):
        found = "no such field" if "messages" not in row else type(rows).__name__
        raise DataError(f"found {found}; expected a list of Chat Completions messages", field="messages")
    return messages_from_openai(rows, strict=False)


def openai_usage(response: Mapping[str, Any]) -> Usage:
    """Disjoint counters: OpenAI's prompt count includes what came from its cache."""
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details")
    cached = count(details, "cached_tokens") if isinstance(details, dict) else 0
    prompt = count(usage, "prompt_tokens")
    return Usage(input=max(prompt - cached, 0), output=count(usage, "completion_tokens"), cache_read=cached)


def openai_finish(response: Mapping[str, Any]) -> str | None:
    """``finish_reason`` of the first choice."""
    reason = _first_choice(response).get("finish_reason")
    return reason if isinstance(reason, str) else None


def openai_tokens(response: Mapping[str, Any]) -> CallTokens | None:
    """What vLLM adds when it is asked to (``return_token_ids`` with ``logprobs``); ``None`` unless all is there.

    Raises ``DataError`` when ids and log-probabilities do not belong together.
    """
    choice = _first_choice(response)
    prompt = choice.get("prompt_token_ids") or response.get("prompt_token_ids")
    scored = choice.get("logprobs")
    content = scored.get("content") if isinstance(scored, dict) else None
    if not prompt or choice.get("token_ids") is None or content is None:
        return None
    rows = {"prompt_ids": prompt, "completion_ids": choice["token_ids"], "logprobs": content}
    try:
        rows["logprobs"] = [entry["logprob"] for entry in content]
        tokens = msgspec.convert(rows, CallTokens)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise DataError(f"not token ids and logprobs: {error}", field="response.choices[0].token_ids") from None
    tokens.check(field="response.choices[0].logprobs")
    return tokens


def _first_choice(response: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = response.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


OPENAI = Dialect(
    provider="openai",
    used=frozenset({"messages", "tools"}),
    read_prompt=read_openai_messages,
    read_tools=tools_from_openai,
    read_reply=message_from_openai_response,
    read_usage=openai_usage,
    read_finish=openai_finish,
    read_tokens=openai_tokens,
)
