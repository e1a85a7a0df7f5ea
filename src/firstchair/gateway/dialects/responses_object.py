"""The ``response`` object: what a whole answer is and what the stream's events carry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from firstchair.catalog.token_counts import TokenCounts
from firstchair.catalog.usage import counts_from_openai, counts_to_openai
from firstchair.chat.openai_wire import tools_to_openai
from firstchair.chat.wire_request import Finish
from firstchair.core.errors import DataError
from firstchair.gateway.dialects.base import ChatRequest, Failure, FailureKind, ToolChoice

_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9]")
_INCOMPLETE = {
    Finish.LENGTH: "max_output_tokens",
    Finish.PAUSE: "max_output_tokens",
    Finish.CONTEXT_WINDOW: "max_output_tokens",
    Finish.REFUSAL: "content_filter",
}
_INEXACT = {Finish.PAUSE: "pause_turn", Finish.CONTEXT_WINDOW: "model_context_window_exceeded"}
"""Endings that this wire has no word for; their own goes beside, as ``native_finish_reason``."""
_ECHOED = ("metadata", "service_tier", "prompt_cache_key", "safety_identifier", "max_tool_calls", "top_logprobs")


class Ids:
    """Ids of a response and of its items, all told by the id of the answer."""

    def __init__(self, answer_id: str):
        self._core = _NOT_IN_AN_ID.sub("", answer_id.removeprefix("chatcmpl-").removeprefix("msg_")) or "0"
        self.response = answer_id if answer_id.startswith("resp_") else f"resp_{self._core}"

    def item(self, kind: str, index: int) -> str:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        return f"{prefix}_{self._core}_{index}"


def response_object(request: ChatRequest, *, response_id: str, model: str, status: str) -> dict[str, Any]:
    """A response without output and usage, with what the client asked for as the API tells it back."""
    echoed = {key: request.extra[key] for key in _ECHOED if request.extra.get(key) is not None}
    first = request.messages[0] if request.messages else None
    reasoning = {"effort": request.reasoning_effort, "summary": request.extra.get("reasoning.summary")}
    text: dict[str, Any] = {"format": format_to_responses(request.response_format)}
    if "text.verbosity" in request.extra:
        text["verbosity"] = request.extra["text.verbosity"]
    return {
        "id": response_id,
        "object": "response",
        "created_at": request.received_s,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": first.text if first is not None and first.role == "system" else None,
        "max_output_tokens": request.max_tokens,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": reasoning,
        "store": False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": text,
        "tool_choice": choice_to_responses(request.tool_choice) or "auto",
        "tools": tools_to_responses(request, []),
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.extra.get("truncation") or "disabled",
        "usage": None,
        "user": request.user,
        **echoed,
    }


def ended(base: dict[str, Any], finish: Finish, output: list[dict[str, Any]], usage: Any) -> dict[str, Any]:
    """``base`` as it is when the answer is there."""
    reason = _INCOMPLETE.get(finish)
    body = {**base, "status": "incomplete" if reason else "completed", "output": output, "usage": usage}
    if reason:
        body["incomplete_details"] = {"reason": reason}
    if finish in _INEXACT:
        body["native_finish_reason"] = _INEXACT[finish]
    return body


def item_status(finish: Finish, *, last: bool) -> str:
    """Only the last item can be what the ending cut."""
    return "incomplete" if last and finish in _INCOMPLETE else "completed"


def finish_of(body: Mapping[str, Any], *, has_calls: bool) -> tuple[Finish, str]:
    """The ending in a response, and its own word. Raises ``DataError`` for one that is none."""
    status = body.get("status")
    if status == "completed":
        return (Finish.TOOL_CALLS if has_calls else Finish.STOP), "completed"
    details = body.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, Mapping) else None
    if status != "incomplete":
        raise DataError(f"found {status!r}; expected completed or incomplete", field="status")
    native = body.get("native_finish_reason")
    for finish, word in _INEXACT.items():
        if native == word:
            return finish, word
    if reason == "max_output_tokens":
        return Finish.LENGTH, reason
    if reason == "content_filter":
        return Finish.REFUSAL, reason
    raise DataError(
        f"found {reason!r}; expected max_output_tokens or content_filter", field="incomplete_details.reason"
    )


def usage_to_responses(counts: TokenCounts) -> dict[str, Any]:
    """``usage`` of a response."""
    chat = counts_to_openai(counts)
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {"cache_write_tokens": 0, **chat["prompt_tokens_details"]},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": counts.reasoning or 0},
        "total_tokens": chat["total_tokens"],
    }


def usage_from_responses(usage: Any) -> TokenCounts | None:
    """Counters of a response's ``usage``; ``None`` when it says nothing that can be."""
    if not isinstance(usage, Mapping):
        return None
    return counts_from_openai(
        {
            "prompt_tokens": usage.get("input_tokens"),
            "prompt_tokens_details": usage.get("input_tokens_details"),
            "completion_tokens": usage.get("output_tokens"),
            "completion_tokens_details": usage.get("output_tokens_details"),
        }
    )


def tools_to_responses(request: ChatRequest, dropped: list[str]) -> list[dict[str, Any]]:
    """The tools as this wire writes them."""
    out = []
    for row in tools_to_openai(request.tools, dropped=dropped):
        if row["type"] != "function":
            raise DataError(f"a tool of type {row['type']!r}, which this wire has not", field="tools")
        out.append({"type": "function", "parameters": None, "strict": None, **row["function"]})
    return out


def choice_to_responses(choice: ToolChoice | None) -> Any:
    if choice is None:
        return None
    return {"type": "function", "name": choice.name} if choice.kind == "tool" else choice.kind


def format_to_responses(response_format: Mapping[str, Any] | None) -> dict[str, Any]:
    """``text.format`` of Chat Completions' ``response_format``."""
    if response_format is None:
        return {"type": "text"}
    return {"type": response_format["type"], **response_format.get("json_schema", {})}


def error_of(failure: Failure) -> dict[str, Any]:
    """``error`` of a failed response; the API has few codes."""
    limited = failure.kind in (FailureKind.RATE_LIMIT, FailureKind.BUDGET)
    return {"code": "rate_limit_exceeded" if limited else "server_error", "message": failure.message}
