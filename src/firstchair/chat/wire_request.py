"""What a request says beside its messages, between the OpenAI and the Anthropic wire: pure, total tables.

Tool choice, stop reasons, token limits and usage. Whatever has no counterpart is refused by name or kept under
its native word; nothing turns into something else silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from firstchair.core.errors import BadRequest, DataError

MIN_THINKING_TOKENS = 1024
"""Least thinking budget that Anthropic accepts."""


class Finish(StrEnum):
    """Why an answer ended, provider aside. Never merged into one another."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    STOP_SEQUENCE = "stop_sequence"
    REFUSAL = "refusal"
    PAUSE = "pause"
    CONTEXT_WINDOW = "context_window"


_FROM_ANTHROPIC: Mapping[str, Finish] = MappingProxyType(
    {
        "end_turn": Finish.STOP,
        "tool_use": Finish.TOOL_CALLS,
        "max_tokens": Finish.LENGTH,
        "stop_sequence": Finish.STOP_SEQUENCE,
        "refusal": Finish.REFUSAL,
        "pause_turn": Finish.PAUSE,
        "model_context_window_exceeded": Finish.CONTEXT_WINDOW,
    }
)
_TO_ANTHROPIC: Mapping[Finish, str] = MappingProxyType({finish: word for word, finish in _FROM_ANTHROPIC.items()})
_FROM_OPENAI: Mapping[str, Finish] = MappingProxyType(
    {
        "stop": Finish.STOP,
        "tool_calls": Finish.TOOL_CALLS,
        "length": Finish.LENGTH,
        "content_filter": Finish.REFUSAL,
    }
)
_TO_OPENAI: Mapping[Finish, str] = MappingProxyType(
    {
        Finish.STOP: "stop",
        Finish.TOOL_CALLS: "tool_calls",
        Finish.LENGTH: "length",
        Finish.STOP_SEQUENCE: "stop",
        Finish.REFUSAL: "content_filter",
        # The answer is not complete; of OpenAI's words only this one says so. The native word goes beside it.
        Finish.PAUSE: "length",
        Finish.CONTEXT_WINDOW: "length",
    }
)


def finish_from_anthropic(stop_reason: str | None, *, has_calls: bool) -> Finish:
    """``stop_reason`` as a ``Finish``. Calls that came with an ``end_turn`` are calls.

    Raises ``DataError`` for an unknown or missing reason: it must not pass for a stop.
    """
    return _with_calls(_lookup(_FROM_ANTHROPIC, stop_reason, "stop_reason"), has_calls)


def finish_from_openai(finish_reason: str | None, *, has_calls: bool) -> Finish:
    """``finish_reason`` as a ``Finish``; see ``finish_from_anthropic``."""
    return _with_calls(_lookup(_FROM_OPENAI, finish_reason, "finish_reason"), has_calls)


def _lookup(table: Mapping[str, Finish], word: str | None, field: str) -> Finish:
    if word is None or word not in table:
        raise DataError(f"found {word!r}; expected one of {', '.join(table)}", field=field)
    return table[word]


def _with_calls(finish: Finish, has_calls: bool) -> Finish:
    return Finish.TOOL_CALLS if has_calls and finish is Finish.STOP else finish


def finish_to_anthropic(finish: Finish) -> str:
    """``stop_reason``; every ``Finish`` has its own."""
    return _TO_ANTHROPIC[finish]


def finish_to_openai(finish: Finish) -> tuple[str, str | None]:
    """``finish_reason``, and the native word to send beside it where OpenAI's is less exact."""
    word = _TO_OPENAI[finish]
    return word, None if _FROM_OPENAI[word] is finish else _TO_ANTHROPIC[finish]


@dataclass(frozen=True)
class TokenUsage:
    """Token counts of one answer; the four main ones are disjoint."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int | None = None
    """Part of ``output``; ``None`` when the provider does not say."""


def usage_from_openai(usage: Mapping[str, Any]) -> TokenUsage:
    """OpenAI's prompt tokens include the cached ones. Raises ``DataError`` for counts that cannot be."""
    details = usage.get("prompt_tokens_details") or {}
    read, write = _count(details, "cached_tokens"), _count(details, "cache_write_tokens")
    prompt = _count(usage, "prompt_tokens")
    if read + write > prompt:
        raise DataError(
            f"{read} cached and {write} written tokens of {prompt} prompt tokens; parts exceed the whole",
            field="usage.prompt_tokens_details",
        )
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return TokenUsage(
        input=prompt - read - write,
        output=_count(usage, "completion_tokens"),
        cache_read=read,
        cache_write=write,
        reasoning=reasoning,
    )


def usage_to_openai(usage: TokenUsage) -> dict[str, Any]:
    """``usage`` of a Chat Completions answer; the write counter is kept in its details."""
    prompt = usage.input + usage.cache_read + usage.cache_write
    out: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
    }
    if usage.cache_write:
        out["prompt_tokens_details"]["cache_write_tokens"] = usage.cache_write
    if usage.reasoning is not None:
        out["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return out


def usage_from_anthropic(usage: Mapping[str, Any]) -> TokenUsage:
    """Anthropic's counters are disjoint already. Raises ``DataError`` for negative or missing counts."""
    details = usage.get("output_tokens_details") or {}
    return TokenUsage(
        input=_count(usage, "input_tokens"),
        output=_count(usage, "output_tokens"),
        cache_read=_count(usage, "cache_read_input_tokens"),
        cache_write=_count(usage, "cache_creation_input_tokens"),
        reasoning=details.get("thinking_tokens", details.get("reasoning_tokens")),
    )


def usage_to_anthropic(usage: TokenUsage) -> dict[str, Any]:
    """``usage`` of a Messages answer."""
    out: dict[str, Any] = {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
    }
    if usage.reasoning is not None:
        out["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return out


def _count(usage: Mapping[str, Any], key: str) -> int:
    value = usage.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DataError(f"found {value!r}; expected a count of tokens", field=f"usage.{key}")
    return value


def tool_choice_to_anthropic(
    tool_choice: Any, parallel_tool_calls: bool | None, *, has_tools: bool, thinking: bool = False
) -> dict[str, Any] | None:
    """Anthropic's ``tool_choice`` for OpenAI's two fields; ``None`` means: send none.

    ``auto``→auto, ``required``→any, a named function→tool, ``none``→none. ``parallel_tool_calls`` alone rides on
    auto, so that it never forces a tool. Raises ``BadRequest`` for choices that Anthropic has no word for, and
    for a forced choice with thinking on.
    """
    if not has_tools:
        return None
    choice: dict[str, Any]
    if tool_choice is None:
        if parallel_tool_calls is None:
            return None
        choice = {"type": "auto"}
    elif isinstance(tool_choice, str) and tool_choice in ("auto", "none", "required"):
        choice = {"type": "any" if tool_choice == "required" else tool_choice}
    elif isinstance(tool_choice, Mapping) and tool_choice.get("type") == "function":
        name = (tool_choice.get("function") or {}).get("name")
        if not isinstance(name, str):
            raise BadRequest("expected the name of a function", param="tool_choice.function.name")
        choice = {"type": "tool", "name": name}
    else:
        raise BadRequest(
            f"found {tool_choice!r}; expected auto, none, required or a named function", param="tool_choice"
        )
    if thinking and choice["type"] in ("any", "tool"):
        raise BadRequest("a forced tool choice is refused while thinking is on; use auto", param="tool_choice")
    if parallel_tool_calls is not None and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = not parallel_tool_calls
    return choice


def tool_choice_to_openai(tool_choice: Mapping[str, Any] | None, *, has_tools: bool) -> dict[str, Any]:
    """OpenAI's fields (``tool_choice``, ``parallel_tool_calls``) for Anthropic's ``tool_choice``; only those said.

    Raises ``BadRequest`` for an unknown type.
    """
    if tool_choice is None or not has_tools:
        return {}
    kind = tool_choice.get("type")
    choices: Mapping[Any, Any] = {"auto": "auto", "any": "required", "none": "none"}
    out: dict[str, Any] = {}
    if kind == "tool" and isinstance(tool_choice.get("name"), str):
        out["tool_choice"] = {"type": "function", "function": {"name": tool_choice["name"]}}
    elif kind in choices:
        out["tool_choice"] = choices[kind]
    else:
        raise BadRequest(f"found {tool_choice!r}; expected auto, any, none or a named tool", param="tool_choice")
    if "disable_parallel_tool_use" in tool_choice and kind != "none":
        out["parallel_tool_calls"] = not tool_choice["disable_parallel_tool_use"]
    return out


class TokenLimit(NamedTuple):
    """``max_tokens`` of an Anthropic request and whether nobody asked for it."""

    max_tokens: int
    defaulted: bool


def max_tokens_to_anthropic(max_tokens: int | None, max_completion_tokens: int | None, *, default: int) -> TokenLimit:
    """Anthropic demands a limit; OpenAI has two names for it. ``default`` is the model's own output limit.

    Raises ``BadRequest`` when both names are given and differ, or the limit is below 1.
    """
    if max_tokens is not None and max_completion_tokens is not None and max_tokens != max_completion_tokens:
        raise BadRequest(
            f"max_tokens is {max_tokens} and max_completion_tokens is {max_completion_tokens}; send one",
            param="max_tokens",
        )
    limit = max_completion_tokens if max_completion_tokens is not None else max_tokens
    if limit is None:
        return TokenLimit(default, True)
    if limit < 1:
        raise BadRequest(f"found {limit}; expected at least 1", param="max_tokens")
    return TokenLimit(limit, False)


def check_thinking(thinking: Mapping[str, Any] | None, max_tokens: int) -> None:
    """Refuse a thinking budget that Anthropic would refuse. Raises ``BadRequest``."""
    if not thinking or thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or isinstance(budget, bool) or not MIN_THINKING_TOKENS <= budget < max_tokens:
        raise BadRequest(
            f"found {budget!r}; expected at least {MIN_THINKING_TOKENS} and less than max_tokens ({max_tokens})",
            param="thinking.budget_tokens",
        )
