"""The requests that an orchestrator accepts: Chat Completions, and a field ``firstchair`` of our own."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import msgspec

from firstchair.chat.messages import CallMark, Message, TextPart, ThinkingPart
from firstchair.core.errors import BadRequest
from firstchair.rollout.actor_requests import Ask, ChatRequest, ToolCache, ask_of, decoded, refuse

MAX_BUDGET_USD = 1_000_000
WEIGHED = ("accuracy", "cost", "latency")
"""What a preference may weigh beside tools."""


class Wishes(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a request says of its orchestration; ``None``: as the server is set up."""

    budget_usd: float | None = None
    preference: dict[str, float] | None = None
    max_steps: int | None = None
    trace: bool = False
    """Whether the answer holds every call and the conversation with the policy."""


class RoutedRequest(ChatRequest, forbid_unknown_fields=True, kw_only=True):
    """A Chat Completions body. Sampling fields are accepted and have no effect: the policy has its own settings."""

    firstchair: Wishes | None = None


@dataclass(frozen=True)
class Asked:
    """One request that can be answered."""

    ask: Ask
    wishes: Wishes


_decoder = msgspec.json.Decoder(RoutedRequest)


def read_request(body: bytes, *, max_steps: int, names: Container[str]) -> Asked:
    """A Chat Completions body. ``max_steps``: the most that may be asked for; ``names``: what can be called here.

    Raises ``BadRequest`` naming the field.
    """
    request = decoded(_decoder, body)
    has_tools = bool(msgspec.json.decode(request.tools))
    refuse("tools", has_tools, "tools of the client cannot be called from here: the server's own are; send none")
    ask, wishes = ask_of(request, ToolCache(1)), request.firstchair or Wishes()
    _check_messages(ask.messages)
    _check(wishes, max_steps, names)
    return Asked(ask, wishes)


def _check_messages(messages: Sequence[Message]) -> None:
    for index, message in enumerate(messages):
        has_other = any(not isinstance(part, TextPart | ThinkingPart | CallMark) for part in message.content)
        refuse(f"messages[{index}].content", has_other, "only text can be read here; leave images and files out")
    last = len(messages) - 1
    refuse(f"messages[{last}].role", messages[last].role != "user", "the last message must be the user's")
    refuse(f"messages[{last}].content", not messages[last].text.strip(), "is empty; say what is wanted")


def _check(wishes: Wishes, max_steps: int, names: Container[str]) -> None:
    budget, steps = wishes.budget_usd, wishes.max_steps
    if budget is not None and not 0 < budget <= MAX_BUDGET_USD:
        raise BadRequest(
            f"found {budget:g}; expected more than 0 and at most {MAX_BUDGET_USD:,} US dollars, or no such field",
            param="firstchair.budget_usd",
        )
    if steps is not None and not 1 <= steps <= max_steps:
        raise BadRequest(f"found {steps}; expected 1 to {max_steps}", param="firstchair.max_steps")
    if wishes.preference is not None:
        check_preference(wishes.preference, names)


def check_preference(preference: dict[str, float], names: Container[str]) -> None:
    """Raise ``BadRequest`` for a weight of something that is not here, or that is below 0."""
    for name, weight in preference.items():
        param = f"firstchair.preference.{name}"
        if name not in WEIGHED and name not in names:
            raise BadRequest(f"nothing has this name; expected {', '.join(WEIGHED)} or a tool", param=param)
        if not 0 <= weight < float("inf"):
            raise BadRequest(f"found {weight:g}; expected a weight of at least 0", param=param)
