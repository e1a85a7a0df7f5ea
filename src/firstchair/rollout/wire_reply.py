"""An API's answer, in either dialect, as a policy's reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from firstchair.chat.anthropic_wire import message_from_anthropic_response
from firstchair.chat.messages import Tool
from firstchair.chat.openai_wire import message_from_openai_response
from firstchair.chat.wire_request import (
    finish_from_anthropic,
    finish_from_openai,
    usage_from_anthropic,
    usage_from_openai,
)
from firstchair.core.errors import DataError
from firstchair.engines.stops import stop_of
from firstchair.rollout.engine_policy import reply_of_message
from firstchair.rollout.policy import PolicyReply
from firstchair.traces.session import ModelCall, Usage

Dialect = Literal["openai", "anthropic"]


@dataclass(frozen=True)
class Timing:
    """When a call was made and how long its answer took."""

    started_at: str
    latency_ms: float


def read_reply(
    dialect: Dialect, payload: Mapping[str, Any], tools: tuple[Tool, ...], timing: Timing, *, provider: str
) -> PolicyReply:
    """The reply in ``payload``, with its record. Raises ``DataError`` when it is not what the API promises."""
    if dialect == "openai":
        message = message_from_openai_response(payload)
        has_calls = bool(message.tool_calls)
        finish = finish_from_openai(payload["choices"][0].get("finish_reason"), has_calls=has_calls)
        usage = usage_from_openai(payload.get("usage") or {})
    else:
        message = message_from_anthropic_response(payload)
        finish = finish_from_anthropic(payload.get("stop_reason"), has_calls=bool(message.tool_calls))
        usage = usage_from_anthropic(payload.get("usage") or {})
    stop, call_id, model = stop_of(finish), payload.get("id"), payload.get("model")
    if not isinstance(call_id, str):
        raise DataError("found no id; every answer has one", field="id")
    call = ModelCall(
        call_id=call_id,
        provider=provider,
        model=model if isinstance(model, str) else "",
        started_at=timing.started_at,
        latency_ms=round(timing.latency_ms, 3),
        usage=Usage(
            input=usage.input, output=usage.output, cache_read=usage.cache_read, cache_write=usage.cache_write
        ),
    )
    return reply_of_message(message, tools, stop, call)
