"""The body that goes to a provider: the client's own with the model's name replaced, or a translation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from firstchair.chat.messages import Tool, ToolCall
from firstchair.gateway.config import Provider
from firstchair.gateway.control.slots import SlotConfig
from firstchair.gateway.dialects.base import ChatRequest, Dialect, Target, ToolChoice
from firstchair.gateway.json_bytes import encoded

_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")


class Outbound(NamedTuple):
    """What to send, and how to read what comes back."""

    body: bytes
    as_is: bool
    """The answer is in the client's own dialect and goes out as it came."""
    hide_usage: bool = False
    """The stream's usage was asked for by us, not by the client."""
    dropped: tuple[str, ...] = ()


def target_for(provider: Provider, model: str, slot: SlotConfig) -> Target:
    """What a translation is written for."""
    openai = provider.type == "openai"
    limit = provider.max_tokens_field or ("max_completion_tokens" if openai else "max_tokens")
    return Target(
        model=model,
        max_tokens_default=slot.max_tokens_default,
        max_tokens_field=limit,
        tool_images=slot.tool_images,
        mid_system=slot.mid_system,
        call_ids=provider.call_ids,
        reasoning="drop" if openai else "both",
        want_tokens=provider.want_tokens,
    )


def forwarded(body: Mapping[str, Any], provider: Provider, model: str, *, dialect: str) -> Outbound:
    """The client's body for a provider of the same dialect. A Responses request is never stored."""
    out = {**body, "model": model}
    hide_usage = False
    if dialect == "openai":
        if out.get("stream") is True:
            options = out.get("stream_options")
            asked = isinstance(options, dict) and options.get("include_usage") is True
            if not asked and isinstance(options, dict | None):
                # The ledger needs it.
                out["stream_options"] = {**(options or {}), "include_usage": True}
                hide_usage = True
        if provider.want_tokens:
            out |= {"return_token_ids": True, "logprobs": True}
        limit = provider.max_tokens_field
        other = next((name for name in _LIMIT_FIELDS if name != limit and out.get(name) is not None), None)
        if limit is not None and other is not None:
            out[limit] = out.pop(other)
    dropped: tuple[str, ...] = ()
    if dialect == "responses" and body.get("store") is not False:
        # Left out it means true at OpenAI, and nothing may be kept there that a client cannot see here.
        out["store"], dropped = False, ("store",)
    return Outbound(encoded(out), as_is=True, hide_usage=hide_usage, dropped=dropped)


def has_unsigned_thinking(raw: bytes, body: Mapping[str, Any]) -> bool:
    """Whether a Messages history shows thinking without a signature: another vendor's, which Anthropic refuses."""
    if b'"thinking"' not in raw:
        return False
    return any(
        isinstance(block, dict) and block.get("type") == "thinking" and not block.get("signature")
        for message in body["messages"]
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for block in message["content"]
    )


def translated(request: ChatRequest, dialect: Dialect, target: Target) -> Outbound:
    """The request in another dialect. Raises ``BadRequest`` for what that cannot carry and must not drop."""
    written = dialect.write_request(request, target)
    return Outbound(encoded(written.body), as_is=False, dropped=written.dropped)


def constrained(request: ChatRequest, calls: Sequence[ToolCall]) -> ChatRequest:
    """``request`` with the answer bound to the tools' schemas, after ``calls`` that no tool could take.

    The tool is named when there was one call of a known tool; else any call is demanded. Where thinking forbids a
    forced choice, only the schemas are made strict.
    """
    tools = tuple(
        Tool(name=tool.name, description=tool.description, parameters=tool.parameters, extra=_strict(tool.extra))
        for tool in request.tools
    )
    names = {call.name for call in calls} & {tool.name for tool in tools}
    choice = ToolChoice("tool", names.pop()) if len(names) == 1 and len(calls) == 1 else ToolChoice("required")
    if request.thinking is not None and request.thinking.get("type") != "disabled":
        return msgspec.structs.replace(request, tools=tools)
    return msgspec.structs.replace(request, tools=tools, tool_choice=choice)


def _strict(extra: Mapping[str, Any]) -> dict[str, Any]:
    return {**extra, "openai": {**extra.get("openai", {}), "strict": True}}
